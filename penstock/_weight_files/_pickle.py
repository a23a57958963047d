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
from typing import Any, BinaryIO

from penstock._weight_files._file import Refusal


@dataclass(frozen=True)
class Constructor:
    """What a global of a pickle stands for: builds a value from the arguments in the pickle."""

    build: Callable[[tuple[Any, ...]], Any]


class Restorable:
    """A value that takes a state after it was built, as a pickle's `BUILD` gives it."""

    def restore(self, state: Any) -> None:
        """Take the state, or leave it."""


def load(
    file: BinaryIO,
    names: Mapping[str, Any],
    resolve: Callable[[Any], Any] | None = None,
) -> Any:
    """Return the value of the pickle at a file's position, and leave the position after it.

    Arguments:
      file: where the pickle begins. In memory, as lengths in a damaged pickle may be huge.
      names: `"module name"` -> a `Constructor`, or a value, for each global that may occur.
      resolve: turns the pickle's references to what is stored beside it into values.

    Raises:
      Refusal: it is damaged, holds another global, or does what plain data does not.
    """
    machine = _Machine(names, resolve)
    try:
        while True:
            instruction = INSTRUCTIONS.get(file.read(1))
            if instruction is None:
                raise machine.damaged(f"no instruction at byte {file.tell()}")
            name = instruction.name
            if name == STOP:
                return machine.pop()
            _check(name)  # before its argument is read, which may be anything
            machine.step(name, _argument(instruction, file))
    except Refusal:
        raise
    except (ValueError, OverflowError) as error:  # what pickletools raises for what is no pickle
        raise Refusal(
            f"got a damaged pickle ({error}), expected one that torch.save wrote. Download it "
            "again."
        ) from error


def _check(name: str) -> None:
    """Raise unless an instruction is one that plain data needs."""
    if not (name in LITERALS or name in CONSTANTS or name in STEPS or name in WITHOUT_EFFECT):
        raise Refusal(
            f"got the pickle instruction {name}, expected plain data and tensors. It is never "
            "carried out, as it may run code. Save the state dict alone, as safetensors."
        )


def _argument(instruction: pickletools.OpcodeInfo, file: BinaryIO) -> Any:
    """Read what an instruction has after its byte."""
    if instruction.name != "GLOBAL":
        return instruction.arg.reader(file) if instruction.arg else None
    # pickletools would undo escapes in the two names, and warn of those that are none.
    lines = [file.readline(), file.readline()]
    if not all(line.endswith(b"\n") for line in lines):
        raise ValueError("a global without its two names")
    return " ".join(line[:-1].decode("utf-8") for line in lines)


@dataclass
class _Machine:
    """The stack, the marks in it and the memo of one pickle."""

    names: Mapping[str, Any]
    resolve: Callable[[Any], Any] | None
    stack: list[Any] = field(default_factory=list)
    marked: list[list[Any]] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def step(self, name: str, argument: Any) -> None:
        """Carry out one instruction."""
        if name in LITERALS:
            self.stack.append(argument)
        elif name in CONSTANTS:
            self.stack.append(CONSTANTS[name])
        elif name in STEPS:
            STEPS[name](self, argument)

    def pop(self) -> Any:
        """Take the value on top of the stack."""
        if not self.stack:
            raise self.damaged("an instruction without its values")
        return self.stack.pop()

    def top(self, kind: type, what: str) -> Any:
        """Return the value on top of the stack, which must be of exactly this kind."""
        if not self.stack or type(self.stack[-1]) is not kind:
            raise self.damaged(f"{what} something else")
        return self.stack[-1]

    def damaged(self, what: str) -> Refusal:
        """Return the error for a pickle that no pickler wrote."""
        return Refusal(
            f"got a damaged pickle ({what}), expected one that torch.save wrote. Download it again."
        )

    def mark(self, _: Any) -> None:
        """Begin a group of values."""
        self.marked.append(self.stack)
        self.stack = []

    def pop_marked(self) -> list[Any]:
        """Take the values since the last mark."""
        if not self.marked:
            raise self.damaged("a group that never began")
        values, self.stack = self.stack, self.marked.pop()
        return values

    def empty_dict(self, _: Any) -> None:
        """Push a new dict."""
        self.stack.append({})

    def empty_list(self, _: Any) -> None:
        """Push a new list."""
        self.stack.append([])

    def marked_tuple(self, _: Any) -> None:
        """Turn the marked values into a tuple."""
        values = self.pop_marked()
        self.stack.append(tuple(values))

    def short_tuple(self, count: int) -> None:
        """Turn the last values into a tuple."""
        values = [self.pop() for _ in range(count)]
        self.stack.append(tuple(reversed(values)))

    def append(self, _: Any) -> None:
        """Put the last value into the list under it."""
        value = self.pop()
        self.top(list, "appending to").append(value)

    def appends(self, _: Any) -> None:
        """Put the marked values into the list under them."""
        values = self.pop_marked()
        self.top(list, "appending to").extend(values)

    def set_item(self, _: Any) -> None:
        """Put the last key and value into the dict under them."""
        value, key = self.pop(), self.pop()
        self._set([key, value])

    def set_items(self, _: Any) -> None:
        """Put the marked keys and values into the dict under them."""
        self._set(self.pop_marked())

    def _set(self, values: list[Any]) -> None:
        items = self.top(dict, "setting items of")
        keys = values[::2]
        if len(values) % 2 or not all(key is None or type(key) in KEY_TYPES for key in keys):
            raise self.damaged("a dict whose keys are not strings or numbers")
        items.update(zip(keys, values[1::2], strict=True))

    def put(self, index: int) -> None:
        """Remember the value on top of the stack under a number."""
        value = self.pop()
        self.stack.append(value)
        self.memo[index] = value

    def memoize(self, _: Any) -> None:
        """Remember the value on top of the stack under the next number."""
        self.put(len(self.memo))

    def get(self, index: int) -> None:
        """Push a value that was remembered."""
        if index not in self.memo:
            raise self.damaged(f"the value {index} that was never stored")
        self.stack.append(self.memo[index])

    def named(self, name: str) -> None:
        """Push what a global stands for."""
        if name not in self.names:
            # Names of a hostile file may be of any length.
            raise Refusal(
                f"got the global {'.'.join(name[:200].split(' '))} in its pickle, expected tensors "
                "in dicts. It is never imported, as it may run code. Save the state dict alone: "
                "torch.save(model.state_dict(), ...), or as safetensors."
            )
        self.stack.append(self.names[name])

    def stack_named(self, _: Any) -> None:
        """Push what a global stands for, whose two names lie on the stack."""
        name, module = self.pop(), self.pop()
        if type(name) is not str or type(module) is not str:
            raise self.damaged("a global whose name is no string")
        self.named(f"{module} {name}")

    def call(self, _: Any) -> None:
        """Build a value from a constructor and its arguments."""
        arguments, constructor = self.pop(), self.pop()
        if type(constructor) is not Constructor or type(arguments) is not tuple:
            raise self.damaged("a call of what is no constructor")
        self.stack.append(constructor.build(arguments))

    def build(self, _: Any) -> None:
        """Give the last value, a state, to the one under it."""
        state = self.pop()
        target = self.stack[-1] if self.stack else None
        if isinstance(target, Restorable):
            target.restore(state)
        # The attributes of an OrderedDict: a state dict's `_metadata`, the versions of its modules.
        elif type(target) is not dict:
            raise self.damaged("a state for what has none")

    def refer(self, _: Any) -> None:
        """Push what the last value refers to."""
        if self.resolve is None:
            raise self.damaged("a reference where none may be")
        self.stack.append(self.resolve(self.pop()))


KEY_TYPES = (str, int, float, bool)
INSTRUCTIONS: Mapping[bytes, pickletools.OpcodeInfo] = MappingProxyType(
    {opcode.code.encode("latin-1"): opcode for opcode in pickletools.opcodes}
)
STOP = "STOP"
WITHOUT_EFFECT = frozenset({"PROTO", "FRAME"})
LITERALS = frozenset({
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT",
    "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINSTRING", "SHORT_BINSTRING",  # strings of Python 2, which wrote the oldest files
})  # fmt: skip
CONSTANTS: Mapping[str, Any] = MappingProxyType(
    {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
)
STEPS: Mapping[str, Callable[[_Machine, Any], None]] = MappingProxyType(
    {
        "MARK": _Machine.mark,
        "EMPTY_DICT": _Machine.empty_dict,
        "EMPTY_LIST": _Machine.empty_list,
        "TUPLE": _Machine.marked_tuple,
        "TUPLE1": lambda machine, _: machine.short_tuple(1),
        "TUPLE2": lambda machine, _: machine.short_tuple(2),
        "TUPLE3": lambda machine, _: machine.short_tuple(3),
        "APPEND": _Machine.append,
        "APPENDS": _Machine.appends,
        "SETITEM": _Machine.set_item,
        "SETITEMS": _Machine.set_items,
        "BINPUT": _Machine.put,
        "LONG_BINPUT": _Machine.put,
        "MEMOIZE": _Machine.memoize,
        "BINGET": _Machine.get,
        "LONG_BINGET": _Machine.get,
        "GLOBAL": _Machine.named,
        "STACK_GLOBAL": _Machine.stack_named,
        "REDUCE": _Machine.call,
        "NEWOBJ": _Machine.call,
        "BUILD": _Machine.build,
        "BINPERSID": _Machine.refer,
    }
)
