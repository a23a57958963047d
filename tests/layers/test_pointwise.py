"""Convolutions by one pixel: a product on CPU, XLA's convolution elsewhere, the same numbers."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from penstock.layers import _convolution
from penstock.layers._convolution import Geometry
from tests.layers.programs import normal

PLAIN = {"dilations": (1, 1), "pads": ((0, 0), (0, 0)), "groups": 1}
STRIDES = [(1, 1), (2, 2), (2, 3)]
AS_PRODUCT = functools.partial(_convolution.convolve, is_on_cpu=True)


def operands(data_format="NHWC", dtype=np.float32, size=(5, 11, 7, 3)):
    """Return images and a kernel of one pixel."""
    x, w = normal(*size), normal(1, 1, size[3], 4, seed=1)
    x = x if data_format == "NHWC" else np.moveaxis(x, 3, 1)
    return jnp.asarray(x, dtype), jnp.asarray(w, dtype)


def run(function, x, w, strides, data_format):
    """Return a convolution and its gradients."""
    geometry = Geometry(**PLAIN, strides=strides)

    def both(x, w):
        y, transpose = jax.vjp(lambda x, w: function(x, w, geometry, data_format), x, w)
        return y, *transpose(jnp.asarray(normal(*y.shape, seed=2), y.dtype))

    return jax.jit(both)(x, w)


def check_close(found, expected, tolerance):
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        ours, theirs = (np.asarray(each).astype(np.float64) for each in (ours, theirs))
        scale = np.abs(theirs).max()
        np.testing.assert_allclose(ours / scale, theirs / scale, rtol=0, atol=tolerance)


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("strides", STRIDES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(np.float32, 1e-6), (jnp.bfloat16, 1e-2), (np.float64, 1e-13)]
)
def test_a_product_is_the_convolution_and_has_its_gradients(strides, data_format, dtype, tolerance):
    with jax.enable_x64(dtype == np.float64):
        given = operands(data_format, dtype)
        expected = run(_convolution._convolve_on_xla, *given, strides, data_format)
        check_close(run(AS_PRODUCT, *given, strides, data_format), expected, tolerance)


@pytest.mark.parametrize("size", [(1, 1, 1, 1), (2, 1, 13, 5), (3, 4, 4, 1)])
def test_a_product_of_small_images_is_the_convolution(size):
    given = operands(size=size)
    expected = run(_convolution._convolve_on_xla, *given, (2, 2), "NHWC")
    check_close(run(AS_PRODUCT, *given, (2, 2), "NHWC"), expected, 1e-6)


def test_a_product_differentiates_forwards_and_twice():
    x, w = operands()
    geometry = Geometry(**PLAIN, strides=(2, 2))

    def hessian(function):
        loss = lambda w: jnp.sum(function(x, w, geometry, "NHWC") ** 3)  # noqa: E731
        # Forwards over backwards over forwards.
        return jax.jvp(jax.grad(lambda w: jax.jvp(loss, (w,), (w,))[1]), (w,), (w,))

    check_close(hessian(AS_PRODUCT), hessian(_convolution._convolve_on_xla), 1e-5)


def lowered(**geometry):
    """Return what a convolution by one pixel is on CPU, as it goes to XLA."""
    chosen = Geometry(**{**PLAIN, **geometry})
    function = lambda x, w: AS_PRODUCT(x, w, chosen, "NHWC")  # noqa: E731
    groups = chosen.groups
    return jax.jit(function).lower(jnp.ones([2, 6, 6, 4]), jnp.ones([1, 1, 4 // groups, 4]))


def test_only_what_is_one_product_becomes_one():
    assert "stablehlo.dot_general" in lowered().as_text()
    assert "stablehlo.convolution" in lowered(groups=2).as_text()
    assert "stablehlo.convolution" in lowered(pads=((1, 1), (0, 0))).as_text()
    assert "stablehlo.convolution" in lowered(spread=(2, 2)).as_text()


def convolutions(place):
    """Return a program with convolutions of several kinds, on a few devices."""

    def program():
        x = layers.data("x", shape=[8, 8, 3])
        x = layers.conv2d(x, 6, 1, act="relu")
        x = layers.conv2d(x, 6, 3, padding=1, groups=3, act="relu")
        x = layers.conv2d(x, 8, 1, stride=2)
        x = layers.conv2d_transpose(x, 4, filter_size=4, stride=2, padding=1, act="relu")
        x = layers.conv2d(x, 4, 2, padding=1, groups=2)
        return layers.mean(layers.reduce_mean(layers.conv2d_transpose(x, 3, filter_size=1) ** 2))

    return ps.ProgramBuilder(program, optax.sgd(0.1), place=place)


@pytest.mark.parametrize("number", [1, 3, 8])
def test_a_step_on_cpu_is_that_of_plain_convolutions(number, monkeypatch):
    feed = {"x": normal(24, 8, 8, 3)}

    def step():
        builder = convolutions(jax.devices()[:number])
        state, loss = builder.train(builder.init(), feed)
        return jax.device_get((state.variables["params"], loss))

    found = step()
    monkeypatch.setattr(
        "penstock.layers.conv.convolve",
        lambda x, w, geometry, data_format, *, is_on_cpu: _convolution.convolve(
            x, w, geometry, data_format, is_on_cpu=False
        ),
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), found, step())


def module_text():
    """Return the compiled text of a flax module's convolution by one pixel, which XLA is given."""

    def program():
        x = layers.data("x", shape=[16, 16, 32])
        return nn.Conv(64, (1, 1))(x)

    builder = ps.ProgramBuilder(infer_func=program, place=jax.devices()[:1])
    return builder.inspect("infer", batch_size=8).compiled_text


def test_xla_sees_the_product_in_a_modules_convolution_unless_its_flags_say_otherwise(monkeypatch):
    assert " convolution(" not in module_text()
    # Read by penstock for each program, and by XLA once and before.
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_experimental_ynn_fusion_type=whatever")
    assert " convolution(" in module_text()
