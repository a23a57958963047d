"""How the rows of examples lie along a batch axis: blocks, each with all examples in order.

`B` examples are `(1,)`, `T` rows of each `(T,)`, two batches joined `(1, 1)`, a block of every
time step `(1,) * T`. Half a row to an example, as in `(0.5,)`, is a pair of examples in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

Blocks = tuple[Fraction | int, ...]
"""The rows that each example has in each block."""


def find_rows(sizes: Sequence[int], batch_sizes: Sequence[int]) -> Fraction | None:
    """Return how many rows an example has on an axis of these sizes in both traces, if it has."""
    rows = Fraction(sizes[0], batch_sizes[0])
    return rows if rows * batch_sizes[1] == sizes[1] else None


def reshape_blocks(
    blocks: Blocks, outside: Sequence[int], rows: Fraction | None
) -> tuple[Fraction | int, ...] | None:
    """Return the blocks of a reshaped array, None where examples would change places.

    Arguments:
      blocks: of the array before.
      outside: the product of the axes in front of the batch axis, before and after.
      rows: of an example along the batch axis after.
    """
    if rows is None:
        return None
    count = outside[0] * len(blocks)
    # Axes behind the batch axis go into it, or come out of it: every block grows alike.
    if outside[0] == outside[1]:
        ratio = rows / sum(blocks)
        found = tuple(each * ratio for each in blocks)
    # Axes in front of it do: blocks are joined one behind the other, or taken apart.
    elif len(set(blocks)) == 1 and count % outside[1] == 0:
        count //= outside[1]
        found = (rows / count,) * count
    else:
        return None
    # A row of several examples may lie across two blocks; with one block in front it cannot.
    is_split = len(found) * outside[1] > 1 and any(each.denominator > 1 for each in found)
    return None if is_split else found


def cut_blocks(
    blocks: Blocks, start: Fraction | None, stop: Fraction | None
) -> tuple[Fraction | int, ...] | None:
    """Return the blocks between two places, given in rows of an example, None if one is cut."""
    # A slice may only begin and end between blocks.
    ends = [sum(blocks[:number]) for number in range(len(blocks) + 1)]
    if start is None or stop is None or start not in ends or stop not in ends:
        return None
    return blocks[ends.index(start) : ends.index(stop)] or None
