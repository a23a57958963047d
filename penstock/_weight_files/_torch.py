"""Files of pickles: torch's tar archives, its rows of pickles, its zip archives, Paddle's one.

A tensor in them is a storage, an offset into it, sizes and strides.
"""

from __future__ import annotations

import io
import math
import mmap
import struct
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import jax.numpy as jnp
import numpy as np

from penstock._weight_files import _pickle
from penstock._weight_files._file import Archive, Content, WeightFileError, damaged
from penstock._weight_files._numpy import GLOBALS as NUMPY_GLOBALS
from penstock._weight_files._numpy import MAX_DIMENSIONS, MAX_NUMBER, PickledArray, is_shape
from penstock._weight_files._pickle import Constructor, Restorable, StandIn

PICKLE = "data.pkl"
# The first of five pickles in a file from before 1.6; the second is the protocol.
MAGIC = 0x1950A86A20F9469CFC6C
MAGIC_BYTES = MAGIC.to_bytes(10, "little")
PROTOCOL = 1001
# The number of elements that stands before each storage.
LENGTH_BYTES = 8


def read_pickle(path: Path, moving_averages: bool) -> Content:
    """Read a file that is one pickle of arrays by name, as Paddle's `.pdparams` is."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        value = _pickle.load(content, GLOBALS)
    return read_state_dict(value, _refuse_key, moving_averages)


def _refuse_key(key: str) -> bytes:
    raise WeightFileError(
        f"got a reference to {key[:60]!r} in its pickle and nothing beside it, expected arrays. "
        "Save the state dict alone: torch.save(model.state_dict(), ...), or as safetensors."
    )


def read_zip(path: Path, moving_averages: bool) -> Content:
    """Read a `.pth` or `.pt` file that is a zip archive of a pickle and of storages."""
    with Archive(path) as archive:
        names = archive.namelist()
        folder = next(n for n in names if n.split("/")[-1] == PICKLE).removesuffix(PICKLE)
        if f"{folder}constants.pkl" in names:
            raise WeightFileError(
                "got a TorchScript archive, a program with its weights, expected a state dict. It "
                "would have to be run. Save it with torch.save(model.state_dict(), ...)."
            )
        order = f"{folder}byteorder"
        if order in names and archive.read_entry(order) != b"little":
            raise WeightFileError(
                "got weights in another byte order than little-endian, expected that. They come "
                "from a big-endian machine. Save them there as safetensors."
            )
        pickle = io.BytesIO(archive.read_entry(folder + PICKLE))
        value = _pickle.load(pickle, GLOBALS, find_storage)

        def read_storage(key: str) -> bytes:
            return archive.read_entry(f"{folder}data/{key}")

        return read_state_dict(value, read_storage, moving_averages)


def read_pickles(path: Path, moving_averages: bool) -> Content:
    """Read a `.pth` or `.pt` file that begins with torch's magic number: pickles, then storages."""
    content = path.read_bytes()
    file = io.BytesIO(content)
    magic, protocol = _pickle.load(file, {}), _pickle.load(file, {})
    if (magic, protocol) != (MAGIC, PROTOCOL):
        expected = f"its magic number and protocol {PROTOCOL}, or a file of safetensors"
        raise damaged("another header than torch's", expected)
    # The writer's byte order and sizes. Storages are little-endian whatever it says.
    _pickle.load(file, {})
    storages: dict[str, Storage] = {}

    def resolve(reference: object) -> Storage:
        storage = find_storage(reference)
        # Storages lie one behind the other, so that each one's size must be known.
        if not isinstance(storage, Storage):
            raise WeightFileError(
                f"got a storage of {storage.name}, expected one of numbers that NumPy has. Save "
                "the state dict alone, as safetensors."
            )
        storages.setdefault(storage.key, storage)
        return storage

    value = _pickle.load(file, GLOBALS, resolve)
    keys = _pickle.load(file, {})
    # Without a tensor it is no state dict, which is said below.
    content_of: dict[str, memoryview] = {}
    if storages:
        content_of = _cut_storages(memoryview(content), file.tell(), keys, storages)
    return read_state_dict(value, lambda key: content_of.get(key, b""), moving_averages)


def _cut_storages(
    content: memoryview, position: int, keys: object, storages: dict[str, Storage]
) -> dict[str, memoryview]:
    """Return the storages by key; each is stored as its number of elements and the elements."""
    # A list of exactly this kind: the file decides what the pickle holds.
    if type(keys) is not list or not all(type(key) is str and key in storages for key in keys):
        expected = "the keys of those that the pickle names"
        raise damaged("storages that no tensor refers to", expected)
    parts = {}
    for key in keys:
        storage = storages[key]
        begin = position + LENGTH_BYTES
        numel = int.from_bytes(content[position:begin], "little")
        position = begin + storage.numel * storage.dtype.itemsize
        if numel != storage.numel or position > len(content):
            got = f"a storage of another length than its tensor's at byte {begin} of {len(content)}"
            raise damaged(got, "all of it")
        parts[key] = content[begin:position]
    return parts


# Keys were addresses in memory.
MAX_KEY = 2**64


def read_tar(path: Path, moving_averages: bool) -> Content:
    """Read a `.pth` file of 2016 or early 2017: a tar archive of storages, tensors and a pickle.

    torchvision's first models (resnet50-19c8e357.pth and its like) were published in this form.
    """
    storages, content = _read_storages(_read_entry(path, "storages"))
    tensors = _read_tensors(_read_entry(path, "tensors"), storages)

    def resolve(reference: object) -> Tensor:
        if type(reference) is not str or reference not in tensors:
            raise _tar_error("a tensor that it does not hold")
        return tensors[reference]

    value = _pickle.load(io.BytesIO(_read_entry(path, "pickle")), GLOBALS, resolve)
    return read_state_dict(value, content.__getitem__, moving_averages)


def _read_entry(path: Path, name: str) -> bytes:
    try:
        with tarfile.open(path, "r:") as archive:
            entry = archive.getmember(name)
            # A sparse entry may be larger than the archive.
            file = archive.extractfile(entry) if entry.isreg() and not entry.issparse() else None
            content = file.read() if file and entry.size <= path.stat().st_size else b""
    except (tarfile.TarError, KeyError, OSError, ValueError, EOFError) as error:
        raise _tar_error(f"no entry {name!r} ({error})") from error
    if not content or len(content) != entry.size:
        raise _tar_error(f"an entry {name!r} that is cut off")
    return content


def _read_storages(data: bytes) -> tuple[dict[int, Storage], dict[str, memoryview]]:
    """Return the storages and views of storages by number, and the content by key."""
    file, storages, content = io.BytesIO(data), {}, {}
    for _ in range(_read_count(file)):
        match _pickle.load(file, GLOBALS):
            case (int() as number, str(), np.dtype() as dtype) if 0 <= number < MAX_KEY:
                pass
            case _:
                raise _tar_error("a storage without its type")
        numel = int.from_bytes(file.read(LENGTH_BYTES), "little")
        begin = file.tell()
        end = begin + numel * dtype.itemsize
        if end > len(data):
            raise _tar_error("a storage that is cut off")
        file.seek(end)
        storages[number] = Storage(str(number), dtype, numel, 0, numel)
        content[str(number)] = memoryview(data)[begin:end]
    views = _pickle.load(file, {})
    for view in views if type(views) is list else ():
        match view:
            case (int() as number, int() as root, int() as start, int() as length) if (
                root in storages and 0 <= start <= start + length <= storages[root].numel
            ):
                whole = storages[root]
                storages[number] = Storage(whole.key, whole.dtype, whole.numel, start, length)
            case _:
                raise _tar_error("a view of a storage that it does not hold")
    return storages, content


def _read_tensors(data: bytes, storages: dict[int, Storage]) -> dict[str, Tensor]:
    """Return the tensors by the number that the pickle refers to them by, as text."""
    file, tensors = io.BytesIO(data), {}
    types = ("Float", "Double", "Half", "Long", "Int", "Short", "Char", "Byte")
    names = {**GLOBALS, **{f"torch {name}Tensor": name for name in types}}
    for _ in range(_read_count(file)):
        match _pickle.load(file, names):
            case (int() as number, int() as storage, str()) if (
                0 <= number < MAX_KEY and storage in storages
            ):
                pass
            case _:
                raise _tar_error("a tensor without its storage")
        (dimensions,) = struct.unpack("<q", _read_exactly(file, 8))
        # torch 0.1 did not always set the upper half of the number.
        dimensions &= 0xFFFFFFFF
        if dimensions > MAX_DIMENSIONS:
            raise _tar_error(f"a tensor of {dimensions} dimensions")
        numbers = struct.unpack(f"<{2 * dimensions + 1}q", _read_exactly(file, 16 * dimensions + 8))
        sizes, strides = numbers[:dimensions], numbers[dimensions:-1]
        tensors[str(number)] = Tensor(storages[storage], numbers[-1], sizes, strides)
    return tensors


def _read_count(file: io.BytesIO) -> int:
    # It needs no bound: each part takes bytes, so that a false count ends with the file.
    count = _pickle.load(file, {})
    if type(count) is not int:
        raise _tar_error("no count of its parts")
    return count


def _read_exactly(file: io.BytesIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise _tar_error("a tensor that is cut off")
    return data


def _tar_error(what: str) -> WeightFileError:
    return WeightFileError(
        f"got {what}, expected a tar archive as torch 0.1 wrote it. Download it again, or a newer "
        "form of the same weights."
    )


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


# Where training scripts keep the moving average of the weights in a checkpoint, and the weights
# themselves; the first of these entries is taken.
AVERAGES = (
    "state_dict_ema", "model_ema", "ema_state_dict", "ema_model", "params_ema", "ema",
)  # fmt: skip
ENTRIES = ("state_dict", "model_state_dict", "model", "net", "module", "params")

# What torch's wrappers DataParallel, AveragedModel and torch.compile put before every name.
PREFIXES = ("module.", "_orig_mod.")
# How many steps an AveragedModel has averaged.
NUM_AVERAGED = "n_averaged"
# Paddle's own names of the arrays beside them.
PADDLE_NAMES = "StructuredToParameterName@@"

HOW_TO_READ_RAW = (
    "moving_averages=False, or --moving_averages=False of penstock import-weights, takes the raw "
    "ones"
)


def read_state_dict(
    value: object, read_bytes: Callable[[str], bytes | memoryview], moving_averages: bool
) -> Content:
    """Return the weights in a pickle: in a state dict, or in one among a checkpoint's entries."""
    entry, state_dict = _find_state_dict(value, moving_averages)
    notes = []
    if entry and isinstance(value, dict):
        left = _list_some(name for name in value if name != entry)
        left_out = f", left out {left}" if len(value) > 1 else ""
        notes.append(f"took the state dict under {entry!r}{left_out}")
        if entry in AVERAGES:
            notes.append(f"{entry!r} is a moving average of the weights; {HOW_TO_READ_RAW}")
        elif averages := [name for name in AVERAGES if _has_tensors(value.get(name))]:
            notes.append(f"the raw weights, though the file has an average under {averages[0]!r}")
    # A key that is no string names no weight.
    named = {
        key: tensor for key, item in state_dict.items() if (tensor := find_tensor(item)) is not None
    }
    tensors = {name: tensor for name, tensor in named.items() if isinstance(name, str)}
    if left := [name for name in state_dict if name not in tensors and name != PADDLE_NAMES]:
        notes.append(f"left out {_list_some(left)}, which are no tensors")
    return read_arrays(tensors, read_bytes), tuple(notes)


def cut_prefixes(arrays: Mapping[str, np.ndarray]) -> Content:
    """Return arrays without the prefixes that all their names share, and a note for each prefix."""
    arrays, notes = dict(arrays), []
    if NUM_AVERAGED in arrays and all(n.startswith((NUM_AVERAGED, "module.")) for n in arrays):
        del arrays[NUM_AVERAGED]
        notes.append("an average of weights, made by torch's AveragedModel")
    while arrays:
        shared = [p for p in PREFIXES if all(n.startswith(p) and n != p for n in arrays)]
        if not shared:
            break
        arrays = {name.removeprefix(shared[0]): array for name, array in arrays.items()}
        notes.append(f"cut {shared[0]!r} off every name")
    return arrays, tuple(notes)


def _find_state_dict(
    value: object, moving_averages: bool
) -> tuple[str | None, dict[object, object]]:
    """Return the state dict in a checkpoint, and the entry that holds it."""
    entries = value if isinstance(value, dict) else {}
    inside = {name: held for name, held in entries.items() if _has_tensors(held)}
    order = (*AVERAGES, *ENTRIES) if moving_averages else (*ENTRIES, *AVERAGES)
    # A state dict holds no dict with tensors. Where one does, tensors beside it are others: the
    # best accuracy, the state of the random numbers.
    names = [name for name in order if name in inside]
    if names or len(inside) == 1:
        name = names[0] if names else next(iter(inside))
        return (name if isinstance(name, str) else repr(name)[:60]), inside[name]
    if not inside and _has_tensors(value):
        return None, entries
    raise WeightFileError(
        f"got {_describe(value)} and no state dict, expected tensors by name, or one of "
        f"{', '.join(ENTRIES)} with them. Nothing else in a pickle is loaded, as it may run code. "
        "Save the state dict alone: torch.save(model.state_dict(), ...)."
    )


def _describe(value: object) -> str:
    held = value.values() if isinstance(value, dict) else [value]
    below = [item for entry in held if isinstance(entry, dict) for item in entry.values()]
    unknown = [item.name for item in (*held, *below) if isinstance(item, StandIn)]
    what = f"a dict with {_list_some(value)}" if isinstance(value, dict) else "a pickle"
    if unknown:
        return f"the global {', '.join(list(dict.fromkeys(unknown))[:3])} in {what}"
    return what if isinstance(value, dict) and value else f"a {type(value).__name__}"


def _has_tensors(value: object) -> bool:
    return isinstance(value, dict) and any(
        isinstance(name, str) and find_tensor(item) is not None for name, item in value.items()
    )


def _list_some(names: Iterable[object]) -> str:
    """Return the first names of many. In a hostile file they may be of any kind and length."""
    shown = [repr(name[:60]) if isinstance(name, str) else type(name).__name__ for name in names]
    return ", ".join(shown[:5]) + (", ..." if len(shown) > 5 else "") or "nothing"
