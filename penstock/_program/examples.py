"""The axis of the examples: how two probes of different size tell it, and how errors show it."""

from __future__ import annotations

import re

import jax

# One probe of a prime size took a parameter of [502, 3] for a batch. The second costs 10 ms for a
# small network, and 0.7 s for ResNet-50.
PROBE_BATCH_SIZES = (480, 672)
"""The batch sizes of the two probes of a program. They share many divisors, so that a function that
takes its batch apart in halves or eighths is traced too."""


def count_rows(shape: tuple[int, ...], batch_size: int) -> int:
    """Return how many rows of axis 0 belong to one example, 0 when there is no batch axis."""
    # Several rows to an example are a batch axis too: time steps, joined batches.
    if not shape or shape[0] == 0 or shape[0] % batch_size:
        return 0
    return shape[0] // batch_size


def format_shape(shape: tuple[int, ...], other: tuple[int, ...]) -> str:
    """Return a shape as errors show it, `[B, 3]`, from the shapes of both probes."""
    first, second = PROBE_BATCH_SIZES
    if len(shape) != len(other):
        return "that the batch size changes"
    sizes = []
    for a, b in zip(shape, other, strict=True):
        is_multiple = a % first == 0 and a * second == b * first
        # Of the first size; that the second has as many is what `is_multiple` says.
        count = "B" if a == first else f"{a // first}*B"
        sizes.append(str(a) if a == b else count if is_multiple else "?")
    return f"[{', '.join(sizes)}]"


_SHAPE_WITH_BATCH = re.compile(r"\(((?:[\d.*B]+, )*(?:\d+\*)?B(?:, [\d.*B]+)*),?\)")
"""A tuple such as `(B, 3)`, which is shown as `[B, 3]`."""


def name_batch(message: str, other: str) -> str:
    """Return a message of the first probe with `B` where its batch size stands.

    Arguments:
      other: the same message of the second probe; what differs between the two are batch sizes.
    """
    first, second = PROBE_BATCH_SIZES
    parts, others = re.split(r"(\d+)", message), re.split(r"(\d+)", other)
    # Another text, and not only other numbers: nothing can be told.
    if parts[::2] != others[::2]:
        return message
    for number in range(1, len(parts), 2):
        a, b = int(parts[number]), int(others[number])
        if a != b and a * second == b * first:
            count = a // first if a % first == 0 else a / first
            parts[number] = "B" if count == 1 else f"{count}*B"
    return _SHAPE_WITH_BATCH.sub(r"[\1]", "".join(parts))


def compare_rows(shape: tuple[int, ...], other: tuple[int, ...]) -> int | None:
    """Return the rows per example, from the shapes of one array in both probes.

    0 without a batch axis, None where the batch axis is not the first alone.
    """
    if shape == other:
        return 0
    if len(shape) == len(other) and shape[1:] == other[1:]:
        rows = count_rows(shape, PROBE_BATCH_SIZES[0])
        if rows and rows == count_rows(other, PROBE_BATCH_SIZES[1]):
            return rows
    return None


def align(vector: jax.Array, num_axes: int, axis: int = -1) -> jax.Array:
    """Return a vector shaped to meet axis `axis` of an array of `num_axes` axes.

    Written out because users may run JAX with `jax_numpy_rank_promotion="raise"`.
    """
    shape = [1] * num_axes
    shape[axis] = vector.shape[0]
    return vector.reshape(shape)
