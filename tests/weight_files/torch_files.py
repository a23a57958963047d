"""Torch files written by hand: pickles one instruction at a time, in each of torch's containers."""

import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

MAGIC = 0x1950A86A20F9469CFC6C


def name(module: str, attribute: str) -> bytes:
    """Return the instruction that names a global."""
    return f"c{module}\n{attribute}\n".encode()


def text(value: str) -> bytes:
    return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()


def old_text(value: str) -> bytes:
    """Return a string as Python 2 wrote it."""
    return b"U" + bytes([len(value)]) + value.encode()


def number(value: int) -> bytes:
    if -(2**31) <= value < 2**31:
        return b"J" + value.to_bytes(4, "little", signed=True)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8b" + len(data).to_bytes(4, "little") + data


def group(*values: bytes) -> bytes:
    """Return a tuple."""
    return b"(" + b"".join(values) + b"t"


def listed(*values: bytes) -> bytes:
    return b"](" + b"".join(values) + b"e"


def called(function: bytes, *arguments: bytes) -> bytes:
    return function + group(*arguments) + b"R"


def mapping(items: Mapping[str, bytes]) -> bytes:
    return b"}(" + b"".join(text(key) + value for key, value in items.items()) + b"u"


def pickled(value: bytes) -> bytes:
    """Return a pickle of protocol 2, torch's."""
    return b"\x80\x02" + value + b"."


def storage(kind: str, key: str, numel: int, *view: bytes) -> bytes:
    """Return a reference to a storage; before torch 1.6 it ends with `None` or a stretch of it."""
    parts = (text("storage"), name("torch", kind), text(key), text("cpu"), number(numel), *view)
    return group(*parts) + b"Q"


def tensor(source: bytes, offset: int, size: bytes, stride: bytes) -> bytes:
    hooks = called(name("collections", "OrderedDict"))
    rebuild = name("torch._utils", "_rebuild_tensor_v2")
    return called(rebuild, source, number(offset), size, stride, b"\x89", hooks)


def vector(key: str, numel: int, *view: bytes) -> bytes:
    """Return a float32 vector that is a whole storage."""
    source = storage("FloatStorage", key, numel, *view)
    return tensor(source, 0, group(number(numel)), group(number(1)))


def floats(*values: float) -> bytes:
    """Return the content of a storage."""
    return np.asarray(values, "<f4").tobytes()


def write_zip(path: Path, pickle: bytes, storages: Mapping[str, bytes]) -> Path:
    """Write the format since torch 1.6."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle)
        for key, content in storages.items():
            archive.writestr(f"archive/data/{key}", content)
    return path


def write_legacy(path: Path, pickle: bytes, storages: Mapping[str, bytes], itemsize: int) -> Path:
    """Write the format before torch 1.6."""
    head = pickled(number(MAGIC)) + pickled(number(1001)) + pickled(mapping({}))
    keys = pickled(listed(*map(text, storages)))
    parts = [
        (len(content) // itemsize).to_bytes(8, "little") + content for content in storages.values()
    ]
    path.write_bytes(head + pickle + keys + b"".join(parts))
    return path


def write_tar(path: Path, pickle: bytes, entries: Mapping[str, bytes]) -> Path:
    """Write the format of torch 0.1."""
    entries = {"sys_info": pickled(mapping({})), "pickle": pickle, **entries}
    with tarfile.open(path, "w:", format=tarfile.PAX_FORMAT) as archive:
        for entry, content in entries.items():
            info = tarfile.TarInfo(entry)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def tar_entries() -> dict[str, bytes]:
    """Return the storages and tensors of a tar file: `1`, a matrix, and `2`, a view of its end."""
    content = np.arange(6, dtype="<f4")
    storages = pickled(number(1))
    storages += pickled(group(number(70), text("cpu"), name("torch", "FloatStorage")))
    storages += (6).to_bytes(8, "little") + content.tobytes()
    storages += pickled(listed(group(number(71), number(70), number(4), number(2))))
    tensors = pickled(number(2))
    for key, root, sizes, strides in ((1, 70, [2, 3], [3, 1]), (2, 71, [2], [1])):
        parts = (number(key), number(root), name("torch", "FloatTensor"))
        tensors += pickled(group(*parts)) + len(sizes).to_bytes(8, "little")
        tensors += np.asarray([*sizes, *strides, 0], "<i8").tobytes()
    return {"storages": storages, "tensors": tensors}


def tar_pickle() -> bytes:
    """Return the state dict of a tar file as Python 2 wrote it, one of its tensors a Parameter."""
    state = group(old_text("2") + b"Q", b"N", b"}", b"\x88", b"\x89")
    parameter = name("torch.nn.parameter", "Parameter") + b")\x81" + state + b"b"
    pairs = listed(
        listed(old_text("weight"), old_text("1") + b"Q"), listed(old_text("bias"), parameter)
    )
    return pickled(called(name("collections", "OrderedDict"), pairs))
