"""A checkpoint of the version before programs were over global arrays is resumed."""

import tarfile

import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers, readers
from penstock._metrics import Item, Structure, add_counts
from tests.networks import one_device
from tests.source_tree import ROOT

# What that version went on with, from step 2 of epoch 1: losses of steps, means of epochs.
LOSSES = [1.11353, 1.181563, 1.321966, 1.242708, 1.116295, 1.030328, 0.995717, 0.965333]
EPOCHS = [1.180791, 1.08504]


def program():
    x, y = layers.data("x", [6]), layers.data("y", [1], "int32")
    hidden = layers.batch_norm(layers.fc(x, 16), act="relu")
    prediction = layers.fc(hidden, 3, act="softmax")
    loss = layers.mean(layers.cross_entropy(prediction, y))
    return loss, layers.accuracy(prediction, y)


def test_run_goes_on_with_the_losses_it_had(tmp_path):
    with tarfile.open(ROOT / "tests/checkpoints/before_global_arrays.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    random = np.random.default_rng(0)
    x = random.normal(size=(70, 6)).astype(np.float32)
    y = random.integers(0, 3, (70, 1)).astype(np.int32)
    reader = readers.arrays({"x": x, "y": y}, batch_size=16, shuffle=True, seed=1)
    trainer = ps.Trainer(program, optax.adam(1e-2), place=one_device(), checkpoint=tmp_path)
    losses, epochs = [], []

    def note(event):
        if isinstance(event, ps.EndStep):
            losses.append(event.metrics[0])
        if isinstance(event, ps.EndEpoch):
            epochs.append(event.metrics[0])

    trainer.train(reader, note, num_epochs=3)
    assert losses == pytest.approx(LOSSES, rel=1e-5)
    assert epochs == pytest.approx(EPOCHS, rel=1e-5)


def test_mean_over_labels_counts_the_examples_of_an_earlier_version():
    items = (Item(), Item(counts_words=True, is_of_part=True), Item(counts_words=True))
    structure = Structure(items=items, build=tuple)
    # Sums of three values, the words of the third, and 16 examples.
    earlier = np.array([[1.0, 2, 3, 40, 16], [0, 0, 0, 0, 0]], np.float32)
    assert add_counts(earlier, structure)[0].tolist() == [1, 2, 3, 16, 40, 16]
    assert add_counts(add_counts(earlier, structure), structure).shape == (2, 6)
