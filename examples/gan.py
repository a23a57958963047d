"""Draw handwritten digits with a conditional GAN: two objectives over one parameter tree.

The discriminator learns to tell real digits from generated ones, and the generator to deceive it.
Both get the label. Each objective updates only the parameters of its own scope. Samples go into a
PNG, one column per digit; the top row has real ones, from scikit-learn's digits.

Run it with `python examples/gan.py`; it takes about half a minute.
"""

import argparse
from pathlib import Path

import cv2
import jax.numpy as jnp
import numpy as np
import optax

import penstock as ps
from penstock import layers, readers

NOISE_SIZE = 32


@layers.scope("generator")
def generate(noise, label):
    hidden = layers.concat([noise, layers.one_hot(label, 10)], axis=1)
    for size in (128, 256):
        hidden = layers.batch_norm(layers.fc(hidden, size), act="relu")
    return layers.fc(hidden, 64, act="sigmoid").reshape(-1, 8, 8, 1)


@layers.scope("discriminator")
def discriminate(image, label):
    features = layers.concat([layers.flatten(image) * 2 - 1, layers.one_hot(label, 10)], axis=1)
    for size in (256, 128):
        features = layers.leaky_relu(layers.fc(features, size), alpha=0.2)
        features = layers.dropout(features, 0.3)
    return layers.fc(features, 1)


def cost(logits, target):
    targets = jnp.full_like(logits, target)
    return layers.mean(layers.sigmoid_cross_entropy_with_logits(logits, targets))


def draw():
    label = layers.data("label", shape=[1], dtype="int32")
    noise = layers.gaussian_random_batch_size_like(label, [-1, NOISE_SIZE])
    return generate(noise, label), label


def discriminator_program():
    image = layers.data("image", shape=[8, 8, 1])
    drawn, label = draw()
    return cost(discriminate(image, label), 0.9) + cost(discriminate(drawn, label), 0.0)


def generator_program():
    return cost(discriminate(*draw()), 1.0)


def sample_program():
    label = layers.data("label", shape=[1], dtype="int32")
    return generate(layers.data("noise", shape=[NOISE_SIZE]), label)


def write_grid(path, trainer, num_rows=8):
    """Write an image of a row of real digits and `num_rows` rows of samples, columns 0 to 9."""
    labels = np.tile(np.arange(10, dtype=np.int32), num_rows)
    noise = np.random.default_rng(1).normal(size=(len(labels), NOISE_SIZE)).astype("float32")
    samples = trainer.infer({"noise": noise, "label": labels})
    real = next(iter(readers.dataset("digits", "test", batch_size=1000)))
    first = [real["image"][np.argmax(real["label"] == digit)] for digit in range(10)]
    rows = np.concatenate([first, samples]).reshape(-1, 10, 8, 8)
    pages = np.pad(1 - rows, [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=1)
    picture = pages.transpose(0, 2, 1, 3).reshape(10 * len(rows), 100)
    picture = cv2.resize(picture, None, fx=6, fy=6, interpolation=cv2.INTER_CUBIC)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.clip(255 * picture, 0, 255).astype(np.uint8))
    return samples, labels


def on_event(event):
    if isinstance(event, ps.EndEpoch) and (event.epoch + 1) % 20 == 0:
        losses = "  ".join(f"{name} {loss:.3f}" for name, loss in event.metrics.items())
        print(f"epoch {event.epoch + 1}: {losses}", flush=True)


def main(num_epochs=300, png_path="runs/gan.png"):
    objectives = {
        "discriminator": ps.Objective(
            discriminator_program, optax.adam(5e-4, b1=0.5), updates="discriminator"
        ),
        "generator": ps.Objective(generator_program, optax.adam(5e-4, b1=0.5), updates="generator"),
    }
    schedule = {"discriminator": 1, "generator": 1}
    trainer = ps.Trainer(objectives, infer_func=sample_program, schedule=schedule)
    reader = readers.dataset("digits", "train", batch_size=64, shuffle=True, drop_remainder=True)
    trainer.train(reader, on_event, num_epochs=num_epochs)
    samples, labels = write_grid(png_path, trainer)
    print(f"samples are in {png_path}; the top row is real")
    return samples, labels


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_epochs", type=int, default=300)
    parser.add_argument("--png_path", default="runs/gan.png")
    main(**vars(parser.parse_args()))
