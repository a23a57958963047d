"""What TensorFlow made, and programs that show what a preprocessing makes of it."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from penstock import layers
from penstock.preprocessing import (
    Cifarnet,
    Inception,
    Lenet,
    Plain,
    Preprocessing,
    Torchvision,
    Vgg,
)
from tests.layers.programs import infer, train

GOLDENS: dict[str, np.ndarray] = dict(np.load(Path(__file__).with_name("goldens.npz")))
IMAGE = GOLDENS["image"]
ALL = [Inception(), Inception(fast_mode=False), Vgg(), Cifarnet(), Lenet(), Plain(), Torchvision()]
EACH = pytest.mark.parametrize("prep", ALL, ids=lambda prep: repr(prep)[:28])


@dataclass(frozen=True, kw_only=True)
class Seen(Preprocessing):
    """A preprocessing that also gives what it drew."""

    inner: Preprocessing

    def crop(self, image, height, width, random):
        return self.inner.crop(image, height, width, random)

    def draw(self, key: jax.Array) -> Any:
        return self.inner.draw(key)

    def finish(self, image: jax.Array, draws: Any) -> Any:
        return {"image": self.inner.finish(image, draws), "draws": draws}


def photo(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Return a smooth image with some noise, `[height, width, channels]` uint8."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width][..., np.newaxis]
    phase, period = random.uniform(0, 6, channels), random.uniform(9, 40, channels)
    waves = np.sin(x / period + phase) + np.cos(y / period[::-1] - phase)
    noise = random.normal(scale=6, size=(height, width, channels))
    return np.clip(127 + 62 * waves + noise, 0, 255).astype(np.uint8)


def finished(preprocessing: Preprocessing, image: np.ndarray, draws: Any) -> np.ndarray:
    """Return what the device makes of one image with the given draws."""
    draws = jax.tree.map(jnp.asarray, draws)
    return np.asarray(_compiled(preprocessing)(jnp.asarray(image, jnp.float32), draws))


@functools.cache
def _compiled(preprocessing: Preprocessing) -> Any:
    return jax.jit(preprocessing.finish)


def declared(images: np.ndarray) -> jax.Array:
    """Declare the input that a batch is fed to."""
    return layers.data("image", images.shape[1:])


def evaluated(preprocessing: Preprocessing, images: np.ndarray) -> np.ndarray:
    """Return what an infer program makes of a batch."""
    return infer(lambda: preprocessing.device(declared(images)), {"image": images})


def trained(preprocessing: Preprocessing, images: np.ndarray, num_devices: int = 1) -> Any:
    """Return what a train program makes of a batch: a pytree of what `finish` returns."""
    structures = []

    def program() -> Any:
        leaves, structure = jax.tree.flatten(preprocessing.device(declared(images)))
        structures.append(structure)
        return layers.mean(declared(images)), *(leaf.astype(jnp.float32) for leaf in leaves)

    values = train(program, {"image": images}, num_devices=num_devices).values
    return jax.tree.unflatten(structures[0], values[1:])
