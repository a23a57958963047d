"""Files changed at random are read or refused; none takes much memory or ends the process."""

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
