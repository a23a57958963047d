"""SavedModels answer in TensorFlow what the network answers in JAX."""

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers, tensorflow_export
from penstock._errors import ExportError
from tests.networks import one_device

# TensorFlow is a gigabyte, and comes with `make test-all`.
tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.slow


def classify_words():
    words = layers.data("words", [1], "int32", lod_level=1)
    hidden, _ = layers.dynamic_lstm(layers.fc(layers.embedding(words, size=[50, 8]), 32), size=32)
    return layers.fc(layers.sequence_pool(hidden, "max"), 2, act="softmax")


def read_images():
    image = layers.data("image", [12, 12, 1])
    hidden = layers.batch_norm(layers.conv2d(image, num_filters=4, filter_size=3, act="relu"))
    return {"image": layers.fc(hidden, 3), "mean": layers.reduce_mean(hidden, dim=[1, 2])}


def make_trainer(infer_func):
    def train_program():
        return sum(layers.mean(output) for output in jax.tree.leaves(infer_func()))

    return ps.Trainer(train_program, optax.sgd(0.1), infer_func=infer_func, place=one_device())


def load(path):
    return tf.saved_model.load(str(path)).signatures["serving_default"]


def test_a_saved_model_takes_batches_and_sequences_of_any_size(tmp_path):
    trainer = make_trainer(classify_words)
    tensorflow_export.save(tmp_path / "model", trainer)
    random = np.random.default_rng(0)
    for count, length in ((1, 16), (5, 64)):
        words = random.integers(0, 50, (count, length, 1)).astype(np.int32)
        lengths = random.integers(1, length + 1, count).astype(np.int32)
        lengths[0] = length
        output = load(tmp_path / "model")(words=words, words_length=lengths)["output"].numpy()
        cut = [row[:n] for row, n in zip(words, lengths, strict=True)]
        np.testing.assert_allclose(output, trainer.infer({"words": cut}), rtol=1e-4, atol=1e-6)


def test_outputs_are_found_by_their_names(tmp_path):
    trainer = make_trainer(read_images)
    tensorflow_export.save(tmp_path / "model", trainer)
    image = np.random.default_rng(0).normal(size=(3, 12, 12, 1)).astype(np.float32)
    outputs, expected = load(tmp_path / "model")(image=image), trainer.infer({"image": image})
    assert outputs.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(outputs[name].numpy(), value, rtol=1e-4, atol=1e-6)


def test_what_tensorflow_answers_otherwise_is_not_kept(tmp_path):
    trainer = make_trainer(read_images)
    trainer.parameters["fc_0/b"] = np.full(3, np.nan, np.float32)
    with pytest.raises(ExportError, match="a difference from JAX"):
        tensorflow_export.save(tmp_path / "model", trainer)
    assert not (tmp_path / "model").exists()
