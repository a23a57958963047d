"""`penstock train`: a conv network learns real handwritten digits, and shows what it has learnt."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import jax
import numpy as np
import optax

import penstock as ps
from penstock import layers, readers
from penstock.handlers import Progress

PARAM_PATH = Path("runs/digits.params")
SPLITS = ("train", "test")
BATCH_SIZE = 64
NUM_EPOCHS = 15
LEARNING_RATE = 2e-3
SHADES = " ░▒▓█"
ASCII_SHADES = " .:*#"
NUM_SHOWN = 4


def infer_program() -> jax.Array:
    """Return the probability of each digit, `[B, 10]`."""
    image = layers.data("image", shape=[8, 8, 1])
    hidden = layers.simple_img_conv_pool(
        image, num_filters=32, filter_size=3, pool_size=2, pool_stride=2, conv_padding=1, act="relu"
    )
    hidden = layers.batch_norm(hidden)
    hidden = layers.simple_img_conv_pool(
        hidden,
        num_filters=64,
        filter_size=3,
        pool_size=2,
        pool_stride=2,
        conv_padding=1,
        act="relu",
    )
    hidden = layers.dropout(hidden, 0.3)
    return layers.fc(hidden, size=10, act="softmax")


def train_program() -> tuple[jax.Array, jax.Array]:
    """Return the loss and the accuracy."""
    label = layers.data("label", shape=[1], dtype="int32")
    prediction = infer_program()
    loss = layers.mean(layers.cross_entropy(prediction, label))
    return loss, layers.accuracy(prediction, label)


def run(argv: list[str]) -> int:
    """Run `penstock train` with the arguments after the command's name; there are none yet.

    Returns:
      The exit status, 0.
    """
    argparse.ArgumentParser(prog="penstock train", description=__doc__).parse_args(argv)
    print("penstock trains a network to read handwritten digits.", flush=True)
    train_reader = readers.dataset("digits", "train", BATCH_SIZE, shuffle=True)
    test_reader = readers.dataset("digits", "test", BATCH_SIZE)
    train_set, test_set = (next(iter(readers.dataset("digits", s, 10_000))) for s in SPLITS)
    trainer = ps.Trainer(train_program, optax.adam(LEARNING_RATE))
    _announce(trainer, len(train_set["label"]), len(test_set["label"]))
    start = time.monotonic()
    trainer.train(
        train_reader,
        Progress(("loss", "accuracy"), test=lambda: trainer.test(test_reader)),
        num_epochs=NUM_EPOCHS,
    )
    secs = time.monotonic() - start
    _, accuracy = trainer.test(test_reader)
    trainer.save_params(PARAM_PATH)
    inferencer = ps.Inferencer(infer_program, PARAM_PATH)
    _show(inferencer, test_set)
    _conclude(accuracy, secs)
    return 0


def _announce(trainer: ps.Trainer, num_train: int, num_test: int) -> None:
    rows = trainer.builder.parameter_table()
    num_parameters = sum(row.size for row in rows if row.collection == "params")
    devices = jax.devices()
    print(
        f"""
  network   2 x (convolution, relu, max pool), batch norm, dropout, softmax
            {num_parameters:,} parameters
  data      scikit-learn's digits, 8 x 8 pixels: {num_train:,} to train on, {num_test} held out
  training  {NUM_EPOCHS} epochs, batches of {BATCH_SIZE}, Adam with learning rate {LEARNING_RATE}
  devices   {len(devices)} x {devices[0].device_kind}
""",
        flush=True,
    )


def _show(inferencer: ps.Inferencer, test_set: dict[str, np.ndarray]) -> None:
    """Draw a few digits, a wrong prediction among them where there is one."""
    probabilities = inferencer.infer({"image": test_set["image"]})
    predicted, labels = probabilities.argmax(axis=1), test_set["label"]
    is_right = predicted == labels
    right, wrong = np.flatnonzero(is_right), np.flatnonzero(~is_right)
    shown = [*right[: NUM_SHOWN - 1], *wrong[:1], *right[NUM_SHOWN - 1 :]][:NUM_SHOWN]
    pictures = [_picture(test_set["image"][i, :, :, 0]) for i in shown]
    captions = [f"{predicted[i]}: {probabilities[i].max():.1%}" for i in shown]
    truths = ["" if is_right[i] else f"it is a {labels[i]}" for i in shown]
    print("\nDigits it was not trained on, what it reads, and how sure it is:\n")
    for line in [*zip(*pictures, strict=True), captions, truths]:
        print("  " + "   ".join(f"{part:^16}" for part in line).rstrip())


def _picture(image: np.ndarray) -> list[str]:
    """Return an image `[8, 8]` in 0..1 as lines of text, two characters a pixel."""
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    shades = np.array(list(SHADES if is_unicode else ASCII_SHADES))
    levels = np.rint(image * (len(shades) - 1)).astype(int)
    return ["".join(shades[row].repeat(2)) for row in levels]


def _conclude(accuracy: float, secs: float) -> None:
    print(f"""
It reads {accuracy:.2%} of the held-out digits right, after {secs:.0f} s of training.
The parameters are in {PARAM_PATH}. To use them:

  import penstock as ps
  from penstock.commands.train import infer_program
  inferencer = ps.Inferencer(infer_program, "{PARAM_PATH}")
  probabilities = inferencer.infer({{"image": images}})

images is [N, 8, 8, 1] in 0..1, probabilities is [N, 10].""")
