"""Layers of sequences whose arguments differ in Fluid; `fluid.layers` offers them."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from penstock import layers
from penstock._errors import ProgramError
from penstock._program import sequences


def sequence_softmax(
    input: sequences.Sequence, use_cudnn: bool = False, name: str | None = None
) -> sequences.Sequence:
    """Return the softmax over the words of each sequence; see `penstock.layers.sequence_softmax`.

    `use_cudnn` has no effect.

    >>> import jax.numpy as jnp
    >>> scores = sequences.Sequence(jnp.array([[1.0, 1.0, 9.0]]), jnp.array([2]))
    >>> sequence_softmax(scores).values.tolist()
    [[0.5, 0.5, 0.0]]
    """
    return layers.sequence_softmax(input, name=name)


def im2sequence(
    input: jax.Array,
    filter_size: int | Sequence[int] = 1,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    input_image_size: jax.Array | None = None,
    out_stride: int | Sequence[int] = 1,
    name: str | None = None,
) -> sequences.Sequence:
    """Return the windows of a channels-first image as words; see `penstock.layers.im2sequence`.

    Arguments:
      input: `[B, C, H, W]`.
      padding: a number, `[vertical, horizontal]` or `[top, left, bottom, right]`.
      input_image_size: must be None, as all images of a batch have one size.
      out_stride: must be 1, as it belongs to `input_image_size`.

    Returns:
      A sequence `[B, rows * columns, C * h * w]`; the features are in the order of channel, row
      and column.

    Raises:
      ProgramError: `input_image_size` or `out_stride` is given.

    >>> import jax.numpy as jnp
    >>> im2sequence(jnp.ones([1, 1, 2, 3]), filter_size=2, padding=[0, 1, 0, 0]).values.shape
    (1, 3, 4)
    """
    if input_image_size is not None or out_stride not in (1, [1, 1], (1, 1)):
        raise ProgramError(
            f"fluid.layers.im2sequence got out_stride={out_stride!r} and an input_image_size of "
            f"{type(input_image_size).__name__}, expected 1 and None. All images of a batch have "
            "one size. Leave both out, and cut the sequence with layers.sequence_slice."
        )
    if isinstance(padding, int) or len(padding) != 4:
        sides: int | Sequence[int] | Sequence[Sequence[int]] = padding
    else:
        top, left, bottom, right = padding
        sides = [(top, bottom), (left, right)]
    return layers.im2sequence(input, filter_size, stride, sides, name=name, data_format="NCHW")
