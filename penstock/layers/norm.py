"""Normalisation within one example, by biased variances computed in float32 or better."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock._errors import ProgramError, check_choice
from penstock._parameter_names import Path
from penstock._program.frame import Frame, V, current_frame, over_words, widen
from penstock._program.sequences import Sequence
from penstock.layers import arguments
from penstock.layers._attending import Words, close_words
from penstock.layers.activations import Activation, activate
from penstock.layers.arguments import DataFormat
from penstock.layers.parameters import Attr, apply_scale, apply_shift


def layer_norm(
    input: V,
    scale: bool = True,
    shift: bool = True,
    begin_norm_axis: int = 1,
    epsilon: float = 1e-5,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    act: Activation | None = None,
    name: str | None = None,
) -> V:
    """Normalise over the axes from `begin_norm_axis` on (Ba et al. 2016).

    Parameters: `scale` `[product of the sizes of those axes]`, ones; `bias` of the same shape,
    zeros. Source: Fluid's `layer_norm`.

    Arguments:
      input: `[B, ...]`, or a sequence. Each word of a sequence is normalised by itself.
      scale: whether there is a scale.
      shift: whether there is a bias.
      begin_norm_axis: 1 normalises each whole example; -1 only the last axis, as in transformers.

    Returns:
      The input's shape.

    >>> builder = ps.ProgramBuilder(infer_func=lambda: layers.layer_norm(layers.data("x", [2])))
    >>> builder.infer(builder.init(), {"x": [[1.0, 3.0]]}).round(2).tolist()
    [[-1.0, 1.0]]
    """
    if isinstance(input, Sequence):
        how = (scale, shift, begin_norm_axis, epsilon, param_attr, bias_attr, act, name)
        # What stands in the padding may be too large to be summed.
        words = input.with_values(input.masked())
        return over_words(lambda rows: layer_norm(rows, *how), words)
    frame = current_frame("layer_norm")
    x: Any = jnp.asarray(input)
    begin = begin_norm_axis + x.ndim if begin_norm_axis < 0 else begin_norm_axis
    if not 1 <= begin < x.ndim:
        raise ProgramError(
            f"layers.layer_norm got begin_norm_axis={begin_norm_axis} and an input of shape "
            f"{x.shape}, expected an axis from 1 to {x.ndim - 1}. Axis 0 is the batch. Use 1 for "
            "the whole example, -1 for the last axis."
        )
    path = frame.names.layer("layer_norm", name)
    # Flat behind `begin`: scale and shift have a number for each element there.
    y = _standardise(x.reshape(*x.shape[:begin], -1), (begin,), epsilon)
    y = apply_scale(frame, y, path, param_attr if scale else False, axis=begin, layer="layer_norm")
    y = apply_shift(frame, y, path, bias_attr if shift else False, axis=begin, layer="layer_norm")
    return activate(y.reshape(x.shape), act, "layer_norm")


def rms_norm(
    input: Words,
    epsilon: float = 1e-6,
    param_attr: Attr = None,
    act: Activation | None = None,
    name: str | None = None,
) -> Words:
    """Divide by the root of the mean square over the last axis (Zhang and Sennrich 2019).

    Parameter: `scale` `[D]`, ones. The mean is not subtracted, and there is no bias.

    Arguments:
      input: `[B, ..., D]`, or a `Sequence` of such values.

    Returns:
      The input's shape; a `Sequence` if the input is one.

    >>> builder = ps.ProgramBuilder(infer_func=lambda: layers.rms_norm(layers.data("x", [2])))
    >>> builder.infer(builder.init(), {"x": [[3.0, -3.0]]}).round(2).tolist()
    [[1.0, -1.0]]
    """
    frame = current_frame("rms_norm")
    # What stands in the padding may be too large to be squared.
    x = input.masked() if isinstance(input, Sequence) else jnp.asarray(input)
    if x.ndim < 2:
        raise ProgramError(
            f"layers.rms_norm got an input of shape {x.shape}, expected [B, ..., D]. Axis 0 is the "
            "batch. Give the input features."
        )
    path = frame.names.layer("rms_norm", name)
    y = norm_words(frame, path, x, "rms", epsilon, param_attr)
    return close_words(input, activate(y, act, "rms_norm"))


def norm_words(
    frame: Frame,
    path: Path,
    x: jax.Array,
    norm: Literal["layer", "rms"],
    epsilon: float,
    param_attr: Attr = None,
) -> jax.Array:
    """Normalise the last axis with the parameters at `path`; for the layers' own use.

    Arguments:
      norm: `"layer"` has a `scale` and a `bias`, `"rms"` a `scale`.
    """
    axis = x.ndim - 1
    if norm == "layer":
        y = _standardise(x, (axis,), epsilon)
        y = apply_scale(frame, y, path, param_attr, axis=axis, layer="layer_norm")
        return apply_shift(frame, y, path, None, axis=axis, layer="layer_norm")
    wide = widen(x)
    square = jnp.mean(wide * wide, axis=-1, keepdims=True)
    y = _narrow(wide * lax.rsqrt(square + epsilon), x.dtype)
    return apply_scale(frame, y, path, param_attr, axis=axis, layer="rms_norm")


def group_norm(
    input: jax.Array,
    groups: int,
    epsilon: float = 1e-5,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    act: Activation | None = None,
    name: str | None = None,
    data_format: DataFormat = "NHWC",
) -> jax.Array:
    """Normalise each group of channels over one example (Wu and He 2018).

    Parameters: `scale` `[C]`, ones; `bias` `[C]`, zeros. Source: Fluid's `group_norm`, whose images
    are channels first.

    Arguments:
      input: `[B, H, W, C]` or any `[B, ..., C]`; `[B, C, ...]` with `data_format="NCHW"`.
      groups: the number of groups, a divisor of C. 1 is layer norm, C is instance norm.

    Returns:
      The input's shape.

    >>> def program():
    ...     return layers.group_norm(layers.data("x", [4]), groups=2)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"x": [[1.0, 3.0, 5.0, 5.0]]}).round(2).tolist()
    [[-1.0, 1.0, 0.0, 0.0]]
    """
    frame = current_frame("group_norm")
    x = jnp.asarray(input)
    check_choice("layers.group_norm", "data_format", data_format, ("NHWC", "NCHW"))
    axis = arguments.channel_axis(x, data_format)
    if x.ndim < 2 or groups < 1 or x.shape[axis] % groups:
        raise ProgramError(
            f"layers.group_norm got groups={groups} and an input of shape {x.shape}, expected a "
            "divisor of the number of channels and at least [B, C]. Groups are equally large. "
            "Change groups or the number of channels."
        )
    path = frame.names.layer("group_norm", name)
    grouped = x.reshape(*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1 :])
    # `axis` now numbers the groups; the channels of each are behind it.
    reduced = tuple(i for i in range(1, grouped.ndim) if i != axis)
    y = _standardise(grouped, reduced, epsilon).reshape(x.shape)
    y = apply_scale(frame, y, path, param_attr, axis=axis, layer="group_norm")
    y = apply_shift(frame, y, path, bias_attr, axis=axis, layer="group_norm")
    return activate(y, act, "group_norm")


def l2_normalize(x: V, axis: int, epsilon: float = 1e-12) -> V:
    """Return `x / sqrt(sum(x ** 2) + epsilon)` with the sum along `axis`.

    Zeros stay zeros, and their gradient is finite: `epsilon ** -0.5`, which float16 holds from an
    epsilon of 1e-9 on. Source: Fluid's `l2_normalize`.

    >>> l2_normalize(jnp.array([[0.0, 5.0]]), axis=1).tolist()
    [[0.0, 1.0]]
    """

    def compute(rows: jax.Array) -> jax.Array:
        array = jnp.asarray(rows)
        wide = widen(array)
        square = jnp.sum(wide * wide, axis=axis, keepdims=True)
        return _narrow(wide * lax.rsqrt(square + epsilon), array.dtype)

    return over_words(compute, x)


def lrn(
    input: jax.Array,
    n: int = 5,
    k: float = 1.0,
    alpha: float = 1e-4,
    beta: float = 0.75,
    data_format: DataFormat = "NHWC",
) -> jax.Array:
    """Apply local response normalisation across channels (Krizhevsky et al. 2012).

    It computes `x / (k + alpha * sum) ** beta`, where `sum` is the sum of squares over the `n`
    channels around each one. Source: Fluid's `lrn`, whose images are channels first. TensorFlow's
    `depth_radius=r` is `n=2 * r + 1`.

    Arguments:
      input: `[B, H, W, C]`, or `[B, C, H, W]` with `data_format="NCHW"`.
      n: the width of the window, odd.

    Returns:
      The input's shape.

    >>> lrn(jnp.array([[[[1.0, 3.0]]]]), n=3, k=0.0, alpha=1.0, beta=0.5).round(2).shape
    (1, 1, 1, 2)
    """
    x = jnp.asarray(input)
    arguments.check_image("lrn", x, data_format)
    if n < 1 or n % 2 == 0:
        raise ProgramError(
            f"layers.lrn got n={n}, expected an odd positive number. The window has as many "
            "channels on either side. Use 5, say."
        )
    wide = widen(x)
    axis = arguments.channel_axis(x, data_format)
    window, pads = [1] * x.ndim, [(0, 0)] * x.ndim
    # Channels beyond the ends count as 0.
    window[axis], pads[axis] = n, (n // 2, n // 2)
    sums = lax.reduce_window(
        wide * wide, np.zeros((), wide.dtype), lax.add, window, [1] * x.ndim, pads
    )
    return _narrow(wide * (k + alpha * sums) ** -beta, x.dtype)


def _standardise(x: jax.Array, axes: tuple[int, ...], epsilon: float) -> jax.Array:
    """Return x with mean 0 and variance 1 over `axes`, computed in float32 or better."""
    wide = widen(x)
    # Two passes: one would cancel large numbers.
    centred = wide - jnp.mean(wide, axes, keepdims=True)
    variance = jnp.mean(centred * centred, axes, keepdims=True)
    return _narrow(centred * lax.rsqrt(variance + epsilon), x.dtype)


def _narrow(value: jax.Array, dtype: jnp.dtype) -> jax.Array:
    return value.astype(dtype) if jnp.issubdtype(dtype, jnp.floating) else value
