"""Where a checkpoint cannot be written, training goes on and the failure is loud."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import penstock as ps
from penstock._checkpoint import Contents, Position, Store
from tests.checkpoints.runs import every_step, train_line, whole_state
from tests.networks import Recorder, assert_same_bits, linear_reader


@pytest.fixture(scope="module")
def expected():
    """Return the last state of a run of four epochs without checkpoints."""
    trainer = train_line()
    trainer.train(linear_reader(), num_epochs=4)
    return whole_state(trainer)


def failures(caplog):
    return [r.getMessage() for r in caplog.records if "NOT SAVED" in r.getMessage()]


def assert_valid(trainer, expected, recorder):
    """Check that a trainer went through four epochs, and can be used."""
    assert recorder.lines[-1] == "EndTraining completed"
    assert (trainer.epoch, trainer.global_step) == (4, 12)
    assert_same_bits(whole_state(trainer), expected)
    assert np.isfinite(trainer.test(linear_reader()))


@contextlib.contextmanager
def tmpfs(size):
    """Mount a file system in memory of a size in bytes; skip where that is not allowed."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["-t", "tmpfs", "-o", f"size={size}", "penstock", folder]
        try:
            done = subprocess.run(["mount", *options], capture_output=True, check=False)
        except FileNotFoundError:
            pytest.skip("there is no mount")
        if done.returncode:
            pytest.skip("mounting is not allowed here")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


def test_full_disk_lets_training_go_on_and_is_raised_at_the_end(expected, caplog):
    with tmpfs(400_000) as disk:
        filler = disk / "filler"
        trainer = train_line(disk / "run")

        def fill(event):
            if isinstance(event, ps.EndEpoch) and event.epoch == 1:
                trainer._saver._writer.wait()
                with contextlib.suppress(OSError):
                    filler.write_bytes(bytes(400_000))

        recorder = Recorder()
        with pytest.raises(ps.CheckpointError) as caught:
            trainer.train(linear_reader(), [recorder, fill], num_epochs=4)
        assert_valid(trainer, expected, recorder)
        lines = failures(caplog)
        # The last one is tried again when training ends.
        for line, step in zip(lines, (6, 9, 12, 12), strict=True):
            reason = "OSError: [Errno 28] No space left on device: "
            where = str(disk / "run" / str(step))
            assert line == f"NOT SAVED: checkpoint of global step {step}: {reason}{where!r}"
        assert str(caught.value) == (
            f"{lines[-1].removeprefix('NOT SAVED: ')}. It was not written, nor were 2 before it: a "
            "rerun goes on from global step 3. See to the cause; the trainer has the state, which "
            "trainer.save_checkpoint() writes."
        )
        assert Store(every_step(disk / "run")).read_newest().position.global_step == 3

        filler.unlink()
        trainer.save_checkpoint()
        assert_same_bits(whole_state(train_line(disk / "run")), expected)


def test_checkpoint_lost_in_training_is_no_failure_of_a_run_whose_end_is_saved(tmp_path, caplog):
    trainer, recorder = train_line(tmp_path / "run"), Recorder()
    write, written = trainer._saver.store.write, []

    def write_not_the_first(contents):
        written.append(contents.position.global_step)
        # As a network disk that is away for a while; the last step's own checkpoint too.
        if len(written) in (1, 4):
            raise OSError("away")
        write(contents)

    trainer._saver.store.write = write_not_the_first
    trainer.train(linear_reader(), recorder, num_epochs=4)
    assert recorder.lines[-1] == "EndTraining completed"
    assert written == [3, 6, 9, 12, 12]
    assert [line.partition(": O")[0] for line in failures(caplog)] == [
        "NOT SAVED: checkpoint of global step 3",
        "NOT SAVED: checkpoint of global step 12",
    ]
    assert caplog.records[-1].getMessage() == (
        "2 of the checkpoints could not be written, the last one is: a rerun goes on from it, and "
        "what was lost is the way back to those before"
    )
    assert Store(every_step(tmp_path / "run")).read_newest().position.global_step == 12


def test_checkpoint_that_cannot_be_replaced_stays(caplog):
    with tmpfs(400_000) as disk:
        config = ps.CheckpointConfig(directory=disk / "run", max_to_keep=1)
        trainer = train_line(config)
        trainer.train(linear_reader())
        state = whole_state(trainer)
        with contextlib.suppress(OSError):
            (disk / "filler").write_bytes(bytes(400_000))
        trainer.update_scale = 0.5
        with pytest.raises(ps.CheckpointError, match="No space left on device"):
            trainer.save_checkpoint()
        (disk / "filler").unlink()
        assert_same_bits(whole_state(train_line(config)), state)
        trainer.save_checkpoint()
        assert train_line(config).update_scale == 0.5


@contextlib.contextmanager
def as_others_do():
    """Give up root's permission to write anywhere, and what only root may write: kept programs."""
    is_root = os.geteuid() == 0
    if is_root:
        keep_programs(False)
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
            keep_programs(True)


def keep_programs(is_kept):
    """Use JAX's persistent compile cache, or do without it."""
    jax.config.update("jax_enable_compilation_cache", is_kept)
    compilation_cache.reset_cache()  # it remembers whether it is used


class Lock:
    """A context in which a folder is locked when training has begun, for root too."""

    def __init__(self, folder):
        self._folder, self._stack = folder, contextlib.ExitStack()

    def __enter__(self):
        return self

    def __call__(self, event):
        if isinstance(event, ps.BeginTraining):
            self._folder.chmod(0o555)
            self._stack.enter_context(as_others_do())

    def __exit__(self, *error):
        self._stack.close()
        self._folder.chmod(0o755)


@pytest.fixture
def folder():
    """Return a folder that anybody may come to."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_folder_that_becomes_locked_lets_training_go_on(expected, folder, caplog):
    trainer, recorder = train_line(folder), Recorder()
    with (
        Lock(folder) as lock,
        pytest.raises(ps.CheckpointError, match="nor were 3 before it: a rerun begins anew"),
    ):
        trainer.train(linear_reader(), [lock, recorder], num_epochs=4)
    assert_valid(trainer, expected, recorder)
    lines = failures(caplog)
    assert len(lines) == 5
    assert all("Permission denied" in line for line in lines)


def test_folder_that_is_deleted_in_training_is_made_again(tmp_path):
    trainer = train_line(tmp_path / "run")

    def delete(event):
        if isinstance(event, ps.EndEpoch) and event.epoch == 1:
            trainer._saver._writer.wait()
            shutil.rmtree(tmp_path / "run")

    trainer.train(linear_reader(), delete, num_epochs=2)
    assert os.listdir(tmp_path / "run") == ["6"]


REFUSED = {
    "without permission": ("", 0o555, "Permission denied"),
    "below one without permission": ("run", 0o555, "Permission denied"),
    "that is a file": ("file", 0o755, "File exists"),
    "below a file": ("file/run", 0o755, "Not a directory"),
    "with a name that is too long": ("x" * 300, 0o777, "File name too long"),
    "with a path that is too long": ("/".join(["x" * 190] * 21), 0o777, "ame too long"),
    "with a null byte": ("a\0b", 0o755, "embedded null"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_folder_that_cannot_be_written_is_refused_at_construction(what, folder):
    name, mode, reason = REFUSED[what]
    (folder / "file").write_text("mine")
    folder.chmod(mode)
    with as_others_do(), pytest.raises(ps.CheckpointError) as caught:
        train_line(f"{folder}/{name}")
    assert str(caught.value).startswith(f"checkpoint got directory={f'{folder}/{name}'!r}, where")
    assert reason in str(caught.value)
    assert "The run would not be saved. Name another folder, or see to that one." in str(
        caught.value
    )
    assert (folder / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "name", ["a[1]*?$HOME", "~", "a\n%20\\", os.fsdecode(b"a\xff\xfe"), "s3:"], ids=ascii
)
def test_checkpoint_in_a_folder_of_any_name_is_read_again(name, tmp_path):
    contents = Contents(
        leaves={"w": np.arange(3.0), "v": np.ones((2, 2))}, position=Position(global_step=3)
    )
    for folder in (tmp_path / "a1", tmp_path / name):  # what a pattern of the name would match
        store = Store(every_step(folder))
        store.write(contents)
        assert_same_bits(dict(store.read(3).leaves), dict(contents.leaves))
        assert os.listdir(folder) == ["3"]


def test_relative_folder_is_that_of_construction(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = train_line("run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    trainer.train(linear_reader())
    trainer.describe()
    assert os.listdir(tmp_path / "elsewhere") == []
    assert sorted(os.listdir(tmp_path / "run")) == ["3", "run.json"]


def test_error_of_the_run_is_raised_rather_than_that_of_the_disk(folder, caplog):
    def fail(event):
        if isinstance(event, ps.EndEpoch):
            raise LookupError("mine")

    trainer = train_line(folder)
    with Lock(folder) as lock, pytest.raises(LookupError, match="mine"):
        trainer.train(linear_reader(), [lock, fail])
    assert len(failures(caplog)) == 1


def test_saving_by_hand_without_a_folder_says_how_to_give_one():
    with pytest.raises(ps.CheckpointError) as caught:
        train_line().save_checkpoint()
    assert str(caught.value) == (
        "save_checkpoint got no folder to write to, expected Trainer(..., checkpoint='runs/a') or "
        "a ps.CheckpointConfig."
    )


def test_full_disk_is_refused_at_construction():
    with tmpfs(100_000) as disk:
        with contextlib.suppress(OSError):
            (disk / "filler").write_bytes(bytes(100_000))
        with pytest.raises(ps.CheckpointError, match="No space left on device"):
            train_line(disk / "run")
