"""`Trainer.test` does not depend on the batch size; of what does, a line says so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import penstock as ps
from penstock import layers, metrics, readers

NUM_EXAMPLES = 154  # no multiple of a batch size below, and even
RNG = np.random.default_rng(0)
X = RNG.normal(size=(NUM_EXAMPLES, 3)).astype(np.float32)
DATA = {"x": X, "label": (X.sum(1, keepdims=True) + RNG.normal(size=(NUM_EXAMPLES, 1)) > 0) * 1}
DATA["label"] = DATA["label"].astype(np.int32)


def program_with(metric):
    """Return a program function of a loss and one metric of logits, probabilities and labels."""

    def program():
        label = layers.data("label", shape=[1], dtype="int32")
        probabilities = layers.fc(layers.data("x", shape=[3]), size=2, act="softmax")
        loss = layers.mean(layers.cross_entropy(probabilities, label))
        return {"loss": loss, "metric": metric(probabilities, label)}

    return program


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


def mean_of_jnp(probabilities, label):
    return jnp.mean(probabilities[:, 1])


def mean_of_layers(probabilities, label):
    return layers.mean(probabilities)


def accuracy(probabilities, label):
    return layers.accuracy(probabilities, label)


def nested(probabilities, label):
    return {"a": jnp.mean(probabilities[:, 0]), "b": [layers.accuracy(probabilities, label)]}


def exact(probabilities, label):
    return metrics.Mean.of(probabilities[:, 1], weights=probabilities[:, 0])


def test_with(metric, batch_size):
    reader = readers.arrays(DATA, batch_size=batch_size)
    return ps.Trainer(program_with(metric), place="cpu").test(reader)


test_with.__test__ = False  # pyright: ignore[reportFunctionMemberAccess]


@pytest.mark.parametrize("metric", [mean_of_jnp, mean_of_layers, accuracy, nested, exact])
def test_means_are_the_same_for_every_batch_size_without_a_line(metric, caplog):
    expected = test_with(metric, NUM_EXAMPLES)
    for batch_size in (1, 7, 64):
        found = test_with(metric, batch_size)
        np.testing.assert_allclose(
            jax.tree.leaves(found), jax.tree.leaves(expected), rtol=1e-6, err_msg=str(batch_size)
        )
    assert "which is no mean over examples" not in caplog.text


@pytest.mark.parametrize("metric", [f1, r2, rmse, perplexity, weighted_mean, largest])
def test_scalar_that_is_no_mean_is_named_once_and_the_loss_is_not(metric, caplog):
    test_with(metric, 64)
    lines = [each.getMessage() for each in caplog.records if "no mean over" in each.getMessage()]
    assert len(lines) == 1
    assert "has returned value 'metric', which is no mean over examples" in lines[0]
    assert "Return a penstock.metrics.Metric: its sums are exact." in lines[0]


@pytest.mark.parametrize(
    ("key", "name"),
    [("f1", "F1"), ("val_R2_score", "R2"), ("rmse", "RMSE"), ("iou", "MeanIoU"), ("top", "TopK")],
)
def test_line_names_the_metric_that_fits_the_name(key, name, caplog):
    def program():
        returned = program_with(f1)()
        return {"loss": returned["loss"], key: returned["metric"]}

    ps.Trainer(program, place="cpu").test(readers.arrays(DATA, batch_size=64))
    assert f"Return penstock.metrics.{name}.of(...), which is exact." in caplog.text
