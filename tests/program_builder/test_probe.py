"""What a program function may return, and what is said when it returns something else."""

import gc

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import penstock as ps
from penstock import layers
from tests.networks import (
    PLACES,
    assert_close,
    eight_devices,
    linear_data,
    linear_program,
    one_device,
)


def make_builder(program, place=one_device):
    return ps.ProgramBuilder(program, optax.sgd(0.1), place=place())


def error_of(program):
    with pytest.raises(ps.ProgramError) as caught:
        make_builder(program)
    return str(caught.value)


def network():
    """Return a prediction [B, 1] and a label [B, 1]."""
    return layers.fc(layers.data("x", shape=[4]), size=1), layers.data("y", shape=[1])


# What is returned.


@pytest.mark.parametrize("returned", [None, (), [], {}])
def test_program_function_that_returns_nothing_is_refused(returned):
    def program():
        network()
        return returned

    assert error_of(program) == (
        f"the train program of program returned {returned!r}, expected an array, or a tuple, list "
        "or dict of arrays, nested or not. A program is derived from what its function "
        "returns. Is a return statement missing?"
    )


@pytest.mark.parametrize(
    ("make", "got"),
    [
        (lambda loss: (loss, {"a": {"b": "text"}}), "str as returned value '1/a/b'"),
        (lambda loss: {"loss": loss, "all": [loss, None]}, "NoneType as returned value 'all/1'"),
        (lambda loss: (loss, "accuracy"), "str as returned value 1"),
        (lambda loss: (loss, None), "NoneType as returned value 1"),
        (lambda loss: "loss", "str as the returned value"),
    ],
)
def test_program_function_that_returns_what_is_no_array_is_refused(make, got):
    assert error_of(lambda: make(linear_program())) == (
        f"the train program of <lambda> has {got}, expected an array, or a tuple, list or dict of "
        "arrays, nested or not. Return the arrays inside."
    )


@pytest.mark.parametrize(
    ("loss_of", "got"),
    [
        (lambda x: x, "float32 of shape [B, 4]"),
        (lambda x: jnp.mean(x, axis=0), "float32 of shape [4]"),
        (lambda x: jnp.zeros(1) * jnp.sum(x), "float32 of shape [1]"),
        (lambda x: jnp.sum(x).astype("int32"), "int32 of shape []"),
        (lambda x: x[:, :1] > 0, "bool of shape [B, 1]"),
    ],
)
def test_loss_that_is_no_float_or_neither_a_scalar_nor_by_example_is_refused(loss_of, got):
    def program():
        layers.create_parameter([1])
        return loss_of(layers.data("x", shape=[4]))

    assert error_of(program) == (
        f"the train program of program got {got} as its loss, expected a scalar, [B] or [B, 1] of "
        "a floating dtype. The first value is minimised. Return the loss first, as by layers.mean, "
        "and metrics after it."
    )


def test_nested_loss_is_refused():
    assert error_of(lambda: {"losses": {"a": linear_program()}}) == (
        "the train program of <lambda> has returned value 'losses/a' where the loss is expected: "
        "an array, first or under the key 'loss', and not nested. It is minimised. Return the loss "
        "first, metrics after it."
    )


def test_loss_of_a_dict_is_found_by_its_name_and_is_the_first_value_elsewhere():
    def by_name():
        prediction, label = network()
        return {"rows": prediction, "loss": layers.mean((prediction - label) ** 2)}

    def by_place():
        prediction, label = network()
        return {"cost": layers.mean((prediction - label) ** 2), "rows": prediction}

    params = []
    for program in (by_name, by_place):
        builder = make_builder(program)
        state, _ = builder.train(builder.init(), linear_data(8))
        params.append(state.variables)
    assert_close(*params)


def test_program_function_that_cannot_be_called_is_refused():
    for wrong, kind in ((3, "int"), ("program", "str")):
        with pytest.raises(TypeError, match=f"Objective got {kind} as program function, expected"):
            make_builder(wrong)
    with pytest.raises(TypeError, match="infer_func got int as program function, expected a func"):
        ps.ProgramBuilder(infer_func=3)


def test_error_where_a_module_has_its_variables_says_b_for_the_batch_size():
    class Queue(nn.Module):
        @nn.compact
        def __call__(self, keys):
            queue = self.variable("batch_stats", "queue", jnp.zeros, (8, 4))
            if not self.is_initializing():
                queue.value = queue.value.at[: len(keys)].set(keys)
            return queue.value

    def program():
        x = layers.data("x", shape=[4])
        return layers.mean(layers.fc(x, 1)) + jnp.mean(Queue()(x))

    with pytest.raises(ValueError, match=r"float32\[B,4\]"):
        make_builder(program)


# How often a program function is run.


@pytest.mark.parametrize(
    ("asks", "num_runs"),
    [
        (lambda x: x, 1),
        (lambda x: layers.dropout(x, 0.5), 2),
        (lambda x: x if layers.is_training() else 2 * x, 2),
        (lambda x: nn.Dropout(0.5, deterministic=not layers.is_training())(x), 2),
    ],
)
def test_function_that_never_asks_for_the_mode_is_not_run_again_in_test_mode(asks, num_runs):
    runs = []

    def program():
        runs.append(1)
        prediction, label = network()
        return layers.mean((asks(prediction) - label) ** 2)

    builder = make_builder(program)
    assert len(runs) == num_runs
    state, data = builder.init(), linear_data(8)
    tested = np.asarray(builder.test(state, data))
    if num_runs == 1:
        assert tested == np.asarray(builder.train(state, data)[1])


# Arrays and modules of others inside a program function.


def test_leak_checking_of_jax_finds_what_a_program_keeps_and_nothing_else():
    kept = []

    def program():
        prediction, label = network()
        kept.append(prediction)
        return layers.mean((prediction - label) ** 2)

    # JAX collects garbage after each trace: 40 s of what the suite has left in this process by now.
    gc.collect()
    gc.freeze()
    with jax.checking_leaks():
        trainer = ps.Trainer(linear_program, optax.adam(0.1))
        trainer.train([linear_data(4)])
        assert np.isfinite(trainer.test([linear_data(4)]))
        leaky = ps.Trainer(program, optax.adam(0.1))
        with pytest.raises(Exception, match="Leaked"):
            leaky.train([linear_data(4)])
    gc.unfreeze()


@PLACES
def test_array_from_outside_the_function_is_a_constant_of_the_program(place):
    table = jnp.arange(8.0).reshape(2, 4)

    def program():
        x = layers.data("x", shape=[4]) + jnp.array([[1.0, 2.0, 3.0, 4.0]]) + np.ones((1, 4), "f")
        prediction = layers.fc(x, size=1)
        loss = layers.mean(layers.square_error_cost(prediction, layers.data("y", shape=[1])))
        return loss, layers.mean(x @ table.T)

    builder = make_builder(program, place)
    data = linear_data(8)
    _, (_, value) = builder.train(builder.init(), data)
    x = data["x"] + np.arange(2, 6, dtype=np.float32)
    np.testing.assert_allclose(value, np.mean(x @ np.asarray(table).T), rtol=1e-5)


def test_axis_of_devices_is_refused_with_what_to_leave_out():
    def program():
        x = nn.BatchNorm(use_running_average=False, axis_name="data")(layers.data("x", shape=[4]))
        return layers.mean(layers.fc(x, size=1))

    with pytest.raises(NameError) as caught:
        make_builder(program)
    assert any("leave out axis names and collectives" in note for note in caught.value.__notes__)


class WithSetup(nn.Module):
    def setup(self):
        self.dense = nn.Dense(1)

    def __call__(self, x):
        return self.dense(x)


OUTSIDE = {"compact": nn.Dense(1), "setup": WithSetup()}


@pytest.mark.parametrize("kind", OUTSIDE)
def test_flax_module_made_outside_of_the_program_is_refused_with_what_to_write(kind):
    with pytest.raises((flax.errors.CallCompactUnboundModuleError, AttributeError)) as caught:
        make_builder(lambda: layers.mean(OUTSIDE[kind](layers.data("x", shape=[4]))))
    assert any("Make it inside, as in Net()(x)." in note for note in caught.value.__notes__)


def test_flax_statistics_that_a_test_would_change_are_refused_with_what_to_write():
    def program():
        return layers.mean(nn.BatchNorm(use_running_average=False)(layers.data("x", shape=[4])))

    with pytest.raises(flax.errors.ModifyScopeVariableError) as caught:
        ps.ProgramBuilder(infer_func=program, place=one_device())
    assert any("use_running_average=not" in note for note in caught.value.__notes__)


class NamedAxes(nn.Module):
    @nn.compact
    def __call__(self, x):
        init = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "model"))
        scale = nn.with_logical_partitioning(nn.initializers.ones, ("embed",))
        x = nn.Dense(6, kernel_init=init)(x)
        return nn.BatchNorm(use_running_average=not layers.is_training(), scale_init=scale)(x)


def test_flax_parameters_with_names_of_axes_are_arrays_like_others():
    builder = make_builder(lambda: layers.mean(NamedAxes()(layers.data("x", shape=[4])) ** 2))
    state = builder.init()
    shapes = jax.tree.map(jnp.shape, state.variables["params"])
    assert shapes["NamedAxes_0"]["Dense_0"] == {"kernel": (4, 6), "bias": (6,)}
    before = builder.test(state, {"x": np.eye(4, dtype="float32")})
    state, _ = builder.train(state, {"x": np.eye(4, dtype="float32")})
    assert builder.test(state, {"x": np.eye(4, dtype="float32")}) != before


class Cached(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(x) + self.variable("cache", "count", jnp.zeros, ()).value


class Scale(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x * self.param("w", nn.initializers.ones, (1, 1))


def in_scan(x):
    cell = lambda carry, step: (carry, layers.batch_norm(step[None], name="norm"))  # noqa: E731
    return jax.lax.scan(cell, 0, x)[1]


@pytest.mark.parametrize(
    ("network", "text"),
    [
        (
            lambda x: Cached()(x),
            "a flax module got the variable collections ['cache'], expected 'params' and "
            "'batch_stats' only. A program carries nothing else from step to step. Of what modules "
            "sow ask for it: layers.sown('cache').",
        ),
        (
            lambda x: Scale(name="head")(layers.fc(x, size=1, name="head")),
            "a flax module got the name of penstock's own 'head/w'. Rename one.",
        ),
        (
            lambda x: (
                nn.Dense(1, name="head")(x) + x @ layers.create_parameter([4, 1], name="head")
            ),
            "a flax module got the name of penstock's own 'head'. Rename one.",
        ),
        (
            in_scan,
            "'norm/mean' got an update inside lax.scan, vmap, grad or the like, "
            "expected the program function itself: a running statistic cannot leave a transformed "
            "function. Move the layer out of it, or use layers.remat for jax.checkpoint.",
        ),
    ],
    ids=["other collections", "name of a layer", "name of a parameter", "statistic in a scan"],
)
def test_module_or_layer_that_a_program_cannot_hold_is_refused(network, text):
    assert error_of(lambda: layers.mean(network(layers.data("x", shape=[4])))) == text


# A batch axis that is not in front.


def test_metric_whose_batch_axis_is_not_in_front_is_refused():
    def program():
        prediction, label = network()
        return layers.mean((prediction - label) ** 2), jnp.swapaxes(prediction, 0, 1)

    assert error_of(program).startswith(
        "the train program of program has returned value 1 of shape [1, B], expected the batch "
        "axis B first and nowhere else, or a value without one."
    )


def test_infer_function_may_return_what_has_its_batch_axis_anywhere():
    builder = ps.ProgramBuilder(
        infer_func=lambda: (lambda x: x @ x.T)(layers.data("x", shape=[2])), place=one_device()
    )
    for size in (3, 5):
        products = builder.infer(builder.init(), {"x": np.eye(5, 2, dtype="f")[:size]})
        np.testing.assert_array_equal(products, np.diag([1, 1, 0, 0, 0][:size]))


# What XLA splits wrongly.


def sums_and_maxima(h):
    return jnp.cumsum(h, axis=0).sum() + lax.cummax(h).sum()


def of_own_part(h):
    parts = jax.shard_map(
        lambda h: jnp.cumsum(jnp.sort(h, axis=0), axis=0),
        mesh=jax.sharding.Mesh(eight_devices(), ("data",)),
        in_specs=jax.sharding.PartitionSpec("data"),
        out_specs=jax.sharding.PartitionSpec("data"),
    )
    return parts(h)


@pytest.mark.parametrize(
    ("compute", "layout"),
    [
        (jnp.tanh, "split"),
        (lambda h: jnp.cumsum(h, axis=1), "split"),
        (of_own_part, "split"),
        (lambda h: jnp.take(jnp.arange(9.0), h.astype(jnp.int32), mode="clip"), "split"),
        (lambda h: jnp.take(jnp.arange(9.0), h.astype(jnp.uint8), mode="clip"), "even"),
        (lambda h: jnp.median(h, axis=1), "even"),
        (lambda h: jnp.sort(jnp.concatenate([h, -h]), axis=0), "even"),
        (lambda h: jnp.sort(h[1:], axis=0), "whole"),
        (sums_and_maxima, "whole"),
        (lambda h: lax.pad(h, 0.0, ((-1, 2, 0), (0, 0, 1))), "split"),
        (lambda h: lax.pad(h, 0.0, ((-1, 2, 1), (0, 0, 0))), "whole"),
        (lambda h: sums_and_maxima(h[1:]), "whole"),
        (lambda h: sums_and_maxima(h.reshape(-1, 2, 4)), "whole"),
        (lambda h: sums_and_maxima(h.reshape(-1, 5, 4)), "whole"),
        (lambda h: sums_and_maxima(h[:16]), "whole"),
        (lambda h: sums_and_maxima(h.reshape(6, -1, 4)), "whole"),
    ],
)
def test_program_is_computed_whole_where_xla_splits_an_axis_of_the_batch_wrongly(compute, layout):
    def program():
        return jnp.mean(compute(layers.fc(layers.data("x", shape=[4]), size=4)) ** 2)

    network = make_builder(program, eight_devices).programs.network
    assert network.train["train"].layout == layout
