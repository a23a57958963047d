"""Optimizers and schedules in real programs: donated state, several devices."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import penstock as ps
from penstock import layers, optimizers
from penstock.optimizers import ScheduleOptions
from tests.networks import (
    assert_close,
    compile_warnings,
    host,
    linear_data,
    linear_program,
    one_device,
)


def gradient_of(params, batch):
    """Return the gradient of the regression's loss, worked out without penstock."""

    def loss(params):
        prediction = batch["x"] @ params["fc_0"]["w"] + params["fc_0"]["b"][None]
        return jnp.mean((prediction - batch["y"]) ** 2)

    return jax.grad(loss)(params)


@pytest.mark.quick("sgd")
@pytest.mark.parametrize("name", optimizers.names()[:8])
def test_program_trains_as_the_optimizer_does_by_itself(name, caplog):
    batch = linear_data(16)
    options = ScheduleOptions(warmup_steps=2)
    schedule: Any = optimizers.schedule(options, num_steps=6, steps_per_epoch=1)
    optimizer = optimizers.get(name, schedule, max_gradient_norm=1.0, moving_average_decay=0.9)
    builder = ps.ProgramBuilder(linear_program, optimizer, place=one_device())
    state = builder.init()
    params = jax.tree.map(jnp.asarray, host(state.variables["params"]))
    opt_state = optimizer.init(params)
    for _ in range(6):
        state, _ = builder.train(state, batch)
        updates, opt_state = optimizer.update(gradient_of(params, batch), opt_state, params)
        params = optax.apply_updates(params, updates)
    assert_close(state.variables["params"], params, rtol=1e-5)
    assert builder.num_compiles == {"train": 1}
    assert not compile_warnings(caplog)
    rate: Any = optimizers.learning_rate(state.opt_state["train"])
    assert float(rate) == pytest.approx(float(schedule(5)), rel=1e-6)


def test_weight_decay_leaves_out_the_biases_and_norms_of_penstocks_layers():
    def program():
        hidden = layers.layer_norm(layers.fc(layers.data("x", shape=[4]), size=3))
        return layers.mean(0 * hidden.sum(axis=1))  # no gradient: what moves is what decays

    optimizer = optimizers.get("adamweightdecay", 0.1)
    builder = ps.ProgramBuilder(program, optimizer, place=one_device())
    state = builder.init()
    ones = jax.tree.map(jnp.ones_like, state.variables["params"])
    state = builder.adopt({**state.variables, "params": ones}, state)
    state, _ = builder.train(state, {"x": linear_data(4)["x"]})
    values = jax.tree.map(lambda p: float(p.flat[0]), host(state.variables["params"]))
    assert values == {
        "fc_0": {"w": pytest.approx(0.999), "b": 1.0},
        "layer_norm_0": {"scale": 1.0, "bias": 1.0},
    }
