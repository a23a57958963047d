"""`Gradients`: its norms are those of JAX, logs show them, and training does not feel it."""

import csv
import time

import jax
import numpy as np
import optax
import pytest
from tensorboard.util import tensor_util

import penstock as ps
from penstock import handlers
from penstock.events import BeginTraining, EndStep
from penstock.handlers.report.history import RunTimes
from penstock.program_builder import _step
from tests.handlers.driving import linear_trainer
from tests.handlers.test_tensorboard import loaded, points
from tests.networks import PLACES_AND_CALLS, linear_data, linear_program, linear_reader, one_device

RATE = 0.05
COUNTS = (_step._scatter, _step._sum_by_bin)


class Kept:
    def __init__(self):
        self.steps, self.before, self.after, self.updates = [], {}, {}, {}

    def __call__(self, event):
        if isinstance(event, BeginTraining):
            self.trainer = event.trainer
        elif isinstance(event, ps.BeginStep):
            self.before[event.global_step] = dict(self.trainer.parameters)
        elif isinstance(event, EndStep):
            self.steps.append(event.global_step)
            self.after[event.global_step] = dict(self.trainer.parameters)
            if event.has_updates:
                self.updates[event.global_step] = event.updates


def train(*extra, place=None, **options):
    """Train for two epochs of three steps, and return the trainer and what was kept."""
    kept, trainer = Kept(), ps.Trainer(linear_program, optax.adam(RATE), place=place, **options)
    trainer.train(linear_reader(), [*extra, kept], num_epochs=2)
    return trainer, kept


@PLACES_AND_CALLS
def test_updates_are_the_differences_of_the_parameters_and_training_is_the_same_bits(
    place, steps_per_call
):
    options = {"place": place(), "steps_per_call": steps_per_call}
    plain, _ = train(**options)
    watched, kept = train(handlers.Gradients(every_steps=2), **options)
    for name, value in plain.parameters.items():
        np.testing.assert_array_equal(watched.parameters[name], value)
    assert sorted(kept.updates) == [1, 3, 5]
    if steps_per_call > 1:
        return  # the parameters between two steps of a launch are nobody's
    for step, updates in kept.updates.items():
        assert list(updates) == ["fc_0/b", "fc_0/w"]
        for name, update in updates.items():
            before, after = kept.before[step][name], kept.after[step][name]
            assert update.parameter_norm == pytest.approx(np.linalg.norm(before), rel=1e-5)
            assert update.update_norm == pytest.approx(np.linalg.norm(after - before), rel=1e-4)
            assert update.update.counts.sum() == before.size == update.gradient.counts.sum()
            assert update.update.low == pytest.approx((after - before).min(), rel=1e-3, abs=1e-6)
            assert update.update.high == pytest.approx((after - before).max(), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}], ids=["", "in two"])
def test_gradient_is_that_of_the_mean_loss_over_the_global_batch(options):
    updates = {}

    def keep(event):
        if isinstance(event, BeginTraining):
            event.updates_every = 1
        elif isinstance(event, EndStep):
            updates[event.global_step] = event.updates

    trainer = ps.Trainer(linear_program, optax.sgd(RATE), **options)
    start = dict(trainer.parameters)
    data = linear_data(6)  # over eight devices, so with padding
    trainer.train([data], keep)

    def loss(params):
        error = data["x"] @ params["fc_0/w"] + params["fc_0/b"][None] - data["y"]
        return (error**2).mean()

    for name, gradient in jax.grad(loss)(start).items():
        update = updates[0][name]
        assert update.gradient_norm == pytest.approx(np.linalg.norm(gradient), rel=1e-5)
        assert update.update_norm == pytest.approx(RATE * update.gradient_norm, rel=1e-5)
    counts, _ = np.histogram(jax.grad(loss)(start)["fc_0/w"], bins=30)
    np.testing.assert_array_equal(updates[0]["fc_0/w"].gradient.counts, counts)


def test_two_objectives_tell_their_updates_by_name_and_a_frozen_parameter_has_none():
    objectives = {
        name: ps.Objective(linear_program, optax.sgd(rate), updates=["fc_0"])
        for name, rate in (("slow", 0.01), ("fast", 0.1))
    }
    gradients, kept = handlers.Gradients(every_steps=3), Kept()
    trainer = ps.Trainer(objectives, place=one_device(), freeze="fc_0/b")
    trainer.train(linear_reader(), [gradients, kept])
    assert {name: list(updates) for name, updates in kept.updates[2].items()} == {
        "slow": ["fc_0/w"],
        "fast": ["fc_0/w"],
    }
    assert sorted(gradients.latest) == ["fc_0/w", "slow/fc_0/w"]


@PLACES_AND_CALLS
def test_compiling_and_measuring_have_their_seconds_at_the_steps_of_their_launch(
    place, steps_per_call
):
    seconds, times = [], RunTimes()

    def keep(event):
        times(event)
        if isinstance(event, EndStep):
            seconds.append((event.compile_secs, event.measure_secs))

    gradients = handlers.Gradients(every_steps=2 * steps_per_call)
    trainer = ps.Trainer(
        linear_program, optax.sgd(RATE), place=place(), steps_per_call=steps_per_call
    )
    reader = [linear_data(4)] * 4 * steps_per_call
    start = time.perf_counter()
    trainer.train(reader, [keep, gradients], num_epochs=1)
    secs = time.perf_counter() - start
    compiled, measured = zip(*seconds[::steps_per_call], strict=True)
    # The train program in the first launch, the measuring one in the second, and once each.
    assert [bool(value) for value in compiled] == [True, True, False, False]
    assert [bool(value) for value in measured] == [False, True, False, True]
    assert all(seconds[k] == seconds[k - k % steps_per_call] for k in range(len(seconds)))
    assert times.secs["measure"] == pytest.approx(sum(value for _, value in seconds))
    assert sum(map(sum, seconds)) < secs
    assert times.secs["compile"] == pytest.approx(sum(value for value, _ in seconds))


def test_nothing_is_measured_unless_a_handler_asks(monkeypatch):
    monkeypatch.setattr("penstock.program_builder.engine.Engine.measure", None)  # fails when called
    _, kept = train(place=one_device())
    assert len(kept.steps) == 6
    assert not kept.updates


def test_logs_beside_it_show_what_was_measured(tmp_path, capsys):
    gradients = handlers.Gradients(every_steps=2)
    watching = [
        handlers.TensorBoard(tmp_path / "board", every_steps=3),
        handlers.CSVLog(tmp_path / "log.csv", every_steps=3),
        handlers.Log(every_steps=3),
        gradients,
    ]
    trainer = linear_trainer()
    trainer.train(linear_reader(), watching, num_epochs=2)
    rows = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    norms = {r["global_step"]: r["gradient_norm"] for r in rows if r["kind"] == "step"}
    assert [step for step, norm in norms.items() if norm] == ["1", "3", "5"]
    assert norms["2"] == ""
    assert capsys.readouterr().out.count("gradient_norm = ") == 3
    run = tmp_path / "board" / "train"
    total = points(run, "updates/gradient_norm")
    assert [step for step, _ in total] == [2, 4, 6]
    assert total[-1][1] == pytest.approx(float(norms["5"]))
    single = [dict(points(run, f"gradient_norm/{name}"))[6] for name in gradients.latest]
    assert np.linalg.norm(single) == pytest.approx(total[-1][1], rel=1e-5)
    assert points(run, "relative_update/fc_0/w")[-1][1] == pytest.approx(
        gradients.latest["fc_0/w"].relative_update
    )
    event = loaded(run).Tensors("update/fc_0/w")[-1]
    buckets = tensor_util.make_ndarray(event.tensor_proto)
    assert buckets.shape == (30, 3)
    assert buckets[:, 2].sum() == 4
    assert buckets[0, 0] == pytest.approx(gradients.latest["fc_0/w"].update.low)


def test_values_that_are_not_finite_are_in_no_bin_and_make_the_norm_so():
    gradients = handlers.Gradients(every_steps=1)
    data = linear_data(4)
    data["x"][0, 1] = np.nan
    trainer = ps.Trainer(linear_program, optax.sgd(RATE), place=one_device(), on_non_finite="skip")
    trainer.train([linear_data(4), data], gradients)
    update = gradients.latest["fc_0/w"]
    assert np.isnan(update.gradient_norm)
    assert update.gradient.counts.sum() < 4
    assert np.isfinite(update.gradient.low)


def test_optimizer_of_single_examples_tells_the_mean_gradient():
    gradients = handlers.Gradients(every_steps=1)
    private = optax.chain(
        optax.contrib.differentially_private_aggregate(1e6, 0.0, key=0), optax.scale(-RATE)
    )
    ps.Trainer(linear_program, private, place=one_device()).train([linear_data(4)], gradients)
    for update in gradients.latest.values():
        assert update.update_norm == pytest.approx(RATE * update.gradient_norm, rel=1e-4)


def test_intervals_of_two_handlers_meet_at_their_divisor():
    _, kept = train(handlers.Gradients(4), handlers.Gradients(6), place=one_device())
    assert sorted(kept.updates) == [1, 3, 5]


@pytest.mark.parametrize("interval", [-1, 2.5, "often", None])
def test_interval_of_an_event_that_is_no_count_is_refused(interval):
    def ask(event):
        if isinstance(event, BeginTraining):
            event.updates_every = interval

    with pytest.raises((ValueError, TypeError), match=r"BeginTraining\.updates_every got"):
        linear_trainer().train(linear_reader(), ask)


def test_both_ways_to_count_a_histogram_agree():
    bins = jax.numpy.asarray([-1.0, 0.0, 29.0, 3.0, 3.0, -1.0])
    counts = [list(map(int, count(bins))) for count in COUNTS]
    assert counts[0] == counts[1]
    assert [counts[0][k] for k in (0, 3, 29)] == [1, 2, 1]
    assert sum(counts[0]) == 4
