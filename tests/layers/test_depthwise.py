"""Convolutions of single channels: by taps on CPU, in groups elsewhere, the same numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from penstock import layers
from penstock._errors import ProgramError
from penstock.layers import _convolution
from penstock.layers._convolution import Geometry
from tests import compiling
from tests.layers.programs import infer, initial, normal, train

NUM_CHANNELS = 3
BY_TAPS = functools.partial(_convolution.convolve, is_on_cpu=True)
PLAIN = {"strides": (1, 1), "dilations": (1, 1), "pads": ((1, 1), (1, 1))}
GEOMETRIES = {
    "plain": PLAIN,
    "strided": {**PLAIN, "strides": (2, 3)},
    "dilated": {**PLAIN, "dilations": (2, 1), "pads": ((2, 2), (1, 1))},
    "strided and dilated": {**PLAIN, "strides": (3, 2), "dilations": (1, 2)},
    "unpadded": {**PLAIN, "strides": (2, 2), "pads": ((0, 0), (0, 0))},
    "padded unevenly": {**PLAIN, "strides": (2, 2), "pads": ((0, 1), (2, 0))},
    "padded beyond the kernel": {**PLAIN, "pads": ((4, 0), (3, 5))},
}
QUICK = ("strided and dilated", "padded unevenly")


def operands(multiplier=1, data_format="NHWC", kernel=(3, 2)):
    """Return images and the kernel of a convolution in as many groups as they have channels."""
    x = normal(5, 11, 10, NUM_CHANNELS)
    w = normal(*kernel, 1, NUM_CHANNELS * multiplier, seed=1)
    return jnp.asarray(x if data_format == "NHWC" else np.moveaxis(x, 3, 1)), jnp.asarray(w)


def geometry(name):
    return Geometry(**GEOMETRIES[name], groups=NUM_CHANNELS)


def both(x, w, chosen, data_format="NHWC"):
    """Return what a convolution and its gradients are by taps, and in groups."""
    results = []
    for function in (BY_TAPS, _convolution._convolve_on_xla):

        def run(x, w, f=function):
            y, transposed = jax.vjp(lambda x, w: f(x, w, chosen, data_format), x, w)
            return y, *transposed(jnp.asarray(normal(*y.shape, seed=2), y.dtype))

        with compiling.as_users_do():  # what is compared to a few last bits
            results.append(jax.jit(run)(x, w))
    return results


def check_close(found, expected, tolerance=1e-6):
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        scale = float(np.abs(theirs).max())
        np.testing.assert_allclose(ours / scale, theirs / scale, rtol=0, atol=tolerance)


@pytest.mark.quick("padded unevenly")
@pytest.mark.parametrize("data_format", ["NHWC", pytest.param("NCHW", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in GEOMETRIES],
)
def test_taps_give_the_values_and_gradients_of_the_convolution(name, data_format):
    check_close(*both(*operands(2, data_format), geometry(name), data_format))


@pytest.mark.parametrize(
    "batch_size", [1, *(pytest.param(size, marks=pytest.mark.slow) for size in (4, 6))]
)
def test_taps_give_the_same_whatever_the_batch_size(batch_size):
    x, w = operands()
    x = jnp.concatenate([x, x])[:batch_size]
    check_close(*both(x, w, geometry("strided")))


@pytest.mark.slow
def test_taps_give_the_same_second_derivatives():
    x, w = operands()
    chosen = geometry("strided")

    def penalties(function):
        def penalty(x, w):
            value = lambda x: jnp.sum(function(x, w, chosen, "NHWC") ** 3)  # noqa: E731
            return jnp.sum(jax.grad(value)(x) ** 2)

        return jax.grad(penalty, (0, 1))(x, w)

    check_close(penalties(BY_TAPS), penalties(_convolution._convolve_on_xla), 1e-5)


@pytest.mark.slow
def test_taps_are_summed_in_float32():
    x, w = (each.astype(jnp.bfloat16) for each in operands(2))
    exact = both(x.astype(jnp.float32), w.astype(jnp.float32), geometry("plain"))[1][0]
    found = both(x, w, geometry("plain"))[0][0]
    assert found.dtype == jnp.bfloat16
    # One rounding of the sum, to 8 bits, and none on the way.
    np.testing.assert_array_equal(found, exact.astype(jnp.bfloat16))


def lowered(x, w, *, is_on_cpu):
    """Return the program of a convolution and its gradients, as it goes to XLA."""
    chosen = Geometry(**PLAIN, groups=x.shape[-1])

    def loss(x, w):
        return jnp.sum(_convolution.convolve(x, w, chosen, "NHWC", is_on_cpu=is_on_cpu) ** 2)

    return jax.jit(jax.value_and_grad(loss, (0, 1))).lower(x, w).as_text()


def test_accelerators_convolve_in_groups():
    text = lowered(*operands(), is_on_cpu=False)
    assert text.count("stablehlo.convolution") == 3  # forward, and one for each gradient
    assert "stablehlo.while" not in text


def test_cpu_convolves_by_taps_but_for_large_kernels_and_single_channels():
    x, w = operands()
    assert "stablehlo.convolution" not in lowered(x, w, is_on_cpu=True)
    assert "stablehlo.convolution" in lowered(*operands(kernel=(11, 12)), is_on_cpu=True)
    assert "stablehlo.convolution" in lowered(x[..., :1], w[..., :1], is_on_cpu=True)


def depthwise(x, w, stride, pads):
    """Sum over the kernel, pixel by pixel; `w` is `[height, width, C, multiplier]`."""
    x = np.pad(x.astype(np.float64), [(0, 0), *pads, (0, 0)])
    height, width, channels, multiplier = w.shape
    rows = (x.shape[1] - height) // stride + 1
    columns = (x.shape[2] - width) // stride + 1
    y = np.zeros((x.shape[0], rows, columns, channels, multiplier))
    for i in range(rows):
        for j in range(columns):
            window = x[:, i * stride : i * stride + height, j * stride : j * stride + width]
            y[:, i, j] = np.einsum("bhwc,hwcm->bcm", window, w)
    return y.reshape(*y.shape[:3], -1)


@pytest.mark.quick("arguments1")
@pytest.mark.parametrize(
    ("arguments", "stride", "pads"),
    [
        ({}, 1, ((0, 0), (0, 0))),
        ({"padding": "SAME", "stride": 2}, 2, ((1, 1), (0, 1))),
        ({"padding": 1, "stride": 2}, 2, ((1, 1), (1, 1))),
    ],
)
def test_depthwise_conv2d_equals_the_sum_written_out(arguments, stride, pads):
    image = normal(2, 7, 6, NUM_CHANNELS)

    def program():
        x = layers.data("x", [7, 6, NUM_CHANNELS])
        return layers.depthwise_conv2d(x, 3, depth_multiplier=2, **arguments)

    variables = initial(program)
    own = variables["params"]["depthwise_conv2d_0"]
    own["b"] = bias = normal(2 * NUM_CHANNELS, seed=1)
    expected = depthwise(image, own["depthwise"], stride, pads) + bias
    np.testing.assert_allclose(infer(program, {"x": image}, variables), expected, atol=1e-5)


def test_depthwise_conv2d_puts_the_channels_made_of_one_together():
    def program():
        x = layers.data("x", [1, 1, 2])
        initializer = lambda key, shape, dtype: jnp.arange(1.0, 7.0).reshape(shape)  # noqa: E731
        return layers.depthwise_conv2d(x, 1, depth_multiplier=3, param_attr=initializer)

    found = infer(program, {"x": np.array([[[[1.0, 10.0]]]], np.float32)})
    assert found.ravel().tolist() == [1.0, 2.0, 3.0, 40.0, 50.0, 60.0]


def test_separable_conv2d_mixes_what_depthwise_conv2d_gives():
    image = normal(2, 7, 6, NUM_CHANNELS)

    def separable():
        x = layers.data("x", [7, 6, NUM_CHANNELS])
        return layers.separable_conv2d(x, 4, 3, stride=2, padding="SAME", depth_multiplier=2)

    variables = initial(separable)
    own = variables["params"]["separable_conv2d_0"]
    own["b"] = bias = normal(4, seed=1)
    middle = depthwise(image, own["depthwise"], 2, ((1, 1), (0, 1)))
    expected = middle @ own["w"][0, 0] + bias
    np.testing.assert_allclose(infer(separable, {"x": image}, variables), expected, atol=1e-5)


def test_conv2d_in_as_many_groups_as_channels_learns_what_depthwise_conv2d_learns():
    feed = {"x": normal(4, 7, 6, NUM_CHANNELS)}
    w = normal(3, 3, NUM_CHANNELS, 1, seed=1)

    def gradients(kind, kernel, **arguments):
        def program():
            x = layers.data("x", [7, 6, NUM_CHANNELS])
            kernel_of = lambda key, shape, dtype: jnp.asarray(kernel)  # noqa: E731
            y = getattr(layers, kind)(x, param_attr=kernel_of, name="layer", **arguments)
            return layers.mean(y * y)

        return train(program, feed, num_devices=2).gradients["layer"]

    grouped = gradients(
        "conv2d",
        w.reshape(3, 3, 1, NUM_CHANNELS),
        num_filters=NUM_CHANNELS,
        filter_size=3,
        groups=NUM_CHANNELS,
    )
    single = gradients("depthwise_conv2d", w, filter_size=3)
    np.testing.assert_allclose(single["b"], grouped["b"], rtol=1e-6)
    np.testing.assert_allclose(single["depthwise"][..., 0], grouped["w"][:, :, 0], rtol=1e-6)


@pytest.mark.parametrize("kind", ["depthwise_conv2d", "separable_conv2d"])
def test_depth_multiplier_of_zero_says_what_it_is(kind):
    def program():
        arguments = {"num_filters": 4} if kind == "separable_conv2d" else {}
        x = layers.data("x", [7, 6, NUM_CHANNELS])
        return getattr(layers, kind)(x, filter_size=3, depth_multiplier=0, **arguments)

    with pytest.raises(ProgramError, match=rf"layers\.{kind} got depth_multiplier=0, expected a"):
        initial(program)


def test_separable_conv2d_without_filters_says_what_they_are():
    def program():
        return layers.separable_conv2d(layers.data("x", [7, 6, NUM_CHANNELS]), 0, 3)

    with pytest.raises(ProgramError, match=r"separable_conv2d got num_filters=0, expected a posi"):
        initial(program)
