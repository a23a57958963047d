"""A regression whose batches can be poisoned, each in a way of its own, and states to compare."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import penstock as ps
from penstock import layers
from tests.networks import eight_devices, host, linear_data, linear_program, one_device

BATCH_SIZE = 8


def program() -> Any:
    """Return a loss and an error, with running statistics; `bend` and `root` are 1 where sound.

    The logarithm of a negative `bend` makes the loss nan. A `root` of 0 leaves the loss finite, and
    makes the gradient of the square root infinity times 0.
    """
    hidden = layers.fc(layers.data("x", shape=[4]), size=4)
    hidden = layers.batch_norm(hidden, act="tanh")
    prediction = layers.fc(hidden, size=1)
    error = layers.mean(layers.square_error_cost(prediction, layers.data("y", shape=[1])))
    bent = jnp.log(layers.data("bend", shape=[1]))
    rooted = jnp.sqrt(jnp.square(prediction) * layers.data("root", shape=[1]))
    return {"error": error, "loss": error + layers.mean(prediction * bent + 0 * rooted)}


def light_program() -> Any:
    """Return the loss of a linear regression that `bend` makes nan, in few operations."""
    bent = layers.mean(jnp.log(layers.data("bend", shape=[1])))
    return {"loss": linear_program() + bent, "root": layers.mean(layers.data("root", shape=[1]))}


def sound(seed: int = 0) -> dict[str, np.ndarray]:
    """Return a batch that nothing is wrong with."""
    ones = np.ones((BATCH_SIZE, 1), np.float32)
    return {**linear_data(BATCH_SIZE, seed), "bend": ones, "root": ones}


def bent(seed: int = 0) -> dict[str, np.ndarray]:
    """Return a batch that makes loss and gradient nan."""
    return {**sound(seed), "bend": _with(-1.0)}


def rooted(seed: int = 0) -> dict[str, np.ndarray]:
    """Return a batch that makes the gradient nan, and the loss not."""
    return {**sound(seed), "root": _with(0.0)}


def infinite(seed: int = 0) -> dict[str, np.ndarray]:
    """Return a batch that makes the loss infinite before it makes anything nan."""
    return {**sound(seed), "bend": _with(0.0)}


POISONED = pytest.mark.parametrize(
    ("place", "steps_per_call", "poison"),
    [
        pytest.param(eight_devices, 4, rooted, id="gradient"),
        pytest.param(one_device, 1, bent, id="loss", marks=pytest.mark.slow),
        pytest.param(one_device, 1, infinite, id="infinity", marks=pytest.mark.slow),
    ],
)


def batches(num_steps: int, bad: dict[int, Any] | None = None) -> list[dict[str, np.ndarray]]:
    """Return a list of batches, those of `bad` made by its functions."""
    return [(bad or {}).get(number, sound)(number) for number in range(num_steps)]


def learnt(trainer: ps.Trainer) -> Any:
    """Return what an update changes, on the host: parameters, statistics, optimizer state."""
    state = trainer._engine.state
    return host((state.variables, state.opt_state, state.metrics))


def is_finite(trainer: ps.Trainer) -> bool:
    """Return whether every parameter and statistic is."""
    return all(np.all(np.isfinite(value)) for value in trainer.parameters.values())


def _with(value: float) -> np.ndarray:
    column = np.ones((BATCH_SIZE, 1), np.float32)
    column[3] = value
    return column
