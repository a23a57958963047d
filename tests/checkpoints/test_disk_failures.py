"""Where a checkpoint cannot be written, training goes on and the failure is loud."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock._checkpoint import Store
from tests.checkpoints.runs import every_step, train_line, whole_state
from tests.networks import Recorder, assert_same_bits, linear_reader
from tests.source_tree import ROOT


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
        first, *lines, last = str(caught.value).splitlines()
        assert first == "training ended, but 3 checkpoints were not written:"
        assert last == ("The trainer is valid: call trainer.save_checkpoint() when there is room.")
        for line, step in zip(lines, (6, 9, 12), strict=True):
            assert line.startswith(f"  checkpoint of global step {step}: ")
            assert "No space left on device" in line
        assert len(failures(caplog)) == 3
        assert Store(every_step(disk / "run")).read_newest().position.global_step == 3

        filler.unlink()
        trainer.save_checkpoint()
        assert_same_bits(whole_state(train_line(disk / "run")), expected)


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
        assert_same_bits(whole_state(train_line(config)), state)
        (disk / "filler").unlink()
        trainer.save_checkpoint()
        assert train_line(config).update_scale == 0.5


def test_run_whose_files_may_not_grow_ends_with_an_exit_code(expected, tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.checkpoints.full_disk"),
            *(tmp_path / "run", tmp_path / "report"),
        ],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "CheckpointError: training ended, but 3 checkpoints were not written" in done.stderr
    assert done.stderr.count("NOT SAVED, training goes on") == 3
    assert json.loads((tmp_path / "report").read_text()) == {"epoch": 4, "global_step": 12}
    store = Store(every_step(tmp_path / "run"))
    assert store.steps() == [3]
    assert store.read(3).position.global_step == 3
    trainer = train_line(tmp_path / "run")
    trainer.train(linear_reader(), num_epochs=4)
    assert_same_bits(whole_state(trainer), expected)


@contextlib.contextmanager
def not_as_root():
    """Give up root's permission to write anywhere."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@pytest.fixture
def locked():
    """Return a folder that anybody may read and nobody write to."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o755)
        (path / "locked").mkdir()
        (path / "locked").chmod(0o555)
        yield path / "locked"


@pytest.mark.parametrize("name", ["", "run"], ids=["folder", "parent"])
def test_folder_without_permission_lets_training_go_on(expected, locked, name, caplog):
    trainer, recorder = train_line(locked / name), Recorder()
    with (
        not_as_root(),
        pytest.raises(ps.CheckpointError, match="4 checkpoints were not written") as caught,
    ):
        trainer.train(linear_reader(), recorder, num_epochs=4)
    assert_valid(trainer, expected, recorder)
    lines = str(caught.value).splitlines()[1:-1]
    assert len(lines) == 4
    assert all("Permission denied" in line for line in lines)
    assert len(failures(caplog)) == 4


def test_folder_below_a_file_lets_training_go_on(expected, tmp_path):
    (tmp_path / "file").write_text("mine")
    trainer, recorder = train_line(tmp_path / "file" / "run"), Recorder()
    with pytest.raises(ps.CheckpointError, match="4 checkpoints were not written") as caught:
        trainer.train(linear_reader(), recorder, num_epochs=4)
    assert_valid(trainer, expected, recorder)
    assert "Not a directory" in str(caught.value)
    assert (tmp_path / "file").read_text() == "mine"


def test_folder_that_is_a_file_is_refused_at_once(tmp_path):
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(ps.CheckpointError) as caught:
        train_line(path)
    assert str(caught.value) == (
        f"checkpoint got directory='{path}', which is a file, expected a folder or a new name."
    )


def test_error_of_the_run_is_raised_rather_than_that_of_the_disk(locked, caplog):
    def fail(event):
        if isinstance(event, ps.EndEpoch):
            raise LookupError("mine")

    trainer = train_line(locked)
    with not_as_root(), pytest.raises(LookupError, match="mine"):
        trainer.train(linear_reader(), fail)
    assert len(failures(caplog)) == 1


def test_failure_is_said_once(locked):
    trainer = train_line(locked)
    with not_as_root(), pytest.raises(ps.CheckpointError, match="1 checkpoint was not written"):
        trainer.train(linear_reader())
    locked.chmod(0o755)
    trainer.train(linear_reader())
    assert Store(every_step(locked)).steps() == [6]


def test_saving_by_hand_says_why_it_failed(locked):
    trainer = train_line(locked)
    with not_as_root(), pytest.raises(ps.CheckpointError, match="Permission denied"):
        trainer.save_checkpoint()


def test_saving_by_hand_without_a_folder_says_how_to_give_one():
    with pytest.raises(ps.CheckpointError) as caught:
        train_line().save_checkpoint()
    assert str(caught.value) == (
        "save_checkpoint got no folder to write to, expected Trainer(..., checkpoint='runs/a') or "
        "a ps.CheckpointConfig."
    )
