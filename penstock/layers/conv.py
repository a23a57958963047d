"""Convolutions over images: plain, transposed, of single channels, and separable."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from penstock._errors import ProgramError
from penstock._parameter_names import Path
from penstock._program.frame import Frame, current_frame
from penstock.layers import arguments
from penstock.layers._convolution import Geometry, convolve, measure_reach
from penstock.layers.activations import Activation, activate
from penstock.layers.arguments import DataFormat, Padding, Pair, Pairs
from penstock.layers.initializers import XAVIER, normal
from penstock.layers.parameters import Attr, apply_shift, parameter


def conv2d(
    input: jax.Array,
    num_filters: int,
    filter_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    act: Activation | None = None,
    name: str | None = None,
    data_format: DataFormat = "NHWC",
) -> jax.Array:
    """Apply a two-dimensional convolution; the kernel is not flipped.

    Parameters: `w` `[height, width, C / groups, num_filters]` whatever the data format, normal with
    standard deviation `sqrt(2 / (height * width * C / groups))`; `b` `[num_filters]`, zeros.
    Source: Fluid's `conv2d`. There, images and kernels are channels first, and the standard
    deviation ignores `groups`, which makes depthwise kernels start near 0.

    Arguments:
      input: `[B, H, W, C]`, or `[B, C, H, W]` with `data_format="NCHW"`.
      filter_size: a number or `(height, width)`, like `stride` and `dilation`.
      padding: a number, `(height, width)`, `((top, bottom), (left, right))`, `"SAME"` (`H'` is
        `ceil(H / stride)`) or `"VALID"` (none).
      groups: the number of groups of channels and filters, which are independent of each other.

    Returns:
      `[B, H', W', num_filters]` in the input's layout, with `H' = 1 + (H + top + bottom -
      dilation * (height - 1) - 1) // stride`.

    >>> def program():
    ...     return layers.conv2d(layers.data("image", [8, 8, 3]), num_filters=4, filter_size=5)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.init().variables["params"]["conv2d_0"]["w"].shape
    (5, 5, 3, 4)
    """
    frame = current_frame("conv2d")
    x = jnp.asarray(input)
    how = (filter_size, stride, padding, dilation, data_format, groups)
    geometry, kernel, channels = _measure("conv2d", x, *how)
    _check_groups("conv2d", channels, num_filters, groups)
    path = frame.names.layer("conv2d", name)
    shape = (*kernel, channels // groups, num_filters)
    default = normal(math.sqrt(2.0 / math.prod(shape[:3])))
    w = parameter(frame, path, "w", shape, default, param_attr, layer="conv2d")
    return _apply(frame, "conv2d", path, x, w, geometry, data_format, bias_attr, act)


def conv2d_transpose(
    input: jax.Array,
    num_filters: int,
    output_size: int | Sequence[int] | None = None,
    filter_size: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    act: Activation | None = None,
    name: str | None = None,
    data_format: DataFormat = "NHWC",
) -> jax.Array:
    """Apply a transposed convolution, which enlarges `H` and `W` by about a factor of `stride`.

    Input pixel `i` is multiplied by `w[k]` and added to output pixel
    `i * stride - padding + k * dilation`. Parameters: `w`
    `[height, width, C / groups, num_filters]` whatever the data format, Xavier uniform; `b`
    `[num_filters]`, zeros. Source: Fluid's `conv2d_transpose`, whose images and kernels are
    channels first.

    Arguments:
      input: `[B, H, W, C]`, or `[B, C, H, W]` with `data_format="NCHW"`.
      output_size: a number or `(H', W')`, up to `stride - 1` more than the default. If
        `filter_size` is not given, it follows from `output_size`.
      filter_size: a number or `(height, width)`, like `padding`, `stride` and `dilation`.

    Returns:
      `[B, H', W', num_filters]` in the input's layout. By default `H' = (H - 1) * stride - 2 *
      padding + dilation * (height - 1) + 1`.

    >>> def program():
    ...     return layers.conv2d_transpose(layers.data("x", [4, 4, 3]), 8, filter_size=2, stride=2)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"x": [[[[0.0] * 3] * 4] * 4]}).shape
    (1, 8, 8, 8)
    """
    frame = current_frame("conv2d_transpose")
    x = jnp.asarray(input)
    channels, sizes = arguments.check_image("conv2d_transpose", x, data_format)
    _check_groups("conv2d_transpose", channels, num_filters, groups)
    strides = arguments.as_pair("conv2d_transpose", "stride", stride, 1)
    dilations = arguments.as_pair("conv2d_transpose", "dilation", dilation, 1)
    pads = arguments.as_pair("conv2d_transpose", "padding", padding, 0)
    kernel, edges = _fit_output(sizes, output_size, filter_size, pads, strides, dilations)
    path = frame.names.layer("conv2d_transpose", name)
    shape = (*kernel, channels // groups, num_filters)
    w = parameter(frame, path, "w", shape, XAVIER, param_attr, layer="conv2d_transpose")
    geometry = Geometry(spread=strides, dilations=dilations, pads=edges, groups=groups)
    # A transposed convolution is one by the turned kernel, of the input with zeros between its
    # pixels.
    w = jnp.flip(w, (0, 1))
    return _apply(frame, "conv2d_transpose", path, x, w, geometry, data_format, bias_attr, act)


def depthwise_conv2d(
    input: jax.Array,
    filter_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    depth_multiplier: int = 1,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    act: Activation | None = None,
    name: str | None = None,
    data_format: DataFormat = "NHWC",
) -> jax.Array:
    """Convolve each channel with its own filters.

    Parameters: `depthwise` `[height, width, C, depth_multiplier]`, normal with standard deviation
    `sqrt(2 / (height * width))`; `b` `[C * depth_multiplier]`, zeros. Source: TensorFlow's
    `depthwise_conv2d`. Output channels are in the same order: those of input channel 0 come first.

    Arguments:
      input: `[B, H, W, C]`, or `[B, C, H, W]` with `data_format="NCHW"`.
      depth_multiplier: how many filters each channel has. For the others see `conv2d`.

    Returns:
      `[B, H', W', C * depth_multiplier]` in the input's layout, with `H'` as for `conv2d`.

    >>> def program():
    ...     return layers.depthwise_conv2d(layers.data("image", [8, 8, 3]), 3, padding="SAME")
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.init().variables["params"]["depthwise_conv2d_0"]["depthwise"].shape
    (3, 3, 3, 1)
    """
    layer = "depthwise_conv2d"
    frame = current_frame(layer)
    x = jnp.asarray(input)
    path = frame.names.layer(layer, name)
    how = (filter_size, stride, padding, dilation, data_format)
    geometry, kernel, channels = _measure(layer, x, *how)
    shape = (*kernel, channels, depth_multiplier)
    w = _depthwise_kernel(frame, layer, path, shape, param_attr)
    return _apply(frame, layer, path, x, w, geometry, data_format, bias_attr, act)


def separable_conv2d(
    input: jax.Array,
    num_filters: int,
    filter_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    depth_multiplier: int = 1,
    param_attr: Attr = None,
    depthwise_attr: Attr = None,
    bias_attr: Attr = None,
    act: Activation | None = None,
    name: str | None = None,
    data_format: DataFormat = "NHWC",
) -> jax.Array:
    """Convolve each channel by itself, then mix the channels with a 1x1 convolution.

    There is no activation between the two. Parameters: `depthwise`
    `[height, width, C, depth_multiplier]` and `w` `[1, 1, C * depth_multiplier, num_filters]`,
    normal with standard deviation `sqrt(2 / fan_in)`; `b` `[num_filters]`, zeros. Source:
    TensorFlow's `separable_conv2d`; Chollet 2017.

    Arguments:
      input: `[B, H, W, C]`, or `[B, C, H, W]` with `data_format="NCHW"`.
      depth_multiplier: how many filters each channel has in the first convolution.
      param_attr: for `w`; `depthwise_attr`: for `depthwise`. For the others see `conv2d`.

    Returns:
      `[B, H', W', num_filters]` in the input's layout, with `H'` as for `conv2d`.

    >>> def program():
    ...     return layers.separable_conv2d(layers.data("image", [8, 8, 3]), 16, 3, padding="SAME")
    >>> params = ps.ProgramBuilder(infer_func=program).init().variables["params"]
    >>> {name: w.shape for name, w in params["separable_conv2d_0"].items()}
    {'b': (16,), 'depthwise': (3, 3, 3, 1), 'w': (1, 1, 3, 16)}
    """
    layer = "separable_conv2d"
    frame = current_frame(layer)
    x = jnp.asarray(input)
    path = frame.names.layer(layer, name)
    how = (filter_size, stride, padding, dilation, data_format)
    geometry, kernel, channels = _measure(layer, x, *how)
    shape = (*kernel, channels, depth_multiplier)
    depthwise = _depthwise_kernel(frame, layer, path, shape, depthwise_attr)
    # `C * depth_multiplier`: what the first part hands to the second.
    features = depthwise.shape[-1]
    default = normal(math.sqrt(2.0 / features))
    w = parameter(frame, path, "w", (1, 1, features, num_filters), default, param_attr, layer=layer)
    y = convolve(*frame.promote(x, depthwise), geometry, data_format, is_on_cpu=frame.is_on_cpu)
    pointwise = Geometry(dilations=(1, 1), pads=((0, 0), (0, 0)), groups=1)
    return _apply(frame, layer, path, y, w, pointwise, data_format, bias_attr, act)


def _measure(
    layer: str,
    x: jax.Array,
    filter_size: int | Sequence[int],
    stride: int | Sequence[int],
    padding: Padding,
    dilation: int | Sequence[int],
    data_format: DataFormat,
    groups: int | None = None,
) -> tuple[Geometry, Pair, int]:
    """Return geometry, kernel's size and channels of the image; groups of one by default."""
    channels, sizes = arguments.check_image(layer, x, data_format)
    kernel = arguments.as_pair(layer, "filter_size", filter_size, 1)
    strides = arguments.as_pair(layer, "stride", stride, 1)
    dilations = arguments.as_pair(layer, "dilation", dilation, 1)
    reach = measure_reach(kernel, dilations)
    pads = arguments.as_padding(layer, "padding", padding, sizes, reach, strides)
    arguments.check_fits(layer, x, sizes, reach, pads)
    groups = channels if groups is None else groups
    geometry = Geometry(strides=strides, dilations=dilations, pads=pads, groups=groups)
    return geometry, kernel, channels


def _apply(
    frame: Frame,
    layer: str,
    path: Path,
    x: jax.Array,
    w: jax.Array,
    geometry: Geometry,
    data_format: DataFormat,
    bias_attr: Attr,
    act: Activation | None,
) -> jax.Array:
    y = convolve(*frame.promote(x, w), geometry, data_format, is_on_cpu=frame.is_on_cpu)
    axis = arguments.channel_axis(y, data_format)
    y = apply_shift(frame, y, path, bias_attr, axis=axis, layer=layer, leaf="b")
    return activate(y, act, layer)


def _fit_output(
    sizes: Pair,
    output_size: int | Sequence[int] | None,
    filter_size: int | Sequence[int] | None,
    pads: Pair,
    strides: Pair,
    dilations: Pair,
) -> tuple[Pair, Pairs]:
    """Return the kernel's size, and the zeros to put around the spread input."""
    first = [(size - 1) * s - 2 * p for size, s, p in zip(sizes, strides, pads, strict=True)]
    if filter_size is not None:
        kernel = arguments.as_pair("conv2d_transpose", "filter_size", filter_size, 1)
    elif output_size is not None:
        wanted = arguments.as_pair("conv2d_transpose", "output_size", output_size, 1)
        sides = [(w - f - 1) // d + 1 for w, f, d in zip(wanted, first, dilations, strict=True)]
        kernel = (sides[0], sides[1])
    else:
        raise ProgramError(
            "layers.conv2d_transpose got neither output_size nor filter_size, expected one of them "
            "or both. One follows from the other. Give filter_size."
        )
    # Up to a stride more maps to the same input: a convolution rounds down.
    least = [f + reach for f, reach in zip(first, measure_reach(kernel, dilations), strict=True)]
    size = least if output_size is None else output_size
    total = arguments.as_pair("conv2d_transpose", "output_size", size, 1)
    extra = (total[0] - least[0], total[1] - least[1])
    if min(kernel) < 1 or not all(0 <= e < s for e, s in zip(extra, strides, strict=True)):
        raise ProgramError(
            f"layers.conv2d_transpose got output_size={output_size} and filter_size={filter_size} "
            f"for images of {sizes}, stride {strides} and padding {pads}, expected an output_size "
            f"from {tuple(least)} to less than a stride more. A convolution maps these sizes, and "
            "no others, to the input's. Change one of them."
        )
    # Padding of the convolution that this transposes is cut off what it makes.
    top, left = (r - 1 - p for r, p in zip(measure_reach(kernel, dilations), pads, strict=True))
    return kernel, ((top, top + extra[0]), (left, left + extra[1]))


def _check_groups(layer: str, channels: int, num_filters: int, groups: int) -> None:
    why = "Every group has as many input channels, and as many filters. Change num_filters or it."
    for total in (channels, num_filters):
        arguments.check_divisor(f"layers.{layer} got groups=", groups, total, why)


def _depthwise_kernel(
    frame: Frame,
    layer: str,
    path: Path,
    shape: tuple[int, int, int, int],
    attr: Attr,
) -> jax.Array:
    """Return the filters of each channel as the kernel of a convolution in as many groups."""
    height, width, channels, multiplier = shape
    default = normal(math.sqrt(2.0 / (height * width)))
    w = parameter(frame, path, "depthwise", shape, default, attr, layer=layer)
    # Filters of channel 0 first, as TensorFlow orders them; XLA numbers groups the same way.
    return w.reshape(height, width, 1, channels * multiplier)
