"""Pickles of plain data and named constructors, read with an unpickler that cannot run code.

Nothing of penstock is stored as a pickle, since loading one may run any code. Files of torch and
Paddle are pickles all the same, and this reads them without that power. Python's own unpickler, the
one in Python, reads the instructions and keeps the stack; every instruction that looks a name up,
calls, or asks an object for a method is replaced here. Why no code can run:

- `dispatch` holds the instructions that are written here or do no more than push plain data. Any
  other is an error: `INST`, `OBJ`, `EXT1`, `NEWOBJ_EX` and others that make objects, and all of
  protocol 0, which no such file needs.
- A global is looked up in a table of ours, by its two names. Nothing is imported and no attribute
  is fetched: a name is one of ours, or it becomes a `StandIn`, which stands for whatever it was
  (the arguments of a training script, a path, an optimizer) and does nothing.
- What is called are functions of that table alone, which check their arguments and build data.
- The objects built are numbers, strings, lists, tuples, dicts and values of our own classes. An
  instruction acts on them by their exact kind; none looks for a method such as `__setstate__`,
  `__reduce__` or `append` on an object.

Nor can a small file take much memory or time: every value takes bytes of the file, and so does all
that is handed to a function or to `BUILD` together, though a value may be used many times, but for
bytes, of which arrays are views; dict keys are scalars (the hash of tuples nested in tuples takes
exponential time), and the memo is a dict.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import pickletools
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from penstock._weight_files._file import WeightFileError


@dataclass(frozen=True)
class Constructor:
    """What a global of a pickle stands for: builds a value from the arguments in the pickle."""

    build: Callable[[tuple[object, ...]], object]


@dataclass(frozen=True, eq=False)
class StandIn:
    """Stands for a global that is not listed, `module.name`, and for all that is made of it."""

    name: str


class Restorable:
    """A value that takes a state after it was built, as a pickle's `BUILD` gives it."""

    def restore(self, state: object) -> None:
        """Take the state, or ignore it."""


def load(
    file: io.BytesIO | mmap.mmap,
    names: Mapping[str, object],
    resolve: Callable[[object], object] | None = None,
) -> object:
    """Read the pickle at a file's position, and leave the position behind it.

    Arguments:
      file: where the pickle begins. In memory, as lengths in a damaged pickle may be huge.
      names: `"module name"` -> a `Constructor`, or a value, for each global that means something.
      resolve: turns the pickle's references to what is stored beside it into values.
    """
    try:
        return _Unpickler(file, names, resolve).load()
    except WeightFileError:
        raise
    # What Python's unpickler raises for bytes that are no pickle.
    except (
        pickle.UnpicklingError, EOFError, IndexError, KeyError, ValueError, OverflowError,
        struct.error,
    ) as error:  # fmt: skip
        raise _damage_error(str(error) or type(error).__name__) from error


def _damage_error(what: str) -> WeightFileError:
    return WeightFileError(
        f"got a damaged pickle ({what[:200]}), expected one that torch or Paddle saved. Download "
        "it again."
    )


class _Instructions(dict[int, Callable[[Any], None]]):
    """The instructions that plain data needs, by their byte."""

    def __missing__(self, byte: int) -> Callable[[Any], None]:
        """Refuse an instruction, before its argument, which may be of any size, is read."""
        opcode = next((op for op in pickletools.opcodes if op.code == chr(byte)), None)
        if opcode is None:
            raise _damage_error(f"no instruction has the byte {byte}")
        raise WeightFileError(
            f"got the pickle instruction {opcode.name}, expected plain data and tensors. It is "
            "never carried out, as it may run code. Save the state dict alone, as safetensors."
        )


# `pickle.Unpickler` is the one in C, whose instructions cannot be replaced.
_PythonUnpickler: Any = cast("Any", pickle)._Unpickler


class _Unpickler(_PythonUnpickler):
    """Python's unpickler with other instructions."""

    def __init__(
        self,
        file: io.BytesIO | mmap.mmap,
        names: Mapping[str, object],
        resolve: Callable[[object], object] | None,
    ) -> None:
        # Strings of Python 2, which wrote the oldest files, may be the bytes of an array.
        super().__init__(file, encoding="latin-1")
        self.names, self.resolve = names, resolve
        position = file.tell()
        file.seek(0, os.SEEK_END)
        self.left = file.tell() - position
        file.seek(position)

    def find_class(self, module: str, name: str) -> object:
        """Return what a global stands for; nothing is imported."""
        # Names in a hostile file may be of any length.
        return self.names.get(f"{module} {name}", StandIn(f"{module}.{name}"[:200]))

    def persistent_load(self, pid: object) -> object:
        """Return what a reference to something beside the pickle means."""
        if self.resolve is None:
            raise _damage_error("a reference where none may be")
        return self.resolve(pid)

    def call(self) -> None:
        arguments, constructor = self.stack.pop(), self.stack.pop()
        if type(arguments) is not tuple or type(constructor) not in (Constructor, StandIn):
            raise _damage_error("a call of what is no constructor")
        if type(constructor) is Constructor:
            self.count(arguments)
            constructor = constructor.build(arguments)
        self.stack.append(constructor)

    def count(self, values: tuple[object, ...]) -> None:
        """Refuse more elements than the file has bytes in what may be copied; bytes never are."""
        self.left -= sum(len(v) for v in values if isinstance(v, str | tuple | list | dict))
        if self.left < 0:
            raise _damage_error("the same values used again and again")

    def restore(self) -> None:
        """Give the last value, a state, to the one under it."""
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Restorable):
            self.count(state if type(state) is tuple else ())
            target.restore(state)
        # The attributes of an OrderedDict: a state dict's `_metadata`, the versions of its modules.
        elif type(target) not in (dict, StandIn):
            raise _damage_error("a state for what has none")

    def extend(self, values: list[object]) -> None:
        # Not isinstance: a subclass could have methods of its own.
        if type(self.stack[-1]) is list:
            self.stack[-1].extend(values)
        elif type(self.stack[-1]) is not StandIn:
            raise _damage_error("appending to something else")

    def update(self, items: list[object]) -> None:
        """Set items of the dict on top of the stack; keys and values alternate."""
        target, keys = self.stack[-1], items[::2]
        if type(target) is StandIn:
            return
        if type(target) is not dict:
            raise _damage_error("setting items of something else")
        if len(items) % 2 or not all(_is_key(key) for key in keys):
            raise _damage_error("a dict whose keys are not strings or numbers")
        target.update(zip(keys, items[1::2], strict=True))

    def set_last(self) -> None:
        """Set the last two values, a key and its value, in the dict under them."""
        value, key = self.stack.pop(), self.stack.pop()
        self.update([key, value])

    def remember(self) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    _PUSHES = (
        pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK,
        pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE,
        pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1, pickle.LONG4, pickle.BINFLOAT,
        pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE8,
        pickle.BINSTRING, pickle.SHORT_BINSTRING,
        pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.BINBYTES8,
        pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3,
        pickle.EMPTY_DICT, pickle.EMPTY_LIST,
        pickle.BINPUT, pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET,
        pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.BINPERSID,
    )  # fmt: skip
    dispatch = _Instructions(
        {code[0]: _PythonUnpickler.dispatch[code[0]] for code in _PUSHES}
        | {
            pickle.REDUCE[0]: call,
            pickle.NEWOBJ[0]: call,
            pickle.BUILD[0]: restore,
            pickle.APPEND[0]: lambda self: self.extend([self.stack.pop()]),
            pickle.APPENDS[0]: lambda self: self.extend(self.pop_mark()),
            pickle.SETITEM[0]: set_last,
            pickle.SETITEMS[0]: lambda self: self.update(self.pop_mark()),
            pickle.MEMOIZE[0]: remember,
            # As bytes: nothing here writes to them. Python's would take the memory first.
            pickle.BYTEARRAY8[0]: _PythonUnpickler.load_binbytes8,
        }
    )


def _is_key(value: object) -> bool:
    """Say whether a dict may have a key; hashing tuples in tuples takes exponential time."""
    return value is None or type(value) in (str, int, float, bool, StandIn)
