"""Rules of operations that change how rows lie: reshape, tile, concatenate, slice, split, pad."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from penstock._tracing.kinds import (
    Blocks,
    Kind,
    combine,
    cut_blocks,
    find_rows,
    merge_flags,
    reshape_blocks,
)
from penstock._tracing.operation import Operation, Shapes, batch_axes, mix


def reshape(operation: Operation) -> list[Kind]:
    """Follow another shape: rows stay whole, or examples are mixed."""
    (kind,) = operation.combine()[:1]
    (before,), (after,) = operation.operands[:1], operation.results
    axes = [batch_axes(each) for each in (before, after)]
    if kind.form not in ("rows", "index", "same") or [len(each) for each in axes] != [1, 1]:
        return [kind]
    sizes = [
        [shape[axis] for shape in each] for each, (axis,) in zip((before, after), axes, strict=True)
    ]
    # Equal rows may change places among themselves.
    if kind.form == "same" and (kind.is_gathered or sizes[0] == sizes[1]):
        return [kind]
    outside = [
        math.prod(each[0][:axis]) for each, (axis,) in zip((before, after), axes, strict=True)
    ]
    blocks = kind.blocks if kind.form != "same" else _find_rows_along(operation, before, axes[0][0])
    found = blocks and reshape_blocks(blocks, outside, find_rows(sizes[1], operation.sizes))
    if not found:
        return operation.make_other()
    # With nothing but a batch axis all entries are the same number.
    is_uniform = kind.form == "same" and math.prod(before[0]) == before[0][axes[0][0]]
    return [kind if is_uniform else _as_rows(kind).with_blocks(found)]


def _as_rows(kind: Kind) -> Kind:
    return Kind("rows", kind.degree) if kind.form == "same" else kind


def _find_rows_along(operation: Operation, shapes: Shapes, axis: int) -> Blocks | None:
    """Return the one block of an array of equal rows, None where it is not of whole batches."""
    rows = find_rows([shape[axis] for shape in shapes], operation.sizes)
    return (rows,) if rows else None


def tile(operation: Operation) -> list[Kind]:
    """Follow copies of an array side by side."""
    (kind,), (shapes,) = operation.combine(), operation.operands
    axes, (after,) = batch_axes(shapes), map(batch_axes, operation.results)
    if not axes:
        # Of one row as many are equal, of several they take turns.
        rows = shapes[0][after[0]] if len(after) == 1 else 1
        return [kind if rows == 1 else _as_rows(kind).with_blocks((rows,))]
    # As many copies in both traces: else the count depends on the batch.
    count = operation.params["reps"][axes[0]]
    if kind.form not in ("rows", "index") or count != operation.other_params["reps"][axes[0]]:
        return [kind] if kind.form == "same" else operation.make_other()
    return [kind.with_blocks(kind.blocks * count)]


def concatenate(operation: Operation) -> list[Kind]:
    """Follow arrays joined along an axis, batches too."""
    axis = operation.params["dimension"]
    joined = [axis in batch_axes(shapes) for shapes in operation.operands]
    forms = {k.form for k in operation.kinds}
    if not any(joined):
        return [_join_indices(operation)] if "index" in forms else operation.combine()
    # Rows of examples beside rows that are no examples.
    if not all(joined):
        return mix(operation)
    if not forms <= {"rows", "same"}:
        return operation.combine() if len(operation.kinds) == 1 else operation.make_other()
    # GANs label real and fake images so: jnp.concatenate([ones, zeros]).
    pairs = zip(operation.kinds, operation.operands, strict=True)
    blocks = [
        k.blocks if k.form == "rows" else _find_rows_along(operation, s, axis) for k, s in pairs
    ]
    kinds = [_as_rows(k).with_blocks((1,)) for k in operation.kinds]
    if None in blocks or any(k.is_gathered for k in kinds):
        return mix(operation)
    joined_blocks = tuple(each for found in blocks if found for each in found)
    return [combine(operation.name, kinds, operation.reason).with_blocks(joined_blocks)]


def _join_indices(operation: Operation) -> Kind:
    """Return the kind of indices for several axes, a column each, as a gather takes them."""
    axis, kinds = operation.params["dimension"], operation.kinds
    numbers = [n for n, k in enumerate(kinds) if k.form == "index"]
    sizes = [shapes[0][axis] for shapes in operation.operands]
    place, flags = numbers[0], merge_flags(operation.kinds)
    if len(numbers) > 1 or not {k.form for k in kinds} <= {"index", "rows", "same"}:
        return Kind("index", **flags)
    return dataclasses.replace(kinds[place], column=sum(sizes[:place]), **flags)


def slice_rows(operation: Operation) -> list[Kind]:
    """Follow a slice, which may take a batch out of joined ones."""
    (before,), (after,) = operation.operands[:1], operation.results
    if not batch_axes(before) or (batch_axes(before) == batch_axes(after) and before == after):
        return operation.combine()
    axis = batch_axes(before)[0]
    if before[0][axis] == after[0][axis] and before[1][axis] == after[1][axis]:
        return operation.combine()
    ends = [
        [operation.params[name][axis], operation.other_params[name][axis]]
        for name in ("start_indices", "limit_indices")
    ]
    # Every second row is of another example.
    strides = operation.params["strides"]
    if strides is not None and strides[axis] != 1:
        return mix(operation)
    return _cut_rows(operation, ends)


def _cut_rows(operation: Operation, ends: Sequence[Sequence[int]]) -> list[Kind]:
    """Follow a slice of rows; the halves of two joined batches are rows again."""
    kind = operation.kinds[0]
    # Places are given in rows of an example, so that both traces agree on them.
    found = cut_blocks(kind.blocks, *[find_rows(each, operation.sizes) for each in ends])
    if kind.form == "same" and find_rows(
        [b - a for a, b in zip(*ends, strict=True)], operation.sizes
    ):
        return [kind]
    return [kind.with_blocks(found)] if kind.form == "rows" and found else mix(operation)


def split(operation: Operation) -> list[Kind]:
    """Follow the pieces of an array, batches that were joined among them."""
    axis = operation.params["axis"]
    if axis not in batch_axes(operation.operands[0]):
        return operation.combine()
    found, starts = [], [0, 0]
    for number in range(len(operation.results)):
        sizes = [operation.params["sizes"][number], operation.other_params["sizes"][number]]
        stops = [start + size for start, size in zip(starts, sizes, strict=True)]
        found += _cut_rows(operation._replace(results=operation.results[:1]), [starts, stops])
        starts = stops
    return found


def pad(operation: Operation) -> list[Kind]:
    """Follow a border put around an array, or cut off."""
    config = operation.params["padding_config"]
    axes = batch_axes(operation.operands[0])
    if any(any(config[axis]) for axis in axes):
        return mix(operation)
    return operation.combine()
