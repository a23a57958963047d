"""Files changed at random, and zip archives that claim more than they hold, are read or refused.

None takes much memory or ends the process.
"""

import io
import shutil
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from penstock._errors import ParameterError
from penstock._weight_files import read_weights
from penstock._weight_files._file import Archive, WeightFileError
from tests.weight_files.torch_files import tar_entries, tar_pickle, write_tar

DATA = Path(__file__).parent / "data"
MAX_BYTES = 4_000_000  # the files have 40 KB at most


def copied(name: str) -> Callable[[Path], Path]:
    return lambda folder: Path(shutil.copy(DATA / name, folder))


def tar(folder: Path) -> Path:
    return write_tar(folder / "old.pth", tar_pickle(), tar_entries())


def safetensors(folder: Path) -> Path:
    tensors = {"a": np.ones((2, 3), np.float32), "b": np.ones(2, jnp.bfloat16)}
    save_file(tensors, folder / "model.safetensors")
    return folder / "model.safetensors"


def weights_h5(folder: Path) -> Path:
    with zipfile.ZipFile(DATA / "net.keras") as archive:
        (folder / "net.weights.h5").write_bytes(archive.read("model.weights.h5"))
    return folder / "net.weights.h5"


FILES = {
    "torch zip": copied("state_dict.pth"),
    "torch checkpoint": copied("checkpoint.pth"),
    "torch legacy": copied("legacy.pth"),
    "torch tar": tar,
    "safetensors": safetensors,
    "keras": copied("net.keras"),
    "keras legacy": copied("legacy.h5"),
    "keras weights": weights_h5,
}


def changed(content: bytes, random: np.random.Generator) -> bytes:
    """Return a file cut off, with some bytes changed, or with eight that may be a length."""
    damaged = bytearray(content)
    kind = random.integers(8)
    if kind == 0:
        return bytes(damaged[: random.integers(len(damaged))])
    if kind == 1:
        place = random.integers(len(damaged) - 8)
        lengths = (b"\xff" * 8, bytes(8), b"\xff" * 7 + b"\x7f", random.bytes(8))
        damaged[place : place + 8] = lengths[random.integers(4)]
        return bytes(damaged)
    for place in random.integers(len(damaged), size=random.choice([1, 1, 2, 4, 16])):
        damaged[place] = random.integers(256)
    return bytes(damaged)


def assert_survives(path: Path, num_files: int = 100) -> None:
    content = path.read_bytes()
    messages = []
    tracemalloc.start()
    try:
        for index in range(num_files):
            path.write_bytes(changed(content, np.random.default_rng([0, index])))
            tracemalloc.reset_peak()
            try:
                weights = read_weights(path)
            except ParameterError as error:
                messages.append(str(error))
            else:
                for array in weights.arrays.values():
                    array.tobytes()  # every element lies in memory of ours
            assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()
    assert num_files // 4 < len(messages) < num_files
    assert all(message.startswith(f"weights file {str(path)!r} got ") for message in messages)


@pytest.mark.quick("torch zip", "safetensors")
@pytest.mark.parametrize("kind", FILES)
def test_damaged_file_is_refused_or_read(tmp_path, kind):
    if kind.startswith("keras"):
        pytest.importorskip("h5py")
    read_weights(FILES[kind](tmp_path))  # what is imported on the way is not measured
    assert_survives(FILES[kind](tmp_path))


ENTRIES = {"a": b"x" * 1000, "b": b""}


def write(entries: dict[str, bytes] = ENTRIES, compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return file.getvalue()


def overlap() -> bytes:
    """Return an archive whose entry `a` holds the whole record of `b`, which is listed too."""
    record, file = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(record, "w") as archive:
        archive.writestr("b", b"x" * 1000)
        inner, end = archive.getinfo("b"), record.tell()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", record.getvalue()[:end])
        inner.header_offset = 30 + len("a")
        archive.filelist.append(inner)
        archive.NameToInfo["b"] = inner
    return file.getvalue()


def test_entries_come_back_each_once(tmp_path):
    (tmp_path / "a.zip").write_bytes(write())
    with Archive(tmp_path / "a.zip") as archive:
        assert {name: archive.read_entry(name) for name in archive.namelist()} == ENTRIES
        with pytest.raises(WeightFileError, match=r"got entries larger than the archive of \d+ by"):
            archive.read_entry("a")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (write({"a": bytes(10**6)}, zipfile.ZIP_DEFLATED), "got a compressed entry 'a'"),
        (overlap(), "got entries larger than the archive|damaged entry '[ab]'"),
        (write().replace(b"xxx", b"xyx", 1), "got a damaged entry 'a' .*CRC"),
        (write()[:-10], r"got a zip archive of \d+ bytes without its table of entries"),
    ],
    ids=["compressed", "overlapping", "changed", "cut off"],
)
def test_archive_that_is_damaged_or_a_bomb_is_refused(tmp_path, content, text):
    assert len(content) < 3000
    (tmp_path / "a.zip").write_bytes(content)

    def read_all():
        with Archive(tmp_path / "a.zip") as archive:
            return [archive.read_entry(name) for name in ("a", "b")]

    with pytest.raises(WeightFileError, match=text):
        read_all()
