"""Steps in flight: what is waited for, how far batches are read ahead, when a bad loss is found."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers, readers
from penstock._mesh import make_mesh
from penstock.trainer._in_flight import (
    CHECK_EVERY,
    MAX_STEPS_IN_FLIGHT,
    STRIDE,
    InFlight,
    look_ahead,
)
from tests.networks import Recorder, eight_devices, linear_data, linear_program, one_device


class Flag:
    """A launch's flag that says when it is waited for and when it is read."""

    def __init__(self, log, number, value=0.5):
        self._log, self._number, self._value = log, number, value
        self._is_ready = False

    def is_ready(self):
        return self._is_ready

    def block_until_ready(self):
        self._is_ready = True
        self._log.append(f"wait {self._number}")

    def __array__(self, dtype=None, copy=None):
        self._log.append(f"read {self._number}")
        return np.asarray(self._value)


class Queue:
    """A queue of which launch `n` ends before global step `n + 1`, and a log of what it does."""

    def __init__(self, place=one_device):
        self.log = []
        self.queue = InFlight(make_mesh(place()), self.check, 0)
        self._num_pushed = 0

    def check(self, flag, first, last):
        if not np.isfinite(flag):
            self.log.append(f"bad {first} to {last}")

    def push(self, count, value=0.5):
        for number in range(self._num_pushed, self._num_pushed + count):
            self.queue.push(Flag(self.log, number, value), number + 1)
        self._num_pushed += count


def test_launches_beyond_the_limit_wait_for_the_oldest():
    each = Queue()
    each.push(MAX_STEPS_IN_FLIGHT + STRIDE - 1)
    assert each.log == []
    each.push(1)
    assert each.log == [f"wait {STRIDE - 1}"]


def test_flags_that_have_arrived_are_not_waited_for(monkeypatch):
    monkeypatch.setattr(Flag, "is_ready", lambda self: True)
    each = Queue()
    each.push(CHECK_EVERY // 2)
    assert each.log == []


def test_launches_on_several_cpu_devices_are_waited_for_each():
    each = Queue(eight_devices)
    each.push(2)
    assert each.log == ["wait 0", "wait 1"]


def test_drain_reads_the_last_flag_and_those_of_epoch_ends_once():
    each = Queue()
    each.push(2)
    each.queue.end_epoch()
    each.push(2)
    each.queue.drain()
    assert each.log == ["read 1", "read 3"]
    each.queue.drain()
    assert each.log == ["read 1", "read 3"]


def test_flag_of_an_epochs_end_is_read_when_it_arrives_and_others_are_not():
    each = Queue()
    each.push(1)
    each.push(1, value=np.nan)
    each.queue.end_epoch()
    each.push(MAX_STEPS_IN_FLIGHT)
    assert each.log == ["wait 1", "read 1", "bad 0 to 1"]


def test_flag_of_an_epochs_end_is_read_where_each_launch_is_waited_for():
    each = Queue(eight_devices)
    each.push(2)
    each.queue.end_epoch()
    each.push(1, value=np.inf)
    each.queue.drain()
    assert each.log == ["wait 0", "wait 1", "read 1", "wait 2", "read 2", "bad 2 to 2"]


def test_one_flag_in_the_interval_is_read_and_names_the_steps_since_the_last():
    each = Queue()
    each.push(CHECK_EVERY)
    each.push(CHECK_EVERY + MAX_STEPS_IN_FLIGHT, value=np.nan)
    first, second = CHECK_EVERY - 1, 2 * CHECK_EVERY - 1
    assert [line for line in each.log if not line.startswith("wait")] == [
        f"read {first}",
        f"read {second}",
        f"bad {first + 1} to {second}",
    ]


# The look-ahead.


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_look_ahead_takes_the_next_items_before_it_yields(depth):
    taken = []

    def source():
        for number in range(6):
            taken.append(number)
            yield number

    seen = [(item, len(taken)) for item in look_ahead(source(), depth)]
    assert seen == [(number, min(number + depth + 1, 6)) for number in range(6)]


def test_look_ahead_raises_an_exception_after_the_items_before_it():
    def source():
        yield from range(3)
        raise LookupError

    items = look_ahead(source(), 2)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(LookupError):
        next(items)


def test_look_ahead_raises_an_interrupt_at_once():
    def source():
        yield 0
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(look_ahead(source(), 2))


def test_look_ahead_of_nothing_yields_nothing():
    assert list(look_ahead([], 2)) == []


# The training loop.


@jax.jit
def take_a_second(x):
    """Return rows of `x` after some 60 products of [1200, 1200] matrices."""
    y = jnp.ones((1200, 1200))
    for _ in range(60):
        y = jnp.sin(y @ y)
    return x + y[: x.shape[0], : x.shape[1]] * 0


@pytest.fixture(scope="module")
def trainer():
    """Return a trainer on one device whose programs are compiled."""
    trainer = ps.Trainer(linear_program, optax.sgd(0.0), place=one_device())
    data = linear_data(8)
    trainer.train([data, {name: jnp.asarray(value) for name, value in data.items()}])
    take_a_second(data["x"]).block_until_ready()
    return trainer


def test_training_that_reads_no_metrics_waits_for_nothing_before_its_end(trainer):
    data = linear_data(8)
    pending = take_a_second(data["x"])  # no step can be done before it
    still_pending = []
    recorder = Recorder()
    batches = [{"x": pending, "y": data["y"]}] * (MAX_STEPS_IN_FLIGHT // 4)
    trainer.train(
        batches,
        [recorder, lambda event: still_pending.append(not pending.is_ready())],
        num_epochs=2,
    )
    assert recorder.lines[-2].startswith("EndEpoch")
    assert all(still_pending[:-1])
    assert recorder.of(ps.EndStep)[-1].metrics > 0


@pytest.fixture
def calls(monkeypatch):
    """Return the list that every waiting for a device and every reading of an array goes into."""
    names: list[str] = []
    array = type(jnp.zeros(()))
    value = array._value

    def spied(name, original):
        def spy(*args, **kwargs):
            names.append(name)
            return original(*args, **kwargs)

        return spy

    monkeypatch.setattr(array, "_value", property(spied("_value", value.fget)))
    for owner, name in (
        (array, "__array__"),
        (array, "block_until_ready"),
        (jax, "block_until_ready"),
        (jax, "device_get"),
    ):
        monkeypatch.setattr(owner, name, spied(name, getattr(owner, name)))
    return names


def test_training_of_few_steps_that_reads_no_metrics_calls_nothing_that_waits(trainer, calls):
    called_before = []
    trainer.train(
        [linear_data(8)] * (MAX_STEPS_IN_FLIGHT // 4),
        lambda event: called_before.append(list(calls)),
        num_epochs=2,
    )
    assert not any(called_before[:-1])
    assert "device_get" in called_before[-1]  # the last flag, at the end


def test_training_of_many_steps_that_reads_no_metrics_reads_nothing_but_flags(trainer, calls):
    called_before = []
    trainer.train(
        [linear_data(8)] * (CHECK_EVERY // 2), lambda event: called_before.append(list(calls))
    )
    assert set(called_before[-2]) <= {"block_until_ready"}
    assert "device_get" in called_before[-1]


@pytest.mark.slow
def test_metrics_of_a_step_are_waited_for_when_read(trainer):
    data = linear_data(8)
    pending = take_a_second(data["x"])
    seen = []

    def on_event(event):
        if isinstance(event, ps.EndStep):
            seen.append(pending.is_ready())
            seen.append(event.metrics)

    trainer.train([{"x": pending, "y": data["y"]}], on_event)
    assert seen == [False, trainer.test([data])]


# A loss that is not finite.


def poisoned_program():
    """Return a regression's loss plus `poison`, which has no gradient."""
    poison = layers.data("poison", shape=[1])
    return linear_program() + jax.lax.stop_gradient(layers.mean(poison))


def poisoned_reader(num_steps, bad_step):
    data = linear_data(4 * num_steps)
    poison = np.zeros((4 * num_steps, 1), np.float32)
    poison[4 * bad_step] = np.inf
    return readers.arrays({**data, "poison": poison}, batch_size=4)


@pytest.fixture(scope="module")
def poisoned_trainers():
    return {
        (place, steps): ps.Trainer(
            poisoned_program, optax.sgd(0.0), place=place(), steps_per_call=steps
        )
        for place in (one_device, eight_devices)
        for steps in (1, 2)
    }


@pytest.fixture(
    params=[(one_device, 1), (one_device, 2), (eight_devices, 1)],
    ids=["one", "one, two steps a call", "eight"],
)
def poisoned(poisoned_trainers, request):
    return poisoned_trainers[request.param]


def error_of(trainer, reader, handlers=(), num_epochs=1):
    recorder = Recorder()
    with pytest.raises(ps.NonFiniteError) as caught:
        trainer.train(reader, [*handlers, recorder], num_epochs=num_epochs)
    assert recorder.lines[-1] == "EndTraining failed"
    return str(caught.value), recorder


def steps_named(text):
    """Return the range of steps in which an error says that an unread loss went bad."""
    numbers = re.match(
        r"(?s)Trainer got a loss that is not finite (?:at global step (\d+)|in global steps (\d+) "
        r"to (\d+)), expected a finite one\..* The parameters stayed finite\. Look for",
        text,
    )
    assert numbers, text
    at, first, last = numbers.groups()
    return range(int(at or first), int(at or last) + 1)


def test_loss_gone_bad_that_a_handler_reads_ends_training_after_its_launch(poisoned):
    first = poisoned.global_step

    def read(event):
        if isinstance(event, ps.EndStep):
            assert isinstance(event.metrics, float)

    text, recorder = error_of(poisoned, poisoned_reader(8, bad_step=3), [read])
    assert text == (
        f"Trainer got a loss of inf at global step {first + 3}, expected a finite one. Metrics of "
        "this epoch that are not finite: 'loss'. The parameters stayed finite. Look for an id or a "
        "label out of range (they give nan), the log of zero or a division by zero; else lower the "
        "learning rate, or clip gradients (optax.clip_by_global_norm). trainer.replay(reader) runs "
        "the step again and shows the line, the id or the label; Trainer(..., "
        "on_non_finite='skip') leaves such updates out."
    )
    assert recorder.lines[-2].endswith(" 3")


def test_loss_gone_bad_once_and_unread_is_found_at_the_end(poisoned):
    first = poisoned.global_step
    text, recorder = error_of(poisoned, poisoned_reader(6, bad_step=3))
    assert steps_named(text) == range(first, first + 6)
    assert len(recorder.of(ps.EndStep)) == 6


def test_loss_gone_bad_and_unread_is_found_within_the_interval_of_reading_flags(poisoned):
    first, steps_per_call = poisoned.global_step, poisoned.steps_per_call
    text, recorder = error_of(poisoned, poisoned_reader(4 * CHECK_EVERY, bad_step=3))
    assert steps_named(text) == range(first, first + CHECK_EVERY * steps_per_call)
    limit = CHECK_EVERY + MAX_STEPS_IN_FLIGHT + 1
    assert len(recorder.of(ps.EndStep)) <= limit * steps_per_call


def test_loss_gone_bad_and_unread_in_one_epoch_is_found_in_the_next(poisoned):
    first = poisoned.global_step
    steps = 4 * MAX_STEPS_IN_FLIGHT
    readings = iter([poisoned_reader(6, bad_step=3), poisoned_reader(steps, bad_step=steps - 1)])
    text, recorder = error_of(poisoned, lambda: iter(next(readings)), num_epochs=2)
    assert steps_named(text) == range(first, first + 6)
    assert len(recorder.of(ps.EndStep)) < 6 + steps


def test_loss_gone_bad_is_found_when_training_is_stopped(poisoned):
    first = poisoned.global_step
    stop = Recorder(f"EndStep {poisoned.epoch} 3", lambda event: poisoned.stop())
    text, _ = error_of(poisoned, poisoned_reader(12, bad_step=2), [stop])
    assert steps_named(text) == range(first, first + 4)


def test_finite_losses_after_a_bad_run_raise_nothing(poisoned):
    error_of(poisoned, poisoned_reader(6, bad_step=3))
    poisoned.train([{**linear_data(4), "poison": np.zeros((4, 1), np.float32)}] * 3)


def test_bad_loss_of_one_of_several_objectives_is_named_with_its_global_step():
    objectives = {
        "sound": ps.Objective(linear_program, optax.sgd(0.0)),
        "poisoned": ps.Objective(poisoned_program, optax.sgd(0.0)),
    }
    trainer = ps.Trainer(objectives, place=one_device(), schedule={"sound": 1, "poisoned": 2})
    text, _ = error_of(trainer, poisoned_reader(6, bad_step=4))
    assert steps_named(text) == range(6)
    read = lambda event: isinstance(event, ps.EndStep) and event.metrics  # noqa: E731
    text, _ = error_of(trainer, poisoned_reader(6, bad_step=1), [read])
    assert "Trainer got a loss of 'poisoned' of inf at global step 7, expected" in text
