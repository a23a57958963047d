"""Two runs in one folder of checkpoints: the second is refused, and never deletes anything."""

import os
import signal
import threading

import numpy as np
import pytest

import penstock as ps
from penstock._checkpoint import Store
from penstock._folder_lock import NAME, FolderLock
from tests.checkpoints.runs import every_step, train_line
from tests.networks import linear_reader


def test_folder_of_a_run_is_refused_to_others_and_free_afterwards(tmp_path):
    trainer, refused = train_line(tmp_path), []

    def on_event(event):
        if isinstance(event, ps.EndEpoch):
            with pytest.raises(ps.FolderInUseError, match="by this very process") as caught:
                train_line(tmp_path)
            refused.append(str(caught.value))
            with pytest.raises(ps.FolderInUseError):
                earlier.train(linear_reader())
            with pytest.raises(ps.FolderInUseError):
                earlier.save_checkpoint()
            trainer.save_checkpoint()

    earlier = train_line(tmp_path)
    trainer.train(linear_reader(), on_event, num_epochs=2)
    assert len(refused) == 2
    assert NAME not in os.listdir(tmp_path)
    assert train_line(tmp_path).global_step == 6


def test_trainer_whose_folder_another_run_went_on_in_is_refused(tmp_path):
    first, second = train_line(tmp_path), train_line(tmp_path)
    second.train(linear_reader())
    for _ in range(2):
        with pytest.raises(ps.FolderInUseError, match=r"another run since .* of global step '3'"):
            first.train(linear_reader())
    assert first.global_step == 0
    second.train(linear_reader())
    assert Store(every_step(tmp_path)).steps() == [3, 6]


def test_save_that_a_second_interrupt_abandoned_is_of_this_run(tmp_path, monkeypatch):
    go_on, write = threading.Event(), Store.write

    def write_late(store, contents):
        os.kill(os.getpid(), signal.SIGINT)
        go_on.wait(20)
        write(store, contents)

    def interrupt(event):
        if isinstance(event, ps.EndEpoch):
            os.kill(os.getpid(), signal.SIGINT)
            raise KeyboardInterrupt

    trainer = train_line(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", write_late)
        with pytest.raises(KeyboardInterrupt):
            trainer.train(linear_reader(), [interrupt])
    go_on.set()
    trainer._saver._writer.wait()
    trainer.parameters["fc_0/w"] = np.full([4, 1], 3.0, np.float32)
    trainer.save_checkpoint()
    # Of now, and not of the moment before `EndEpoch`.
    assert np.all(train_line(tmp_path).parameters["fc_0/w"] == 3)
    trainer.train(linear_reader())


def test_temporary_folder_of_a_save_under_way_is_left_to_its_run(tmp_path):
    train_line(tmp_path).train(linear_reader())
    unfinished = tmp_path / ".saving-"
    unfinished.mkdir()
    with FolderLock(tmp_path):
        with pytest.raises(ps.FolderInUseError):
            train_line(tmp_path)
        assert unfinished.exists()
    train_line(tmp_path)
    assert not unfinished.exists()


def test_run_whose_lock_was_taken_saves_nothing_and_says_so(tmp_path):
    def take(event):
        if isinstance(event, ps.EndEpoch) and event.epoch == 0:
            (tmp_path / NAME).unlink()
            other.acquire()

    other = FolderLock(tmp_path)
    with pytest.raises(ps.CheckpointError, match=r"FolderInUseError: the folder .* second run"):
        train_line(tmp_path).train(linear_reader(), take, num_epochs=2)
    assert [name for name in os.listdir(tmp_path) if name != NAME] == []
    other.check()
    other.release()
