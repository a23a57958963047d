"""Convolutions that look at one channel at a time, and their separable form."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from penstock._errors import ProgramError
from penstock._program.frame import Frame, current_frame
from penstock.layers import arguments
from penstock.layers._convolution import Geometry, as_steps, convolve, measure_reach
from penstock.layers.activations import Activation, activate
from penstock.layers.arguments import DataFormat, Padding
from penstock.layers.parameters import Attr, apply_shift, normal, parameter


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
    `sqrt(2 / (height * width))`; `b` `[C * depth_multiplier]`, zeros. The same in train, test and
    infer. Source: TensorFlow's `depthwise_conv2d`. Output channels are in the same order: those of
    input channel 0 come first.

    Arguments:
      input: `[B, H, W, C]`, or `[B, C, H, W]` with `data_format="NCHW"`.
      filter_size: a number or `(height, width)`, like `stride` and `dilation`.
      padding: as for `conv2d`.
      depth_multiplier: how many filters each channel has.
      bias_attr: for the bias; `False` leaves it out.
      act: name of an activation, applied last.

    Returns:
      `[B, H', W', C * depth_multiplier]` in the input's layout, with `H'` as for `conv2d`.

    >>> import penstock as ps
    >>> from penstock import layers
    >>> def program():
    ...     return layers.depthwise_conv2d(layers.data("image", [8, 8, 3]), 3, padding="SAME")
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.init().variables["params"]["depthwise_conv2d_0"]["depthwise"].shape
    (3, 3, 3, 1)
    """
    frame = current_frame("depthwise_conv2d")
    x = jnp.asarray(input)
    path = frame.names.layer("depthwise_conv2d", name)
    geometry, kernel = _geometry(
        "depthwise_conv2d", x, filter_size, stride, padding, dilation, data_format
    )
    shape = (*kernel, geometry.groups, depth_multiplier)
    w = _depthwise_kernel(frame, "depthwise_conv2d", path, "depthwise", shape, param_attr)
    y = convolve(*frame.promote(x, w), geometry, data_format, is_on_cpu=frame.is_on_cpu)
    axis = arguments.channel_axis(y, data_format)
    y = apply_shift(frame, y, path, bias_attr, axis=axis, layer="depthwise_conv2d", leaf="b")
    return activate(y, act, "depthwise_conv2d")


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
    normal with standard deviation `sqrt(2 / fan_in)`; `b` `[num_filters]`, zeros. The same in
    train, test and infer. Source: TensorFlow's `separable_conv2d`; Chollet 2017.

    Arguments:
      input: `[B, H, W, C]`, or `[B, C, H, W]` with `data_format="NCHW"`.
      filter_size: a number or `(height, width)`, like `stride` and `dilation`.
      padding: as for `conv2d`.
      depth_multiplier: how many filters each channel has in the first convolution.
      param_attr: for `w`; `depthwise_attr`: for `depthwise`.
      bias_attr: for the bias; `False` leaves it out.
      act: name of an activation, applied last.

    Returns:
      `[B, H', W', num_filters]` in the input's layout, with `H'` as for `conv2d`.

    >>> import penstock as ps
    >>> from penstock import layers
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
    geometry, kernel = _geometry(layer, x, filter_size, stride, padding, dilation, data_format)
    _check_filters(num_filters)
    shape = (*kernel, geometry.groups, depth_multiplier)
    depthwise = _depthwise_kernel(frame, layer, path, "depthwise", shape, depthwise_attr)
    # `C * depth_multiplier`: what the first part hands to the second.
    features = depthwise.shape[-1]
    default = normal(math.sqrt(2.0 / features))
    w = parameter(frame, path, "w", (1, 1, features, num_filters), default, param_attr, layer=layer)
    y = convolve(*frame.promote(x, depthwise), geometry, data_format, is_on_cpu=frame.is_on_cpu)
    pointwise = Geometry(dilations=(1, 1), pads=((0, 0), (0, 0)), groups=1)
    y = convolve(*frame.promote(y, w), pointwise, data_format, is_on_cpu=frame.is_on_cpu)
    axis = arguments.channel_axis(y, data_format)
    y = apply_shift(frame, y, path, bias_attr, axis=axis, layer=layer, leaf="b")
    return activate(y, act, layer)


def _check_filters(num_filters: int) -> None:
    if num_filters < 1:
        raise ProgramError(
            f"layers.separable_conv2d got num_filters={num_filters}, expected a positive number. "
            "It is the number of channels that come out. Give at least 1."
        )


def _geometry(
    layer: str,
    x: jax.Array,
    filter_size: int | Sequence[int],
    stride: int | Sequence[int],
    padding: Padding,
    dilation: int | Sequence[int],
    data_format: DataFormat,
) -> tuple[Geometry, tuple[int, int]]:
    channels, sizes = arguments.check_image(layer, x, data_format)
    kernel = arguments.as_pair(layer, "filter_size", filter_size, 1)
    strides, dilations = as_steps(layer, stride, dilation)
    reach = measure_reach(kernel, dilations)
    pads = arguments.as_padding(layer, "padding", padding, sizes, reach, strides)
    arguments.check_fits(layer, x, sizes, reach, pads)
    return Geometry(strides=strides, dilations=dilations, pads=pads, groups=channels), kernel


def _depthwise_kernel(
    frame: Frame,
    layer: str,
    path: tuple[str, ...],
    leaf: str,
    shape: tuple[int, int, int, int],
    attr: Attr,
) -> jax.Array:
    """Return the filters of each channel as the kernel of a convolution in as many groups."""
    height, width, channels, multiplier = shape
    if multiplier < 1:
        raise ProgramError(
            f"layers.{layer} got depth_multiplier={multiplier}, expected a positive number. It is "
            "how many filters each channel gets. 1 is usual."
        )
    default = normal(math.sqrt(2.0 / (height * width)))
    w = parameter(frame, path, leaf, shape, default, attr, layer=layer)
    # Filters of channel 0 first, as TensorFlow orders them; XLA numbers groups the same way.
    return w.reshape(height, width, 1, channels * multiplier)
