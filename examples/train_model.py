"""Train a network of the model library on handwritten digits, enlarged to the size it needs.

The data are scikit-learn's digits, 1438 to train on and 359 held out. Their 8 x 8 pixels are
enlarged to `--image_size` by bilinear interpolation, including a border. Batch norm's decay is
lowered: the published 0.9997 is meant for runs of a hundred thousand steps.

Run it with `python examples/train_model.py --model lenet`; docs/training_models.md has settings for
larger ones.
"""

import argparse
import dataclasses
import functools
import time

import cv2
import jax.monitoring
import numpy as np
import optax

import penstock as ps
from penstock import models, readers
from penstock.handlers import Progress


def enlarged(split, image_size, num_channels):
    """Return all digits of a split as images in -1..1, `[N, S, S, C]`, and their labels."""
    batch = next(iter(readers.dataset("digits", split, batch_size=2000)))
    inner = image_size * 3 // 4
    border = (image_size - inner) // 2
    images = np.full([len(batch["image"]), image_size, image_size], -1, np.float32)
    for image, digit in zip(images, batch["image"], strict=True):
        digit = cv2.resize(digit[:, :, 0], (inner, inner), interpolation=cv2.INTER_LINEAR)
        image[border : border + inner, border : border + inner] = 2 * digit - 1
    return {"image": np.repeat(images[..., None], num_channels, -1), "label": batch["label"]}


def compilations():
    """Return a list that gets the seconds of each compilation from now on."""
    seconds = []

    def note(event, duration_secs, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            seconds.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(note)
    return seconds


def main(
    model="lenet",
    image_size=None,
    num_epochs=8,
    batch_size=32,
    learning_rate=1e-3,
    batch_norm_decay=0.9,
    num_cells=None,
):
    settings = models.Settings(batch_norm_decay=batch_norm_decay, drop_path=0.0)
    chosen = models.get(model, settings)
    if num_cells is not None:
        fewer = functools.partial(chosen.function, num_cells=num_cells)
        chosen = dataclasses.replace(chosen, function=fewer)
    image_size = image_size or chosen.default_image_size
    network = models.classifier(chosen, num_classes=10, image_size=image_size)
    train, test = (enlarged(each, image_size, chosen.num_channels) for each in ("train", "test"))
    train_reader = readers.arrays(train, batch_size, shuffle=True, drop_remainder=True)
    test_reader = readers.arrays(test, batch_size)

    started, compiling = time.perf_counter(), compilations()
    steps = len(train_reader) * num_epochs
    optimizer = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))
    trainer = ps.Trainer(network.train_program, optimizer)
    trainer.train(
        train_reader,
        Progress(("loss", "accuracy"), test=lambda: trainer.test(test_reader)),
        num_epochs=num_epochs,
    )
    accuracy = float(trainer.test(test_reader)["accuracy"])
    seconds = time.perf_counter() - started
    print(
        f"{model} at {image_size} x {image_size}: {accuracy:.1%} of {len(test['label'])} digits it "
        f"has not seen, after {num_epochs} epochs in {seconds:.0f} s, of which compilation took "
        f"{sum(compiling):.0f} s"
    )
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="lenet", help="see `penstock models`")
    parser.add_argument("--image_size", type=int, help="the network's own by default")
    parser.add_argument("--num_epochs", type=int, default=8)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--batch_norm_decay", type=float, default=0.9)
    parser.add_argument("--num_cells", type=int, help="fewer normal cells for a NASNet")
    main(**vars(parser.parse_args()))
