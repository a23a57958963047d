"""What a program function reads: fed data, the mode, what flax modules sow."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, ParamSpec, TypeVar, overload

import jax
import numpy as np
from jax import dtypes
from jax.typing import DTypeLike

from penstock._errors import ProgramError, check_choice
from penstock._program import sequences
from penstock._program.frame import check_name, current_frame
from penstock._program.inputs import Fed, FeedSpec

P = ParamSpec("P")
R = TypeVar("R")


@overload
def data(
    name: str, shape: Sequence[int], dtype: DTypeLike = "float32", lod_level: Literal[0] = 0
) -> jax.Array: ...


@overload
def data(
    name: str,
    shape: Sequence[int],
    dtype: DTypeLike = "float32",
    *,
    lod_level: Literal[1],
    buckets: Sequence[int] = (),
) -> sequences.Sequence: ...


@overload
def data(
    name: str,
    shape: Sequence[int],
    dtype: DTypeLike = "float32",
    *,
    lod_level: Literal[2],
    buckets: Sequence[int] = (),
) -> sequences.NestedSequence: ...


def data(
    name: str,
    shape: Sequence[int],
    dtype: DTypeLike = "float32",
    lod_level: int = 0,
    buckets: Sequence[int] = (),
) -> Fed:
    """Declare an input and return its value.

    Feeds are checked against the declaration on the host, before anything runs. A flat sample is
    reshaped to the declared shape, a scalar label to `[1]`. Declaring the same input twice gives
    the same array. Source: Fluid's `layers.data`.

    The elements of a sequence are called words. Sequences (`lod_level=1`) are fed in one of three
    forms: a list of arrays or lists of any length; a `ps.Sequence`; or a padded array under the
    input's name, with the lengths under `{name}_length`. They are padded to the smallest bucket
    that holds the longest sequence of the batch. A program is compiled once for each bucket.

    Arguments:
      name: the name in feeds and in `feed_order`.
      shape: the shape of one example, without the batch axis. For sequences, the shape of one
        word.
      dtype: a numpy dtype or its name. `int64` becomes `int32` unless JAX's x64 mode is on.
        `uint8` data fed to a floating input is copied to the device as bytes and cast there.
      lod_level: 0 for arrays, 1 for sequences, 2 for sequences of sequences. The last are fed as
        lists of lists of arrays, or as a `ps.NestedSequence`.
      buckets: the lengths that sequences are padded to; by default powers of two, starting at 16.
        See `penstock.readers.learn_buckets`.

    Returns:
      An array `[B, *shape]`; with `lod_level=1` a `ps.Sequence` with values `[B, T, *shape]`; with
      `lod_level=2` a `ps.NestedSequence` with values `[B, K, T, *shape]`.

    >>> builder = ps.ProgramBuilder(infer_func=lambda: 2 * layers.data("x", shape=[2]))
    >>> builder.infer(builder.init(), {"x": [[1.0, 2.0]]}).tolist()
    [[2.0, 4.0]]
    """
    frame = current_frame("data")
    check_name("layers.data", name)
    is_sequence = isinstance(shape, Sequence) and not isinstance(shape, str)
    for size in shape if is_sequence else [None]:
        if not isinstance(size, (int, np.integer)) or size < 1:
            raise ProgramError(
                f"layers.data {name!r} got shape {shape!r}, expected a sequence of positive sizes "
                "without the batch axis, e.g. [28, 28, 1]. Programs have static shapes. Declare "
                "sequences of several lengths by the shape of one word and lod_level=1."
            )
    if lod_level or buckets:
        _check_sequence(name, lod_level, buckets)
    spec = FeedSpec(
        name=name,
        shape=tuple(map(int, shape)),
        dtype=np.dtype(dtypes.canonicalize_dtype(dtype)),
        lod_level=lod_level,
        buckets=tuple(buckets),
    )
    return frame.input(spec)


def _check_sequence(name: str, lod_level: int, buckets: Sequence[int]) -> None:
    why = "1 is for sequences, 2 for sequences of them. Flatten others in the reader."
    check_choice(f"layers.data {name!r} got lod_level=", lod_level, (0, 1, 2), why)
    is_rising = all(
        isinstance(b, (int, np.integer)) and b > a
        for a, b in zip((0, *buckets), buckets, strict=False)
    )
    if not is_rising or not lod_level:
        raise ProgramError(
            f"layers.data {name!r} got buckets={buckets!r} and lod_level={lod_level}, expected "
            "rising positive lengths such as [16, 32, 64], with a lod_level. They are what "
            "sequences are padded to. Leave them out for powers of two."
        )


def is_training() -> bool:
    """Return whether the program being built is the train program.

    Parameters that exist only in training must not change the automatic names of others. Create
    them last, name them, or put them in a `scope`. The builder checks this.

    >>> def program():
    ...     x = layers.data("x", shape=[2])
    ...     return x * 0 if layers.is_training() else x
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"x": [[1.0, 2.0]]}).tolist()
    [[1.0, 2.0]]
    """
    return current_frame("is_training").is_training


def global_step() -> jax.Array:
    """Return the number of training steps done so far, an int32 scalar; 0 in test and infer.

    Use it for values that change during training, such as a drop path rate that grows.

    >>> def program():
    ...     return layers.data("x", shape=[1]) + layers.global_step()
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"x": [[5.0]]}).tolist()
    [[5.0]]
    """
    return current_frame("global_step").global_step


def sown(collection: str = "intermediates") -> dict[str, Any]:
    """Return what flax modules have sown so far in this run, nested by module, in tuples.

    Use it for auxiliary losses and for intermediate values that you want to see. If a module sows
    into a collection that the program function never reads with `sown`, that is an error: the
    values would be lost. Sown values do not carry over to the next step.

    >>> from flax import linen as nn
    >>> class Doubled(nn.Module):
    ...     @nn.compact
    ...     def __call__(self, x):
    ...         self.sow("intermediates", "before", x)
    ...         return 2 * x
    >>> def program():
    ...     y = Doubled(name="doubled")(layers.data("x", shape=[1]))
    ...     return {"y": y, "before": layers.sown()["doubled"]["before"][0]}
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"x": [[3.0]]})["before"].tolist()
    [[3.0]]
    """
    frame = current_frame("sown")
    frame.sown.add(collection)
    assert frame.module is not None
    # A copy: the module goes on adding to its own.
    return jax.tree.map(lambda x: x, dict(frame.module.variables.get(collection, {})))


def scope(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Wrap a function to put the parameters and layers that it creates under `name`.

    If the wrapped function is called twice in one program, both calls share its parameters. So do
    two functions that are wrapped with the same name in the same scope. Scopes can be nested. The
    `updates` of an `Objective` can name scopes.

    >>> @layers.scope("encoder")
    ... def encode(x):
    ...     return layers.fc(x, size=3)
    >>> def program():
    ...     return encode(layers.data("a", [2])) + encode(layers.data("b", [2]))
    >>> params = ps.ProgramBuilder(infer_func=program).init().variables["params"]
    >>> {name: w.shape for name, w in params["encoder"]["fc_0"].items()}
    {'b': (3,), 'w': (2, 3)}
    """

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def scoped(*args: P.args, **kwargs: P.kwargs) -> R:
            frame = current_frame("scope")
            return frame.names.run_scope(name, lambda: function(*args, **kwargs))

        return scoped

    return wrap
