"""Layers whose weights meet every input feature: `fc` and `embedding`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from penstock._errors import ProgramError, check_number
from penstock._mesh import MODEL
from penstock._parameter_names import spell
from penstock._program import sequences
from penstock._program.frame import V, current_frame, over_words
from penstock._program.inputs import Ids
from penstock.layers import arguments
from penstock.layers.activations import Activation, activate
from penstock.layers.initializers import XAVIER
from penstock.layers.parameters import Attr, apply_shift, parameter


def fc(
    input: V | Sequence[V],
    size: int,
    num_flatten_dims: int = 1,
    param_attr: Attr | Sequence[Attr] = None,
    bias_attr: Attr = None,
    act: Activation | None = None,
    name: str | None = None,
) -> V:
    """Apply a fully connected layer.

    Axes from `num_flatten_dims` on are flattened into features. If there are several inputs, each
    has its own weight; their products are summed, and one bias is added. Parameters: `w`
    `[features, size]` (`w_0`, `w_1`, ... for several inputs), Xavier uniform; `b` `[size]`, zeros.
    Source: Fluid's `fc`.

    Arguments:
      input: `[B, ...]`, or a list of such arrays. In a sequence, every word is a row.
      size: the number of output features.
      num_flatten_dims: how many leading axes stay as they are.
      param_attr: for the weights; a list has one for each input.

    Returns:
      `[B, ..., size]` with `num_flatten_dims` leading axes; a sequence if the input is one.

    >>> def program():
    ...     return layers.fc(layers.data("image", shape=[8, 8, 1]), size=10, act="relu")
    >>> params = ps.ProgramBuilder(infer_func=program).init().variables["params"]
    >>> params["fc_0"]["w"].shape, params["fc_0"]["b"].shape
    ((64, 10), (10,))
    """
    inputs, attrs = _inputs_and_attrs(input, param_attr)
    if sequences.Sequence in map(type, inputs):
        how = (size, num_flatten_dims, attrs, bias_attr, act, name)
        return over_words(lambda *rows: fc(list(rows), *how), *inputs)
    frame = current_frame("fc")
    path = frame.names.layer("fc", name)
    # A sum of products, not a product of joined inputs: each has its own parameter.
    total: Any = None
    for number, (array, attr) in enumerate(zip(inputs, attrs, strict=True)):
        x = jnp.asarray(array)
        if not 1 <= num_flatten_dims < max(x.ndim, 2):
            raise ProgramError(
                f"layers.fc got an input of shape {x.shape} and num_flatten_dims="
                f"{num_flatten_dims}, expected 1 <= num_flatten_dims < {max(x.ndim, 2)}. At least "
                "one axis must be left to become features."
            )
        leading, features = x.shape[:num_flatten_dims], math.prod(x.shape[num_flatten_dims:])
        leaf = f"w_{number}" if len(inputs) > 1 else "w"
        shape, axes = [features, size], (None, MODEL)
        w = parameter(frame, path, leaf, shape, XAVIER, attr, layer="fc", axes=axes)
        x, w = frame.promote(x.reshape(*leading, features), w)
        product = x @ w
        total = product if total is None else total + product
    total = apply_shift(frame, total, path, bias_attr, axis=-1, layer="fc", leaf="b", axes=(MODEL,))
    result: Any = activate(total, act, "fc")
    return result


def _inputs_and_attrs(
    input: V | Sequence[V], param_attr: Attr | Sequence[Attr]
) -> tuple[list[Any], list[Attr]]:
    inputs = list(input) if isinstance(input, (list, tuple)) else [input]
    is_attrs = isinstance(param_attr, (list, tuple))
    attrs: list[Any] = list(param_attr) if is_attrs else [param_attr] * len(inputs)
    if not inputs or len(attrs) != len(inputs):
        raise ProgramError(
            f"layers.fc got {len(inputs)} inputs and {len(attrs)} param_attr, expected at least "
            "one input and one param_attr for each."
        )
    return inputs, attrs


def embedding(
    input: V,
    size: Sequence[int],
    padding_idx: int | None = None,
    param_attr: Attr = None,
    name: str | None = None,
) -> V:
    """Look up the embedding vector of each id in a table.

    Parameter: `w` `[vocabulary, width]`, Xavier uniform. Ids outside the table are an error: of an
    input on the host before anything runs, else where nan, their vectors, reach a loss or what
    infer returns. Source: Fluid's `embedding`.

    Arguments:
      input: integer ids, `[B, ...]`, or a sequence. A last axis of size 1 is dropped, as in Fluid.
      size: `[vocabulary, width]`.
      padding_idx: the id whose vector is zeros; a negative one counts from the end of the table.

    Returns:
      `[B, ..., width]`, or a sequence if the input is one.

    >>> def program():
    ...     word = layers.data("word", shape=[1], dtype="int32")
    ...     return layers.embedding(word, size=[100, 16])
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"word": [[3], [7]]}).shape
    (2, 16)
    """
    frame = current_frame("embedding")
    ids = input.values if isinstance(input, sequences.Sequence) else input
    arguments.integers("embedding", "ids", ids)
    if padding_idx is not None:
        thing = f"layers.embedding got size={list(size)} and padding_idx="
        why = "Its vector is zeros. Make the table larger, or use one of its ids."
        check_number(thing, padding_idx, f"[{-size[0]}, {size[0] - 1}]", why, ProgramError)
    path = frame.names.layer("embedding", name)
    axes = (MODEL, None)
    table = parameter(frame, path, "w", size, XAVIER, param_attr, layer="embedding", axes=axes)
    frame.look_up(ids, Ids(table.shape[0], f"layers.embedding {spell(path)!r}"))

    def find_rows(ids: Any) -> jax.Array:
        # Signed: the largest of uint32 would count from the end, and see `_tracing/probe.py`.
        ids = jnp.asarray(ids).astype(int)
        # Fluid's ids come as `[B, 1]`.
        if ids.ndim > 1 and ids.shape[-1] == 1:
            ids = ids[..., 0]
        # A negative id would count from the end; one behind the end reads as nan.
        ids_or_end = jnp.where(ids < 0, table.shape[0], ids)
        rows = jnp.take(table, ids_or_end, axis=0, mode="fill", fill_value=jnp.nan)
        # The rows and not the table, which may be large.
        rows = frame.cast(rows)
        if padding_idx is not None:
            rows = jnp.where((ids == padding_idx % table.shape[0])[..., None], 0, rows)
        return rows

    return over_words(find_rows, input)
