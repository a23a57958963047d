"""Rules of operations that take an index: gather, scatter, dynamic slices."""

from __future__ import annotations

from penstock._tracing.kinds import Kind, find_rows, merge_flags
from penstock._tracing.operation import Operation, batch_axes, mix


def gather(operation: Operation) -> list[Kind]:
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


def scatter(operation: Operation) -> list[Kind]:
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


def dynamic(operation: Operation) -> list[Kind]:
    """Follow a slice at a computed place, or its update."""
    before, part = operation.operands[0], operation.results[0]
    # There the second operand is what is put in, and the result is as large as the first.
    if operation.name == "dynamic_update_slice":
        part = operation.operands[1]
    axes = batch_axes(before)
    is_whole = all(part[0][axis] == before[0][axis] for axis in axes)
    return operation.combine() if is_whole else mix(operation)
