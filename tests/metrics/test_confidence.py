"""`trainer.test(confidence=...)`: intervals of every metric, over examples."""

import dataclasses
import logging
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import penstock as ps
from penstock import layers, metrics, readers


def program():
    x, label = layers.data("x", [2]), layers.data("label", [1], "int32")
    score = layers.reduce_sum(x, dim=1, keep_dim=True)
    return {
        "loss": layers.mean(x),
        "accuracy": layers.accuracy(layers.concat([-score, score], axis=1), label),
        "f1": metrics.F1.of(layers.sigmoid(score), label),
        "rmse": metrics.RMSE.of(score, x[:, :1]),
        "auc": metrics.AUC.of(score, label),
        "counts": metrics.ConfusionMatrix.of(layers.sigmoid(score), label),
    }


def draw(seed, number):
    random = np.random.default_rng(seed)
    label = random.integers(0, 2, (number, 1)).astype(np.int32)
    x = random.normal(0.3, 1, (number, 2)) + 0.5 * (label - 0.5)
    return {"x": x.astype(np.float32), "label": label}


@pytest.fixture(scope="module")
def trainer():
    """Return a trainer of all of these metrics, whose tests of one batch size compile once."""
    return ps.Trainer(program)


def test_mean_has_students_interval_and_others_that_of_a_bootstrap(trainer):
    data = draw(0, 203)
    reader = readers.arrays(data, 50)
    measured = trainer.test(reader, confidence=0.9)
    plain = trainer.test(reader)
    for name, interval in measured.items():
        np.testing.assert_array_equal(interval.value, plain[name])
        assert np.all(interval.low <= interval.value), name
        assert np.all(interval.value <= interval.high), name
    examples = data["x"].mean(axis=1, dtype=np.float64)
    mean, half = examples.mean(), 1.652432 * examples.std(ddof=1) / math.sqrt(203)
    loss = measured["loss"]
    np.testing.assert_allclose([loss.low, loss.high], [mean - half, mean + half], rtol=1e-5)
    # What a bootstrap of numpy gives, which draws other resamples.
    score, label = data["x"].sum(axis=1), data["label"][:, 0]
    random = np.random.default_rng(1)
    values = []
    for _ in range(2000):
        rows = random.integers(0, 203, 203)
        taken, true = score[rows] > 0, label[rows] == 1
        values.append(2 * (taken & true).sum() / (taken.sum() + true.sum()))
    f1 = measured["f1"]
    np.testing.assert_allclose([f1.low, f1.high], np.quantile(values, [0.05, 0.95]), atol=0.01)
    assert str(measured["auc"]).startswith(f"{plain['auc']:.4g} (")
    assert float(measured["auc"]) == plain["auc"]


@pytest.mark.slow
def test_intervals_do_not_depend_on_devices_and_hardly_on_batches():
    trainer, alone = (ps.Trainer(program, place=jax.devices()[:count]) for count in (3, 1))
    data = draw(2, 150)
    measured = trainer.test(readers.arrays(data, 70), confidence=0.95)
    again = alone.test(readers.arrays(data, 70), confidence=0.95)
    whole = alone.test(readers.arrays(data, 150), confidence=0.95)
    for name, interval in measured.items():
        np.testing.assert_allclose(interval.low, again[name].low, rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(interval.high, again[name].high, rtol=1e-5, err_msg=name)
        width = np.max(np.subtract(interval.high, interval.low))
        np.testing.assert_allclose(interval.low, whole[name].low, atol=0.15 * width, err_msg=name)


@pytest.mark.slow
def test_words_of_an_example_stay_together():
    def words_program():
        word = layers.data("word", [1], lod_level=1)
        return layers.mean(word), metrics.Spearman.of(word, word), metrics.MAE.of(word, word * 2)

    rows = [[[v]] * n for v, n in zip(range(1, 13), [1, 4, 2, 6] * 3, strict=True)]
    batches = [{"word": rows[:5]}, {"word": rows[5:]}]
    loss, rank, error = ps.Trainer(words_program).test(batches, confidence=0.95)
    assert loss.low < loss.value < loss.high
    assert rank.value == pytest.approx(1)
    # Twelve examples with all of their words, not 39 words: their mean is that uncertain.
    values, lengths = np.arange(1.0, 13), np.array([1, 4, 2, 6] * 3)
    taken = np.random.default_rng(0).integers(0, 12, (4000, 12))
    means = (values * lengths)[taken].sum(axis=1) / lengths[taken].sum(axis=1)
    assert error.high - error.low == pytest.approx(np.ptp(np.quantile(means, [0.025, 0.975])), 0.1)


def test_words_of_an_example_stay_together_in_batches_of_several_lengths():
    def words_program():
        score, label = (layers.data(name, [1], lod_level=1) for name in ("score", "label"))
        return layers.mean(score), metrics.Spearman.of(score, label)

    # Padded to 16 and to 64 words: of the rows of all batches an example has no fixed share.
    lengths = np.array([2] * 12 + [60] * 4)
    values = np.random.default_rng(0).normal(size=(2, 16)).astype("float32")
    score, label = ([np.full(n, v) for v, n in zip(row, lengths, strict=True)] for row in values)
    batches = [{"score": score[n : n + 4], "label": label[n : n + 4]} for n in range(0, 16, 4)]
    _, rank = ps.Trainer(words_program).test(batches, confidence=0.95)
    random, ranks = np.random.Generator(np.random.PCG64(0)), []
    for _ in range(1000):
        taken = random.integers(0, 16, 16)
        pair = [np.concatenate([column[n] for n in taken]) for column in (score, label)]
        ranks.append(stats.spearmanr(*pair).statistic)
    assert [rank.low, rank.high] == pytest.approx([*np.quantile(ranks, [0.025, 0.975])], abs=1e-4)


def test_value_of_the_batch_has_no_interval_and_is_named(caplog):
    def contrastive():
        x = layers.data("x", [2])
        return {"loss": layers.mean(jax.nn.logsumexp(x @ x.T, axis=1)), "mean": layers.mean(x)}

    trainer = ps.Trainer(contrastive)
    with caplog.at_level(logging.WARNING, "penstock"):
        measured = trainer.test([{"x": draw(0, 20)["x"]}], confidence=0.95)
    assert (measured["loss"].low, measured["loss"].high) == (None, None)
    assert measured["mean"].low < measured["mean"].value
    assert "got \"returned value 'loss'\", of which it gives no interval" in caplog.text


def test_objectives_and_averages_have_intervals_too():
    objectives = {
        "one": ps.Objective(make_regression("a"), optax.sgd(0.1)),
        "two": ps.Objective(make_regression("b"), optax.sgd(0.1)),
    }
    measured = ps.Trainer(objectives).test(readers.arrays(draw(0, 30), 8), confidence=0.95)
    assert set(measured) == {"one", "two"}
    assert measured["one"].low < measured["one"].value < measured["one"].high


def make_regression(name):
    def regression():
        prediction = layers.fc(layers.data("x", [2]), 1, name=name)
        return layers.mean(layers.square_error_cost(prediction, layers.data("label", [1], "int32")))

    return regression


def test_resamples_without_a_value_are_left_out(trainer):
    data = draw(0, 60)
    # Of so few positives some resamples have none, and no area.
    data["label"][:] = np.arange(60)[:, None] % 30 == 0
    measured = trainer.test(readers.arrays(data, 50), confidence=0.9)
    assert measured["auc"].low <= measured["auc"].value <= measured["auc"].high
    data["label"][:] = 0
    measured = trainer.test(readers.arrays(data, 50), confidence=0.9)
    assert np.isnan([measured["auc"].value, measured["auc"].low, measured["auc"].high]).all()


def test_class_without_a_value_takes_no_interval_from_the_others():
    def classes():
        x, label = layers.data("x", [3]), layers.data("label", [1], "int32")
        return {"loss": layers.mean(x), "auc": metrics.AUC.of(x, label, average=None)}

    random = np.random.default_rng(0)
    data = {"x": random.normal(size=(60, 3)).astype(np.float32), "label": np.zeros((60, 1), "i4")}
    data["label"][::30] = 1  # and none is 2
    auc = ps.Trainer(classes).test(readers.arrays(data, 20), confidence=0.9)["auc"]
    for ends in (auc.value, auc.low, auc.high):
        assert np.isnan(ends).tolist() == [False, False, True]
    assert np.all(auc.low[:2] <= auc.high[:2])


def test_one_example_has_no_interval(trainer):
    measured = trainer.test([draw(0, 1)], confidence=0.95)
    assert all(interval.low is None for interval in measured.values())
    assert measured["loss"].value == pytest.approx(draw(0, 1)["x"].mean())


def test_many_numbers_have_no_interval():
    @dataclasses.dataclass(frozen=True)
    class Table(metrics.Metric):
        sums: jax.Array

        def compute(self):
            return self.sums

    def wide():
        x = layers.data("x", [2])
        return layers.mean(x), Table(jnp.zeros((100, 100)).at[0, 0].add(jnp.sum(x)))

    loss, table = ps.Trainer(wide).test([draw(0, 16)], confidence=0.95)
    assert table.low is None
    assert loss.low < loss.value
    assert table.value[0, 0] == pytest.approx(32 * loss.value, 1e-4)


@pytest.mark.parametrize("confidence", [0, 1, 95, -0.5, float("nan")])
def test_confidence_is_a_share(confidence, trainer):
    with pytest.raises(ValueError, match=r"expected a number between 0 and 1\. 0\.95 is usual"):
        trainer.test([draw(0, 4)], confidence=confidence)


def test_program_that_cannot_be_mapped_says_where_it_ran():
    def called_back():
        x = layers.data("x", [2])
        shape = jax.ShapeDtypeStruct((), "float32")
        return layers.mean(x), jax.pure_callback(lambda v: v.sum(), shape, x)

    with pytest.raises(Exception, match="vmap") as caught:
        ps.Trainer(called_back).test([draw(0, 4)], confidence=0.95)
    assert any("for each example by itself" in note for note in caught.value.__notes__)


@pytest.mark.slow
def test_intervals_hold_the_truth_as_often_as_they_say():
    names = ("loss", "accuracy", "f1", "rmse", "auc")

    def some():
        values = program()
        return {name: values[name] for name in names}

    trainer = ps.Trainer(some, place=jax.devices()[:1])
    truth = trainer.test(readers.arrays(draw(10_000, 400_000), 200))
    tests = [
        trainer.test(readers.arrays(draw(seed, 200), 200), confidence=0.95) for seed in range(400)
    ]
    for name in names:
        held = np.mean([test[name].low <= truth[name] <= test[name].high for test in tests])
        assert 0.93 <= held <= 0.97, name


def test_interval_of_a_mean_is_that_of_its_spread_however_large_the_mean():
    def shifted():
        return layers.mean(layers.data("x", [1]) + 20_000)

    x = np.random.default_rng(0).normal(size=(1000, 1)).astype(np.float32)
    # In its own precision, of which 20,000 leaves three digits after the point.
    examples = (x[:, 0] + np.float32(20_000)).astype(np.float64)
    interval = ps.Trainer(shifted).test(readers.arrays({"x": x}, 96), confidence=0.95)
    half = 1.962341 * examples.std(ddof=1) / math.sqrt(1000)
    assert (interval.high - interval.low) / 2 == pytest.approx(half, rel=1e-2)
