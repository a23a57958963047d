"""Recurrent layers against loops over the words of one example, written from Fluid's formulas."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from penstock import layers
from tests.layers.programs import infer
from tests.layers.recurrent_cases import (
    CASES,
    LENGTHS,
    STATE,
    apply,
    pad,
    random_params,
    weigh,
    words_of,
)


@pytest.mark.parametrize("name", CASES)
def test_each_example_gives_what_a_loop_gives_for_it_alone_gradients_too(name):
    case, params = CASES[name], random_params(name)
    words = pad(words_of(case))

    @jax.jit
    def run(params, values, state):
        def total(params, values, state):
            out = apply(name, params, words.with_values(values), state)
            return (out.masked() * jnp.expand_dims(weigh(out.values[0]), 0)).sum(), out.values

        return jax.grad(total, (0, 1, 2), has_aux=True)(params, values, state)

    @jax.jit
    def run_loops(params, examples, state):
        def total(params, examples, state):
            outs = [case.loop(each, params[name], state[row]) for row, each in enumerate(examples)]
            return sum((out * weigh(out)).sum() for out in outs), outs

        return jax.grad(total, (0, 1, 2), has_aux=True)(params, examples, state)

    (of_params, of_values, of_states), outs = run(params, words.values, STATE)
    examples = words_of(case)[:-1]
    (to_params, to_values, to_states), expected = run_loops(params, examples, STATE)
    assert np.isfinite(outs).all()
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=5e-5)
    for row, out in enumerate(expected):
        np.testing.assert_allclose(outs[row, : len(out)], out, rtol=1e-5, atol=1e-5)
        close(of_values[row, : len(out)], to_values[row])
        assert not of_values[row, len(out) :].any()
    assert not of_values[-1].any()
    close(of_states, to_states)
    jax.tree.map(close, of_params, to_params)


def test_each_example_gives_the_same_alone_at_its_own_length():
    params = {name: random_params(name) for name in CASES}

    @jax.jit
    def run(words, state):
        return {name: apply(name, params[name], words[name], state).values for name in CASES}

    together = run({name: pad(words_of(case)) for name, case in CASES.items()}, STATE)
    for row in (1, 2):
        alone = run(
            {name: pad(words_of(case)[row : row + 1]) for name, case in CASES.items()},
            STATE[row : row + 1],
        )
        for name, out in alone.items():
            assert out.shape[1] == LENGTHS[row]
            np.testing.assert_allclose(
                out[0], together[name][row, : LENGTHS[row]], rtol=1e-5, atol=1e-5, err_msg=name
            )


def test_derivatives_of_an_lstm_are_right_in_both_modes_and_of_second_order():
    name = "lstm reversed, from a state, without peepholes"
    words, params = pad(words_of(CASES[name])), random_params(name)

    @jax.jit
    def total(params, values):
        outputs = apply(name, params, words.with_values(values), STATE)
        return jnp.sum(jnp.sin(outputs.masked()))

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
    np.testing.assert_allclose([each[-1] for each in hidden], expected_hidden, atol=2e-6)
    np.testing.assert_allclose([each[-1] for each in cell], expected_cell, atol=2e-6)


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
    np.testing.assert_allclose([each[-1] for each in states], expected, atol=2e-6)
