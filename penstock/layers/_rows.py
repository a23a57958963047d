"""The batch axis of an array: how many rows an example has, and what meets them."""

from __future__ import annotations

import jax

from penstock._errors import ProgramError

PROBE_BATCH_SIZE = 251
"""The batch size of a probe: a prime that no layer width is likely to have."""


def along(vector: jax.Array, num_axes: int, axis: int = -1) -> jax.Array:
    """Return a vector shaped to meet axis `axis` of an array of `num_axes` axes.

    Written out because users may run JAX with `jax_numpy_rank_promotion="raise"`.
    """
    shape = [1] * num_axes
    shape[axis] = vector.shape[0]
    return vector.reshape(shape)


def rows_per_example(shape: tuple[int, ...], batch_size: int) -> int:
    """Return how many rows of axis 0 belong to one example, 0 when there is no batch axis."""
    if not shape or shape[0] == 0 or shape[0] % batch_size:
        return 0
    return shape[0] // batch_size


def probed_rows_per_example(shape: tuple[int, ...]) -> int:
    """Return the same of a probe, whose batch size no other axis has.

    Raises:
      ProgramError: the batch axis is not the first.
    """
    rows = rows_per_example(shape, PROBE_BATCH_SIZE)
    if not rows and any(size and size % PROBE_BATCH_SIZE == 0 for size in shape):
        shown = ", ".join("B" if size == PROBE_BATCH_SIZE else str(size) for size in shape)
        raise ProgramError(
            f"a mean over examples got an array of shape [{shown}] with the batch axis B "
            "elsewhere, expected it first. Padding rows of a short batch are left out along axis "
            "0. Move the batch axis to the front, e.g. with jnp.moveaxis."
        )
    return rows
