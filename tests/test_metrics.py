"""Means over examples: exact over long runs, weighted by examples, in the program's structure."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import _metrics, layers
from penstock._metrics import Returned, add, compute_values, sum_up
from penstock.program_builder import engine
from tests.networks import PLACES, Recorder, linear_data, one_device

SCALAR = _metrics.Item(key=0)


def structure(*items):
    return _metrics.Structure(items=items, build=tuple)


# Long sums.


def summed(values, weights):
    """Accumulate scalars `values` [N], each of a batch of `weights` [N] examples."""
    scalar = structure(SCALAR)

    @jax.jit
    def run(values, weights):
        def body(sums, pair):
            value, count = pair
            return add(sums, sum_up(Returned([value], []), scalar, count)), None

        return jax.lax.scan(body, _metrics.zeros(scalar), (values, weights))[0]

    return compute_values(run(values, weights), scalar)[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda random, n: np.full(n, 0.1),
        lambda random, n: random.uniform(0, 3, n),
        lambda random, n: random.normal(size=n) + 1e4,
        lambda random, n: np.where(np.arange(n) % 2, 1e6, -1e6) + random.uniform(1, 2, n),
        lambda random, n: np.sort(random.exponential(size=n) ** 4)[::-1],
    ],
    ids=["0.1", "uniform", "far from zero", "alternating", "falling"],
)
def test_mean_of_half_a_million_steps_is_exact_to_1e7th(make):
    random = np.random.default_rng(0)
    values = make(random, 500_000).astype(np.float32)
    weights = random.integers(1, 128, 500_000).astype(np.float32)
    expected = np.average(values.astype(np.float64), weights=weights)
    tolerance = 1e-7 * np.average(np.abs(values.astype(np.float64)), weights=weights)
    assert abs(summed(values, weights) - expected) <= tolerance


def test_mean_of_ten_million_examples_counts_every_one():
    values = np.array([0.0, 1.0], np.float32)
    weights = np.array([2**25, 1], np.float32)  # a float32 sum would lose the 1
    assert summed(values, weights) == 1 / (2**25 + 1)


def test_sum_that_met_a_value_that_is_not_finite_never_is_again():
    for bad in (np.nan, np.inf, -np.inf):
        values = np.array([1.0, bad, 1.0, 2.0], np.float32)
        # Infinity, and no nan: a two-sum takes one from the other.
        np.testing.assert_equal(summed(values, np.ones(4, np.float32)), bad)


# In programs.


def program():
    """Return a loss, values with one row and with two rows an example, a count and a flag."""
    x = layers.data("x", shape=[4])
    prediction = layers.fc(x, size=1)
    loss = layers.mean(layers.square_error_cost(prediction, layers.data("y", shape=[1])))
    two_rows = jnp.reshape(x, (-1, 2))
    return {
        "rows": x,
        "loss": loss,
        "two rows": two_rows,
        "count": layers.mean(jnp.ones_like(prediction)).astype(jnp.int32),
        "flag": layers.mean(prediction) > -100.0,
        "vector": jnp.array([1.0, 3.0]) * layers.mean(jnp.ones_like(prediction)),
    }


@functools.cache
def train_at(place):
    """Train two epochs of batches of 16, 16 and 5 examples; returns the trainer and its events."""
    data = linear_data(37)
    batches = [{n: v[i : i + 16] for n, v in data.items()} for i in (0, 16, 32)]
    trainer, recorder = ps.Trainer(program, optax.sgd(0.01), place=place()), Recorder()
    trainer.train(batches, recorder, num_epochs=2)
    return trainer, batches, recorder


@pytest.fixture
def run(request):
    return train_at(request.param)


RUNS = pytest.mark.parametrize("run", PLACES.args[1], indirect=True, ids=["one", "eight"])


@RUNS
def test_rows_of_padding_are_cut_off(run):
    _, batches, recorder = run
    for event, batch in zip(recorder.of(ps.EndStep)[:3], batches, strict=True):
        np.testing.assert_array_equal(event.metrics["rows"], batch["x"])
        np.testing.assert_array_equal(event.metrics["two rows"], batch["x"].reshape(-1, 2))


@RUNS
def test_rows_are_averaged_over_the_examples_of_an_epoch(run):
    trainer, batches, recorder = run
    x = linear_data(37)["x"]
    for metrics in (recorder.of(ps.EndEpoch)[1].metrics, trainer.test(batches)):
        np.testing.assert_allclose(metrics["rows"], x.mean(0), rtol=1e-5, atol=1e-7)
        expected = x.reshape(-1, 2).mean(0)
        np.testing.assert_allclose(metrics["two rows"], expected, rtol=1e-5, atol=1e-7)


@RUNS
def test_scalars_are_python_numbers(run):
    trainer, batches, recorder = run
    for metrics in (recorder.of(ps.EndStep)[0].metrics, recorder.of(ps.EndEpoch)[1].metrics):
        assert metrics["count"] == metrics["flag"] == 1
        assert type(metrics["loss"]) is float
    assert type(trainer.test(batches)["flag"]) is float


@RUNS
def test_array_without_batch_axis_is_averaged_element_by_element(run):
    trainer, batches, recorder = run
    step, epoch = recorder.of(ps.EndStep)[2].metrics, recorder.of(ps.EndEpoch)[1].metrics
    for metrics in (step, epoch, trainer.test(batches)):
        np.testing.assert_allclose(metrics["vector"], [1.0, 3.0], rtol=1e-6)


def test_metrics_of_several_objectives_are_dicts_by_name():
    def first():
        return layers.mean(layers.fc(layers.data("x", shape=[4]), size=1, name="first"))

    def second():
        loss = layers.mean(layers.fc(layers.data("x", shape=[4]), size=1, name="second"))
        return {"loss": loss, "twice": 2 * loss}

    objectives = {
        "a": ps.Objective(first, optax.sgd(0.1)),
        "b": ps.Objective(second, optax.sgd(0.1)),
    }
    trainer, recorder = ps.Trainer(objectives, place=one_device()), Recorder()
    batches = [{"x": linear_data(4)["x"]}]
    trainer.train(batches, recorder)
    step, epoch = recorder.of(ps.EndStep)[0].metrics, recorder.of(ps.EndEpoch)[0].metrics
    for metrics in (step, epoch, trainer.test(batches)):
        assert type(metrics["a"]) is float
        assert metrics["b"]["twice"] == pytest.approx(2 * metrics["b"]["loss"])
    assert list(step) == list(epoch) == ["a", "b"]


def test_metric_beside_one_that_computes_a_dict_is_monitored():
    @dataclasses.dataclass(frozen=True)
    class Sides(ps.metrics.Metric):
        total: jax.Array

        def compute(self):
            return {"left": self.total, "right": -self.total}

    returned = {"sides": Sides(jnp.ones(())), "loss": jnp.ones(()), "late": jnp.zeros(())}
    structure, _ = _metrics.flatten_returned(returned, "a program")
    means, structures = {"train": [{"left": 1.0, "right": -1.0}, 2.0, 3.0]}, {"train": structure}
    values = [_metrics.find_monitored(means, name, structures) for name in returned]
    assert values == [None, 2.0, 3.0]


def test_state_with_complex_parameters_is_looked_at():
    for value, is_healthy in ((1 + 1j, 1), (complex(0, np.nan), 0), (complex(np.inf, 0), 0)):
        flag = engine._check_health(jnp.zeros(()), {"w": jnp.full(3, value, jnp.complex64)})
        assert flag.tolist() == [0, is_healthy]
