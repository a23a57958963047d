"""NumPy's arrays by name: `.npz` archives, and pickles of arrays as Paddle's `.pdparams` are."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeGuard

import jax.numpy as jnp
import numpy as np

from penstock._weight_files._file import Archive, Content, WeightFileError, damaged
from penstock._weight_files._pickle import Constructor, Restorable, StandIn

SUFFIX = ".npy"
# NumPy's limit until version 2.
MAX_DIMENSIONS = 32
# More elements than any array of a network has.
MAX_NUMBER = 2**31
BFLOAT16 = np.dtype(jnp.bfloat16)

# Weights hardly shrink, and zeros shrink a thousand times: an archive may hold some of them.
EXPANSION = 64


def read_npz(path: Path) -> Content:
    arrays = {}
    with Archive(path, expansion=EXPANSION) as archive:
        for name in archive.namelist():
            arrays[name.removesuffix(SUFFIX)] = _read_npy(name, archive.read_entry(name))
    return arrays, ()


def _read_npy(name: str, content: bytes) -> np.ndarray:
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"version {version}")
        read_header = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
        shape, is_fortran, dtype = read_header(file)
        # What NumPy writes for a type that is not its own.
        dtype = BFLOAT16 if dtype == np.dtype("V2") else dtype
        return build_array(dtype, shape, content[file.tell() :], is_fortran)
    # The header is a dict in Python's syntax.
    except (ValueError, TypeError, SyntaxError, EOFError, RecursionError, MemoryError) as error:
        if isinstance(error, WeightFileError):
            raise
        got = f"a damaged entry {name[:60]!r} ({str(error)[:200]})"
        raise damaged(got, "an array of numbers as numpy.savez writes it") from error


def build_array(dtype: object, shape: object, data: bytes | str, is_fortran: bool) -> np.ndarray:
    """Return a read-only array of a damaged or hostile file's dtype, shape and bytes, checked."""
    if not isinstance(dtype, np.dtype) or not (dtype.kind in "biufc" or dtype == BFLOAT16):
        raise WeightFileError(
            "got an array of objects or text, expected numbers. It may run code, or is no weight. "
            "Leave it out of the file."
        )
    sizes = shape if isinstance(shape, tuple) else (-1,)
    if not is_shape(sizes):
        raise damaged("an array with a shape that none has", "sizes of 0 or more")
    # Python 2 wrote bytes as text.
    content = data.encode("latin-1") if isinstance(data, str) else data
    expected = math.prod(sizes) * dtype.itemsize
    if len(content) != expected:
        raise damaged(f"{len(content)} bytes for an array", str(expected))
    return np.ndarray(sizes, dtype, buffer=content, order="F" if is_fortran else "C")


def is_shape(sizes: tuple[object, ...]) -> TypeGuard[tuple[int, ...]]:
    """Say whether an array can have a shape that a damaged or hostile file has."""
    if len(sizes) > MAX_DIMENSIONS:
        return False
    numbers = [n for n in sizes if type(n) is int and 0 <= n < MAX_NUMBER]
    # Without the 0 of an empty array: NumPy multiplies the others all the same.
    return len(numbers) == len(sizes) and math.prod(n or 1 for n in numbers) < MAX_NUMBER**2


class PickledArray(Restorable):
    """An array of a pickle; it gets its content as its state. None where it has no numbers."""

    array: np.ndarray | None = None

    def restore(self, state: object) -> None:
        match state:
            case (int(), shape, PickledDtype() as dtype, bool() as order, bytes() | str() as data):
                self.array = dtype.build(shape, data, is_fortran=order)


class PickledDtype(Restorable):
    """A dtype of a pickle; its byte order comes as its state. None where it is of no numbers."""

    def __init__(self, dtype: np.dtype | None) -> None:
        self.dtype = dtype

    def restore(self, state: object) -> None:
        match state:
            case (int(), ">", *_) if self.dtype is not None:
                self.dtype = self.dtype.newbyteorder(">")

    def build(self, shape: object, data: bytes | str, is_fortran: bool) -> np.ndarray | None:
        return None if self.dtype is None else build_array(self.dtype, shape, data, is_fortran)


def _build_dtype(arguments: tuple[object, ...]) -> PickledDtype:
    match arguments:
        case (str() as name, *_) if re.fullmatch(r"b1|[iu][1248]|f[248]|c8|c16", name):
            return PickledDtype(np.dtype(name))
        case (np.dtype() as dtype, *_):
            return PickledDtype(dtype)
    return PickledDtype(None)


def _build_from_buffer(arguments: tuple[object, ...]) -> PickledArray:
    made = PickledArray()
    match arguments:
        case (bytes() as data, PickledDtype() as dtype, tuple() as shape, str() as order):
            made.array = dtype.build(shape, data, is_fortran=order == "F")
    return made


def _encode(arguments: tuple[object, ...]) -> object:
    match arguments:
        case (str() as text, "latin1" | "latin-1"):
            return text.encode("latin-1")
    return StandIn("_codecs.encode")


def _build_tuple(arguments: tuple[object, ...]) -> object:
    match arguments:
        case (tuple() | list() as values,):
            return tuple(values)
    return ()


GLOBALS: Mapping[str, object] = MappingProxyType(
    {
        f"numpy.{core}.{name}": Constructor(build)
        for core in ("core", "_core")
        for name, build in (
            ("multiarray _reconstruct", lambda _: PickledArray()),
            ("numeric _frombuffer", _build_from_buffer),
        )
    }
    | {
        "numpy dtype": Constructor(_build_dtype),
        "ml_dtypes bfloat16": BFLOAT16,
        # Protocol 2 has no bytes.
        "_codecs encode": Constructor(_encode),
        # Paddle's tensors, where they are not in a state dict: their name and their array.
        "builtins tuple": Constructor(_build_tuple),
        "__builtin__ tuple": Constructor(_build_tuple),
        "collections defaultdict": Constructor(lambda _: {}),
    }
)
"""What stands for each global of a pickled array."""
