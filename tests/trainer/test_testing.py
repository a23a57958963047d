"""`Trainer.test` does not depend on the batch size; of what does, a line says so."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers, metrics, readers
from penstock.program_builder._compilation import Program
from tests.networks import linear_program, linear_reader

NUM_EXAMPLES = 154  # no multiple of a batch size below, and even
RNG = np.random.default_rng(0)
X = RNG.normal(size=(NUM_EXAMPLES, 3)).astype(np.float32)
DATA = {"x": X, "label": (X.sum(1, keepdims=True) + RNG.normal(size=(NUM_EXAMPLES, 1)) > 0) * 1}
DATA["label"] = DATA["label"].astype(np.int32)


def make_test(metrics):
    """Return a function of a batch size that tests a loss and metrics, and returns their means.

    The metrics are functions of probabilities and labels.
    """

    def program():
        label = layers.data("label", shape=[1], dtype="int32")
        probabilities = layers.fc(layers.data("x", shape=[3]), size=2, act="softmax")
        loss = layers.mean(layers.cross_entropy(probabilities, label))
        return {"loss": loss} | {key: of(probabilities, label) for key, of in metrics.items()}

    trainer = ps.Trainer(program, place="cpu")
    return lambda batch_size: trainer.test(readers.arrays(DATA, batch_size=batch_size))


def f1(probabilities, label):
    hit, truth = probabilities[:, 1] > 0.5, label[:, 0] == 1
    return 2 * jnp.sum(hit & truth) / (jnp.sum(hit) + jnp.sum(truth))


def r2(probabilities, label):
    error = jnp.sum((probabilities[:, 1] - label[:, 0]) ** 2)
    return 1 - error / jnp.sum((label - jnp.mean(label)) ** 2)


def rmse(probabilities, label):
    return jnp.sqrt(jnp.mean((probabilities[:, 1] - label[:, 0]) ** 2))


def perplexity(probabilities, label):
    return jnp.exp(layers.mean(layers.cross_entropy(probabilities, label)))


def weighted_mean(probabilities, label):
    weights = probabilities[:, 0] ** 2
    return jnp.sum(weights * label[:, 0]) / jnp.sum(weights)


def largest(probabilities, label):
    return jnp.max(probabilities[:, 1])


MEANS = {
    "jnp": lambda probabilities, label: jnp.mean(probabilities[:, 1]),
    "layers": lambda probabilities, label: layers.mean(probabilities),
    "accuracy": layers.accuracy,
    "nested": lambda probabilities, label: {
        "a": jnp.mean(probabilities[:, 0]),
        "b": [layers.accuracy(probabilities, label)],
    },
    "exact": lambda probabilities, label: metrics.Mean.of(
        probabilities[:, 1], weights=probabilities[:, 0]
    ),
}


def test_means_are_the_same_for_every_batch_size_without_a_line(caplog):
    test = make_test(MEANS)
    results = {size: jax.tree.leaves(test(size)) for size in (NUM_EXAMPLES, 1, 7, 64)}
    for size, means in results.items():
        np.testing.assert_allclose(means, results[NUM_EXAMPLES], rtol=1e-6, err_msg=str(size))
    assert "which is no mean over examples" not in caplog.text


EXACT = "Return penstock.metrics.{}.of(...), which is exact."
NO_MEANS = {
    "f1": (f1, EXACT.format("F1")),
    "val_R2_score": (r2, EXACT.format("R2")),
    "rmse": (rmse, EXACT.format("RMSE")),
    "iou": (f1, EXACT.format("MeanIoU")),
    "top": (f1, EXACT.format("TopK")),
    "perplexity": (perplexity, EXACT.format("Perplexity")),
    "weighted_mean": (weighted_mean, EXACT.format("WeightedMean")),
    "largest": (largest, "Return a penstock.metrics.Metric: its sums are exact."),
}


def test_scalar_that_is_no_mean_is_named_once_with_a_metric_that_fits_and_the_loss_is_not(caplog):
    make_test({key: metric for key, (metric, _) in NO_MEANS.items()})(64)
    lines = [text for text in caplog.messages if "no mean over" in text]
    for line, (key, (_, advice)) in zip(lines, NO_MEANS.items(), strict=True):
        assert f"has returned value {key!r}, which is no mean over examples" in line
        assert advice in line


def test_line_about_a_loss_guesses_no_metric(caplog):
    make_test({"loss": largest})(64)
    (line,) = [text for text in caplog.messages if "no mean over" in text]
    assert "Return a penstock.metrics.Metric: its sums are exact." in line


def test_line_about_a_scalar_of_random_numbers_says_that_these_may_be_the_reason(caplog):
    def noise(probabilities, label):
        return jnp.mean(probabilities[:, 1] + jax.random.normal(layers.random_key(), [len(label)]))

    make_test({"noise": noise})(64)
    (line,) = [text for text in caplog.messages if "no mean over" in text]
    assert line.endswith(
        "If only its random numbers differ, which each half draws anew, leave it as it is."
    )


def test_programs_of_a_test_on_several_cpu_devices_run_one_after_the_other(monkeypatch):
    launch, before, at_once = Program.__call__, [], []

    def launch_alone(program, *args):
        at_once.extend(name for name, values in before if not is_ready(values))
        values = launch(program, *args)
        before[:] = [(program.name, values)]
        return values

    def is_ready(values):
        return all(value.is_ready() for value in jax.tree.leaves(values))

    def wait(value):
        time.sleep(0.03)
        return value

    def program():
        loss = linear_program()
        like = jax.ShapeDtypeStruct((), jnp.float32)
        loss = jax.pure_callback(wait, like, loss, vmap_method="sequential")
        return loss, jnp.max(layers.data("x", shape=[4]))

    monkeypatch.setattr(Program, "__call__", launch_alone)
    trainer = ps.Trainer(program, place=jax.devices()[:2])
    trainer.test(linear_reader(8, 4), confidence=0.9)
    assert not at_once


def test_seconds_beside_steps_are_counted_whether_or_not_a_call_succeeds(tmp_path):
    """Of what tests and saves, for a handler too; steps that still run are none of them."""
    trainer, before = ps.Trainer(linear_program, optax.sgd(0.1), place="cpu"), time.monotonic()
    secs = [trainer.secs_beside]
    trainer.test(linear_reader())
    secs.append(trainer.secs_beside)
    trainer.train(linear_reader(), ps.handlers.Evaluate(linear_reader()))
    secs.append(trainer.secs_beside)
    with pytest.raises(ps.ReaderError):
        trainer.test([])
    secs.append(trainer.secs_beside)
    trainer.save_params(tmp_path)
    secs.append(trainer.secs_beside)
    assert secs == sorted(set(secs))
    assert secs[0] == 0.0
    assert secs[-1] < time.monotonic() - before
