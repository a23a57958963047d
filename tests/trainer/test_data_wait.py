"""The account of waiting for data, by a clock that the test turns."""

import logging

import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from penstock._interrupts import Interrupts
from penstock.trainer._run import SAMPLE_EVERY, WARN_AFTER_SECS, WARN_SHARE, DataWait


class World:
    """A reader and a device that take the time they are told to."""

    def __init__(self, reader_secs, step_secs, idle=(True,)):
        self.now, self._reader_secs, self._step_secs = 0.0, reader_secs, step_secs
        self._idle = list(idle)
        self.waiting = DataWait(self.is_idle, Interrupts(), clock=lambda: self.now)

    def is_idle(self):
        answer = self._idle.pop(0)
        self._idle.append(answer)
        return answer

    def run(self, num_launches):
        def launches():
            for number in range(num_launches):
                self.now += self._reader_secs
                yield number

        seen = []
        for launch in self.waiting.watch(launches()):
            self.now += self._step_secs
            seen.append(launch)
        assert seen == list(range(num_launches))


@pytest.mark.parametrize(
    ("idle", "share"), [((True,), 0.25), ((False, True), 0.125), ((False,), 0.0)]
)
def test_share_counts_the_reader_while_the_device_is_idle(idle, share):
    world = World(reader_secs=1.0, step_secs=3.0, idle=idle)
    world.run(4 * SAMPLE_EVERY + 1)
    assert world.waiting.end_epoch(0) == pytest.approx(share)


def test_high_share_warns_once_and_says_what_to_change(caplog):
    world = World(reader_secs=WARN_AFTER_SECS, step_secs=1.0)
    with caplog.at_level(logging.WARNING, logger="penstock"):
        for epoch in range(2):
            world.run(2 * SAMPLE_EVERY)
            world.waiting.end_epoch(epoch)
    assert len(caplog.messages) == 1
    assert "training waited for data 83 % of the time in epoch 0" in caplog.messages[0]
    assert "readers.cache" in caplog.messages[0]


@pytest.mark.parametrize(
    ("reader_secs", "step_secs"),
    [(WARN_AFTER_SECS * WARN_SHARE / 2, WARN_AFTER_SECS), (1e-3, 1e-3)],
)
def test_low_share_and_short_run_do_not_warn(reader_secs, step_secs, caplog):
    world = World(reader_secs, step_secs)
    with caplog.at_level(logging.WARNING, logger="penstock"):
        world.run(2 * SAMPLE_EVERY)
        world.waiting.end_epoch(0)
    assert not caplog.messages


def test_trainer_reports_the_share_of_an_epoch_at_its_end():
    def program():
        return layers.mean(layers.fc(layers.data("x", shape=[2]), size=1) ** 2)

    shares = []
    batches = [{"x": np.ones((4, 2), np.float32)}] * (2 * SAMPLE_EVERY + 1)
    ps.Trainer(program, optax.sgd(0.1)).train(
        batches, lambda event: isinstance(event, ps.EndEpoch) and shares.append(event.data_wait)
    )
    assert len(shares) == 1
    assert 0 <= shares[0] <= 1
