"""Pooling against windows written out in numpy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from penstock.layers import pool as pooling
from tests.layers.programs import assert_alike, infer, normal


def pool(x, kind, window, stride, pads, ceil_mode=False, exclusive=True):
    """Reduce window by window; pixels of the padding are nan."""
    x = np.pad(x.astype(np.float64), [(0, 0), *pads, (0, 0)], constant_values=np.nan)
    counts = []
    for axis in (0, 1):
        steps = (x.shape[axis + 1] - window[axis]) / stride[axis]
        last = int(np.ceil(steps) if ceil_mode else np.floor(steps))
        inside = x.shape[axis + 1] - pads[axis][1]
        counts.append(sum(1 for i in range(last + 1) if i * stride[axis] < inside))
    y = np.zeros((x.shape[0], *counts, x.shape[3]))
    for i in range(counts[0]):
        for j in range(counts[1]):
            rows = slice(i * stride[0], i * stride[0] + window[0])
            columns = slice(j * stride[1], j * stride[1] + window[1])
            part = x[:, rows, columns]
            if kind == "max":
                y[:, i, j] = np.nanmax(part, axis=(1, 2))
            elif exclusive:
                y[:, i, j] = np.nanmean(part, axis=(1, 2))
            else:
                y[:, i, j] = np.nansum(part, axis=(1, 2)) / (window[0] * window[1])
    return y


WINDOWS = [
    ((2, 2), (2, 2), ((0, 0), (0, 0))),
    ((3, 3), (2, 2), ((1, 1), (1, 1))),
    ((3, 2), (1, 3), ((1, 1), (1, 1))),
    ((3, 3), (2, 2), ((0, 1), (2, 0))),
    ((2, 2), (3, 3), ((1, 1), (0, 0))),
]
IMAGE = normal(2, 7, 6, 3) - 10  # all negative: padding must not win the maximum


@functools.cache
def pooled():
    """Return what `pool2d` gives of each kind, for all windows, in one program."""
    pool_all = {
        (kind, window, ceil_mode, exclusive): functools.partial(
            layers.pool2d, pool_size=window[0], pool_type=kind, pool_stride=window[1],
            pool_padding=window[2], ceil_mode=ceil_mode, exclusive=exclusive,
        )
        for kind in ("max", "avg")
        for window in WINDOWS
        for ceil_mode in (False, True)
        for exclusive in (True, False)
    }  # fmt: skip
    return jax.jit(lambda x: {key: function(x) for key, function in pool_all.items()})(IMAGE)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pool2d_equals_the_windows_written_out(kind, window):
    for (own_kind, own_window, *options), actual in pooled().items():
        if (own_kind, own_window) == (kind, window):
            expected = pool(IMAGE, kind, *window, *options)
            np.testing.assert_allclose(actual, expected, rtol=1e-5, err_msg=str(options))


def test_pool2d_same_padding_gives_an_output_for_every_stride():
    assert layers.pool2d(normal(1, 7, 6, 1), 3, "max", 2, "SAME").shape == (1, 4, 3, 1)


@pytest.mark.parametrize(("kind", "reduce"), [("max", np.max), ("avg", np.mean)])
def test_pool2d_global_reduces_the_whole_image(kind, reduce):
    result = layers.pool2d(IMAGE, pool_type=kind, global_pooling=True)
    np.testing.assert_allclose(result, reduce(IMAGE, (1, 2), keepdims=True), rtol=1e-5)


def test_pool2d_of_whole_numbers_does_not_overflow():
    image = np.full([1, 2, 2, 1], 255, np.uint8)
    assert layers.pool2d(image, 2, "avg", 2).item() == 255
    assert layers.pool2d(image, 2, "max", 2).item() == 255


# On CPU, and as XLA computes it.
WAYS = {
    "maxima": (pooling.max_windows_on_cpu, pooling.max_windows),
    "sums": (pooling.add_windows_on_cpu, pooling.add_windows),
}
SIZED = [
    ((7, 6), (2, 2), (2, 2), ((0, 0), (0, 0))),
    ((7, 9), (3, 2), (2, 3), ((1, 1), (0, 1))),
    ((5, 5), (3, 3), (1, 1), ((1, 1), (1, 1))),
    ((8, 8), (1, 2), (3, 3), ((0, 0), (0, 0))),
    ((4, 4), (2, 2), (5, 5), ((1, 0), (0, 1))),
]


@pytest.mark.quick("NHWC", "NCHW-size2")
@pytest.mark.parametrize(("size", "window", "stride", "pads"), SIZED)
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("kind", WAYS)
def test_windows_on_cpu_have_the_gradients_of_xlas(kind, data_format, size, window, stride, pads):
    on_cpu, on_xla = WAYS[kind]
    axis = 1 if data_format == "NHWC" else 2
    windows = pooling.Windows(axis, window, stride, pads)
    # Of few values, so that many pixels are equal, as behind a relu.
    x = np.round(normal(3, *size, 4)).astype(np.float32)
    x = jnp.asarray(x if data_format == "NHWC" else np.moveaxis(x, 3, 1))
    direction = jnp.asarray(normal(*x.shape, seed=2))

    def differentiate(function):
        y, transpose = jax.vjp(lambda x: function(x, windows), x)
        ways = jnp.asarray(normal(*y.shape, seed=1))
        (dx,) = transpose(ways)
        slope = jax.grad(lambda x: jnp.sum(function(x, windows) ** 3))
        second = jax.grad(lambda x: jnp.sum(slope(x) ** 2))(x)
        # Forwards: the product with any direction is that of the gradient.
        forwards = jnp.vdot(jax.jvp(lambda x: function(x, windows), (x,), (direction,))[1], ways)
        return y, dx, second, forwards

    actual, expected = jax.jit(lambda: (differentiate(on_cpu), differentiate(on_xla)))()
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.quick("relu", "tanh")
@pytest.mark.parametrize(
    ("act", "num_devices", "shape"),
    [
        *(("relu", 8, (12, 12, 4)), ("tanh", 1, (12, 12, 4)), ("sigmoid", 1, (12, 12, 4))),
        ("tanh", 1, (12, 24, 2)),
    ],
)
def test_maximum_of_what_xla_computes_twice_or_reads_twice_has_the_gradients_of_xlas(
    act, num_devices, shape, monkeypatch
):
    """Behind a relu it computes pixels again; the gradients of the others read their results.

    They read them in their own shape, also where they are pooled in another.
    """
    feed = {"x": normal(8, 14, 14, 3)}

    def gradients():
        def program():
            x = layers.conv2d(layers.data("x", [14, 14, 3]), 4, 3)
            x = layers.batch_norm(x, act="relu") if act == "relu" else getattr(layers, act)(x)
            x = layers.pool2d(x.reshape(-1, *shape), 2, pool_stride=2)
            return layers.mean(layers.reduce_mean(jnp.sin(x)))

        # Steps of the gradients, large enough to be told from the parameters.
        place = jax.devices()[:num_devices]
        builder = ps.ProgramBuilder(program, optax.sgd(1e3), place=place)
        state, _ = builder.train(builder.init(), feed)
        return jax.device_get(state.variables["params"])

    actual = gradients()
    monkeypatch.setattr(pooling, "max_windows_on_cpu", pooling.max_windows)
    expected = gradients()
    assert_alike(actual, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("size", [7, 32])  # by slices, and as XLA computes it
def test_average_of_half_precision_is_added_up_in_float32(size, dtype):
    def function(dtype):
        image = layers.data("x", [32, 32, 3]).astype(dtype)
        return layers.pool2d(image, size, "avg", size, size // 2)

    # The sum of a window is more than float16 holds.
    x = (np.round(normal(2, 32, 32, 3)) + 500) * 4
    averages, exact = (infer(lambda d=d: function(d), {"x": x}) for d in (dtype, "float32"))
    assert averages.dtype == dtype
    np.testing.assert_allclose(averages.astype(np.float32), exact, rtol=2**-8)
