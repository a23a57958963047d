"""What a program returns is the same on one device and on several, or refused when it is made."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import penstock as ps
from penstock import layers
from tests.networks import assert_close

RNG = np.random.default_rng(0)
DATA = {
    "x": RNG.normal(size=(24, 3)).astype(np.float32),
    "y": RNG.integers(4, size=(24, 1)).astype(np.int32),
}


REDUCTIONS = [name for name in layers.__all__ if name.startswith("reduce_")]


def mask(h):
    """Return which examples a user leaves out, `[B, 1]`: another number on each device."""
    return (h[:, :1] > 0).astype(h.dtype)


# Right on any number of devices. `h` is [B, 4], `y` [B].
SAME = {
    "rows": lambda h, y: h,
    "mean": lambda h, y: jnp.mean(h),
    "mean of columns": lambda h, y: jnp.mean(h, axis=0),
    "mean of a mean and a parameter": lambda h, y: jnp.mean(h**2) + jnp.sum(jnp.ones((3, 480))),
    "mean by hand": lambda h, y: jnp.sum(h) / h.size,
    "mean by a factor": lambda h, y: jnp.sum(h * (1 / len(h))),
    "mean of each example's maximum": lambda h, y: jnp.mean(jnp.max(h, axis=1)),
    "optax": lambda h, y: optax.softmax_cross_entropy_with_integer_labels(h, y).mean(),
    "labels picked": lambda h, y: -jax.nn.log_softmax(h)[jnp.arange(len(h)), y].mean(),
    "labels taken": lambda h, y: jnp.take_along_axis(h, y[:, None], 1).mean(),
    "embedding": lambda h, y: jnp.arange(12.0).reshape(4, 3)[y],
    "labels set": lambda h, y: h.at[jnp.arange(len(h)), y].set(0.0),
    "labels counted": lambda h, y: jnp.bincount(y, length=4) / len(h),
    "sum by label": lambda h, y: jax.ops.segment_sum(h, y, 4) / len(h),
    "sum by example": lambda h, y: jax.ops.segment_sum(
        jnp.repeat(h, 2, axis=0), jnp.repeat(jnp.arange(len(h)), 2), len(h)
    ),
    "gradient of an embedding": lambda h, y: jax.grad(lambda e: jnp.mean(e[y] ** 2))(jnp.ones(4)),
    "constants of numpy": lambda h, y: h[np.arange(len(h))] * np.ones((len(h), 1), np.float32),
    "labels of numpy": lambda h, y: jnp.mean(
        jnp.concatenate([h[:, 0], h[:, 1]]) * np.repeat(np.float32([1, 0]), len(h))
    ),
    "mean of products": lambda h, y: h.T @ h / len(h),
    "joined": lambda h, y: jnp.concatenate([h, 2 * h]).mean(),
    "joined and split": lambda h, y: jnp.split(jnp.concatenate([h, 2 * h]), 2)[1],
    "time in front": lambda h, y: h.T.reshape(-1, 1).reshape(4, len(h)).T,
    "views in front": lambda h, y: jnp.tile(h, (2, 1)).reshape(2, -1, 4).max(axis=0),
    "repeated": lambda h, y: jnp.repeat(h, 2, axis=0),
    "transposed twice": lambda h, y: (h.T * jnp.arange(4.0)[:, None]).T,
    "scan": lambda h, y: lax.scan(lambda c, x: (c + x, c), h[:, 0], h.T)[0],
    "map": lambda h, y: lax.map(lambda row: row / jnp.sum(row**2), h),
    "vmap": lambda h, y: jax.vmap(lambda row: row - jnp.max(row))(h),
    "gradient of the inputs": lambda h, y: jax.grad(lambda x: jnp.sum(x**3))(h),
    "parameter": lambda h, y: jnp.arange(5.0),
    "parameter as long as a probe": lambda h, y: jnp.ones((480,)).cumsum(),
    "collective of one's own": lambda h, y: lax.pmax(lax.stop_gradient(jnp.max(h)), "data"),
    "gathered": lambda h, y: jnp.std(lax.all_gather(h, "data", tiled=True)),
    "layers.mean": lambda h, y: layers.mean(h),
    "root of layers.mean": lambda h, y: jnp.sqrt(layers.mean(h**2)),
    "centred": lambda h, y: h - layers.reduce_mean(h, dim=0, keep_dim=True),
    "layers.accuracy": lambda h, y: layers.accuracy(h, y[:, None]),
    "share by sums": lambda h, y: layers.reduce_sum(h * mask(h)) / layers.reduce_sum(mask(h)),
    "layers.dropout": lambda h, y: layers.dropout(h, 0.5),
    "checkpointed": lambda h, y: jax.checkpoint(lambda x: jnp.sin(x).mean())(h),
    "own jit": lambda h, y: jax.jit(lambda x: jnp.mean(x))(h),
    "chosen by what is the same": lambda h, y: lax.cond(
        layers.mean(h) > 0, lambda: jnp.mean(h), lambda: -jnp.mean(h)
    ),
    **{name: lambda h, y, name=name: getattr(layers, name)(h) for name in REDUCTIONS},
}

NUMPY = (
    *("sum", "max", "min", "prod", "std", "var", "median", "all", "any", "argmax", "argmin"),
    *("ptp", "nanmean", "nansum", "nanmax", "nanmin", "nanstd", "nanvar", "nanmedian", "nanprod"),
    *("count_nonzero", "cumsum", "cumprod", "amax", "amin", "nanargmax"),
)

# Otherwise on several devices.
REFUSED = {
    **{f"jnp.{name}": lambda h, y, name=name: getattr(jnp, name)(h) for name in NUMPY},
    **{
        f"jnp.{name} of columns": lambda h, y, name=name: getattr(jnp, name)(h, axis=0)
        for name in NUMPY
    },
    "quantile": lambda h, y: jnp.quantile(h, 0.3),
    "norm": lambda h, y: jnp.linalg.norm(h),
    "logsumexp": lambda h, y: jax.nn.logsumexp(h),
    "softmax over examples": lambda h, y: jax.nn.softmax(h, axis=0),
    "root of a mean": lambda h, y: jnp.sqrt(jnp.mean(h**2)),
    "logarithm of a mean": lambda h, y: jnp.log(jnp.mean(jnp.exp(h))),
    "product of means": lambda h, y: jnp.mean(h) * jnp.mean(y),
    "share of a mask": lambda h, y: jnp.sum(h * mask(h)) / jnp.sum(mask(h)),
    "mean where": lambda h, y: jnp.mean(h, where=mask(h) > 0),
    "share of weights": lambda h, y: (
        jnp.sum(h[:, 0] * layers.example_weights()) / jnp.sum(layers.example_weights())
    ),
    "centred by a mean": lambda h, y: h - h.mean(axis=0, keepdims=True),
    "first example": lambda h, y: h[0],
    "other half": lambda h, y: h - jnp.roll(h, 1, axis=0),
    "sorted": lambda h, y: jnp.sort(h, axis=0),
    "reversed": lambda h, y: h[::-1],
    "contrast": lambda h, y: jnp.mean(jax.nn.logsumexp(h @ h.T, axis=1)),
    "joined rows": lambda h, y: jnp.concatenate([h, 2 * h]),
    "noise": lambda h, y: h + jax.random.normal(jax.random.key(0), h.shape),
    "mean of noise": lambda h, y: jnp.mean(jax.random.uniform(jax.random.key(0), h.shape)),
    "number of examples": lambda h, y: jnp.float32(len(h)),
    "place of an example": lambda h, y: h + jnp.arange(len(h))[:, None],
    "scan over examples": lambda h, y: lax.scan(lambda c, x: (0.9 * c + x, c), h[0], h)[0],
    "loop over examples": lambda h, y: sum(jnp.sum(h[n]) for n in range(0, len(h), 240)),
    "chosen by a mean": lambda h, y: lax.cond(jnp.mean(h) > 0, lambda: 1.0, lambda: 2.0),
    "loop by a mean": lambda h, y: lax.while_loop(lambda v: v < 9, lambda v: 2 * v, jnp.mean(h)),
    "layers.mean of a maximum": lambda h, y: layers.mean(jnp.max(h)),
    "counted": lambda h, y: jnp.zeros(4).at[y].add(1.0),
    "next by index": lambda h, y: h[jnp.arange(len(h)) - 1],
    "pairs by index": lambda h, y: h[jnp.arange(len(h)) // 2 * 2],
    "index of another axis": lambda h, y: h[y, jnp.arange(len(h)) % 4],
    "every second": lambda h, y: jnp.mean(h[jnp.arange(0, len(h), 2)]),
    "permuted by numpy": lambda h, y: h[np.random.default_rng(0).permutation(len(h))],
    "weighted by place": lambda h, y: jnp.mean(h[:, 0] * jnp.cumsum(jnp.ones(len(h)))),
    "one of them": lambda h, y: jnp.mean(h[:, 0] * jnp.zeros(len(h)).at[0].set(1.0)),
    "halves compared": lambda h, y: jnp.mean(jnp.prod(h.reshape(2, len(h) // 2, 4), axis=0)),
    "time taken for examples": lambda h, y: jnp.mean(jnp.max(h.T.reshape(len(h), 4), axis=1)),
    "views in two orders": lambda h, y: jnp.mean(jnp.tile(h, (2, 1)) * jnp.repeat(h, 2, axis=0)),
    "keys of one key": lambda h, y: (
        h[:, 0] + jax.vmap(jax.random.normal)(jax.random.split(jax.random.key(0), len(h)))
    ),
    "number of a device": lambda h, y: h + lax.axis_index("data"),
    "layers.mean of a sum": lambda h, y: layers.mean(jnp.sum(h)),
    "layers.mean of places": lambda h, y: layers.mean(jnp.arange(len(h)) * 1.0),
    "layers.mean of shares": lambda h, y: layers.mean(h / len(h)),
    "layers.reduce_max of shares": lambda h, y: layers.reduce_max(h / len(h)),
}


def program_of(functions):
    def program():
        x, y = layers.data("x", [3]), layers.data("y", [1], "int32")
        h = layers.fc(x, 4)
        loss = layers.mean(layers.cross_entropy(layers.softmax(h), y))
        return {"loss": loss, **{name: f(h, y[:, 0]) for name, f in functions.items()}}

    return program


def builder_of(functions, num_devices, **options):
    place = jax.devices()[:num_devices]
    return ps.ProgramBuilder(program_of(functions), optax.sgd(0.1), place=place, **options)


@functools.cache
def results_of(num_devices):
    """Return what a train and a test program return of a full batch, and the state after it."""
    builder = builder_of(SAME, num_devices)
    state = builder.init()
    tested = builder.test(state, DATA)
    state, trained = builder.train(state, DATA)
    return tested, trained, state.variables


# 10 s: a program of dozens of values is compiled for one device and for several.
@pytest.mark.parametrize("num_devices", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_values_that_are_allowed_are_the_same_on_one_device_and_on_several(num_devices):
    assert_close(results_of(num_devices), results_of(1))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * bool(re.match("jnp.nan|.* of columns", name)))
        for name in REFUSED
    ],
)
def test_value_that_depends_on_the_devices_is_refused_when_the_program_is_made(name):
    with pytest.raises(ps.ProgramError) as caught:
        builder_of({name: REFUSED[name]}, 3)
    text = str(caught.value)
    # A loop in Python makes another program of another batch size: then nothing of it is known.
    named = "loss" if name == "loop over examples" else name
    assert text.startswith(f"the train program of program got returned value {named!r} (")
    assert "the same on one device and on several. A batch is split over 3 devices" in text


def test_refused_value_names_the_line_and_the_layer_to_use():
    with pytest.raises(ps.ProgramError) as caught:
        builder_of({"top": lambda h, y: jnp.max(h), "std": lambda h, y: jnp.std(h)}, 3)
    text = str(caught.value)
    assert f"returned value 'top' (a maximum over examples at {__file__}:" in text
    assert f"returned value 'std' (a standard deviation over examples at {__file__}:" in text
    assert "Use layers.reduce_max or layers.reduce_std, which follow the valid" in text


def test_loss_and_outputs_of_infer_are_looked_at_too():
    def loss():
        return jnp.sum(layers.fc(layers.data("x", [3]), 1) ** 2)

    with pytest.raises(ps.ProgramError, match=r"got the returned value .a sum over examples at"):
        ps.ProgramBuilder(loss, optax.sgd(0.1), place=jax.devices()[:3])
    with pytest.raises(ps.ProgramError, match="the infer program of <lambda> got the returned va"):
        ps.ProgramBuilder(
            infer_func=lambda: layers.data("x", [3]) / jnp.max(layers.data("x", [3])),
            place=jax.devices()[:3],
        )


def test_one_device_returns_what_several_would_refuse():
    functions = {name: REFUSED[name] for name in ("jnp.max", "jnp.std", "reversed", "norm")}
    builder = builder_of(functions, 1)
    found = builder.test(builder.init(), DATA)
    assert np.isfinite(found["jnp.max"])
    assert found["reversed"].shape == (24, 4)


@pytest.mark.parametrize("name", ["jnp.std", "share of a mask", "root of a mean", "first example"])
def test_micro_batches_refuse_what_devices_do(name):
    with pytest.raises(ps.ProgramError, match="A batch is split into micro-batches"):
        builder_of({name: REFUSED[name]}, 1, gradient_accumulation_steps=2)


def test_micro_batches_return_the_means_and_sums_of_the_batch():
    functions = {"mean": SAME["layers.mean"], "sum": SAME["reduce_sum"], "rows": SAME["rows"]}
    whole, parts = (builder_of(functions, 1, gradient_accumulation_steps=n) for n in (1, 2))
    expected = whole.train(whole.init(), DATA)[1]
    assert_close(parts.train(parts.init(), DATA)[1], expected)


def test_micro_batches_refuse_reductions_that_they_cannot_put_together():
    with pytest.raises(ps.ProgramError, match=r"layers.reduce_max got a batch that grad"):
        builder_of({"top": SAME["reduce_max"]}, 1, gradient_accumulation_steps=2)
    with pytest.raises(ps.ProgramError, match="A batch is split into micro-batches"):
        builder_of({"root": SAME["root of layers.mean"]}, 1, gradient_accumulation_steps=2)
    with pytest.raises(ps.ProgramError, match="A batch is split into micro-batches"):
        builder_of({"v": SAME["collective of one's own"]}, 1, gradient_accumulation_steps=2)


# A short batch.

COUNTS_PADDING = {
    "mean": SAME["mean"],
    "median": REFUSED["jnp.median"],
    "variance": REFUSED["jnp.var"],
    "product": REFUSED["jnp.prod"],
    "partly weighted": lambda h, y: layers.mean(h) + jnp.mean(h),
    "joined": lambda h, y: layers.mean(jnp.concatenate([h, 2 * h])),
    "softmax over examples": REFUSED["softmax over examples"],
    "centred by a mean": REFUSED["centred by a mean"],
}


@pytest.mark.parametrize("name", COUNTS_PADDING)
def test_value_that_counts_padding_is_refused_on_a_short_batch(name):
    builder = builder_of({name: COUNTS_PADDING[name]}, 1)
    builder.programs.place("train", [DATA])
    short = {key: value[:5] for key, value in DATA.items()}
    with pytest.raises(ps.ProgramError, match="would count the padding"):
        builder.programs.place("train", [short])


def test_values_without_padding_are_those_of_a_short_batch_alone():
    functions = {name: f for name, f in SAME.items() if name.startswith(("reduce_", "layers."))}
    functions |= {"maximum": REFUSED["jnp.max"], "any": REFUSED["jnp.any"]}
    functions |= {name: SAME[name] for name in ("rows", "centred", "share by sums", "vmap")}
    short = {key: value[:5] for key, value in DATA.items()}
    builder = builder_of(functions, 1)
    state = builder.init()
    alone = builder.test(state, short)
    builder.programs.place("test", [DATA])
    padded = builder.test(state, short)
    assert_close(padded, alone)
    both = {name: f for name, f in functions.items() if name not in ("maximum", "any")}
    several = builder_of(both, 8)
    expected = {name: alone[name] for name in ("loss", *both)}
    assert_close(several.test(several.init(), short), expected)


# Sizes that a probe might take for a batch.


@pytest.mark.parametrize(
    "size",
    [251, 480, *(pytest.param(n, marks=pytest.mark.slow) for n in (502, 672, 960, 2510, 3360))],
)
def test_parameter_of_any_size_is_no_batch(size):
    def program():
        x = layers.data("x", [3])
        table = layers.create_parameter([size, 3], default_initializer=jax.nn.initializers.ones)
        loss = layers.mean(layers.square_error_cost(layers.fc(x, 1), layers.data("t", [1])))
        return {
            "loss": loss,
            "sum": layers.reduce_sum(table),
            "mean": layers.mean(table.T),
            "row": table[:, 0],
        }

    builder = ps.ProgramBuilder(program, optax.sgd(0.1), place=jax.devices()[:1])
    state = builder.init()
    batch = {"x": DATA["x"], "t": DATA["x"][:, :1]}
    builder.programs.place("test", [batch])
    found = builder.test(state, {name: value[:5] for name, value in batch.items()})
    assert found["sum"] == 3 * size
    assert found["mean"] == 1
    assert found["row"].shape == (size,)


def test_layer_as_wide_as_the_batch_is_no_batch():
    def program():
        h = layers.fc(layers.data("x", [3]), 480)
        return {"loss": layers.mean(h**2), "h": h, "bias": jnp.zeros(480) + layers.mean(h)}

    builder = ps.ProgramBuilder(program, optax.sgd(0.1), place=jax.devices()[:1])
    big = {"x": RNG.normal(size=(480, 3)).astype(np.float32)}
    builder.programs.place("test", [big])
    found = builder.test(builder.init(), {"x": big["x"][:7]})
    assert found["h"].shape == (7, 480)
    assert found["bias"].shape == (480,)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda h: h.T, r"\[4, B\]"),
        (lambda h: h @ h.T, r"\[B, B\]"),
        (lambda h: h[1:], r"\[\?, 4\]"),
    ],
)
def test_returned_value_with_the_batch_elsewhere_is_refused(function, shape):
    with pytest.raises(ps.ProgramError, match=rf"of shape {shape}, expected the batch axis B fir"):
        builder_of({"v": lambda h, y: function(h)}, 1)


def test_errors_name_the_batch_and_not_the_size_of_a_probe():
    def error_of(function):
        with pytest.raises((TypeError, ValueError)) as caught:
            builder_of({"v": lambda h, y: function(h)}, 1)
        return str(caught.value)

    text = error_of(lambda h: h + jnp.ones((5, 7)))
    assert "[B, 4]" in text
    assert "480" not in text
    assert "[2*B, 4]" in error_of(lambda h: jnp.concatenate([h, h]) + jnp.ones((5, 7)))
    assert "480" not in error_of(lambda h: jnp.dot(h, h))
    assert "480" not in error_of(lambda h: h.reshape(7, 11))
