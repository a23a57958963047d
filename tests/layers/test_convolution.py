"""The convolution of CPUs, by taps, as products and in a few plain ones: XLA's numbers."""

import dataclasses
import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import penstock as ps
from penstock import layers
from penstock.layers import _convolution
from penstock.layers._convolution import Geometry
from tests import compiling
from tests.layers.programs import normal

SAME, FULL = ((1, 1), (1, 1)), ((2, 2), (2, 2))
TAPS = (5, 11, 10, 3), (3, 2, 1, 6)
# Image, kernel, geometry: sizes of one, primes, pads beyond the kernel, kernels below the stride.
CASES = {
    # By taps: single channels.
    "taps": (*TAPS, {"groups": 3, "pads": SAME}),
    "taps of one image": ((1, 11, 10, 3), (3, 2, 1, 3), {"groups": 3, "strides": (2, 3)}),
    "taps of six images": ((6, 11, 10, 3), (3, 2, 1, 3), {"groups": 3, "strides": (2, 3)}),
    "taps far apart": (*TAPS, {"groups": 3, "dilations": (2, 1), "pads": ((2, 2), (1, 1))}),
    "taps strided and dilated": (
        *(*TAPS, {"groups": 3, "strides": (3, 2), "dilations": (1, 2), "pads": SAME}),
    ),
    "taps padded unevenly": (*TAPS, {"groups": 3, "strides": (2, 2), "pads": ((0, 1), (2, 0))}),
    "taps beyond the image": (*TAPS, {"groups": 3, "pads": ((4, 0), (3, 5))}),
    # A product: kernels of one pixel.
    "one pixel": ((5, 11, 7, 3), (1, 1, 3, 4), {}),
    "one pixel, strided": ((5, 11, 7, 3), (1, 1, 3, 4), {"strides": (2, 3)}),
    "one pixel of one number": ((1, 1, 1, 1), (1, 1, 1, 4), {"strides": (2, 2)}),
    "one pixel of a row": ((2, 1, 13, 5), (1, 1, 5, 4), {"strides": (2, 2)}),
    # A few plain ones: groups, and zeros between pixels.
    "groups": ((2, 7, 5, 8), (3, 2, 2, 12), {"groups": 4, "pads": ((1, 1), (0, 1))}),
    "many groups": ((2, 5, 5, 66), (3, 3, 2, 66), {"groups": 33, "pads": SAME}),
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
    "spread groups": ((2, 3, 3, 6), (3, 3, 2, 6), {"groups": 3, "spread": (2, 2), "pads": FULL}),
    "spread and dilated": (
        (1, 4, 4, 2),
        (3, 3, 2, 3),
        {"spread": (2, 2), "dilations": (2, 3), "pads": ((4, 4), (6, 6))},
    ),
    # A result larger than the image.
    "full": ((2, 5, 6, 2), (3, 2, 2, 3), {"pads": ((2, 2), (1, 1))}),
    "full in one axis": ((2, 5, 6, 2), (3, 3, 2, 3), {"pads": ((1, 1), (4, 0))}),
    "full and dilated": (
        (1, 5, 6, 2),
        (2, 3, 2, 3),
        {"pads": ((2, 1), (3, 2)), "dilations": (2, 2)},
    ),
}
SOME = ("taps strided and dilated", "one pixel, strided", "groups", "even", "long stride")


def geometry_of(name):
    return Geometry(**{"dilations": (1, 1), "pads": ((0, 0),) * 2, "groups": 1, **CASES[name][2]})


def operands(name, data_format="NHWC", dtype=np.float32):
    image, kernel, _ = CASES[name]
    x = normal(*image)
    x = x if data_format == "NHWC" else np.moveaxis(x, 3, 1)
    return jnp.asarray(x, dtype), jnp.asarray(normal(*kernel, seed=1), dtype)


def bound(name, data_format="NHWC", *, is_on_cpu):
    """Return the convolution of a case as a function of image and kernel."""
    geometry = geometry_of(name)
    return lambda x, w: _convolution.convolve(x, w, geometry, data_format, is_on_cpu=is_on_cpu)


def check_equal(differentiate, *arrays, tolerance):
    """Compare what is made of the convolution on CPU with what is made of XLA's."""
    actual, expected = (jax.jit(differentiate(is_on_cpu))(*arrays) for is_on_cpu in (True, False))
    for ours, theirs in zip(actual, expected, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        ours, theirs = (np.asarray(array).astype(np.float64) for array in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


def check_gradients(name, data_format, dtype, tolerance):
    def differentiate(is_on_cpu):
        def both(x, w):
            y, transpose = jax.vjp(bound(name, data_format, is_on_cpu=is_on_cpu), x, w)
            return y, *transpose(jnp.asarray(normal(*y.shape, seed=2), y.dtype))

        return both

    check_equal(differentiate, *operands(name, data_format, dtype), tolerance=tolerance)


SLOW = {
    *("taps of one image", "taps far apart", "one pixel of a row", "wide groups", "prime groups"),
    *("single and cut", "filters a channel", "of one pixel", "below the stride", "cut", "far away"),
    *("long and cut", "full in one axis"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES]
)
def test_convolution_on_cpu_is_xlas_and_so_are_its_gradients(name):
    with jax.enable_x64(True):
        check_gradients(name, "NHWC", np.float64, 1e-13)


@pytest.mark.quick("strided", "even")
@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize(
    ("data_format", "dtype", "tolerance"),
    [("NCHW", np.float32, 1e-6), ("NHWC", jnp.bfloat16, 1e-2)],
)
def test_it_is_in_another_order_or_precision(name, data_format, dtype, tolerance):
    check_gradients(name, data_format, dtype, tolerance)


@pytest.mark.quick("strided", "even")
@pytest.mark.parametrize("name", SOME)
def test_it_differentiates_twice_and_all_but_taps_forwards(name):
    x, w = operands(name)

    def differentiate(is_on_cpu):
        def loss(w):
            return jnp.sum(bound(name, is_on_cpu=is_on_cpu)(x, w) ** 3)

        if name.startswith("taps"):  # which do not differentiate forwards
            return lambda w: [jax.grad(lambda w: jnp.sum(jax.grad(loss)(w) ** 2))(w)]
        # Forwards over backwards over forwards.
        return lambda w: jax.jvp(jax.grad(lambda w: jax.jvp(loss, (w,), (w,))[1]), (w,), (w,))

    check_equal(differentiate, w, tolerance=1e-5)


def test_gradients_of_taps_run_operation_by_operation_as_a_replay_runs_them():
    x, w = operands("taps of one image")
    differentiate = jax.grad(lambda w: jnp.sum(bound("taps of one image", is_on_cpu=True)(x, w)))
    with jax.disable_jit():
        gradient = differentiate(w)
    np.testing.assert_allclose(gradient, jax.jit(differentiate)(w), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_taps_are_summed_in_float32():
    x, w = operands("taps", dtype=jnp.bfloat16)
    with compiling.as_users_do():  # what is compared to the last bit
        result = jax.jit(bound("taps", is_on_cpu=True))(x, w)
        exact = jax.jit(bound("taps", is_on_cpu=False))(*(a.astype(jnp.float32) for a in (x, w)))
    assert result.dtype == jnp.bfloat16
    # One rounding of the sum, to 8 bits, and none on the way.
    np.testing.assert_array_equal(result, exact.astype(jnp.bfloat16))


def test_image_padded_beyond_the_kernel_has_the_gradient_of_a_padded_one():
    # XLA's CPU backend reads beyond the image here, see _convolution._pad_beyond_reach.
    x, w = (jnp.asarray(normal(*shape, seed=4)) for shape in ((2, 9, 8, 3), (3, 2, 3, 6)))
    geometry = Geometry(dilations=(1, 1), pads=((4, 0), (1, 1)), groups=1)
    unpadded = dataclasses.replace(geometry, pads=((0, 0), (0, 0)))

    def loss(x, geometry):
        return jnp.sum(_convolution.convolve(x, w, geometry, "NHWC", is_on_cpu=True) ** 2)

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    expected = gradient(jnp.pad(x, ((0, 0), *geometry.pads, (0, 0))), unpadded)[:, 4:, 1:-1]
    np.testing.assert_allclose(gradient(x, geometry), expected, rtol=1e-4, atol=1e-4)


def test_infinite_weights_stay_in_their_group():
    x = jnp.ones([1, 3, 3, 4])
    w = jnp.ones([3, 3, 1, 4]).at[0, 0, 0, 1].set(jnp.inf)
    geometry = Geometry(dilations=(1, 1), pads=((2, 2), (2, 2)), groups=4, spread=(2, 2))
    convolve = functools.partial(_convolution.convolve, is_on_cpu=True)
    y = jax.jit(convolve, static_argnums=(2, 3))(x, w, geometry, "NHWC")
    assert np.isfinite(y[..., [0, 2, 3]]).all()


def test_no_kernels_gradient_on_cpu_has_groups_or_zeros_between_pixels():
    """XLA's CPU backend takes seconds for such a one of a kernel."""
    for name in ("groups", "even", "long stride", "spread groups", "full"):

        def gradient(w, x, name=name):
            return jnp.sum(bound(name, is_on_cpu=True)(x, w) ** 2)

        text = jax.jit(jax.grad(gradient)).lower(*reversed(operands(name))).as_text()
        convolutions = re.findall(r"stablehlo\.convolution\(.*", text)
        assert convolutions
        for convolution in convolutions:
            assert "batch_group_count = 1 " in convolution
            assert "feature_group_count = 1 " in convolution
            assert "lhs_dilate" not in convolution or "lhs_dilate = [1, 1]" in convolution
        # The last is the gradient, whose window is the result's: none larger than the image.
        if name == "full":
            assert "pad = [[0, 0], [0, 0]]" in convolutions[-1] or "pad" not in convolutions[-1]


def module_text():
    """Return the compiled text of a flax module's convolution by one pixel, which XLA is given."""

    def program():
        return nn.Conv(64, (1, 1))(layers.data("x", shape=[16, 16, 32]))

    builder = ps.ProgramBuilder(infer_func=program, place=jax.devices()[:1])
    return builder.inspect("infer", batch_size=8).compiled_text


def test_xla_sees_the_product_in_a_modules_convolution_unless_its_flags_say_otherwise(monkeypatch):
    assert " convolution(" not in module_text()
    # Read by penstock for each program, and by XLA once and before.
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_experimental_ynn_fusion_type=whatever")
    assert " convolution(" in module_text()


# What is fast on CPU: image, kernel, geometry, how many convolutions of no groups it becomes; None
# where it is left to XLA.
LOWERED = [
    ((2, 6, 6, 4), (1, 1, 4, 4), {}, 0),
    ((2, 6, 6, 4), (1, 1, 4, 4), {"pads": ((1, 1), (0, 0))}, 1),
    ((2, 6, 6, 3), (3, 2, 1, 3), {"groups": 3, "pads": SAME}, 0),
    ((2, 6, 6, 1), (3, 2, 1, 1), {"pads": SAME}, 1),
    ((1, 20, 20, 8), (13, 13, 1, 8), {"groups": 8}, None),
    *[
        ((1, 4, 4, groups * channels), (3, 3, channels, groups), {"groups": groups}, number)
        for groups, channels, number in [(32, 4, 8), (2, 48, 2), (4, 4, 1), (33, 2, 5), (13, 64, 7)]
    ],
    *[
        (
            (1, 3, 3, groups),
            (side, side, 1, groups),
            {"spread": (stride,) * 2, "groups": groups, "pads": ((side - 1,) * 2,) * 2},
            number,
        )
        for side, stride, groups, number in [
            *[(4, 2, 1, 4), (3, 3, 1, 9), (4, 4, 1, 1), (8, 4, 1, 1), (1, 16, 1, 1)],
            (5, 3, 128, 8),
        ]
    ],
]


@pytest.mark.parametrize(("image", "kernel", "options", "number"), LOWERED)
def test_cpu_is_given_a_few_plain_convolutions_and_accelerators_one(image, kernel, options, number):
    geometry = Geometry(**{"dilations": (1, 1), "pads": ((0, 0),) * 2, "groups": 1, **options})

    def count(is_on_cpu):
        function = functools.partial(_convolution.convolve, is_on_cpu=is_on_cpu)
        lowered = jax.jit(function, static_argnums=(2, 3)).lower(
            *(jax.ShapeDtypeStruct(shape, np.float32) for shape in (image, kernel)),
            geometry,
            "NHWC",
        )
        text = lowered.as_text()
        assert "stablehlo.while" not in text
        number = text.count("stablehlo.convolution(")
        return number, number > 0 and "feature_group_count = 1 " not in text

    elsewhere = (1, geometry.groups > 1)
    assert count(is_on_cpu=False) == elsewhere
    assert count(is_on_cpu=True) == (elsewhere if number is None else (number, False))
