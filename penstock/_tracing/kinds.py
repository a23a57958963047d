"""What an array of a trace is to the batch: the same everywhere, rows of examples, a partial sum.

A program runs on each device with that device's share of the batch. Whether a value is the one that
a single device would have found follows from how it was computed. A `Kind` is what is known of one
array; `batch_dependence` follows it from the inputs to the returned values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, TypedDict

import numpy as np
from jax.typing import ArrayLike

Blocks = tuple[Fraction | int, ...]
"""How the rows of examples lie along a batch axis: the rows that each example has in each block.

A block has all examples in order. `B` examples are `(1,)`, `T` rows of each `(T,)`, two batches
joined `(1, 1)`, a block of every time step `(1,) * T`. Half a row to an example, as in `(0.5,)`, is
a pair of examples in a row.
"""

Form = Literal["same", "rows", "part", "index", "device", "feed", "other"]


@dataclasses.dataclass(frozen=True)
class Kind:
    """What is known of one array, `b` being the number of examples on a device.

    Attributes:
      form: `"same"` is equal on every device. `"rows"` has a batch axis, and each row comes from
        its own example. `"part"` adds up over the devices to what one device would find, and so is
        a mean where `degree` is -1. `"index"` counts the rows of this device, `"device"` is the
        number of the device, `"feed"` is what inputs are made of. `"other"` depends on how the
        batch is split, for the reason in `why`.
      degree: the power of `b` that the array is multiplied by.
      blocks: how the rows lie along the batch axis; in one block they are in the order of examples.
      is_weighted: rows have met the example weights.
      is_weights: rows are the example weights themselves.
      is_zero: 0 in every entry, which adds to anything.
      is_gathered: made of the rows of all devices, for which whoever gathered them answers.
      span: of an `"index"`, how many rows an example has in the array whose rows it numbers; None
        where it is computed with, so that it may stand for another row.
      column: where it stands among the indices that a gather takes, one for each axis.
      padding: where the padding of a short batch was counted, if it was.
      why: what made an `"other"`, and where.
    """

    form: Form
    degree: int = 0
    blocks: Blocks = (1,)
    is_weighted: bool = False
    is_weights: bool = False
    is_zero: bool = False
    is_gathered: bool = False
    span: Fraction | int | None = None
    column: int = 0
    padding: Reason | None = None
    why: Reason | None = None

    def with_form(self, form: Form) -> Kind:
        """Return this kind in another form."""
        return dataclasses.replace(self, form=form)

    def with_degree(self, degree: int) -> Kind:
        """Return this kind multiplied by another power of the batch size."""
        return dataclasses.replace(self, degree=degree)

    def with_blocks(self, blocks: Blocks) -> Kind:
        """Return this kind with its rows in these blocks."""
        return dataclasses.replace(self, blocks=blocks)

    def with_padding(self, reason: Reason | None) -> Kind:
        """Return this kind with a note of what counted the padding."""
        return dataclasses.replace(self, padding=self.padding or reason)


@dataclasses.dataclass(frozen=True)
class Reason:
    """An operation and the user's line that it stands in."""

    operation: str
    site: str

    def __str__(self) -> str:
        shown = _SHOWN.get(self.operation, self.operation)
        return f"{shown} at {self.site}" if self.site else shown


_SHOWN = {
    "reduce_sum": "a sum over examples",
    "reduce_max": "a maximum over examples",
    "reduce_min": "a minimum over examples",
    "reduce_prod": "a product over examples",
    "reduce_and": "jnp.all over examples",
    "reduce_or": "jnp.any over examples",
    "argmax": "jnp.argmax over examples",
    "argmin": "jnp.argmin over examples",
    "std": "a standard deviation over examples",
    "var": "a variance over examples",
    "median": "a median over examples",
    "sort": "a sort of examples",
    "one key for all rows": "random numbers drawn by one key for all rows",
}

SAME = Kind("same")
ZERO = Kind("same", is_zero=True)
ROWS = Kind("rows")
MEAN = Kind("part", degree=-1)

_LAYOUT = ("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "slice", "split")
_CHOICE = ("dynamic_slice", "concatenate", "stack", "unstack", "tile", "pad", "gather")
_COPIES = ("copy", "copy_p", "optimization_barrier")
_SUMS = ("add", "sub", "neg", "add_any", "reduce_sum", "cumsum", "real", "imag")
_CASTS = ("convert_element_type", "reduce_precision", "stop_gradient")
LINEAR = frozenset([*_LAYOUT, *_CHOICE, *_COPIES, *_SUMS, *_CASTS])
"""Operations that a sum over devices passes through, as long as the other operands are the same."""


_COMPARISONS = {"eq", "ne", "gt", "ge", "lt", "le"}
# Operations after which an index still numbers the same rows.
_KEEPS_INDEX = {*_LAYOUT, *_COPIES, *_CASTS, "concatenate", "stack", "tile", "round"}


class Flags(TypedDict):
    """What an array takes over from those it is computed from; see `Kind`."""

    is_weighted: bool
    blocks: Blocks
    is_gathered: bool
    padding: Reason | None


def merge_flags(kinds: Sequence[Kind]) -> Flags:
    """Return the flags of what is computed from arrays of these kinds."""
    return {
        "is_weighted": any(k.is_weighted for k in kinds),
        "blocks": next((k.blocks for k in kinds if k.blocks != (1,)), (1,)),
        "is_gathered": any(k.is_gathered for k in kinds),
        "padding": next((k.padding for k in kinds if k.padding), None),
    }


def make_other(kinds: Sequence[Kind], reason: Reason) -> Kind:
    """Return the kind of what depends on how the batch is split, keeping the first reason."""
    first = next((k.why for k in kinds if k.why), reason)
    return Kind("other", why=first, **merge_flags(kinds))


def combine(operation: str, kinds: Sequence[Kind], reason: Reason) -> Kind:
    """Return the kind of what an operation makes, element by element, of its operands."""
    flags = merge_flags(kinds)
    forms = {k.form for k in kinds}
    if not forms - {"same"}:
        return _same(operation, kinds, reason)
    if "other" in forms:
        return make_other(kinds, reason)
    if "part" in forms:
        return _part(operation, kinds, flags, reason)
    # An example's row that meets its number on the device differs by how the batch is split.
    if "rows" in forms and forms & {"device", "index"}:
        return make_other(kinds, reason)
    if "device" in forms:
        # Number on the device plus the device's offset: the place in the global batch.
        return Kind("rows" if "index" in forms else "device", **flags)
    if "index" in forms:
        return _index(operation, kinds, flags)
    if "feed" in forms:
        return Kind("feed", **flags)
    return _rows(operation, kinds, flags, reason)


def _index(operation: str, kinds: Sequence[Kind], flags: Flags) -> Kind:
    """Follow the numbers of a device's rows: jnp.arange(len(x)), of which only indices are made."""
    if flags["is_gathered"]:
        return Kind("same", **flags)
    # A choice that is always the first: jnp's wrap of negative indices, of which there are none.
    if operation == "select_n" and kinds[0].is_zero:
        return kinds[1]
    spans = {k.span for k in kinds if k.form == "index"}
    is_kept = len(spans) == 1 and (operation in _KEEPS_INDEX or operation == "lt")
    if operation == "lt":  # of an index that counts from 0: jnp asks whether it is negative
        is_false = is_kept and spans != {None} and kinds[1].is_zero and kinds[0].form == "index"
        return Kind("index", is_zero=is_false, **flags)
    column = next(k.column for k in kinds if k.form == "index")
    return Kind("index", span=spans.pop() if is_kept else None, column=column, **flags)


def _same(operation: str, kinds: Sequence[Kind], reason: Reason) -> Kind:
    degree = 0 if any(k.is_gathered for k in kinds) else _degree(operation, kinds)
    if degree is None:
        return make_other(kinds, reason)
    is_zero = all(k.is_zero for k in kinds) and operation in LINEAR
    return Kind("same", degree, is_zero=is_zero, **merge_flags(kinds))


def _rows(operation: str, kinds: Sequence[Kind], flags: Flags, reason: Reason) -> Kind:
    degree = _degree(operation, kinds)
    rows = [k for k in kinds if k.form == "rows"]
    if len({k.blocks for k in rows}) > 1:
        # Rows in another order meet the weights, which are wrong for them where some are 0.
        blocks = {k.blocks for k in rows if not k.is_weights}
        if operation == "mul" and len(blocks) == 1:
            flags["blocks"] = blocks.pop()
            flags["padding"] = flags["padding"] or reason
        else:
            degree = None
    if degree is None:
        return make_other(kinds, reason)
    return Kind("rows", degree, is_weights=len(rows) == 1 and rows[0].is_weights, **flags)


def _part(operation: str, kinds: Sequence[Kind], flags: Flags, reason: Reason) -> Kind:
    parts = [k for k in kinds if k.form == "part"]
    # Zeros change no sum.
    others = [k for k in kinds if k.form != "part" and not k.is_zero]
    if any(k.form != "same" for k in others):
        return make_other(kinds, reason)
    if operation in {"mul", "dot_general", "div", "conv_general_dilated"}:
        # A product of two sums over a part each is no part of the product of the sums.
        is_product = len(parts) == 1 and (operation != "div" or kinds[0] is parts[0])
        degree = _degree(operation, kinds)
        if is_product and degree is not None:
            return Kind("part", degree, **flags)
        return make_other(kinds, reason)
    is_sum = operation in LINEAR or (operation == "select_n" and kinds[0].form == "same")
    degree = parts[0].degree
    # A mean and what is the same everywhere add up to a mean; a sum would count the latter often.
    meets_only_means = degree == -1 or not others or operation == "gather"
    if operation == "select_n":
        meets_only_means = degree == -1 or not [k for k in others if k is not kinds[0]]
    has_one_degree = all(k.degree == degree for k in parts) and not any(k.degree for k in others)
    if is_sum and meets_only_means and has_one_degree:
        return Kind("part", degree, **flags)
    return make_other(kinds, reason)


def _degree(operation: str, kinds: Sequence[Kind]) -> int | None:
    """Return the power of the batch size in a result, None where it is no power."""
    if operation in {"mul", "dot_general", "conv_general_dilated"}:
        return sum(k.degree for k in kinds)
    if operation == "div":
        return kinds[0].degree - kinds[1].degree
    # Whether a multiple of the batch size is above 0 does not depend on the batch size.
    if operation in _COMPARISONS and any(k.is_zero for k in kinds):
        return 0
    degrees = {k.degree for k in kinds if not k.is_zero} or {0}
    if degrees == {0}:
        return 0
    is_kept = operation in LINEAR or operation in {"select_n", "max", "min", "abs", "floor"}
    return degrees.pop() if is_kept and len(degrees) == 1 else None


def classify_constant(first: ArrayLike, second: ArrayLike, sizes: tuple[int, int]) -> Kind:
    """Return the kind of a number or a constant that traces of these batch sizes hold."""
    a, b = np.asarray(first), np.asarray(second)
    if a.shape != b.shape:
        return _constant_rows(a, b, sizes)
    if a.dtype.kind not in "iufV" or np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
        return ZERO if a.dtype.kind in "iuf" and not a.any() else SAME
    a, b = a.astype(np.float64), b.astype(np.float64)
    # 1 / B in bfloat16 has three digits.
    tolerance = 1e-2 if np.asarray(first).dtype.itemsize < 4 else 1e-6
    # Counts and means, and their squares.
    for degree in (1, -1, 2, -2):
        if np.allclose(b, a * (sizes[1] / sizes[0]) ** degree, rtol=tolerance, atol=0):
            return Kind("same", degree)
    return Kind("other", why=Reason("a number that depends on the batch size", ""))


def _constant_rows(a: np.ndarray, b: np.ndarray, sizes: tuple[int, int]) -> Kind:
    """Return the kind of a constant with a batch axis: np.ones(len(x)), np.arange(len(x))."""
    axes = [axis for axis, size in enumerate(a.shape) if size != b.shape[axis]]
    rows = find_rows((a.shape[axes[0]], b.shape[axes[0]]), sizes) if len(axes) == 1 else None
    unknown = Kind("index")
    if rows is None or rows.denominator > 1 or a.dtype.kind not in "biuf":
        return unknown
    # np.ones(len(x)): the same in every row, so it is no matter whose row it is.
    if (a == a.flat[0]).all() and (b == a.flat[0]).all():
        return SAME if a.flat[0] else ZERO
    a, b = np.moveaxis(a, axes[0], 0), np.moveaxis(b, axes[0], 0)
    if a.ndim == 1 and all(np.array_equal(each, np.arange(len(each))) for each in (a, b)):
        return Kind("index", blocks=(rows,), span=rows)
    # As many blocks as an example has rows, each of one value: [ones, zeros] of a GAN.
    blocks = [each.reshape(int(rows), -1, *each.shape[1:]) for each in (a, b)]
    is_known = all((each == each[:, :1]).all() for each in blocks)
    if is_known and np.array_equal(blocks[0][:, 0], blocks[1][:, 0]):
        return Kind("rows", blocks=(1,) * int(rows))  # labels of joined batches
    return unknown


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
