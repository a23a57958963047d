"""Convolutions of groups and of spread images: several plain ones on CPU, the same numbers."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from penstock.layers import _convolution
from penstock.layers._convolution import Geometry
from tests.layers.programs import normal

NONE = ((0, 0), (0, 0))
# Image, kernel, geometry: sizes of one, primes, pads beyond the kernel, kernels below the stride.
CASES = {
    "groups": ((2, 7, 5, 8), (3, 2, 2, 12), {"groups": 4, "pads": ((1, 1), (0, 1))}),
    "many groups": ((2, 5, 5, 66), (3, 3, 2, 66), {"groups": 33, "pads": ((1, 1), (1, 1))}),
    "wide groups": ((1, 5, 5, 40), (3, 3, 20, 6), {"groups": 2, "strides": (2, 1)}),
    "prime groups": ((1, 5, 5, 33), (3, 3, 3, 22), {"groups": 11}),
    "single channels": ((1, 14, 13, 3), (12, 12, 1, 6), {"groups": 3}),
    "single and cut": ((1, 9, 9, 3), (3, 3, 1, 3), {"groups": 3, "pads": ((-1, 2), (0, -2))}),
    "pixels far apart": ((1, 3, 2, 4), (1, 1, 4, 3), {"spread": (7, 5)}),
    "dilated groups": ((2, 9, 9, 4), (3, 3, 2, 2), {"groups": 2, "dilations": (2, 3)}),
    "filters a channel": ((2, 5, 5, 3), (2, 2, 1, 9), {"groups": 3}),
    "even": ((2, 4, 3, 3), (4, 4, 3, 5), {"spread": (2, 2), "pads": ((2, 2), (2, 3))}),
    "odd": ((2, 5, 4, 3), (3, 5, 3, 2), {"spread": (2, 3), "pads": ((1, 2), (4, 0))}),
    "of one pixel": ((1, 1, 1, 2), (4, 4, 2, 3), {"spread": (2, 2), "pads": ((3, 3), (3, 3))}),
    "below the stride": ((2, 3, 3, 2), (1, 2, 2, 3), {"spread": (3, 3), "pads": ((0, 1), (1, 2))}),
    "cut": ((2, 5, 5, 2), (3, 3, 2, 3), {"spread": (2, 2), "pads": ((-1, -2), (0, -1))}),
    "far away": ((1, 2, 2, 1), (2, 2, 1, 1), {"spread": (2, 1), "pads": ((5, 0), (0, 6))}),
    "long stride": ((2, 3, 4, 2), (8, 7, 2, 3), {"spread": (4, 4), "pads": ((5, 5), (4, 6))}),
    "long and cut": ((2, 4, 4, 2), (3, 9, 2, 3), {"spread": (5, 4), "pads": ((-3, 9), (0, 10))}),
    "full": ((2, 5, 6, 2), (3, 2, 2, 3), {"pads": ((2, 2), (1, 1))}),
    "full in one axis": ((2, 5, 6, 2), (3, 3, 2, 3), {"pads": ((1, 1), (4, 0)), "strides": (1, 1)}),
    "full and dilated": (
        (1, 5, 6, 2),
        (2, 3, 2, 3),
        {"pads": ((2, 1), (3, 2)), "dilations": (2, 2)},
    ),
    "spread groups": (
        (2, 3, 3, 6),
        (3, 3, 2, 6),
        {"groups": 3, "spread": (2, 2), "pads": ((2, 2), (2, 2))},
    ),
    "spread and dilated": (
        (1, 4, 4, 2),
        (3, 3, 2, 3),
        {"spread": (2, 2), "dilations": (2, 3), "pads": ((4, 4), (6, 6))},
    ),
}


def run(name, data_format="NHWC", dtype=np.float32, *, is_on_cpu):
    """Return a convolution and its gradients."""
    image, kernel, options = CASES[name]
    geometry = Geometry(**{"dilations": (1, 1), "pads": NONE, "groups": 1, **options})
    x = normal(*image)
    x = jnp.asarray(x if data_format == "NHWC" else np.moveaxis(x, 3, 1), dtype)
    w = jnp.asarray(normal(*kernel, seed=1), dtype)

    def both(x, w):
        convolve = functools.partial(_convolution.convolve, is_on_cpu=is_on_cpu)
        y, transpose = jax.vjp(lambda x, w: convolve(x, w, geometry, data_format), x, w)
        return y, *transpose(jnp.asarray(normal(*y.shape, seed=2), y.dtype))

    return jax.jit(both)(x, w)


def check_equal(name, data_format="NHWC", dtype=np.float32, *, tolerance):
    found = run(name, data_format, dtype, is_on_cpu=True)
    expected = run(name, data_format, dtype, is_on_cpu=False)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        ours, theirs = (np.asarray(each).astype(np.float64) for each in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


@pytest.mark.parametrize("name", CASES)
def test_plain_convolutions_add_up_to_it_and_to_its_gradients(name):
    with jax.enable_x64(True):
        check_equal(name, dtype=np.float64, tolerance=1e-13)


@pytest.mark.parametrize("name", ["groups", "even", "long stride", "spread groups"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (jnp.bfloat16, 1e-2)])
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_they_do_in_other_orders_and_precisions(name, data_format, dtype, tolerance):
    check_equal(name, data_format, dtype, tolerance=tolerance)


@pytest.mark.parametrize("name", ["groups", "even", "long stride"])
def test_they_differentiate_forwards_and_twice(name):
    image, kernel, options = CASES[name]
    geometry = Geometry(**{"dilations": (1, 1), "pads": NONE, "groups": 1, **options})
    x, w = jnp.asarray(normal(*image)), jnp.asarray(normal(*kernel, seed=1))

    def differentiate(*, is_on_cpu):
        def loss(w):
            y = _convolution.convolve(x, w, geometry, "NHWC", is_on_cpu=is_on_cpu)
            return jnp.sum(y**3)

        # Forwards over backwards over forwards.
        return jax.jit(
            lambda w: jax.jvp(jax.grad(lambda w: jax.jvp(loss, (w,), (w,))[1]), (w,), (w,))
        )(w)

    for ours, theirs in zip(
        differentiate(is_on_cpu=True), differentiate(is_on_cpu=False), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


def count(text):
    """Return how many convolutions there are in a program's text, and whether one has groups."""
    return text.count("stablehlo.convolution("), "feature_group_count = 1 " not in text


@pytest.mark.parametrize(
    ("groups", "channels", "lots"),
    [(32, 4, 8), (32, 32, 8), (2, 48, 2), (4, 4, 1), (33, 2, 5), (11, 64, 6), (13, 64, 7)],
)
def test_groups_are_joined_to_a_few_convolutions(groups, channels, lots):
    x, w = jnp.ones([1, 4, 4, groups * channels]), jnp.ones([3, 3, channels, groups])
    geometry = Geometry(dilations=(1, 1), pads=NONE, groups=groups)
    for is_on_cpu, expected in ((True, (lots, False)), (False, (1, True))):
        function = functools.partial(_convolution.convolve, is_on_cpu=is_on_cpu)
        lowered = jax.jit(function, static_argnums=(2, 3)).lower(x, w, geometry, "NHWC")
        assert count(lowered.as_text()) == expected


@pytest.mark.parametrize(
    ("side", "stride", "groups", "number"),
    [(4, 2, 1, 4), (3, 3, 1, 9), (4, 4, 1, 1), (8, 4, 1, 1), (1, 16, 1, 1), (5, 3, 128, 8)],
)
def test_spread_images_take_a_few_convolutions(side, stride, groups, number):
    x, w = jnp.ones([1, 3, 3, groups]), jnp.ones([side, side, 1, groups])
    options = {"spread": (stride, stride), "dilations": (1, 1), "groups": groups}
    geometry = Geometry(**options, pads=((side - 1,) * 2,) * 2)
    function = functools.partial(_convolution.convolve, is_on_cpu=True)
    lowered = jax.jit(function, static_argnums=(2, 3)).lower(x, w, geometry, "NHWC")
    assert count(lowered.as_text()) == (number, False)


def test_large_kernels_of_single_channels_are_left_to_xla():
    x, w = jnp.ones([1, 20, 20, 8]), jnp.ones([13, 13, 1, 8])
    geometry = Geometry(dilations=(1, 1), pads=NONE, groups=8)
    function = functools.partial(_convolution.convolve, is_on_cpu=True)
    lowered = jax.jit(function, static_argnums=(2, 3)).lower(x, w, geometry, "NHWC")
    assert count(lowered.as_text()) == (1, True)


def test_infinite_weights_stay_in_their_group():
    x = jnp.ones([1, 3, 3, 4])
    w = jnp.ones([3, 3, 1, 4]).at[0, 0, 0, 1].set(jnp.inf)
    geometry = Geometry(dilations=(1, 1), pads=((2, 2), (2, 2)), groups=4, spread=(2, 2))
    y = _convolution.convolve(x, w, geometry, "NHWC", is_on_cpu=True)
    assert np.isfinite(y[..., [0, 2, 3]]).all()


def test_no_kernels_gradient_on_cpu_has_groups_or_zeros_between_pixels():
    """XLA's CPU backend takes seconds for such a one of a kernel."""
    for name in ("groups", "even", "long stride", "spread groups", "full"):
        image, kernel, options = CASES[name]
        geometry = Geometry(**{"dilations": (1, 1), "pads": NONE, "groups": 1, **options})

        def gradient(w, x, geometry=geometry):
            y = _convolution.convolve(x, w, geometry, "NHWC", is_on_cpu=True)
            return jnp.sum(y**2)

        text = jax.jit(jax.grad(gradient)).lower(jnp.ones(kernel), jnp.ones(image)).as_text()
        convolutions = re.findall(r"stablehlo\.convolution\(.*", text)
        assert convolutions
        for each in convolutions:
            assert "batch_group_count = 1 " in each
            assert "feature_group_count = 1 " in each
            assert "lhs_dilate" not in each or "lhs_dilate = [1, 1]" in each
        # The last is the gradient, whose window is the result's: none larger than the image.
        if name == "full":
            assert "pad = [[0, 0], [0, 0]]" in convolutions[-1] or "pad" not in convolutions[-1]
