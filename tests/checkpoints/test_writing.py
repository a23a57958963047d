"""Writing beside training: the snapshot, the thread, and who waits for it."""

import os
import sys
import threading
import time

import numpy as np
import optax
import pytest

import penstock as ps
from penstock._checkpoint import Contents, Position, Store, Writer
from penstock.trainer._saver import Saver
from tests.checkpoints.runs import every_step, train_classifier, train_line
from tests.checkpoints.test_handlers import Counter
from tests.held import threads
from tests.networks import (
    PLACES,
    assert_same_bits,
    counted_compiles,
    linear_data,
    linear_program,
    linear_reader,
    one_device,
)


@PLACES
def test_snapshot_leaves_memory_alone_that_is_still_read(place):
    trainer = train_classifier(place=place())
    engine = trainer._engine
    first = engine.snapshot()
    read = [np.asarray(array) for array in first]
    expected = [array.copy() for array in read]
    other = engine.copy([np.asarray(x) + np.ones((), x.dtype) for x in engine.leaves])
    assert_same_bits(other.snapshot(first), other.leaves)
    assert_same_bits(read, expected)


@pytest.mark.slow
def test_snapshots_compile_once_each_way(tmp_path):
    trainer = train_classifier(every_step(tmp_path))
    for _ in range(2):
        trainer._saver.save(trainer._status)
    with counted_compiles() as names:
        for _ in range(3):
            trainer._saver.save(trainer._status)
    trainer._saver._writer.wait()
    assert names == []


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no priority")
@pytest.mark.parametrize(("is_last", "lowered_by"), [(False, 5), (True, 0)])
def test_thread_that_nobody_waits_for_lets_the_steps_go_first(tmp_path, is_last, lowered_by):
    priorities = []

    def make():
        priorities.append(os.getpriority(os.PRIO_PROCESS, 0))
        return Contents(leaves={"w": np.zeros(1)}, position=Position(global_step=1))

    mine = os.getpriority(os.PRIO_PROCESS, 0)
    writer = Writer(Store(every_step(tmp_path)), is_asynchronous=True)
    writer.write(make, step=1, is_last=is_last)
    writer.wait()
    assert writer.failures == []
    assert priorities == [min(mine + lowered_by, 19)]
    assert os.getpriority(os.PRIO_PROCESS, 0) == mine


def test_training_that_a_bad_loss_ends_waits_for_the_checkpoint_being_written(tmp_path):
    data = linear_data(12)
    data["y"][8:] = np.nan
    config = ps.CheckpointConfig(directory=tmp_path, save_interval_steps=2)
    trainer = ps.Trainer(linear_program, optax.adam(0.05), place=one_device(), checkpoint=config)
    assert isinstance(trainer._saver, Saver)
    store = trainer._saver.store
    write = store.write

    def write_slowly(contents):
        time.sleep(0.5)
        write(contents)

    store.write = write_slowly
    before = threads("penstock checkpoint")
    with pytest.raises(ps.NonFiniteError):
        trainer.train(ps.readers.arrays(data, 4))
    assert threads("penstock checkpoint") <= before
    assert store.steps() == [2]


def pointers(arrays):
    return [array.unsafe_buffer_pointer() for array in arrays]


@PLACES
def test_snapshots_of_a_run_are_made_on_one_device_in_the_memory_of_the_one_before(place, tmp_path):
    trainer, where = train_classifier(every_step(tmp_path), place=place()), []
    for _ in range(2):
        trainer._saver.save(trainer._status)
        where.append(pointers(trainer._saver._spare))
    assert where[0] == where[1] != []
    made, leaves = trainer._saver._spare, trainer._engine.leaves
    assert {device for array in made for device in array.devices()} == set(place()[:1])
    assert not set(where[1]) & set(pointers(leaf.addressable_data(0) for leaf in leaves))
    assert_same_bits(made, leaves)


def test_no_snapshot_is_kept_where_saves_are_waited_for(tmp_path):
    trainer = train_classifier(every_step(tmp_path, is_asynchronous=False))
    trainer._saver.save(trainer._status)
    assert trainer._saver._spare == []
    assert "copies" not in vars(trainer._engine.programs.states)
    assert_same_bits(
        list(Store(every_step(tmp_path)).read(0).leaves.values()), trainer._engine.leaves
    )


def test_last_checkpoint_is_not_written_twice(tmp_path):
    config = ps.CheckpointConfig(directory=tmp_path, save_interval_epochs=1)
    trainer, written = train_line(config), []
    write = trainer._saver.store.write
    trainer._saver.store.write = lambda made: written.append(made.position) or write(made)
    trainer.train(linear_reader(), num_epochs=2)
    assert [position.global_step for position in written] == [3, 6]


def test_state_of_a_handler_is_that_of_the_checkpoint_though_it_is_written_later(tmp_path):
    trainer, goes_on = train_line(every_step(tmp_path)), threading.Event()
    write = trainer._saver.store.write
    trainer._saver.store.write = lambda made: goes_on.wait(60) and write(made)
    hold = lambda event: isinstance(event, ps.EndStep) and event.step == 1 and goes_on.set()  # noqa: E731
    # The list of losses is in its state itself, and has two when the checkpoint is written.
    trainer.train(linear_reader(), [Counter(), hold])
    (kept,) = Store(every_step(tmp_path)).read(1).extra["handlers"]
    assert len(kept["state"]["losses"]) == 1
