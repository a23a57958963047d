"""Layers in a function that JAX traces once and uses again: each call makes layers of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers

WRAPPERS = {"plain": lambda f: f, "checkpoint": jax.checkpoint, "jit": jax.jit}


def block(hidden):
    """Return a layer's output with dropout, as a function that JAX could keep the trace of."""
    return layers.dropout(layers.fc(hidden, 4, act="tanh"), 0.5)


def stacked(wrap):
    def program():
        hidden = layers.data("x", shape=[4])
        for _ in range(3):
            hidden = wrap(block)(hidden)
        return layers.mean(hidden**2)

    return program


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", ["checkpoint", pytest.param("jit")])
def test_block_used_three_times_makes_three_layers_and_trains_as_without_the_wrapper(wrapper):
    batch = {"x": np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)}
    params = {}
    for name in ("plain", wrapper):
        trainer = ps.Trainer(stacked(WRAPPERS[name]), optax.sgd(0.1), place=jax.devices()[0])
        trainer.train([batch] * 3)
        params[name] = dict(trainer.parameters)
        assert trainer.builder.num_compiles["train"] == 1
    assert sorted({key.split("/")[0] for key in params[wrapper]}) == ["fc_0", "fc_1", "fc_2"]
    for key, value in params["plain"].items():
        np.testing.assert_allclose(params[wrapper][key], value, rtol=1e-6)


def test_two_scans_over_one_cell_have_a_weight_each():
    def cell(carry, x):
        carry = jnp.tanh(layers.fc([carry, x], 4))
        return carry, carry

    def program():
        sequence = jnp.moveaxis(layers.data("x", shape=[5, 4]), 1, 0)
        for _ in range(2):
            _, sequence = jax.lax.scan(cell, jnp.zeros_like(sequence[0]), sequence)
        return sequence[-1]

    params = ps.ProgramBuilder(infer_func=program).init().variables["params"]
    assert sorted(params) == ["fc_0", "fc_1"]


def test_norms_of_integers_are_not_cut_to_integers():
    x = np.arange(12, dtype=np.uint8).reshape(2, 6)

    def program():
        image = layers.data("x", shape=[6], dtype="uint8")
        return layers.layer_norm(image), layers.l2_normalize(image, axis=1)

    builder = ps.ProgramBuilder(infer_func=program)
    normalised, unit = builder.infer(builder.init(), {"x": x})
    assert normalised.dtype == unit.dtype == np.float32
    np.testing.assert_allclose(normalised.std(axis=1), 1, rtol=1e-3)
