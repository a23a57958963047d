"""Recurrent layers: one step, derivatives, torch's numbers, parameters, precision.

Whole sequences are compared with loops over words in test_alone.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import penstock as ps
from penstock import layers
from tests.layers import alone
from tests.layers.programs import infer, normal


@pytest.mark.slow
def test_derivatives_of_an_lstm_are_right_in_both_modes_and_of_second_order():
    def lstm(x):
        return layers.dynamic_lstm(x, 8, use_peepholes=False, is_reverse=True, name="layer")[0]

    rows = {"x": [normal(n, 8, seed=n) for n in (3, 0, 2)]}
    words, params = alone.join(rows)["x"], alone.draw_params(lstm, rows)

    @jax.jit
    def total(params, values):
        out = alone.run(lambda: lstm(words.with_values(values)), params, 3)
        return jnp.sum(jnp.sin(out.masked()))

    check_grads(total, (params, words.values), order=2, atol=2e-2, rtol=2e-2, eps=1e-2)


def formula(*shape: int, seed: int) -> np.ndarray:
    """Return numbers that any library can be given: `0.8 sin(1.7 n + seed)`."""
    numbers = np.arange(np.prod(shape))
    return 0.8 * np.sin(numbers * 1.7 + seed).reshape(shape).astype(np.float32)


def constant(value: np.ndarray) -> layers.ParamAttr:
    return layers.ParamAttr(initializer=lambda key, shape, dtype: jnp.asarray(value, dtype))


def test_lstm_without_peepholes_is_torchs():
    def program():
        words = layers.data("x", [12], lod_level=1, buckets=[4])
        w, b = formula(3, 12, seed=2), formula(1, 12, seed=3)
        return layers.dynamic_lstm(words, 12, None, None, constant(w), constant(b), False)

    hidden, cell = infer(program, {"x": list(formula(2, 4, 12, seed=1))})
    # torch 2: nn.LSTM(12, 3) with the identity as weight_ih, our w and b with their columns in the
    # order input, forget, candidate, output; the states after the last of 4 words.
    expected_hidden = [[0.077084, -0.108273, 0.053804], [0.078282, -0.119928, 0.060178]]
    expected_cell = [[0.142657, -0.229386, 0.117232], [0.143404, -0.249016, 0.133769]]
    np.testing.assert_allclose([sequence[-1] for sequence in hidden], expected_hidden, atol=2e-6)
    np.testing.assert_allclose([sequence[-1] for sequence in cell], expected_cell, atol=2e-6)


def test_gru_of_origin_mode_is_torchs_where_reset_and_product_commute():
    w = formula(3, 9, seed=5)
    w[:, 6:] = np.diag(np.diag(w[:, 6:]))  # torch resets behind the product

    def program():
        words = layers.data("x", [9], lod_level=1, buckets=[4])
        b = constant(formula(1, 9, seed=6))
        return layers.dynamic_gru(words, 3, constant(w), b, origin_mode=True)

    states = infer(program, {"x": list(formula(2, 4, 9, seed=4))})
    # torch 2: nn.GRU(9, 3) with the identity as weight_ih, columns in the order reset, update,
    # candidate, no bias_hh; the states after the last of 4 words.
    expected = [[-0.431418, -0.401262, 0.396104], [0.148271, -0.420033, 0.304181]]
    np.testing.assert_allclose([sequence[-1] for sequence in states], expected, atol=2e-6)


def test_parameters_have_fluids_shapes():
    def program():
        x, y = (layers.data(n, [s], lod_level=1) for n, s in (("x", 12), ("y", 9)))
        layers.dynamic_lstm(x, 12, param_attr="weight")
        layers.dynamic_lstm(x, 12, use_peepholes=False)
        layers.dynamic_lstmp(x, 12, 2, param_attr="mine")
        layers.bidirectional_gru(y, 2, param_attr="two", bias_attr=False)
        return layers.dynamic_gru(y, np.int64(3))

    rows = ps.ProgramBuilder(infer_func=program, place=jax.devices()[:1]).parameter_table()
    assert {row.name: row.shape for row in rows} == {
        "weight": (3, 12),
        "dynamic_lstm_0/b": (1, 21),
        "dynamic_lstm_1/w": (3, 12),
        "dynamic_lstm_1/b": (1, 12),
        "mine": (2, 12),
        "mine_proj": (3, 2),
        "dynamic_lstmp_0/b": (1, 21),
        "two_forward_w_x": (9, 6),
        "two_forward_w": (2, 6),
        "two_backward_w_x": (9, 6),
        "two_backward_w": (2, 6),
        "dynamic_gru_0/w": (3, 9),
        "dynamic_gru_0/b": (1, 9),
    }
