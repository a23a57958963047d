"""Steps in flight: what is waited for, and how far batches are read ahead."""

import jax
import jax.numpy as jnp
import optax
import pytest

import penstock as ps
from penstock._mesh import make_mesh
from penstock.distributed.group import Group
from penstock.trainer._in_flight import (
    CHECK_EVERY,
    MAX_STEPS_IN_FLIGHT,
    look_ahead,
    max_in_flight,
)
from tests.networks import Recorder, eight_devices, linear_data, linear_program, one_device


@pytest.fixture(scope="module")
def take_a_second():
    """Return, compiled, what returns its rows after some 30 products of [1200, 1200] matrices."""

    def multiply(x):
        y = jnp.ones((1200, 1200))
        for _ in range(30):
            y = jnp.sin(y @ y)
        return x + y[: x.shape[0], : x.shape[1]] * 0

    return jax.jit(multiply).lower(linear_data(8)["x"]).compile()


@pytest.fixture(scope="module")
def trainer(request):
    """Return a trainer on one device whose programs are compiled."""
    action = getattr(request, "param", "stop")
    trainer = ps.Trainer(linear_program, optax.sgd(0.0), place=one_device(), on_non_finite=action)
    data = linear_data(8)
    trainer.train([data, {name: jnp.asarray(value) for name, value in data.items()}])
    return trainer


@pytest.mark.parametrize(
    "trainer", ["stop", pytest.param("skip", marks=pytest.mark.slow)], indirect=True
)
def test_training_that_reads_no_metrics_waits_for_nothing_before_its_end(trainer, take_a_second):
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


def test_launches_on_several_cpu_devices_are_waited_for_each():
    # Two of them at a time would wait for each other's threads.
    assert max_in_flight(make_mesh(eight_devices())) == 0 < max_in_flight(make_mesh(one_device()))


def test_look_ahead_raises_an_interrupt_at_once():
    def source():
        yield 0
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(look_ahead(source(), 2, Group()))


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


def test_training_of_many_steps_that_reads_no_metrics_reads_nothing_but_flags(trainer, calls):
    called_before = []
    trainer.train(
        [linear_data(8)] * (CHECK_EVERY // 2), lambda event: called_before.append(list(calls))
    )
    assert set(called_before[-2]) <= {"block_until_ready"}
    assert "device_get" in called_before[-1]
