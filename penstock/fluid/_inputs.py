"""`fluid.layers.data`, whose arguments have another order than those of `penstock.layers.data`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from penstock import layers
from penstock._errors import ProgramError
from penstock.fluid._lod import check_lod_level


def data(
    name: str,
    shape: Sequence[int | None],
    append_batch_size: bool = True,
    dtype: Any = "float32",
    lod_level: int = 0,
    stop_gradient: bool = True,
) -> jax.Array:
    """Declare an input and return the array fed under its name; see `penstock.layers.data`.

    Arguments:
      name: the name in feeds and in `feed_order`.
      shape: the shape of one example. A first size of -1 or None is the batch axis itself.
      append_batch_size: `False` says that the shape begins with the batch axis.
      dtype: as numpy names it; `int64` becomes `int32` unless JAX's x64 mode is on.
      lod_level: 0; see the error.
      stop_gradient: changes nothing, as parameters alone have gradients.

    Returns:
      `[B, *shape]`, where `B` is this device's share of the batch.

    Raises:
      NotImplementedError: `lod_level` is not 0: there are no sequences of several lengths.

    >>> import penstock as ps, penstock.fluid as fluid
    >>> def program():
    ...     return fluid.layers.data(name="x", shape=[-1, 2], append_batch_size=False)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"x": [[1.0, 2.0]]}).tolist()
    [[1.0, 2.0]]
    """
    if not isinstance(append_batch_size, bool):
        raise TypeError(
            f"fluid.layers.data {name!r} got append_batch_size={append_batch_size!r}, expected "
            "True or False. Fluid's order is name, shape, append_batch_size, dtype. Pass dtype by "
            "its name."
        )
    check_lod_level(name, lod_level)
    sizes: Any = shape
    if isinstance(shape, list | tuple) and shape and shape[0] in (-1, None):
        sizes = list(shape[1:])
    elif not append_batch_size:
        raise ProgramError(
            f"fluid.layers.data {name!r} got shape {shape!r} with append_batch_size=False, "
            "expected -1 as its first size. Every input has a batch axis in front. Leave "
            "append_batch_size out where the shape is that of one example."
        )
    return layers.data(name, sizes, dtype)
