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
from tests.layers.programs import infer, initial, normal, train

X = {"x": normal(6, 5, 3)}
SEQUENCE = {**X, "y": normal(6, 1, seed=1)}


def test_scan_over_a_layer_is_the_recurrence_written_out():
    def function():
        x = layers.data("x", [5, 3])

        def step(hidden, row):
            hidden = layers.fc([row, hidden], 4, act="tanh", name="cell")
            return hidden, layers.fc(hidden, 2)

        start = jnp.zeros([x.shape[0], 4])
        last, outputs = jax.lax.scan(step, start, x.swapaxes(0, 1))
        return last, outputs.swapaxes(0, 1)

    variables = initial(function)
    params = variables["params"]
    assert sorted(params) == ["cell", "fc_0"]
    hidden = np.zeros([6, 4])
    for t in range(5):
        hidden = np.tanh(
            SEQUENCE["x"][:, t] @ params["cell"]["w_0"]
            + hidden @ params["cell"]["w_1"]
            + params["cell"]["b"]
        )
    last, outputs = infer(function, X, variables)
    np.testing.assert_allclose(last, hidden, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        outputs[:, -1], hidden @ params["fc_0"]["w"] + params["fc_0"]["b"], rtol=1e-4, atol=1e-6
    )


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
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6),
        scanned.gradients,
        unrolled.gradients,
    )


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


def test_gradient_of_a_layer_inside_a_program_is_the_gradient():
    def function():
        x = layers.data("x", [5, 3])
        return jax.grad(lambda z: jnp.sum(layers.fc(z, 1, name="critic")))(x)

    w = initial(function)["params"]["critic"]["w"]
    np.testing.assert_allclose(
        infer(function, X), np.broadcast_to(w.reshape(1, 5, 3), (6, 5, 3)), rtol=1e-6
    )


class Recurrent(nn.Module):
    """A flax network with parameters, dropout and running statistics."""

    is_training: bool

    @nn.compact
    def __call__(self, x):
        x = nn.RNN(nn.OptimizedLSTMCell(4))(x)
        x = nn.BatchNorm(use_running_average=not self.is_training)(x)
        return nn.Dropout(0.5, deterministic=not self.is_training)(x)


def test_flax_modules_train_inside_a_program_and_among_layers():
    def function():
        hidden = Recurrent(layers.is_training())(layers.data("x", [5, 3]))
        prediction = layers.fc(nn.Dense(3)(hidden[:, -1]), 1)
        return layers.mean(layers.square_error_cost(prediction, layers.data("y", [1])))

    step = train(function, SEQUENCE)
    assert sorted(step.gradients) == ["Dense_0", "Recurrent_0", "fc_0"]
    assert all(np.abs(leaf).sum() > 0 for leaf in jax.tree.leaves(step.gradients["Dense_0"]))
    assert step.batch_stats["Recurrent_0"]["BatchNorm_0"]["mean"].any()
    assert np.isfinite(step.values)


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


def test_scopes_nest_and_names_count_within_each():
    @layers.scope("inner")
    def inner(x):
        return layers.fc(layers.fc(x, 3), 3)

    @layers.scope("outer")
    def outer(x):
        return inner(layers.fc(x, 3))

    def function():
        return layers.fc(outer(layers.data("x", [3])), 3)

    rows = ps.ProgramBuilder(infer_func=function).parameter_table()
    assert {row.name for row in rows if row.name.endswith("w")} == {
        "fc_0/w",
        "outer/fc_0/w",
        "outer/inner/fc_0/w",
        "outer/inner/fc_1/w",
    }


def test_scope_around_a_layer_inside_scan_shares_its_parameters():
    @layers.scope("cell")
    def cell(hidden, row):
        return layers.fc([row, hidden], 4, act="tanh")

    def function():
        x = layers.data("x", [5, 3])
        hidden = cell(jnp.zeros([x.shape[0], 4]), x[:, 0])
        hidden, _ = jax.lax.scan(lambda h, row: (cell(h, row), ()), hidden, x.swapaxes(0, 1))
        return hidden

    assert list(initial(function)["params"]) == ["cell"]
    assert infer(function, X).shape == (6, 4)


def test_scope_outside_a_program_and_with_a_taken_name_are_errors():
    with pytest.raises(LayerContextError, match=r"layers.scope got called outside a program"):
        layers.scope("part")(lambda: None)()

    def function():
        layers.fc(layers.data("x", [3]), 2, name="head")
        return layers.scope("head")(lambda: layers.data("x", [3]))()

    with pytest.raises(ProgramError, match=r"layers.scope got the name 'head', which a layer"):
        initial(function)


@pytest.mark.slow
def test_keys_of_examples_differ_between_steps_and_examples_but_not_between_runs():
    def function():
        x = layers.data("x", [3])
        w = layers.create_parameter([1], name="w")
        noise = jax.vmap(lambda key: jax.random.normal(key, [1]))(layers.example_keys())
        return layers.mean(x) + w[0], noise, jax.random.normal(layers.random_key("same"), [])

    def draws():
        builder = ps.ProgramBuilder(function, optax.sgd(0.1), place=jax.devices()[:2])
        state = builder.init(seed=3)
        rows = []
        for _ in range(2):
            state, (_, noise, _) = builder.train(state, {"x": normal(8, 3)})
            rows += [np.asarray(noise)[:4].tobytes(), np.asarray(noise)[4:].tobytes()]
        return rows

    first = draws()
    assert len(set(first)) == 4
    assert draws() == first


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
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7),
        (wrapped.values, wrapped.gradients),
        (plain.values, plain.gradients),
    )


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
