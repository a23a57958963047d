"""Modules of flax.nnx in a program: their weights train, their statistics move."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

import penstock as ps
from penstock import layers
from penstock._errors import ProgramError
from tests.layers.programs import infer, initial, normal, train


class Network(nnx.Module):
    """Shared and listed modules, dropout, batch norm, and a method beside the call."""

    def __init__(self, rngs):
        self.first = nnx.Linear(6, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.4, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(4, 4, rngs=rngs), nnx.LayerNorm(4, rngs=rngs)])
        self.tied = self.first

    def __call__(self, x, scale=1.0):
        x = self.dropout(nnx.relu(self.norm(self.tied(x))))
        for block in self.blocks:
            x = block(x)
        return scale * x

    def encode(self, x):
        return self.first(x)


MODEL = Network(nnx.Rngs(0))
FEED = {"x": normal(12, 6)}


def program():
    x = layers.data("x", [6])
    hidden = layers.nnx_module(MODEL, name="net")(x, scale=2.0)
    hidden = hidden + layers.nnx_module(MODEL.encode)(x)
    return layers.mean(layers.square_error_cost(layers.fc(hidden, 1), x[:, :1])), hidden


def test_weights_and_statistics_are_in_the_tree_once_and_train():
    builder = ps.ProgramBuilder(program, optax.adam(0.01), place=jax.devices()[:1])
    state = builder.init(seed=0)
    for number in range(3):
        state, _ = builder.train(state, {"x": normal(12, 6, seed=number)})
    variables = jax.tree.map(np.asarray, state.variables)
    assert sorted(variables["params"]) == ["fc_0", "net"]
    net = variables["params"]["net"]
    assert sorted(net) == ["blocks", "first", "norm"]
    assert sorted(net["blocks"]) == ["0", "1"]
    assert not np.array_equal(net["first"]["kernel"], MODEL.first.kernel[...])
    assert sorted(variables["batch_stats"]["net"]["norm"]) == ["mean", "var"]
    assert variables["batch_stats"]["net"]["norm"]["mean"].any()
    assert not np.any(MODEL.norm.mean[...])  # the module itself stays as it was


def test_initial_weights_are_those_of_the_module_whatever_the_seed():
    variables = initial(program, seed=7)
    net = variables["params"]["net"]
    np.testing.assert_array_equal(net["blocks"]["0"]["kernel"], MODEL.blocks[0].kernel[...])
    np.testing.assert_array_equal(net["first"]["kernel"], MODEL.first.kernel[...])


@pytest.mark.slow
def test_network_without_noise_gives_what_the_module_gives_in_training_and_in_test():
    def network():
        x = layers.data("x", [6])
        y = layers.nnx_module(MODEL.encode)(x)
        return layers.mean(y), layers.nnx_module(norm)(y), layers.nnx_module(dropout)(y)

    norm, dropout = nnx.BatchNorm(4, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    step = train(network, FEED, is_tested=True)
    hidden = MODEL.encode(jnp.asarray(FEED["x"]))
    np.testing.assert_allclose(step.test_values[2], hidden, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(step.values[1], nnx.clone(norm)(hidden), rtol=1e-4, atol=1e-4)
    set_aside = nnx.clone(norm)
    set_aside.eval()
    np.testing.assert_allclose(step.test_values[1], set_aside(hidden), rtol=1e-5, atol=1e-5)
    assert (step.values[2] == 0).any()
    assert len(np.unique(step.values[2] == 0, axis=0)) > 4


@pytest.mark.slow
def test_saved_weights_serve_an_inferencer_that_was_given_shapes_alone(tmp_path):
    trainer = ps.Trainer(program, optax.sgd(0.1), place=jax.devices()[:2])
    trainer.train(lambda: iter([FEED]), num_epochs=1)
    trainer.save_params(str(tmp_path / "net"))
    abstract = nnx.eval_shape(lambda: Network(nnx.Rngs(1)))

    def predict():
        return layers.nnx_module(abstract.encode, name="net")(layers.data("x", [6]))

    inferencer = ps.Inferencer(
        predict, str(tmp_path / "net"), place=jax.devices()[:1], ignore_extra=True
    )
    kernel, bias = (np.asarray(trainer.parameters[f"net/first/{n}"]) for n in ("kernel", "bias"))
    expected = FEED["x"] @ kernel + bias
    np.testing.assert_allclose(inferencer.infer(FEED), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ProgramError, match=r"'net/.*' got a shape without values"):
        initial(predict)


def test_module_computes_in_the_precision_of_the_program():
    def network():
        return layers.nnx_module(MODEL)(layers.data("x", [6]))

    builder = ps.ProgramBuilder(infer_func=network, place=jax.devices()[:1], precision="bfloat16")
    assert "bf16[6,4]" in str(builder.inspect("infer", batch_size=4).jaxpr)


class Counting(nnx.Module):
    def __init__(self):
        self.calls = nnx.Variable(jnp.zeros(()))

    def __call__(self, x):
        self.calls[...] = self.calls[...] + 1
        return x


class Noting(nnx.Module):
    def __call__(self, x):
        self.seen = nnx.Intermediate(x)
        return x


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Counting(), r"changes 'calls' when it is called, expected changes of nnx.BatchStat only"),
        (Noting(), r"changes 'seen' when it is called"),
        (nn.Dense(3), r"got Dense, expected an nnx.Module or a method of one"),
        (nnx.Linear, r"got the class Linear, expected an nnx.Module"),
    ],
)
def test_module_that_a_program_cannot_call_is_refused(module, message):
    with pytest.raises(ProgramError, match=message):
        infer(lambda: layers.nnx_module(module)(layers.data("x", [6])), FEED)


class Tabled(nnx.Module):
    def __init__(self, table):
        self.linear, self.table = nnx.Linear(6, 6, rngs=nnx.Rngs(0)), table

    def __call__(self, x):
        return self.linear(x) * self.table


@pytest.mark.parametrize("table", [np.arange(6.0, dtype="float32")[None], jnp.arange(6)[None]])
def test_array_of_a_module_that_is_no_variable_is_a_constant(table):
    module = Tabled(table)
    outputs = infer(lambda: layers.nnx_module(module)(layers.data("x", [6])), FEED)
    np.testing.assert_allclose(outputs, module(jnp.asarray(FEED["x"])), rtol=1e-5, atol=1e-6)


def test_array_of_a_module_that_may_be_a_weight_is_refused():
    module = Tabled(jnp.arange(6.0)[None])
    with pytest.raises(ProgramError, match=r"module\.table.* takes nnx\.Params into"):
        train(lambda: layers.mean(layers.nnx_module(module)(layers.data("x", [6]))), FEED)


@pytest.mark.parametrize("transform", [nnx.remat, nnx.jit])
def test_transform_inside_a_module_is_refused_with_the_argument_that_lets_it_work(transform):
    class Transformed(nnx.Module):
        def __init__(self, rngs):
            self.linear, self.norm = nnx.Linear(6, 2, rngs=rngs), nnx.BatchNorm(2, rngs=rngs)

        def __call__(self, x, **options):
            function = lambda linear, norm, x: norm(linear(x))  # noqa: E731
            if options:
                function = transform(function, **options)
            return function(self.linear, self.norm, x)

    module = Transformed(nnx.Rngs(0))

    def run_with(**options):
        def network():
            y = layers.nnx_module(module)(layers.data("x", [6]), **options)
            return layers.mean(y**2), y

        return train(network, FEED)

    with pytest.raises(ProgramError, match="pass them graph_updates=False"):
        run_with(graph_updates=True)
    plain, transformed = run_with(), run_with(graph_updates=False)
    np.testing.assert_allclose(transformed.values[1], plain.values[1], rtol=1e-6, atol=1e-6)


def test_module_made_inside_the_program_function_is_refused():
    def network():
        return layers.nnx_module(nnx.Linear(6, 2, rngs=nnx.Rngs(0)))(layers.data("x", [6]))

    with pytest.raises(ProgramError, match=r"'nnx_module_0/\w+' got a value made inside the prog"):
        initial(network)


def test_weights_shared_with_a_module_in_deeper_scopes_are_there_once():
    @layers.scope("outer")
    @layers.scope("inner")
    def encode(x):
        return layers.nnx_module(MODEL.first)(x)

    def network():
        x = layers.data("x", [6])
        return layers.nnx_module(MODEL.first, name="first")(x) + encode(x)

    assert sorted(initial(network)["params"]) == ["first"]


def test_parameters_of_a_tree_train_and_keep_what_is_no_array():
    linear = {"w": normal(6, 2), "b": np.zeros(2)}  # numpy's zeros are float64
    tree = {"mlp/linear_0": linear, "act": jnp.tanh, "n": 3}

    def network():
        made = layers.create_parameters(tree, name="net")
        first = made["mlp/linear_0"]
        assert made["n"] == 3
        return layers.mean(made["act"](layers.data("x", [6]) @ first["w"] + first["b"][None]))

    step = train(network, FEED)
    assert sorted(step.gradients["net"]["mlp"]["linear_0"]) == ["b", "w"]
    assert np.abs(step.gradients["net"]["mlp"]["linear_0"]["w"]).sum() > 0
    made = initial(network)["params"]["net"]["mlp"]["linear_0"]["w"]
    np.testing.assert_array_equal(made, tree["mlp/linear_0"]["w"])
