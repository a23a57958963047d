"""What each operation of a trace does to rows of examples: one rule for each that is not plain.

Those that only change how rows lie are in `layout_rules`.

An operation without a rule works element by element, as far as a batch is concerned: its result
has the batch axis of its operands, or none of them has one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp

from penstock._tracing import layout_rules as layout
from penstock._tracing.kinds import Kind, Reason, combine, find_rows, make_other, merge_flags
from penstock._tracing.operation import Operation, Shapes, batch_axes, mix


def follow(operation: Operation) -> list[Kind]:
    """Return the kinds of what an operation makes."""
    if any(k.form == "other" for k in operation.kinds):
        # What it would be of rows tells whether it counts the padding too.
        kinds = [k.with_form("rows") if k.form == "other" else k for k in operation.kinds]
        found = follow(operation._replace(kinds=kinds))
        results = zip(operation.make_other(), found, strict=True)
        return [k.with_padding(f.padding) for k, f in results]
    if operation.name == "convert_element_type" and not jnp.issubdtype(
        operation.params["new_dtype"], jnp.inexact
    ):
        # To integers a cast is no linear map: a part of a sum, rounded, is no part of it.
        operation = operation._replace(name="round")
    rule = _RULES.get(operation.name, _plain)
    if not any(map(batch_axes, [*operation.operands, *operation.results])) and rule not in _ALWAYS:
        return operation.combine()  # nothing of it has a batch axis
    results = rule(operation)
    return [_check(operation, *each) for each in zip(results, operation.results, strict=True)]


def _check(operation: Operation, kind: Kind, shapes: Shapes) -> Kind:
    """Return the kind of a result, which is no rows where it has no batch axis, or two."""
    axes = batch_axes(shapes)
    if kind.form == "feed":
        return kind.with_form("rows") if len(axes) == 1 else kind
    if kind.form == "index" and len(axes) > 1:
        return dataclasses.replace(kind, span=None)  # jnp.eye(len(x))
    if kind.form in ("rows", "index") and len(axes) != 1:
        return make_other([kind], operation.reason)
    size = shapes[0][axes[0]] if axes else 0
    # `x[: len(x) // 2]` of a device is not that of the batch.
    if kind.form == "rows" and size != sum(kind.blocks) * operation.sizes[0]:
        return make_other([kind], operation.reason)  # some were left out
    return kind


def _plain(operation: Operation) -> list[Kind]:
    return operation.combine()


def _reduce_sum(operation: Operation) -> list[Kind]:
    (kind,), (shapes,) = operation.kinds, operation.operands
    axes = set(batch_axes(shapes)) & set(operation.params["axes"])
    if not axes:
        return operation.combine()
    if kind.form == "same":
        # A sum of equal rows counts the batch.
        return [kind.with_degree(kind.degree + len(axes))]
    if kind.form != "rows":
        return operation.make_other()
    total = dataclasses.replace(kind, form="part", blocks=(1,), is_weights=False)
    return operation.note_padding([total])


def _reduce(operation: Operation) -> list[Kind]:
    """Follow a reduction that padding, which repeats an example, does not change: max, any."""
    axes = {axis for shapes in operation.operands for axis in batch_axes(shapes)}
    # A maximum of equal rows is any of them.
    is_same = all(k.form == "same" and not k.degree for k in operation.kinds)
    if is_same or not axes & set(operation.params["axes"]):
        return operation.combine()
    return operation.make_other()


def _reduce_product(operation: Operation) -> list[Kind]:
    results = _reduce(operation)
    return operation.note_padding(results) if results[0].form == "other" else results


def _along(parameter: str) -> Callable[[Operation], list[Kind]]:
    """Return the rule of an operation that mixes what lies along the axes in a parameter."""

    def rule(operation: Operation) -> list[Kind]:
        # One axis or several, as the operation has it.
        axes = operation.params[parameter]
        axes = {axes} if isinstance(axes, int) else set(axes)
        mixed = [axes & set(batch_axes(shapes)) for shapes in operation.operands]
        return mix(operation) if any(mixed) else operation.combine()

    return rule


def _last(count: int) -> Callable[[Operation], list[Kind]]:
    """Return the rule of an operation that mixes what lies along the last axes."""

    def rule(operation: Operation) -> list[Kind]:
        mixed = any(
            axis >= len(shapes[0]) - count
            for shapes in operation.operands
            for axis in batch_axes(shapes)
        )
        return mix(operation) if mixed else operation.combine()

    return rule


def _dot_general(operation: Operation) -> list[Kind]:
    contracting, batched = operation.params["dimension_numbers"]
    axes = [set(batch_axes(shapes)) for shapes in operation.operands]
    contracted = [bool(axes[n] & set(contracting[n])) for n in (0, 1)]
    in_batch = [bool(axes[n] & set(batched[n])) for n in (0, 1)]
    forms = {k.form for k in operation.kinds}
    # `x @ w`: the batch axis stays, unless rows meet all other rows, as in attention between
    # examples.
    if not any(contracted):
        is_outer = all(axes) and not all(in_batch)
        return mix(operation) if is_outer and forms != {"same"} else operation.combine()
    if forms == {"same"}:
        total = combine(operation.name, operation.kinds, operation.reason)
        # A sum over as many equal products as there are rows.
        return [total.with_degree(total.degree + 1)] if total.form == "same" else [total]
    if not all(contracted) or not forms <= {"rows", "same"}:
        return mix(operation)
    product = combine("mul", operation.kinds, operation.reason)
    if product.form != "rows":
        return operation.make_other()
    total = dataclasses.replace(product, form="part", blocks=(1,), is_weights=False)
    return [total if total.is_weighted else total.with_padding(operation.reason)]


def _convolution(operation: Operation) -> list[Kind]:
    numbers = operation.params["dimension_numbers"]
    images, kernels = map(batch_axes, operation.operands)
    # Only along the batch's own dimension does a convolution look at one example at a time.
    if kernels or (images and images != (numbers.lhs_spec[0],)):
        return mix(operation)
    return operation.combine()


def _iota(operation: Operation) -> list[Kind]:
    axes = batch_axes(operation.results[0])
    if operation.params["dimension"] not in axes:
        return [Kind("same")]
    rows = find_rows([s[axes[0]] for s in operation.results[0]], operation.sizes)
    return [Kind("index", span=rows, blocks=(rows or 1,))] if len(axes) == 1 else [Kind("index")]


def _random_bits(operation: Operation) -> list[Kind]:
    """Follow random numbers: drawn by a key for each row they are rows, by one key they are not."""
    axes = batch_axes(operation.results[0])
    # `layers.example_keys`, or a split of one key into as many as there are rows.
    has_key_per_row = any(map(batch_axes, operation.operands))
    if axes and not has_key_per_row:
        reason = Reason("one key for all rows", operation.reason.site)
        return [make_other(operation.kinds, reason)] * len(operation.results)
    return operation.combine()


def _window(operation: Operation) -> list[Kind]:
    window = operation.params["window_dimensions"]
    axes = batch_axes(operation.operands[0])
    return mix(operation) if any(window[axis] > 1 for axis in axes) else operation.combine()


def _gather(operation: Operation) -> list[Kind]:
    """Follow rows picked by indices: an example picks its own, or from what is the same."""
    values, indices = operation.kinds[:2]
    axes = batch_axes(operation.operands[0])
    numbers = operation.params["dimension_numbers"]
    is_whole = all(
        operation.params["slice_sizes"][axis] == operation.operands[0][0][axis]
        or axis in numbers.operand_batching_dims
        for axis in axes
    )
    if is_whole:
        return (
            operation.combine() if indices.form != "index" or not axes else operation.make_other()
        )
    blocks = indices.blocks if len(values.blocks) == 1 else values.blocks
    is_in_place = len(values.blocks) == 1 or indices.blocks == (indices.span,)
    if values.form == "rows" and _names_rows_by_number(operation) and is_in_place:
        flags = {**merge_flags(operation.kinds), "blocks": blocks}
        return [Kind("rows", values.degree, **flags)]
    return mix(operation)


def _names_rows_by_number(operation: Operation) -> bool:
    """Return whether the indices of an operation name rows of its own array by their number."""
    axes, index = batch_axes(operation.operands[0]), operation.kinds[1]
    if index.form != "index" or index.span is None or len(axes) != 1:
        return False
    numbers = operation.params["dimension_numbers"]
    is_gather = operation.name == "gather"
    named = numbers.start_index_map if is_gather else numbers.scatter_dims_to_operand_dims
    # An index array has a column for each axis that it names; this one must name the batch's.
    if index.column >= len(named) or named[index.column] != axes[0]:
        return False
    return index.span == find_rows([s[axes[0]] for s in operation.operands[0]], operation.sizes)


def _scatter(operation: Operation) -> list[Kind]:
    """Follow values that are put, or added, at indices."""
    values, indices, updates = operation.kinds[:3]
    axes = batch_axes(operation.operands[0])
    numbers = operation.params["dimension_numbers"]
    forms = {k.form for k in (values, updates)}
    if axes and forms <= {"rows", "same"} and _names_rows_by_number(operation):
        is_in_place = updates.form == "same" or updates.blocks == indices.blocks
        is_one_block = len(values.blocks) == len(indices.blocks) == 1
        if is_in_place and is_one_block and not any(k.degree for k in operation.kinds):
            flags = {**merge_flags(operation.kinds), "blocks": (indices.span,)}
            return [Kind("rows", **flags)]
    # Counts of labels, sums by label, the gradient of an embedding: a sum over examples.
    forms = {updates.form, indices.form}
    is_total = operation.name in ("scatter-add", "scatter_add") and values.is_zero
    if is_total and not axes and "rows" in forms and forms <= {"rows", "same"}:
        padding = updates.padding or indices.padding
        total = Kind("part", updates.degree, is_weighted=updates.is_weighted, padding=padding)
        return [total if updates.is_weighted else total.with_padding(operation.reason)]
    # Put along other axes than the batch's, each example keeps its own.
    named = {*numbers.inserted_window_dims, *numbers.scatter_dims_to_operand_dims}
    if axes and not set(axes) & (named - set(numbers.operand_batching_dims)):
        return operation.combine()
    return mix(operation)


def _dynamic(operation: Operation) -> list[Kind]:
    """Follow a slice at a computed place, or its update."""
    before, part = operation.operands[0], operation.results[0]
    # There the second operand is what is put in, and the result is as large as the first.
    if operation.name == "dynamic_update_slice":
        part = operation.operands[1]
    axes = batch_axes(before)
    is_whole = all(part[0][axis] == before[0][axis] for axis in axes)
    return operation.combine() if is_whole else mix(operation)


_MIXED_ALONG = {
    "axes": ("argmax", "argmin"),
    "axis": ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"),
    "dimension": ("sort",),
    "dimensions": ("rev", "reduce"),
    "reduction_dimension": ("approx_top_k",),
}
_MATRICES = ("cholesky", "triangular_solve", "lu", "qr", "geqrf", "geqp3", "householder_product")
_MATRICES += (
    "ormqr",
    "eig",
    "eigh",
    "svd",
    "schur",
    "hessenberg",
    "tridiagonal",
    "cholesky_update",
)
_MIXED_LAST = {1: ("top_k", "fft"), 2: _MATRICES}
_MAXIMA = ("reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_xor")
_DRAWS = ("random_bits", "random_split", "rng_bit_generator", "rng_uniform")
_SCATTERS = [f"scatter-{each}" for each in ("add", "sub", "mul", "max", "min", "apply")]
_SCATTERS += ["scatter", *(name.replace("-", "_") for name in _SCATTERS)]
_WINDOWS = ("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min")

_RULES: dict[str, Callable[[Operation], list[Kind]]] = {
    **{name: _along(key) for key, names in _MIXED_ALONG.items() for name in names},
    **{name: _last(count) for count, names in _MIXED_LAST.items() for name in names},
    "reduce_sum": _reduce_sum,
    **dict.fromkeys(_MAXIMA, _reduce),
    "reduce_prod": _reduce_product,
    "reshape": layout.reshape,
    "concatenate": layout.concatenate,
    "slice": layout.slice_rows,
    "split": layout.split,
    "pad": layout.pad,
    "dot_general": _dot_general,
    "conv_general_dilated": _convolution,
    "iota": _iota,
    "tile": layout.tile,
    **dict.fromkeys(_DRAWS, _random_bits),
    "gather": _gather,
    **dict.fromkeys(_SCATTERS, _scatter),
    **dict.fromkeys(("dynamic_slice", "dynamic_update_slice"), _dynamic),
    **dict.fromkeys(_WINDOWS, _window),
}
_ALWAYS = {_random_bits}
