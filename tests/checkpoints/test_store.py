"""What lies under checkpoints: checksums, and files."""

from pathlib import Path

import google_crc32c
import jax.numpy as jnp
import numpy as np
import pytest

import penstock as ps
from penstock import _checksums
from penstock._checkpoint import Contents, Position, Store, _contents
from penstock._checkpoint._store import is_checkpoint


def test_checksum_is_crc_32c():
    digits = np.frombuffer(b"123456789", np.uint8)
    assert _contents.checksum(digits) == 0xE3069283  # the check value of the standard


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4).T,
        np.arange(20, dtype=np.int64)[::3],
        np.asarray(jnp.arange(6, dtype=jnp.bfloat16)).reshape(2, 3),
        np.zeros((0, 3), np.float32),
        np.float32(3.5).reshape(()),
        np.array([True, False]),
    ],
    ids=["transposed", "strided", "bfloat16", "of no size", "scalar", "bool"],
)
def test_checksum_is_of_the_bytes_in_c_order(array):
    assert _contents.checksum(array) == google_crc32c.value(array.tobytes())


@pytest.mark.parametrize("num_bytes", [_checksums._PIECE_BYTES + extra for extra in (-1, 0, 1)])
def test_checksum_in_pieces_is_that_of_the_whole(num_bytes):
    array = np.random.default_rng(0).integers(0, 256, num_bytes).astype(np.uint8)
    assert _contents.checksum(array) == google_crc32c.value(array.tobytes())


def test_arrays_are_written_as_they_are(tmp_path):
    store = Store(ps.CheckpointConfig(directory=tmp_path))
    leaves = {"a": np.zeros(1 << 18, np.float32)}
    store.write(Contents(leaves=leaves, position=Position(global_step=1)))
    files = [path for path in (tmp_path / "1").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) > 1 << 20  # compressed, zeros are nothing


class _Overtaken(Store):
    """A store that lists its checkpoints when a run is about to write the next."""

    def steps(self):
        steps = super().steps()
        if steps == [1]:
            _write(self.directory, 2)
        return steps


def _write(directory, step):
    leaves, position = {"a": np.zeros(4, np.float32)}, Position(global_step=step)
    config = ps.CheckpointConfig(directory=directory, max_to_keep=1)
    Store(config).write(Contents(leaves=leaves, position=position, attempt=str(step)))


def test_checkpoint_that_a_run_deletes_while_it_is_read_is_no_damage(tmp_path, caplog):
    _write(tmp_path, 1)
    contents = _Overtaken(ps.CheckpointConfig(directory=tmp_path)).read_newest()
    assert contents is not None
    assert (contents.position.global_step, caplog.records) == (2, [])


def test_checkpoint_that_a_run_deletes_while_it_is_listed_is_none(tmp_path, monkeypatch):
    _write(tmp_path, 1)
    _write(tmp_path, 2)
    monkeypatch.setattr(Path, "is_dir", lambda path: True)  # as the first was a moment before
    assert not is_checkpoint(tmp_path / "1")


def test_parts_of_a_save_that_failed_are_gone_with_the_next(tmp_path):
    store = Store(ps.CheckpointConfig(directory=tmp_path))
    leaves, position = {"a": np.zeros(4, np.float32)}, Position(global_step=1)
    # Process 0 found something that is not finite, when another had written its part.
    store.write(Contents(leaves=leaves, position=position, part=1, num_parts=2, attempt="one"))
    store.write(Contents(leaves=leaves, position=position, attempt="two"))
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
