"""`fluid.layers.data`, dense or of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import jax
from jax.typing import DTypeLike

from penstock import layers
from penstock._errors import ProgramError
from penstock._program import sequences


@overload
def data(
    name: str,
    shape: Sequence[int | None],
    append_batch_size: bool = True,
    dtype: DTypeLike = "float32",
    lod_level: Literal[0] = 0,
    stop_gradient: bool = True,
) -> jax.Array: ...


@overload
def data(
    name: str,
    shape: Sequence[int | None],
    append_batch_size: bool = True,
    dtype: DTypeLike = "float32",
    *,
    lod_level: Literal[1],
    stop_gradient: bool = True,
) -> sequences.Sequence: ...


@overload
def data(
    name: str,
    shape: Sequence[int | None],
    append_batch_size: bool = True,
    dtype: DTypeLike = "float32",
    *,
    lod_level: Literal[2],
    stop_gradient: bool = True,
) -> sequences.NestedSequence: ...


def data(
    name: str,
    shape: Sequence[int | None],
    append_batch_size: bool = True,
    dtype: DTypeLike = "float32",
    lod_level: int = 0,
    stop_gradient: bool = True,
) -> jax.Array | sequences.Sequence | sequences.NestedSequence:
    """Declare an input and return what is fed under its name; see `penstock.layers.data`.

    Arguments:
      name: the name in feeds and in `feed_order`.
      shape: the shape of one example, or of one word of a sequence. A first size of -1 or None is
        the batch axis.
      append_batch_size: `False` if the shape includes the batch axis, as -1 or None.
      dtype: a numpy dtype name; `int64` becomes `int32` unless JAX's x64 mode is on.
      lod_level: 1 for sequences, 2 for sequences of sequences; layers work on the last level.
      stop_gradient: has no effect, as only parameters have gradients.

    Returns:
      `[B, *shape]`; a `ps.Sequence` of values `[B, T, *shape]`; or a `ps.NestedSequence` of values
      `[B, K, T, *shape]`.

    Raises:
      ProgramError: `lod_level` is not 0, 1 or 2; or `append_batch_size` is `False` and the shape
        has no batch axis.
      TypeError: `append_batch_size` is not a bool.

    >>> import penstock as ps, penstock.fluid as fluid
    >>> def program():
    ...     words = fluid.layers.data(name="words", shape=[1], dtype="int64", lod_level=1)
    ...     return fluid.layers.sequence_pool(words, "last")
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> words = fluid.create_lod_tensor([[3, 4, 5], [6]], [[3, 1]], fluid.CPUPlace())
    >>> builder.infer(builder.init(), {"words": words}).tolist()
    [[5], [6]]
    """
    if not isinstance(append_batch_size, bool):
        raise TypeError(
            f"fluid.layers.data {name!r} got append_batch_size={append_batch_size!r}, expected "
            "True or False. Fluid's order is name, shape, append_batch_size, dtype. Pass dtype by "
            "its name."
        )
    if isinstance(shape, list | tuple) and shape and shape[0] in (-1, None):
        shape = shape[1:]
    elif not append_batch_size:
        raise ProgramError(
            f"fluid.layers.data {name!r} got shape {shape!r} with append_batch_size=False, "
            "expected -1 as its first size. Every input has a batch axis in front. Leave "
            "append_batch_size out where the shape is that of one example."
        )
    # A size of None at another place is an error of layers.data.
    sizes: Sequence[int] = shape  # pyright: ignore[reportAssignmentType]
    level: Any = lod_level
    return layers.data(name, sizes, dtype, lod_level=level)
