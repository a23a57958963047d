"""Products with a weight of a layer that has several of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
from jax.nn import initializers

from penstock._parameter_names import Path
from penstock._program.frame import Frame
from penstock.layers.parameters import XAVIER, Attr, ParamAttr, parameter, resolve


def project(
    frame: Frame,
    path: Path,
    part: str,
    x: jax.Array,
    size: int,
    attrs: tuple[Attr, Attr],
    *,
    layer: str,
) -> jax.Array:
    """Return `x @ w + b` over the last axis, `[B, T, size]`.

    Parameters: `{part}_w` `[D, size]`, Xavier uniform; `{part}_b` `[size]`, zeros.

    Arguments:
      x: `[B, T, D]`.
      attrs: for the weight and for the bias, of all parts; a name gets the part's behind it.
    """
    leaf = f"{part}_w"
    attr = _of_part(layer, "param_attr", attrs[0], leaf)
    w = parameter(frame, path, leaf, [x.shape[-1], size], XAVIER, attr, layer=layer)
    x, w = frame.promote(x, w)
    y = x @ w
    if attrs[1] is False:
        return y
    leaf = f"{part}_b"
    attr = _of_part(layer, "bias_attr", attrs[1], leaf)
    b = parameter(frame, path, leaf, [size], initializers.zeros, attr, layer=layer)
    if frame.compute_dtype is not None:
        # A float32 bias would widen a bfloat16 product again.
        b = b.astype(y.dtype)
    return y + b[None, None]


def _of_part(layer: str, argument: str, attr: Attr, leaf: str) -> ParamAttr:
    resolved: Any = resolve(layer, argument, attr)
    # One name for all parts would make one parameter of them.
    return (
        resolved
        if resolved.name is None
        else dataclasses.replace(resolved, name=f"{resolved.name}_{leaf}")
    )
