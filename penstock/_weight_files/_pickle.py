"""Pickles of plain data and named constructors, read without Python's unpickler.

Nothing of penstock is stored as a pickle, since loading one may run any code. Torch's `.pth` files
are pickles all the same, and this reads them without that power. Python's unpickler is not used at
all, not even restricted: `pickletools` only says what each byte means and reads its argument, and
this file carries out the instructions that plain data needs, on its own stack. Why no code can run:

- A global is looked up in a table of ours, by its two names. Nothing is imported and no attribute
  is fetched, so a name is either one of ours or an error.
- What is called are functions of that table alone, which check their arguments and build data.
- The objects built are numbers, strings, lists, tuples, dicts and values of our own classes. An
  instruction acts on them by their exact kind; none looks for a method such as `__setstate__`,
  `__reduce__` or `append` on an object.
- An instruction that is not listed here is an error: `INST`, `OBJ`, `EXT1`, `NEWOBJ_EX` and others
  that make objects, and all of protocol 0, which no such file needs.

Nor can a small file take much memory or time: every value takes bytes of the file, dict keys are
scalars (the hash of tuples nested in tuples takes exponential time), and the memo is a dict.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, BinaryIO, TypeVar

from penstock._weight_files._file import WeightFileError

T = TypeVar("T")


@dataclass(frozen=True)
class Constructor:
    """What a global of a pickle stands for: builds a value from the arguments in the pickle."""

    build: Callable[[tuple[object, ...]], object]


class Restorable:
    """A value that takes a state after it was built, as a pickle's `BUILD` gives it."""

    def restore(self, state: object) -> None:
        """Take the state, or ignore it."""


def load(
    file: BinaryIO,
    names: Mapping[str, object],
    resolve: Callable[[object], object] | None = None,
) -> object:
    """Read the pickle at a file's position, and leave the position behind it.

    Arguments:
      file: where the pickle begins. In memory, as lengths in a damaged pickle may be huge.
      names: `"module name"` -> a `Constructor`, or a value, for each global that may occur.
      resolve: turns the pickle's references to what is stored beside it into values.

    Raises:
      WeightFileError: it is damaged, holds another global, or does what plain data does not.
    """
    machine = _Machine(names, resolve)
    try:
        while True:
            instruction = INSTRUCTIONS.get(file.read(1))
            if instruction is None:
                raise machine.damage_error(f"no instruction at byte {file.tell()}")
            name = instruction.name
            if name == STOP:
                return machine.pop()
            # Before its argument is read: an instruction that is refused may have one of any size.
            _check_is_allowed(name)
            machine.step(name, _read_argument(instruction, file))
    except WeightFileError:
        raise
    # pickletools raises these for bytes that are no pickle.
    except (ValueError, OverflowError) as error:
        raise WeightFileError(
            f"got a damaged pickle ({error}), expected one that torch.save wrote. Download it "
            "again."
        ) from error


def _check_is_allowed(name: str) -> None:
    """Raise unless plain data needs the instruction."""
    if name not in LITERALS | CONSTANTS.keys() | STEPS.keys() | WITHOUT_EFFECT:
        raise WeightFileError(
            f"got the pickle instruction {name}, expected plain data and tensors. It is never "
            "carried out, as it may run code. Save the state dict alone, as safetensors."
        )


def _read_argument(instruction: pickletools.OpcodeInfo, file: BinaryIO) -> object:
    """Read the argument that follows an instruction's byte."""
    if instruction.name != "GLOBAL":
        return instruction.arg.reader(file) if instruction.arg else None
    # pickletools would undo escapes in the two names, and warn of invalid ones.
    lines = [file.readline(), file.readline()]
    if not all(line.endswith(b"\n") for line in lines):
        raise ValueError("a global without its two names")
    return " ".join(line[:-1].decode("utf-8") for line in lines)


@dataclass
class _Machine:
    """The stack, the marks in it and the memo of one pickle."""

    names: Mapping[str, object]
    resolve: Callable[[object], object] | None
    stack: list[object] = field(default_factory=list)
    # The stacks that were put aside by the marks before this one.
    outer_stacks: list[list[object]] = field(default_factory=list)
    memo: dict[int, object] = field(default_factory=dict)

    def step(self, name: str, argument: object) -> None:
        """Carry out one instruction."""
        if name in LITERALS:
            self.stack.append(argument)
        elif name in CONSTANTS:
            self.stack.append(CONSTANTS[name])
        elif name in STEPS:
            STEPS[name](self, argument)

    def pop(self) -> object:
        """Take the value on top of the stack."""
        if not self.stack:
            raise self.damage_error("an instruction without its values")
        return self.stack.pop()

    def peek(self, kind: type[T], action: str) -> T:
        """Return the value on top of the stack, which must be of exactly this kind."""
        # Not isinstance: a subclass could have methods of its own.
        if not self.stack or type(self.stack[-1]) is not kind:
            raise self.damage_error(f"{action} something else")
        return self.stack[-1]

    def damage_error(self, what: str) -> WeightFileError:
        """Return the error for a pickle that no pickler wrote."""
        return WeightFileError(
            f"got a damaged pickle ({what}), expected one that torch.save wrote. Download it again."
        )

    def mark(self) -> None:
        """Begin a group of values."""
        self.outer_stacks.append(self.stack)
        self.stack = []

    def pop_marked(self) -> list[object]:
        """Take the values since the last mark."""
        if not self.outer_stacks:
            raise self.damage_error("a group that never began")
        values, self.stack = self.stack, self.outer_stacks.pop()
        return values

    def push_tuple_of_marked(self) -> None:
        """Turn the marked values into a tuple."""
        values = self.pop_marked()
        self.stack.append(tuple(values))

    def push_tuple(self, length: int) -> None:
        """Turn the last values into a tuple."""
        values = [self.pop() for _ in range(length)]
        self.stack.append(tuple(reversed(values)))

    def extend_list(self, values: list[object]) -> None:
        """Append values to the list on top of the stack."""
        self.peek(list, "appending to").extend(values)

    def update_dict(self, items: list[object]) -> None:
        """Set items of the dict on top of the stack; keys and values alternate."""
        target = self.peek(dict, "setting items of")
        keys = items[::2]
        if len(items) % 2 or not all(key is None or type(key) in KEY_TYPES for key in keys):
            raise self.damage_error("a dict whose keys are not strings or numbers")
        target.update(zip(keys, items[1::2], strict=True))

    def remember(self, index: int) -> None:
        """Remember the value on top of the stack under a number."""
        value = self.pop()
        self.stack.append(value)
        self.memo[index] = value

    def recall(self, index: int) -> None:
        """Push a value that was remembered."""
        if index not in self.memo:
            raise self.damage_error(f"the value {index} that was never stored")
        self.stack.append(self.memo[index])

    def push_global(self, name: str) -> None:
        """Push what a global stands for."""
        if name not in self.names:
            # Names in a hostile file may be of any length.
            raise WeightFileError(
                f"got the global {'.'.join(name[:200].split(' '))} in its pickle, expected tensors "
                "in dicts. It is never imported, as it may run code. Save the state dict alone: "
                "torch.save(model.state_dict(), ...), or as safetensors."
            )
        self.stack.append(self.names[name])

    def push_global_of_stack(self) -> None:
        """Push what a global stands for, whose two names lie on the stack."""
        name, module = self.pop(), self.pop()
        if type(name) is not str or type(module) is not str:
            raise self.damage_error("a global whose name is no string")
        self.push_global(f"{module} {name}")

    def call(self) -> None:
        """Build a value from a constructor and its arguments."""
        arguments, constructor = self.pop(), self.pop()
        if type(constructor) is not Constructor or type(arguments) is not tuple:
            raise self.damage_error("a call of what is no constructor")
        self.stack.append(constructor.build(arguments))

    def restore(self) -> None:
        """Give the last value, a state, to the one under it."""
        state = self.pop()
        target = self.stack[-1] if self.stack else None
        if isinstance(target, Restorable):
            target.restore(state)
        # The attributes of an OrderedDict: a state dict's `_metadata`, the versions of its modules.
        elif type(target) is not dict:
            raise self.damage_error("a state for what has none")

    def follow_reference(self) -> None:
        """Push what the last value refers to."""
        if self.resolve is None:
            raise self.damage_error("a reference where none may be")
        self.stack.append(self.resolve(self.pop()))


# The keys that a dict may have. Tuples are left out: hashing nested ones takes exponential time.
KEY_TYPES = (str, int, float, bool)
INSTRUCTIONS: Mapping[bytes, pickletools.OpcodeInfo] = MappingProxyType(
    {opcode.code.encode("latin-1"): opcode for opcode in pickletools.opcodes}
)
STOP = "STOP"
WITHOUT_EFFECT = frozenset({"PROTO", "FRAME"})
LITERALS = frozenset({
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT",
    "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    # Strings of Python 2, which wrote the oldest files.
    "BINSTRING", "SHORT_BINSTRING",
})  # fmt: skip
CONSTANTS: Mapping[str, object] = MappingProxyType(
    {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
)
# Each takes the machine and the instruction's argument, which most instructions do not have.
STEPS: Mapping[str, Callable[[_Machine, Any], None]] = MappingProxyType(
    {
        "MARK": lambda machine, _: machine.mark(),
        "EMPTY_DICT": lambda machine, _: machine.stack.append({}),
        "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
        "TUPLE": lambda machine, _: machine.push_tuple_of_marked(),
        "TUPLE1": lambda machine, _: machine.push_tuple(1),
        "TUPLE2": lambda machine, _: machine.push_tuple(2),
        "TUPLE3": lambda machine, _: machine.push_tuple(3),
        "APPEND": lambda machine, _: machine.extend_list([machine.pop()]),
        "APPENDS": lambda machine, _: machine.extend_list(machine.pop_marked()),
        "SETITEM": lambda machine, _: machine.update_dict([machine.pop(), machine.pop()][::-1]),
        "SETITEMS": lambda machine, _: machine.update_dict(machine.pop_marked()),
        "BINPUT": _Machine.remember,
        "LONG_BINPUT": _Machine.remember,
        "MEMOIZE": lambda machine, _: machine.remember(len(machine.memo)),
        "BINGET": _Machine.recall,
        "LONG_BINGET": _Machine.recall,
        "GLOBAL": _Machine.push_global,
        "STACK_GLOBAL": lambda machine, _: machine.push_global_of_stack(),
        "REDUCE": lambda machine, _: machine.call(),
        "NEWOBJ": lambda machine, _: machine.call(),
        "BUILD": lambda machine, _: machine.restore(),
        "BINPERSID": lambda machine, _: machine.follow_reference(),
    }
)
