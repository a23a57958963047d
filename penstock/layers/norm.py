"""Normalisation: over the batch or groups of its examples, and within one example.

Variances are biased, and computed in float32 or better.
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.nn import initializers

from penstock._errors import ProgramError, check_choice, check_int, check_number
from penstock._parameter_names import Path
from penstock._program.frame import (
    Frame,
    ParameterSpec,
    V,
    align,
    current_frame,
    over_words,
    traced_once,
    widen,
)
from penstock._program.sequences import Sequence
from penstock.layers import arguments
from penstock.layers._attending import Words, close_words
from penstock.layers.activations import Activation, activate
from penstock.layers.arguments import DataFormat, check_divisor, check_shape
from penstock.layers.parameters import Attr, apply_scale, apply_shift, parameter


def batch_norm(
    input: V,
    act: Activation | None = None,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    name: str | None = None,
    data_format: DataFormat = "NHWC",
    use_global_stats: bool = False,
    group_size: int | None = None,
    unbiased_running_variance: bool = False,
    momentum_warmup: bool = False,
) -> V:
    """Normalise each channel over the batch (Ioffe and Szegedy 2015).

    Training uses the mean and the biased variance of the batch, or those of groups of `group_size`
    examples. The running statistics then become `momentum * running + (1 - momentum) * batch`; of
    groups it is their mean, weighted by their examples. Test and infer use the running statistics.

    Parameters: `scale` `[C]`, ones; `bias` `[C]`, zeros. Statistics, float32 in `batch_stats`:
    `mean` `[C]`, zeros; `variance` `[C]`, ones. Source: Fluid's.

    Arguments:
      input: `[B, C]` or any `[B, ..., C]`; `[B, C, ...]` with `data_format="NCHW"`; or a sequence.
      param_attr, bias_attr: for the scale and the bias; `False` leaves it out.
      use_global_stats: use the running statistics in training too, and do not update them.
      group_size: the number of neighbouring examples that are normalised by statistics of their
        own, by default the whole batch. The last group may be smaller. Where a group lies on one
        device, the devices do not wait for each other in this layer.
      unbiased_running_variance: update the running variance with the unbiased variance, `n / (n -
        1)` times the biased one, as torch and TensorFlow's fused kernel do.
      momentum_warmup: use at most `(1 + step) / (10 + step)` as momentum, as TensorFlow's moving
        averages do. Early tests then depend less on the initial zeros and ones.

    Returns:
      The input's shape.

    >>> builder = ps.ProgramBuilder(infer_func=lambda: layers.batch_norm(layers.data("x", [3])))
    >>> sorted(builder.init().variables["batch_stats"]["batch_norm_0"])
    ['mean', 'variance']
    """
    frame = current_frame("batch_norm")
    x, is_word = _check_input(input, momentum, data_format, group_size)
    axis = arguments.channel_axis(x, data_format)
    path, size = frame.names.layer("batch_norm", name), x.shape[axis]
    specs = _statistics_specs(path, size)
    mean, variance = (lax.stop_gradient(frame.parameter(spec)) for spec in specs)
    ones, zeros = initializers.ones, initializers.zeros
    scale = bias = None
    if param_attr is not False:
        scale = parameter(frame, path, "scale", [size], ones, param_attr, layer="batch_norm")
    if bias_attr is not False:
        bias = parameter(frame, path, "bias", [size], zeros, bias_attr, layer="batch_norm")
    if frame.is_training and not (use_global_stats or frame.is_frozen(specs[0].path)):
        y, *statistics = _normalize_batch(
            x,
            (mean, variance),
            (scale, bias),
            is_word,
            frame.global_step if momentum_warmup else None,
            axis=axis,
            group_rows=_count_group_rows(x, group_size, frame.batch_size),
            epsilon=epsilon,
            momentum=momentum,
            is_unbiased=unbiased_running_variance,
        )
        for spec, value in zip(specs, statistics, strict=True):
            frame.update(spec.path, value)
    else:
        y = _normalize(x, mean[None], variance[None], (scale, bias), axis, x.shape[0], epsilon)
    y = activate(frame.cast(y), act, "batch_norm")
    result: Any = input.with_rows(y) if isinstance(input, Sequence) else y
    return result


def _count_group_rows(x: jax.Array, group_size: int | None, batch_size: int) -> int:
    """Return the rows of a group; those of an example, e.g. words, are next to each other."""
    num_rows = x.shape[0]
    if group_size is None:
        return num_rows
    return min(num_rows, group_size * max(1, num_rows // batch_size))


# Both are traced once for each shape: 38 of the 53 of a ResNet-50 are like another.
@traced_once("axis", "group_rows", inline=True)
def _normalize(
    x: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    affine: tuple[jax.Array | None, jax.Array | None],
    axis: int,
    group_rows: int,
    epsilon: float,
) -> jax.Array:
    """Return `x` normalised by mean and variance of groups, `[G, C]`, then scaled and shifted."""
    scale, bias = affine
    factor = lax.rsqrt(variance.astype(jnp.result_type(x, variance)) + epsilon)
    # One product and one sum: Inception trains 1.14 times as long with the mean first.
    factor = factor if scale is None else factor * scale[None]
    offset = -mean * factor
    offset = offset if bias is None else offset + bias[None]
    return x * _spread(factor, x, axis, group_rows) + _spread(offset, x, axis, group_rows)


@traced_once("axis", "group_rows", "momentum", "is_unbiased")
def _normalize_batch(
    x: jax.Array,
    running: tuple[jax.Array, jax.Array],
    affine: tuple[jax.Array | None, jax.Array | None],
    is_word: jax.Array | None,
    step: jax.Array | None,
    *,
    axis: int,
    group_rows: int,
    epsilon: float,
    momentum: float,
    is_unbiased: bool,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return `x` normalised by statistics of its groups, and the new running ones, `[C]` each.

    One pass over `x - K`, K being the running mean, near which no large numbers cancel: on data of
    mean 1000 and deviation 1 the variance is off by 1e-5 after 50 steps, with K = 0 by 0.3.
    """
    old_mean = running[0][None]
    offsets = widen(x) - _spread(old_mean, x, axis, group_rows)
    if is_word is not None:
        offsets = jnp.where(align(is_word, x.ndim, 0), offsets, 0)
    # Row sums first: XLA's CPU backend spreads them over its threads.
    reduced = tuple(i for i in range(1, x.ndim) if i != axis)
    total = _sum_groups(jnp.sum(offsets, reduced), group_rows)
    total_of_squares = _sum_groups(jnp.sum(offsets * offsets, reduced), group_rows)
    is_row = jnp.ones(x.shape[0], bool) if is_word is None else is_word
    count = _sum_groups(is_row[:, None].astype(total.dtype), group_rows)
    count = count * (x.size // (x.shape[0] * x.shape[axis]))
    # A group without words has sums of 0 and count 0: no nan, and no say below.
    offset = total / jnp.maximum(count, 1)
    variance = jnp.maximum(total_of_squares / jnp.maximum(count, 1) - offset * offset, 0)
    y = _normalize(x, old_mean + offset, variance, affine, axis, group_rows, epsilon)
    # Cut off here and not at the end: JAX would trace the derivatives of all between.
    total, variance = lax.stop_gradient((total, variance))
    return y, *_move(running, (total, variance, count), step, momentum, is_unbiased)


# Apart, since it is the same for images of any size.
@traced_once("momentum", "is_unbiased", inline=True)
def _move(
    running: tuple[jax.Array, jax.Array],
    of_groups: tuple[jax.Array, jax.Array, jax.Array],
    step: jax.Array | None,
    momentum: float,
    is_unbiased: bool,
) -> tuple[jax.Array, jax.Array]:
    """Return new running statistics, from sums of offsets, variances and counts of groups."""
    total, variance, count = of_groups
    # TensorFlow's fused kernel and torch keep the unbiased one; the normalisation is by the other.
    estimate = variance * (count / jnp.maximum(count - 1, 1)) if is_unbiased else variance
    # As sums, so that groups count by their examples.
    steps = jnp.sum(jnp.stack([total, (estimate - running[1][None]) * count]), axis=1)
    steps = steps / jnp.maximum(jnp.sum(count), 1)
    kept: jax.Array | float = momentum
    if step is not None:
        # The step counts updates, and so begins at 0 where a run does. MobileNet's 0.9997 tests at
        # chance after 60 steps otherwise.
        number = step.astype(jnp.float32)
        kept = jnp.minimum(momentum, (1 + number) / (10 + number))
    moved = (old + (1 - kept) * way for old, way in zip(running, steps, strict=True))
    mean, variance = (new.astype(old.dtype) for new, old in zip(moved, running, strict=True))
    return mean, variance


def _sum_groups(rows: jax.Array, group_rows: int) -> jax.Array:
    """Return the sums `[G, C]` of groups of rows `[B, C]`, the last of which may be smaller."""
    missing = -rows.shape[0] % group_rows
    rows = jnp.pad(rows, [(0, missing), (0, 0)]) if missing else rows
    return jnp.sum(rows.reshape(-1, group_rows, rows.shape[1]), axis=1)


def _spread(of_groups: jax.Array, x: jax.Array, axis: int, group_rows: int) -> jax.Array:
    """Return values of groups `[G, C]`, or of all rows `[1, C]`, shaped to meet `x`."""
    values = of_groups
    if values.shape[0] > 1:
        values = jnp.repeat(values, group_rows, axis=0)[: x.shape[0]]
    shape = [values.shape[0]] + [1] * (x.ndim - 1)
    shape[axis] = values.shape[1]
    return values.reshape(shape)


def _statistics_specs(path: tuple[str, ...], size: int) -> tuple[ParameterSpec, ParameterSpec]:
    mean, variance = (
        ParameterSpec(
            path=(*path, leaf),
            collection="batch_stats",
            shape=(size,),
            dtype=jnp.dtype("float32"),
            initializer=initializer,
            trainable=False,
        )
        for leaf, initializer in (("mean", initializers.zeros), ("variance", initializers.ones))
    )
    return mean, variance


def _check_input(
    input: Any, momentum: float, data_format: str, group_size: int | None
) -> tuple[jax.Array, jax.Array | None]:
    """Return the input as an array and, of a sequence `[B * T, ...]`, which rows are words."""
    is_word = None
    if isinstance(input, Sequence):
        x, is_word = lax.collapse(input.values, 0, 2), input.mask.reshape(-1)
    else:
        x = jnp.asarray(input)
    check_choice("layers.batch_norm got data_format=", data_format, ("NHWC", "NCHW"))
    if group_size is not None:
        check_int("layers.batch_norm: group_size", group_size, 1)
    why = "Each channel is normalised over the batch. Add an axis of channels."
    check_shape("layers.batch_norm got an input", x, why, ["B", ..., "C"])
    why = "It is the share of the running statistics that a step keeps. 0.9 is usual."
    check_number("layers.batch_norm got momentum=", momentum, "[0, 1]", why, ProgramError)
    return x, is_word


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
    why = "Axis 0 is the batch. Give the input features."
    check_shape("layers.rms_norm got an input", x, why, ["B", ..., "D"])
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
    check_choice("layers.group_norm got data_format=", data_format, ("NHWC", "NCHW"))
    axis = arguments.channel_axis(x, data_format)
    check_shape("layers.group_norm got an input", x, "Groups are of channels.", ["B", ..., "C"])
    why = "Groups have as many channels each."
    check_divisor("layers.group_norm got groups=", groups, x.shape[axis], why)
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
