"""What each operation of a trace does to rows of examples: one rule for each that is not plain.

An operation without a rule works element by element, as far as a batch is concerned: its result
has the batch axis of its operands, or none of them has one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from penstock.program_builder._kinds import Kind, Reason, combine, merge_flags, other

Shapes = tuple[tuple[int, ...], tuple[int, ...]]
"""The shape of one array in both traces."""


class Operation(NamedTuple):
    """One equation of both traces.

    Attributes:
      params, other_params: its parameters in each trace.
      kinds: of its operands.
      operands, results: their shapes.
      sizes: the batch sizes of the traces.
      reason: how errors name it.
    """

    name: str
    params: Mapping[str, Any]
    other_params: Mapping[str, Any]
    kinds: list[Kind]
    operands: list[Shapes]
    results: list[Shapes]
    sizes: tuple[int, int]
    reason: Reason

    def other(self) -> list[Kind]:
        """Return results that depend on how the batch is split."""
        return [other(self.kinds, self.reason)] * len(self.results)

    def combined(self) -> list[Kind]:
        """Return results of an operation that works element by element."""
        return [combine(self.name, self.kinds, self.reason)] * len(self.results)

    def counts_padding(self, results: list[Kind]) -> list[Kind]:
        """Return results with a note of the padding, where rows met before their weights."""
        rows = [k for k in self.kinds if k.form in ("rows", "index")]
        if all(k.is_weighted for k in rows):
            return results
        return [k.with_padding(self.reason) for k in results]


def batch_axes(shapes: Shapes) -> tuple[int, ...]:
    """Return the axes whose size depends on the batch size."""
    return tuple(n for n, (a, b) in enumerate(zip(*shapes, strict=True)) if a != b)


def follow(operation: Operation) -> list[Kind]:
    """Return the kinds of what an operation makes."""
    if any(k.form == "other" for k in operation.kinds):
        # What it would be of rows tells whether it counts the padding too.
        kinds = [k.with_form("rows") if k.form == "other" else k for k in operation.kinds]
        found = follow(operation._replace(kinds=kinds))
        results = zip(operation.other(), found, strict=True)
        return [k.with_padding(f.padding) for k, f in results]
    if operation.name == "convert_element_type" and not jnp.issubdtype(
        operation.params["new_dtype"], jnp.inexact
    ):
        operation = operation._replace(name="round")
    rule = _RULES.get(operation.name, _plain)
    if not any(map(batch_axes, [*operation.operands, *operation.results])) and rule not in _ALWAYS:
        return operation.combined()  # nothing of it has a batch axis
    results = rule(operation)
    return [_check(operation, *each) for each in zip(results, operation.results, strict=True)]


def _check(operation: Operation, kind: Kind, shapes: Shapes) -> Kind:
    """Return the kind of a result, which is no rows where it has no batch axis, or two."""
    axes = batch_axes(shapes)
    if kind.form == "feed":
        return kind.with_form("rows") if len(axes) == 1 else kind
    if kind.form in ("rows", "index") and len(axes) != 1:
        return other([kind], operation.reason)
    if kind.form == "rows" and shapes[0][axes[0]] % operation.sizes[0]:
        return kind.with_order(False)  # several examples in a row
    return kind


def _plain(operation: Operation) -> list[Kind]:
    return operation.combined()


def _reduce_sum(operation: Operation) -> list[Kind]:
    (kind,), (shapes,) = operation.kinds, operation.operands
    axes = batch_axes(shapes)
    if not set(axes) & set(operation.params["axes"]):
        return operation.combined()
    if kind.form == "same" and len(axes) == 1:
        return [kind.with_degree(kind.degree + 1)]
    if kind.form != "rows":
        return operation.other()
    total = dataclasses.replace(kind, form="part", is_ordered=True, is_weights=False)
    return operation.counts_padding([total])


def _reduce(operation: Operation) -> list[Kind]:
    """Follow a reduction that padding, which repeats an example, does not change: max, any."""
    axes = {axis for shapes in operation.operands for axis in batch_axes(shapes)}
    is_same = all(k.form == "same" and not k.degree for k in operation.kinds)
    if is_same or not axes & set(operation.params["axes"]):
        return operation.combined()
    return operation.other()


def _reduce_product(operation: Operation) -> list[Kind]:
    results = _reduce(operation)
    return operation.counts_padding(results) if results[0].form == "other" else results


def _along(parameter: str) -> Callable[[Operation], list[Kind]]:
    """Return the rule of an operation that mixes what lies along the axes in a parameter."""

    def rule(operation: Operation) -> list[Kind]:
        axes = operation.params[parameter]
        axes = {axes} if isinstance(axes, int) else set(axes)
        mixed = [axes & set(batch_axes(shapes)) for shapes in operation.operands]
        return _mix(operation) if any(mixed) else operation.combined()

    return rule


def _last(count: int) -> Callable[[Operation], list[Kind]]:
    """Return the rule of an operation that mixes what lies along the last axes."""

    def rule(operation: Operation) -> list[Kind]:
        mixed = any(
            axis >= len(shapes[0]) - count
            for shapes in operation.operands
            for axis in batch_axes(shapes)
        )
        return _mix(operation) if mixed else operation.combined()

    return rule


def _mix(operation: Operation) -> list[Kind]:
    """Follow an operation between examples."""
    if all(k.form == "same" and not k.degree for k in operation.kinds):
        return operation.combined()
    return operation.counts_padding(operation.other())


def _reshape(operation: Operation) -> list[Kind]:
    kinds = operation.combined()
    (before,), (after,) = operation.operands[:1], operation.results
    if kinds[0].form != "rows" or len(batch_axes(after)) != 1:
        return kinds
    outside = [math.prod(each[0][: batch_axes(each)[0]]) for each in (before, after)]
    return kinds if outside[0] == outside[1] else [kinds[0].with_order(False)]


def _concatenate(operation: Operation) -> list[Kind]:
    axis = operation.params["dimension"]
    joined = [axis in batch_axes(shapes) for shapes in operation.operands]
    forms = {k.form for k in operation.kinds}
    if not any(joined):
        if "index" in forms and "rows" in forms:  # indices of a gather
            return [Kind("index", **merge_flags(operation.kinds))]
        return operation.combined()
    if not all(joined):
        return _mix(operation)
    if "rows" in forms and forms <= {"rows", "same"}:
        # GANs label real and fake images so: jnp.concatenate([ones, zeros]).
        kinds = [k for k in operation.kinds if k.form == "rows"]
        return [combine(operation.name, kinds, operation.reason).with_order(False)]
    if forms == {"same"} and len(operation.kinds) > 1:
        return [Kind("rows").with_order(False)]
    return operation.combined()


def _slice(operation: Operation) -> list[Kind]:
    (before,), (after,) = operation.operands[:1], operation.results
    if not batch_axes(before) or (batch_axes(before) == batch_axes(after) and before == after):
        return operation.combined()
    axis = batch_axes(before)[0]
    if before[0][axis] == after[0][axis] and before[1][axis] == after[1][axis]:
        return operation.combined()
    ends = [
        [operation.params[name][axis], operation.other_params[name][axis]]
        for name in ("start_indices", "limit_indices")
    ]
    return _cut_rows(operation, ends)


def _cut_rows(operation: Operation, ends: Sequence[Sequence[int]]) -> list[Kind]:
    """Follow a slice of rows; the halves of two joined batches are rows again."""
    kind, (first, second) = operation.kinds[0], operation.sizes
    counts = [a / first for a, _ in ends]
    is_whole = all(a % first == 0 and a * second == b * first for a, b in ends)
    if kind.form == "rows" and not kind.is_ordered and is_whole and counts[1] - counts[0] == 1:
        return [kind.with_order(True)]
    return _mix(operation)


def _split(operation: Operation) -> list[Kind]:
    axis = operation.params["axis"]
    if axis not in batch_axes(operation.operands[0]):
        return operation.combined()
    found, starts = [], [0, 0]
    for number in range(len(operation.results)):
        sizes = [operation.params["sizes"][number], operation.other_params["sizes"][number]]
        stops = [start + size for start, size in zip(starts, sizes, strict=True)]
        found += _cut_rows(operation._replace(results=operation.results[:1]), [starts, stops])
        starts = stops
    return found


def _pad(operation: Operation) -> list[Kind]:
    config = operation.params["padding_config"]
    axes = batch_axes(operation.operands[0])
    if any(any(config[axis]) for axis in axes):
        return _mix(operation)
    return operation.combined()


def _dot_general(operation: Operation) -> list[Kind]:
    contracting, batched = operation.params["dimension_numbers"]
    axes = [set(batch_axes(shapes)) for shapes in operation.operands]
    contracted = [bool(axes[n] & set(contracting[n])) for n in (0, 1)]
    in_batch = [bool(axes[n] & set(batched[n])) for n in (0, 1)]
    forms = {k.form for k in operation.kinds}
    if not any(contracted):
        is_outer = all(axes) and not all(in_batch)
        return _mix(operation) if is_outer and forms != {"same"} else operation.combined()
    if forms == {"same"}:
        total = combine(operation.name, operation.kinds, operation.reason)
        return [total.with_degree(total.degree + 1)] if total.form == "same" else [total]
    if not all(contracted) or not forms <= {"rows", "same"}:
        return _mix(operation)
    product = combine("mul", operation.kinds, operation.reason)
    if product.form != "rows":
        return operation.other()
    total = dataclasses.replace(product, form="part", is_ordered=True, is_weights=False)
    return [total if total.is_weighted else total.with_padding(operation.reason)]


def _convolution(operation: Operation) -> list[Kind]:
    numbers = operation.params["dimension_numbers"]
    images, kernels = map(batch_axes, operation.operands)
    if kernels or (images and images != (numbers.lhs_spec[0],)):
        return _mix(operation)
    return operation.combined()


def _iota(operation: Operation) -> list[Kind]:
    axes = batch_axes(operation.results[0])
    return [Kind("index" if operation.params["dimension"] in axes else "same")]


def _random_bits(operation: Operation) -> list[Kind]:
    """Follow random numbers: drawn by a key for each row they are rows, by one key they are not."""
    axes = batch_axes(operation.results[0])
    has_key_per_row = any(map(batch_axes, operation.operands))
    if axes and not has_key_per_row:
        reason = Reason("one key for all rows", operation.reason.site)
        return [other(operation.kinds, reason)] * len(operation.results)
    return operation.combined()


def _gather(operation: Operation) -> list[Kind]:
    values, indices = operation.kinds[:2]
    axes = batch_axes(operation.operands[0])
    numbers = operation.params["dimension_numbers"]
    is_whole = all(
        operation.params["slice_sizes"][axis] == operation.operands[0][0][axis]
        or axis in numbers.operand_batching_dims
        for axis in axes
    )
    if is_whole:
        return operation.combined() if indices.form != "index" or not axes else operation.other()
    flags = merge_flags(operation.kinds)
    if indices.form == "index" and values.form == "rows":
        return [Kind("rows", values.degree, **flags)]
    return _mix(operation)


def _scatter(operation: Operation) -> list[Kind]:
    values, indices = operation.kinds[:2]
    axes = batch_axes(operation.operands[0])
    numbers = operation.params["dimension_numbers"]
    if indices.form == "index" and axes and values.form in ("rows", "same"):
        return [Kind("rows", **merge_flags(operation.kinds))]
    named = {*numbers.inserted_window_dims, *numbers.scatter_dims_to_operand_dims}
    if axes and not set(axes) & (named - set(numbers.operand_batching_dims)):
        return operation.combined()
    return _mix(operation)


def _dynamic(operation: Operation) -> list[Kind]:
    """Follow a slice at a computed place, or its update."""
    before, part = operation.operands[0], operation.results[0]
    if operation.name == "dynamic_update_slice":
        part = operation.operands[1]
    axes = batch_axes(before)
    is_whole = all(part[0][axis] == before[0][axis] for axis in axes)
    return operation.combined() if is_whole else _mix(operation)


def _window(operation: Operation) -> list[Kind]:
    window = operation.params["window_dimensions"]
    axes = batch_axes(operation.operands[0])
    return _mix(operation) if any(window[axis] > 1 for axis in axes) else operation.combined()


_MIXED_ALONG = {
    "axes": ("argmax", "argmin"),
    "axis": ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"),
    "dimension": ("sort",),
    "dimensions": ("rev", "reduce"),
}
_MIXED_LAST = {1: ("top_k", "fft"), 2: ("cholesky", "triangular_solve", "lu", "qr", "eigh", "svd")}
_MAXIMA = ("reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_xor")
_DRAWS = ("random_bits", "rng_bit_generator", "rng_uniform")
_SCATTERS = ("scatter", "scatter-add", "scatter_add", "scatter_mul", "scatter_max", "scatter_min")
_WINDOWS = ("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min")

_RULES: dict[str, Callable[[Operation], list[Kind]]] = {
    **{name: _along(key) for key, names in _MIXED_ALONG.items() for name in names},
    **{name: _last(count) for count, names in _MIXED_LAST.items() for name in names},
    "reduce_sum": _reduce_sum,
    **dict.fromkeys(_MAXIMA, _reduce),
    "reduce_prod": _reduce_product,
    "reshape": _reshape,
    "concatenate": _concatenate,
    "slice": _slice,
    "split": _split,
    "pad": _pad,
    "dot_general": _dot_general,
    "conv_general_dilated": _convolution,
    "iota": _iota,
    **dict.fromkeys(_DRAWS, _random_bits),
    "gather": _gather,
    **dict.fromkeys(_SCATTERS, _scatter),
    **dict.fromkeys(("dynamic_slice", "dynamic_update_slice"), _dynamic),
    **dict.fromkeys(_WINDOWS, _window),
}
_ALWAYS = {_random_bits}
