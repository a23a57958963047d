"""Fluid's learning rates, against its formulas."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import penstock.fluid as fluid
from penstock.fluid import layers

DECAYS = {
    "exponential": (layers.exponential_decay(0.5, 4, 0.1), lambda n: 0.5 * 0.1 ** (n / 4)),
    "staircase": (layers.exponential_decay(0.5, 4, 0.1, True), lambda n: 0.5 * 0.1 ** (n // 4)),
    "natural": (layers.natural_exp_decay(0.5, 4, 0.1), lambda n: 0.5 * math.exp(-0.1 * n / 4)),
    "inverse": (layers.inverse_time_decay(0.5, 4, 0.1), lambda n: 0.5 / (1 + 0.1 * n / 4)),
    "inverse_staircase": (
        layers.inverse_time_decay(0.5, 4, 0.1, staircase=True),
        lambda n: 0.5 / (1 + 0.1 * (n // 4)),
    ),
    "polynomial": (
        layers.polynomial_decay(0.5, 4, 0.1, 2.0),
        lambda n: 0.4 * (1 - min(n, 4) / 4) ** 2 + 0.1,
    ),
    "cycle": (
        layers.polynomial_decay(0.5, 4, 0.1, 2.0, cycle=True),
        lambda n: 0.4 * (1 - n / (4 * max(math.ceil(n / 4), 1))) ** 2 + 0.1,
    ),
    "piecewise": (
        layers.piecewise_decay([3, 5], [1.0, 0.5, 0.1]),
        lambda n: 1.0 if n < 3 else 0.5 if n < 5 else 0.1,
    ),
    "noam": (
        layers.noam_decay(16, 4),
        lambda n: 16**-0.5 * min((n + 1) ** -0.5, (n + 1) * 4**-1.5),
    ),
}


@pytest.mark.parametrize("name", DECAYS)
def test_rate_is_fluids(name):
    schedule, formula = DECAYS[name]
    with jax.numpy_dtype_promotion("strict"):
        rates = [float(schedule(jnp.int32(step))) for step in range(12)]
    np.testing.assert_allclose(rates, [formula(step) for step in range(12)], rtol=1e-5)


@pytest.mark.parametrize("period", [7, 41])  # 1 / 7 and 1 / 41 are rounded up and down
def test_compiled_rate_changes_at_the_end_of_a_period(period):
    steps = jnp.arange(1, 20) * period
    falling = jax.jit(jax.vmap(layers.exponential_decay(1.0, period, 0.5, staircase=True)))(steps)
    np.testing.assert_allclose(falling, 0.5 ** np.arange(1.0, 20))
    cyclic = jax.jit(jax.vmap(layers.polynomial_decay(1.0, period, 0.5, cycle=True)))(steps)
    np.testing.assert_allclose(cyclic, 0.5, rtol=1e-5)


def test_optimizer_takes_it():
    def train_program():
        x = fluid.layers.data(name="x", shape=[1])
        return fluid.layers.mean(fluid.layers.fc(x, 1, bias_attr=False))

    rates = []
    trainer = fluid.Trainer(
        train_program, lambda: fluid.optimizer.SGD(layers.exponential_decay(0.4, 1, 0.5))
    )

    def handler(event):
        if isinstance(event, fluid.EndStepEvent):
            rates.append(float(np.ravel(trainer.parameters["fc_0/w"])[0]))

    trainer.train(1, handler, lambda: [[([1.0],)]] * 3, ["x"])
    np.testing.assert_allclose(np.diff(rates), [-0.2, -0.1], rtol=1e-5)


@pytest.mark.parametrize("boundaries", [[1], [2, 2], [3, 2]])
def test_other_boundaries_are_refused(boundaries):
    with pytest.raises(ValueError, match="expected rising steps and one value more"):
        layers.piecewise_decay(boundaries, [1.0] * (1 if len(boundaries) == 1 else 3))
