"""Weights that a program function holds itself are found when the programs are made."""

import functools
import types
import warnings

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


class Network(nnx.Module):
    def __init__(self, rngs):
        self.encoder = nnx.Linear(3, 4, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(4, 4, rngs=rngs)])

    def __call__(self, x):
        return self.blocks[0](self.encoder(x))


MODEL = Network(nnx.Rngs(0))
TABLE = jnp.ones((3, 4))
HOST_TABLE = np.ones((3, 4), np.float32)
SETTINGS = types.SimpleNamespace(weights={"w": jnp.ones((3, 4))})
LINEN = nn.Dense(4)
LINEN_VARIABLES = LINEN.init(jax.random.key(0), jnp.ones((1, 3)))


def make(network, num_devices=1):
    """Make the programs of a network with a layer of ours behind it."""

    def program():
        return layers.mean(layers.fc(network(layers.data("x", [3])), 1) ** 2)

    return ps.ProgramBuilder(program, optax.sgd(0.1), place=jax.devices()[:num_devices])


def rescan(x):
    def add(carry, row):
        return carry + row @ TABLE, None

    return jax.lax.scan(add, jnp.zeros(4), x)[0][None] + 0 * x[:, :1]


def draw(x):
    return x @ jax.random.normal(jax.random.key(0), (3, 4))


NNX = {
    "a global": lambda x: MODEL(x),
    "part of one": lambda x: MODEL.encoder(x),
    "a checkpointed block": lambda x: jax.checkpoint(lambda x: MODEL.encoder(x))(x),
    "an argument": functools.partial(lambda model, x: model.encoder(x), MODEL),
    "a jitted function": jax.jit(lambda x: MODEL.encoder(x)),
}


@pytest.mark.parametrize("network", NNX.values(), ids=NNX)
def test_weights_of_an_nnx_module_are_an_error_that_names_them_and_the_layer_to_use(network):
    message = (
        r"the train program of program got weights of flax.nnx that no optimizer sees, "
        r"\w+\.encoder\.kernel \[3, 4\] float32, .*layers.nnx_module.*jax.lax.stop_gradient"
    )
    with pytest.raises(ProgramError, match=message):
        make(network)


MADE_INSIDE = {
    "plain": lambda x: nnx.Linear(3, 4, rngs=nnx.Rngs(0))(x),
    "jitted": jax.jit(lambda x: nnx.Linear(3, 4, rngs=nnx.Rngs(0))(x)),
}


@pytest.mark.parametrize("network", MADE_INSIDE.values(), ids=MADE_INSIDE)
def test_nnx_module_made_in_the_program_function_is_an_error_that_names_the_line(network):
    message = r"of flax.nnx that no optimizer sees, \[3, 4\] float32 drawn at .*untrained.py:\d+ "
    with pytest.raises(ProgramError, match=message):
        make(network, 3)


UNKNOWN = {
    "a global": (lambda x: x @ TABLE, r"TABLE \[3, 4\] float32"),
    "an attribute": (lambda x: x @ SETTINGS.weights["w"], r"SETTINGS.weights\['w'\] \[3, 4\]"),
    "a default": (lambda x, w=TABLE + 0: x @ w, r"a default \[3, 4\] float32"),
    "a scan": (rescan, r"TABLE \[3, 4\] float32"),
    "linen": (
        lambda x: LINEN.apply(LINEN_VARIABLES, x),
        r"LINEN_VARIABLES\['params'\]\['kernel'\] \[3, 4\]",
    ),
    "a draw": (draw, r"\[3, 4\] float32 drawn at .*test_untrained.py:\d+ from a key of its own"),
}


@pytest.mark.parametrize(("network", "label"), UNKNOWN.values(), ids=UNKNOWN)
def test_array_that_nobody_vouches_for_is_a_warning_that_names_it(network, label):
    message = rf"constants that its loss has a gradient by, {label}.* layers.create_parameters"
    with pytest.warns(UserWarning, match=message):
        make(network)


MEANT = {
    "numpy": lambda x: x @ HOST_TABLE,
    "numpy made an array": lambda x: x @ jnp.asarray(HOST_TABLE),
    "a literal": lambda x: x * jnp.array([[1.0, 2.0, 3.0]]),
    "one number": lambda x: x * jnp.float32(0.5),
    "made in the trace": lambda x: x @ jnp.eye(3),
    "stopped": lambda x: x @ jax.lax.stop_gradient(TABLE),
    "a teacher": lambda x: jax.lax.stop_gradient(MODEL(x)),
    "a stopped draw": lambda x: (
        x @ jax.lax.stop_gradient(jax.random.normal(jax.random.key(0), (3, 4)))
    ),
    "compared": lambda x: x * (x > TABLE[:, 0][None]),
    "noise": lambda x: x + layers.gaussian_random_batch_size_like(x, [-1, 3]),
    "seeded noise": lambda x: x + layers.gaussian_random([1, 3], seed=4),
    "noise by the step": lambda x: (
        x + jax.random.normal(jax.random.fold_in(jax.random.key(0), layers.global_step()), (1, 3))
    ),
    "layers": lambda x: nn.Dropout(0.5, deterministic=False)(nn.Dense(3)(layers.dropout(x, 0.5))),
    "nnx as a layer": lambda x: layers.nnx_module(MODEL)(x),
}


@pytest.mark.parametrize("network", MEANT.values(), ids=MEANT)
def test_constant_that_is_meant_passes_without_a_word(network):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(network)


def test_constants_of_a_program_that_only_infers_pass():
    builder = ps.ProgramBuilder(
        infer_func=lambda: MODEL(layers.data("x", [3])), place=jax.devices()[:1]
    )
    np.testing.assert_allclose(
        builder.infer(builder.init(), {"x": HOST_TABLE[:, :3]}), MODEL(HOST_TABLE[:, :3]), rtol=1e-5
    )


def test_weights_of_a_users_module_that_is_called_as_a_library_are_a_warning():
    class Table:
        def __init__(self):
            self.weights = jnp.ones((3, 4))

    Table.__module__ = "models.equinox.net"
    table = Table()
    with pytest.warns(UserWarning, match=r"got constants that .* gradient by, table.weights \["):
        make(lambda x: x @ table.weights)


def test_weights_of_equinox_are_an_error_and_train_as_created_parameters():
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(3, 4, 8, 1, key=jax.random.key(0))
    with pytest.raises(ProgramError, match=r"of Equinox that .* model.layers\[0\].weight \[8, 3\]"):
        make(lambda x: jax.vmap(model)(x))
    with pytest.raises(ProgramError, match=r"of Equinox that .* drawn at .*untrained.py:\d+ "):
        make(lambda x: jax.vmap(eqx.nn.Linear(3, 4, key=jax.random.key(0)))(x))
    builder = make(lambda x: jax.vmap(layers.create_parameters(model, name="mlp"))(x), 3)
    state, _ = builder.train(builder.init(), {"x": HOST_TABLE[:, :3]})
    before, after = (
        model.layers[0].weight,
        state.variables["params"]["mlp"]["layers"]["0"]["weight"],
    )
    assert after.shape == (8, 3)
    assert not np.array_equal(after, before)


def test_weights_that_haiku_makes_are_an_error_and_train_as_created_parameters():
    hk = pytest.importorskip("haiku")
    network = hk.without_apply_rng(hk.transform(lambda x: hk.Linear(4)(x)))
    with pytest.raises(ProgramError, match=r"of Haiku that .* drawn at .*untrained.py:\d+ "):
        make(lambda x: network.apply(network.init(jax.random.key(0), x), x))
    weights = network.init(jax.random.key(0), HOST_TABLE[:, :3])
    with pytest.warns(UserWarning, match=r"weights\['linear'\]\['w'\] \[3, 4\] float32"):
        make(lambda x: network.apply(weights, x))
    builder = make(lambda x: network.apply(layers.create_parameters(weights), x))
    assert builder.init().variables["params"]["parameters_0"]["linear"]["w"].shape == (3, 4)
