"""Convolutions and reductions of windows, in JAX's axes and in ONNX's: channels second."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from penstock._errors import ExportError, check_known
from penstock.onnx_export._graph import Equation, Graph, Value


def _convolve(graph: Graph, equation: Equation, x: Value, w: Value) -> Value:
    params = equation.params
    input_axes, kernel_axes, output_axes = params["dimension_numbers"]
    why = "ONNX has no groups of examples. Leave gradients of convolutions out."
    count = params["batch_group_count"]
    check_known("a convolution got batch_group_count=", count, [1], why, ExportError)
    x, w = graph.widen(equation, x, w)
    x, w = graph.transpose(x, input_axes), graph.transpose(w, kernel_axes)
    kernel = [equation.invars[1].aval.shape[axis] for axis in kernel_axes]
    convolve = _convolve_spread if max(params["lhs_dilation"]) > 1 else _convolve_plain
    y = convolve(graph, params, x, w, kernel)
    return graph.transpose(y, np.argsort(output_axes).tolist())


def _convolve_plain(graph: Graph, params: Any, x: Value, w: Value, kernel: list[int]) -> Value:
    pads = params["padding"]
    if min(map(min, pads), default=0) < 0:
        x, pads = pad(graph, x, [(0, 0), (0, 0), *pads]), [(0, 0)] * len(pads)
    return graph.op(
        "Conv",
        x,
        w,
        strides=list(params["window_strides"]),
        dilations=list(params["rhs_dilation"]),
        pads=_pads(pads),
        group=params["feature_group_count"],
    )


def _convolve_spread(graph: Graph, params: Any, x: Value, w: Value, kernel: list[int]) -> Value:
    """Convolve an image with zeros between its pixels: a transposed convolution."""
    groups, (outputs, inputs, *window) = params["feature_group_count"], kernel
    axes = list(range(2, len(kernel)))
    # ONNX's kernel is that of the convolution whose gradient this would be.
    w = np.flip(w, tuple(axes)) if not isinstance(w, str) else flip(graph, w, axes)
    w = graph.reshape(w, [groups, outputs // groups, inputs, *window])
    w = graph.transpose(w, [0, 2, 1, *(axis + 1 for axis in axes)])
    w = graph.reshape(w, [groups * inputs, outputs // groups, *window])
    dilations = params["rhs_dilation"]
    reach = [(size - 1) * step for size, step in zip(window, dilations, strict=True)]
    pads = [(n - low, n - high) for n, (low, high) in zip(reach, params["padding"], strict=True)]
    y = graph.op(
        "ConvTranspose",
        x,
        w,
        strides=list(params["lhs_dilation"]),
        dilations=list(dilations),
        pads=_pads([(max(low, 0), max(high, 0)) for low, high in pads]),
        group=groups,
    )
    if min(map(min, pads)) < 0:
        rest = [(max(-low, 0), max(-high, 0)) for low, high in pads]
        y = pad(graph, y, [(0, 0), (0, 0), *rest])
    strides = list(params["window_strides"])
    if max(strides) > 1:
        y = graph.op("Slice", y, [0] * len(axes), [2**31 - 1] * len(axes), axes, strides)
    return y


def pad(graph: Graph, x: Value, pads: list[Any], value: Value = None) -> Value:
    """Pad axes by `(low, high)`; what is negative is cut off."""
    return graph.op("Pad", x, _pads(pads), value)


def flip(graph: Graph, x: Value, axes: Sequence[int]) -> Value:
    back, ends = [-1] * len(axes), [-(2**31)] * len(axes)
    return graph.op("Slice", x, back, ends, list(axes), back)


def _pads(pads: Any) -> list[int]:
    return [low for low, _ in pads] + [high for _, high in pads]


def _reduce_windows(graph: Graph, equation: Equation, x: Value) -> Value:
    params = equation.params
    kind, shape = equation.primitive.name, equation.invars[0].aval.shape
    keys = ("window_dimensions", "window_strides", "padding", "window_dilation")
    geometry = list(zip(*[params[key] for key in keys], strict=True))
    if max(params["base_dilation"]) > 1 or (kind.endswith("sum") and max(params[keys[3]]) > 1):
        raise ExportError("a pooling got a dilation, expected none. ONNX has none. Leave it out.")
    # Images in two axes and fewer are pooled over, whichever they are.
    pooled = [axis for axis, window in enumerate(geometry) if window != (1, 1, (0, 0), 1)] or [0]
    rest = [axis for axis in range(len(shape)) if axis not in pooled]
    x = graph.transpose(x, [*rest, *pooled])
    sizes = [shape[axis] for axis in pooled]
    if len(rest) != 2:
        x = graph.reshape(x, [math.prod(shape[axis] for axis in rest), 1, *sizes])
    y = _pool(graph, kind, equation, x, [geometry[axis] for axis in pooled])
    new_shape = equation.outvars[0].aval.shape
    if len(rest) != 2:
        y = graph.reshape(y, [new_shape[axis] for axis in [*rest, *pooled]])
    return graph.transpose(y, np.argsort([*rest, *pooled]).tolist())


def _pool(graph: Graph, kind: str, equation: Equation, x: Value, geometry: list[Any]) -> Value:
    window, strides, pads, dilations = map(list, zip(*geometry, strict=True))
    dtype = equation.outvars[0].aval.dtype
    # MaxPool takes float64, which holds integers as they are; AveragePool does not.
    number = (
        np.float32 if jnp.issubdtype(dtype, jnp.floating) or kind.endswith("sum") else np.float64
    )
    if not jnp.issubdtype(dtype, jnp.floating):
        x = graph.cast(x, number)
    if kind == "reduce_window_min":
        x = graph.op("Neg", x)
    if any(max(p) >= size or min(p) < 0 for p, size in zip(pads, window, strict=True)):
        # A padding as wide as the window, or one that cuts off, is none of pooling's own.
        fill = number(0 if kind.endswith("sum") else -np.inf)
        x, pads = pad(graph, x, [(0, 0), (0, 0), *pads], fill), [(0, 0)] * len(pads)
    attributes = {"kernel_shape": window, "strides": strides, "pads": _pads(pads)}
    if kind == "reduce_window_sum":
        y = graph.op("AveragePool", x, count_include_pad=1, **attributes)
        y = graph.op("Mul", y, np.float32(math.prod(window)))
    else:
        y = graph.op("MaxPool", x, dilations=dilations, **attributes)
    if kind == "reduce_window_min":
        y = graph.op("Neg", y)
    return y if jnp.issubdtype(dtype, jnp.floating) else graph.cast(y, dtype)


RULES = {
    "conv_general_dilated": _convolve,
    "reduce_window_max": _reduce_windows,
    "reduce_window_min": _reduce_windows,
    "reduce_window_sum": _reduce_windows,
}
