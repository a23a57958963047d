"""Layers among jnp code, flax modules, scans and scopes."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from penstock._errors import LayerContextError, ProgramError
from tests.layers.programs import assert_alike, infer, initial, normal, train

X = {"x": normal(6, 5, 3)}
SEQUENCE = {**X, "y": normal(6, 1, seed=1)}


def test_scan_over_a_layer_trains_like_the_unrolled_loop():
    def program(is_scan):
        def function():
            x = layers.data("x", [5, 3]).swapaxes(0, 1)

            def step(hidden, row):
                hidden = layers.fc([row, hidden], 4, act="tanh", name="cell")
                return layers.layer_norm(hidden, name="norm"), ()

            hidden = jnp.zeros([x.shape[1], 4])
            if is_scan:
                hidden, _ = jax.lax.scan(step, hidden, x)
            else:
                for row in x:
                    hidden, _ = step(hidden, row)
            prediction = layers.fc(hidden, 1, name="out")
            return layers.mean(layers.square_error_cost(prediction, layers.data("y", [1])))

        return function

    scanned, unrolled = train(program(True), SEQUENCE), train(program(False), SEQUENCE)
    np.testing.assert_allclose(scanned.values, unrolled.values, rtol=1e-5)
    assert_alike(scanned.gradients, unrolled.gradients, rtol=1e-3, atol=1e-6)


def step_of_module(hidden, row):
    hidden = layers.fc([row, hidden], 4, act="tanh", name="cell")
    return layers.dropout(hidden, 0.9), ()


@pytest.mark.slow
def test_scan_over_a_function_of_a_module_is_traced_anew_for_each_program():
    # JAX would reuse the trace of a function it knows: train's dropout and parameters in test.
    def forward():
        x = layers.data("x", [5, 3])
        start = jnp.zeros([x.shape[0], 4])
        return jax.lax.scan(step_of_module, start, x.swapaxes(0, 1))[0]

    def function():
        hidden = forward()
        return layers.mean(hidden**2), hidden

    builder = ps.ProgramBuilder(
        function, optax.sgd(0.1), infer_func=forward, place=jax.devices()[:1]
    )
    state = builder.init()
    _, tested = builder.test(state, X)
    inferred = builder.infer(state, {"x": np.concatenate([X["x"], X["x"][:2]])})[:6]
    np.testing.assert_allclose(tested, inferred, rtol=1e-5)
    state, (_, trained) = builder.train(state, X)
    assert np.mean(np.asarray(trained) == 0) > 0.5
    assert not np.any(np.asarray(tested) == 0)


def test_layer_inside_vmap_works_on_each_example():
    def function():
        return jax.vmap(lambda row: layers.fc(row, 2, name="each"))(layers.data("x", [5, 3]))

    assert infer(function, X).shape == (6, 5, 2)


def test_flax_module_in_a_scope_lands_below_it_and_is_shared_by_a_second_call():
    @layers.scope("encoder")
    def encode(x):
        return layers.fc(nn.Dense(4)(x), 2)

    def function():
        x = layers.data("x", [5, 3])
        return encode(x[:, 0]), encode(x[:, 0])

    params = initial(function)["params"]
    assert list(params) == ["encoder"]
    assert sorted(params["encoder"]) == ["Dense_0", "fc_0"]
    first, second = infer(function, X)
    np.testing.assert_array_equal(first, second)


def test_scope_outside_a_program_and_with_a_taken_name_are_errors():
    with pytest.raises(LayerContextError, match=r"layers.scope got called outside a program"):
        layers.scope("part")(lambda: None)()

    def function():
        layers.fc(layers.data("x", [3]), 2, name="head")
        return layers.scope("head")(lambda: layers.data("x", [3]))()

    with pytest.raises(ProgramError, match=r"layers.scope got the name 'head', which a layer"):
        initial(function)


# A function that JAX traces once and uses again: each call makes layers of its own.


@pytest.mark.quick("checkpoint")
@pytest.mark.parametrize("wrap", [jax.checkpoint, jax.jit], ids=["checkpoint", "jit"])
def test_block_used_three_times_makes_three_layers_and_trains_as_without_the_wrapper(wrap):
    def block(hidden):
        return layers.dropout(layers.fc(hidden, 4, act="tanh"), 0.5)

    def stacked(block):
        def program():
            hidden = layers.data("x", shape=[4])
            for _ in range(3):
                hidden = block(hidden)
            return layers.mean(hidden**2)

        return program

    plain, wrapped = (train(stacked(f), {"x": normal(8, 4)}) for f in (block, wrap(block)))
    assert sorted(wrapped.gradients) == ["fc_0", "fc_1", "fc_2"]
    actual, expected = ((step.values, step.gradients) for step in (wrapped, plain))
    assert_alike(actual, expected, rtol=1e-5, atol=1e-7)


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


@pytest.mark.parametrize("wrap", [jax.checkpoint, jax.jit], ids=["checkpoint", "jit"])
def test_block_of_named_layers_in_two_scopes_has_the_weights_of_each(wrap):
    block = wrap(lambda x: x + layers.fc(x, 4, name="fc"))

    def program():
        x = layers.data("x", shape=[4])
        for name in ("first", "second"):
            x = layers.scope(name)(block)(x)
        return block(x)

    assert sorted(initial(program)["params"]) == ["fc", "first", "second"]


def test_network_traced_once_has_dropout_in_monte_carlo_alone():
    network = jax.jit(lambda x: layers.dropout(x, 0.5, name="drop"))

    def program():
        x = layers.data("x", shape=[4])
        plain = network(x)
        return plain, layers.monte_carlo(network, 20)(x)["deviation"], network(x)

    x = normal(8, 4)
    before, deviation, after = infer(program, {"x": x})
    np.testing.assert_array_equal(before, x)
    np.testing.assert_array_equal(after, x)
    assert np.all(deviation > 0)


@jax.custom_vjp
def custom(x):
    return layers.fc(x, 4)


custom.defvjp(lambda x: (custom(x), None), lambda _, gradient: (gradient,))


def mean_inside():
    words = layers.data("x", [4], lod_level=1)
    return jax.checkpoint(lambda words: layers.mean(layers.fc(words, 1)))(words)


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (lambda: layers.mean(custom(layers.data("x", shape=[4]))), "sees its arguments alone"),
        (mean_inside, "or use layers.remat"),
    ],
    ids=["custom gradient", "mean over words"],
)
def test_value_that_leaves_a_transformed_function_says_what_to_do(program, text):
    builder = ps.ProgramBuilder(program, optax.sgd(0.1), gradient_accumulation_steps=2)
    with pytest.raises(jax.errors.UnexpectedTracerError) as caught:
        builder.train(builder.init(), {"x": normal(6, 3, 4) if text[0] == "o" else normal(6, 4)})
    assert any(text in note for note in caught.value.__notes__)
