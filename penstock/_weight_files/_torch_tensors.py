"""Tensors as torch's pickles describe them: a storage, an offset into it, sizes and strides."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import jax.numpy as jnp
import numpy as np

from penstock._weight_files._file import WeightFileError, damaged
from penstock._weight_files._numpy import GLOBALS as NUMPY_GLOBALS
from penstock._weight_files._numpy import MAX_DIMENSIONS, MAX_NUMBER, PickledArray, is_shape
from penstock._weight_files._pickle import Constructor, Restorable, StandIn

_STORAGE_DTYPES = {
    "FloatStorage": np.dtype("<f4"),
    "DoubleStorage": np.dtype("<f8"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype(jnp.bfloat16),
    "LongStorage": np.dtype("<i8"),
    "IntStorage": np.dtype("<i4"),
    "ShortStorage": np.dtype("<i2"),
    "CharStorage": np.dtype("i1"),
    "ByteStorage": np.dtype("u1"),
    "BoolStorage": np.dtype("?"),
    "ComplexFloatStorage": np.dtype("<c8"),
    "ComplexDoubleStorage": np.dtype("<c16"),
}
"""Element type of each of torch's storage classes; torch stores little-endian."""


@dataclass(frozen=True)
class Storage:
    """A stretch of a storage of `numel` elements: `length` of them from `start` on."""

    key: str
    dtype: np.dtype
    numel: int
    start: int
    length: int


@dataclass(frozen=True)
class Tensor:
    """A view of a storage: offset, sizes and strides in elements."""

    storage: Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def view(self, elements: np.ndarray) -> np.ndarray:
        """Return the tensor as a read-only view of its storage's elements, a 1-D array."""
        # A view, as any number of tensors may share a storage: copies could fill the memory.
        elements = elements[self.storage.start :][: self.storage.length]
        sizes, strides = self.size, self.stride
        if len(sizes) != len(strides) or len(sizes) > MAX_DIMENSIONS:
            raise self._damage_error("one stride a size")
        # Checked before any arithmetic: in a hostile file they may be strings, or huge integers.
        numbers = (*strides, self.offset)
        if not is_shape(sizes) or not all(type(n) is int and 0 <= n < MAX_NUMBER for n in numbers):
            raise self._damage_error("sizes and strides of 0 or more")
        count = math.prod(sizes)
        if count == 0:
            return np.zeros(sizes, self.storage.dtype)
        last = self.offset + sum(
            (size - 1) * stride for size, stride in zip(sizes, strides, strict=True)
        )
        # A tensor expanded with strides of 0 has more elements than its storage. No parameter is
        # one, and a copy of it could fill the memory.
        if last >= len(elements) or count > len(elements):
            raise self._damage_error(f"at most the {len(elements)} elements of its storage")
        steps = [stride * elements.itemsize for stride in strides]
        view = elements[self.offset :]
        return np.lib.stride_tricks.as_strided(view, sizes, steps, writeable=False)

    def _damage_error(self, expected: str) -> WeightFileError:
        sizes, strides, offset = map(_format_numbers, (self.size, self.stride, (self.offset,)))
        got = f"a tensor of sizes {sizes} with strides {strides} at {offset}"
        return damaged(got, expected)


class Parameter(Restorable):
    """A `torch.nn.Parameter`: its tensor comes as an argument or, in the oldest files, as state."""

    def __init__(self, tensor: Tensor | None) -> None:
        self.tensor = tensor

    def restore(self, state: object) -> None:
        """Take the tensor of torch 0.1's state: data, gradient, hooks and two flags."""
        if type(state) is tuple and len(state) == 5 and isinstance(state[0], Tensor):
            self.tensor = state[0]


def _build_dict(arguments: tuple[object, ...]) -> dict[object, object]:
    match arguments:
        case ():
            return {}
        # As Python 2 wrote them.
        case ([*pairs],) if all(_is_pair(pair) for pair in pairs):
            return dict(pairs)
    raise _argument_error("collections.OrderedDict")


def _is_pair(pair: object) -> bool:
    return isinstance(pair, list | tuple) and len(pair) == 2 and type(pair[0]) in (str, int)


def _build_tensor(arguments: tuple[object, ...]) -> Tensor | StandIn:
    match arguments:
        case (StandIn() as unknown, *_):
            return unknown
        case (Storage() as storage, int() as offset, tuple() as size, tuple() as stride, *_):
            return Tensor(storage, offset, size, stride)
    raise _argument_error("torch._utils._rebuild_tensor")


def _build_parameter(arguments: tuple[object, ...]) -> Parameter:
    match arguments:
        case (Tensor() as tensor, *_):
            return Parameter(tensor)
        case () | (StandIn(), *_):
            return Parameter(None)
    raise _argument_error("torch.nn.parameter.Parameter")


def _build_size(arguments: tuple[object, ...]) -> tuple[object, ...]:
    match arguments:
        case (tuple() | list() as sizes,):
            return tuple(sizes)
    raise _argument_error("torch.Size")


def _build_subclass(arguments: tuple[object, ...]) -> object:
    """Return the tensor in one of a subclass, or with attributes."""
    match arguments:
        case (Constructor() as constructor, _, tuple() as inner, *_):
            return constructor.build(inner)
    return StandIn("torch._tensor._rebuild_from_type_v2")


def _argument_error(name: str) -> WeightFileError:
    return WeightFileError(
        f"got {name} with unknown arguments in its pickle, expected those that torch.save writes. "
        "Download it again, or save the state dict as safetensors."
    )


GLOBALS: Mapping[str, object] = MappingProxyType(
    {**NUMPY_GLOBALS}
    | {f"torch {name}": dtype for name, dtype in _STORAGE_DTYPES.items()}
    | {
        "collections OrderedDict": Constructor(_build_dict),
        "torch Size": Constructor(_build_size),
        "torch._utils _rebuild_tensor": Constructor(_build_tensor),
        "torch._utils _rebuild_tensor_v2": Constructor(_build_tensor),
        "torch._utils _rebuild_parameter": Constructor(_build_parameter),
        "torch._utils _rebuild_parameter_with_state": Constructor(_build_parameter),
        "torch._tensor _rebuild_from_type_v2": Constructor(_build_subclass),
        "torch.nn.parameter Parameter": Constructor(_build_parameter),
    }
)
"""What stands for each global that means something in a state dict."""


def find_storage(reference: object) -> Storage | StandIn:
    match reference:
        # Of a type that NumPy has not, as those of quantised tensors.
        case ("storage", StandIn() as unknown, *_):
            return unknown
        case ("storage", np.dtype() as dtype, str() as key, str(), int() as numel, *view):
            pass
        case _:
            raise _argument_error("a storage")
    match view:
        case [] | [None]:
            return Storage(key, dtype, numel, 0, numel)
        case [(_, int() as start, int() as length)] if 0 <= start <= start + length <= numel:
            return Storage(key, dtype, numel, start, length)
    raise _argument_error("a storage")


def find_tensor(value: object) -> Tensor | np.ndarray | None:
    """Return the tensor or array that a value of a pickle is or holds, if any."""
    match value:
        # As Paddle saves one outside a state dict: its name and its array.
        case (str(), PickledArray() as held):
            return held.array
        case PickledArray():
            return value.array
        case Parameter():
            return value.tensor
    return value if type(value) is Tensor else None


def read_arrays(
    tensors: Mapping[str, Tensor | np.ndarray],
    read_bytes: Callable[[str], bytes | memoryview],
) -> dict[str, np.ndarray]:
    """Return tensors as arrays; each storage that they need is read once."""
    content: dict[str, bytes | memoryview] = {}
    arrays = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, np.ndarray):
            arrays[name] = tensor
            continue
        storage = tensor.storage
        if storage.key not in content:
            content[storage.key] = read_bytes(storage.key)
        data = content[storage.key]
        if len(data) != storage.numel * storage.dtype.itemsize:
            expected = f"{_format_numbers([storage.numel])} elements of {storage.dtype}"
            raise damaged(f"{len(data)} bytes for the tensor {name!r}", expected)
        arrays[name] = tensor.view(np.frombuffer(data, storage.dtype))
    return arrays


def _format_numbers(numbers: Sequence[object]) -> str:
    """Return numbers of a damaged file, which may be anything of any length, as text."""
    parts = [
        str(number) if type(number) is int and abs(number) < 2**64 else "?"
        for number in numbers[:MAX_DIMENSIONS]
    ]
    return f"[{', '.join(parts)}]"
