"""Fluid's arithmetic as layers, for scripts that call it by name; new code writes `x + y`.

In `elementwise_*` the axes of `y` are consecutive axes of `x`: they begin at `axis`, or end with
those of `x` by default. Axes of size 1 at the end of `y` do not count. Unlike numpy's broadcasting,
`x` is never made larger.

Of sequences every word is a row, as in Fluid, and so the first axis: `y` is a sequence of the same
lengths, `[B, ...]` with `axis=0`, a vector an example for all of its words, or features of a word.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.dtypes import canonicalize_dtype
from jax.typing import DTypeLike

from penstock._errors import ProgramError
from penstock._program import sequences
from penstock._program.frame import V, over_words, spread
from penstock.layers.activations import Activation, activate

Array = jax.Array
Operand = jax.Array | sequences.Sequence | float
L = TypeVar("L")


def elementwise_add(
    x: V, y: Operand, axis: int = -1, act: Activation | None = None, name: str | None = None
) -> V:
    """Return `x + y`; `y` is broadcast against the axes of `x` that start at `axis`.

    Arguments:
      x: `[B, ...]`, or a sequence.
      y: an array whose axes match consecutive axes of `x`; a number; or a sequence.
      axis: the axis of `x` that matches the first axis of `y`; -1 aligns the last axes.

    Returns:
      The shape of `x`.

    Raises:
      ProgramError: the sizes of the axes differ.

    >>> elementwise_add(jnp.zeros([2, 3]), jnp.array([1.0, 2.0]), axis=0).tolist()
    [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]
    """
    return _apply("elementwise_add", jnp.add, x, y, axis, act)


def _divide(x: Array, y: Array) -> Array:
    if jnp.issubdtype(x.dtype, jnp.integer) and jnp.issubdtype(y.dtype, jnp.integer):
        # `lax.div` cuts towards zero, as C does; `//` would round down.
        return jax.lax.div(x, jnp.broadcast_to(y, x.shape).astype(x.dtype))
    return jnp.divide(x, y)


def _like(add: L, layer: str, function: Callable[[Array, Array], Array], returned: str) -> L:
    """Return a layer with the arguments of another."""

    def apply(
        x: V, y: Operand, axis: int = -1, act: Activation | None = None, name: str | None = None
    ) -> V:
        return _apply(layer, function, x, y, axis, act)

    apply.__name__ = apply.__qualname__ = layer
    apply.__doc__ = f"Return {returned}; see `elementwise_add`."
    made: Any = apply
    return made


elementwise_sub = _like(elementwise_add, "elementwise_sub", jnp.subtract, "`x - y`")
elementwise_mul = _like(elementwise_add, "elementwise_mul", jnp.multiply, "`x * y`")
elementwise_div = _like(
    elementwise_add, "elementwise_div", _divide, "`x / y`, rounded towards zero for integers"
)
elementwise_max = _like(elementwise_add, "elementwise_max", jnp.maximum, "the larger of both")
elementwise_min = _like(elementwise_add, "elementwise_min", jnp.minimum, "the smaller of both")
elementwise_pow = _like(elementwise_add, "elementwise_pow", jnp.power, "`x` to the power of `y`")


def scale(
    x: V,
    scale: Array | float = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
    act: Activation | None = None,
    name: str | None = None,
) -> V:
    """Return `scale * x + bias`, or `scale * (x + bias)`.

    Arguments:
      x: `[B, ...]`, or a sequence.
      bias_after_scale: whether `bias` is added after scaling.

    Returns:
      The shape and dtype of `x`.

    >>> scale(jnp.array([1.0, 2.0]), scale=3.0, bias=1.0).tolist()
    [4.0, 7.0]
    """

    def apply(rows: Array) -> Array:
        rows = jnp.asarray(rows)
        total = scale * rows + bias if bias_after_scale else scale * (rows + bias)
        # A scale of float does not make floats of integers.
        return activate(total.astype(rows.dtype), act, "scale")

    return over_words(apply, x)


def cast(x: V, dtype: DTypeLike) -> V:
    """Return `x` in another dtype; `int64` becomes `int32` unless JAX's x64 mode is on.

    >>> cast(jnp.array([1.5, 2.0]), "int64").tolist()
    [1, 2]
    """
    return over_words(lambda rows: jnp.asarray(rows).astype(canonicalize_dtype(dtype)), x)


def sums(input: V | Sequence[V], out: None = None) -> V:
    """Return the sum of arrays of one shape, or of sequences of equal lengths.

    Arguments:
      input: a list of arrays or sequences, or a single one.
      out: Fluid's output variable; not supported, leave it out.

    Raises:
      ProgramError: the shapes differ, the list is empty, or `out` is given.

    >>> sums([jnp.ones([2]), jnp.ones([2]), jnp.ones([2])]).tolist()
    [3.0, 3.0]
    """
    if out is not None:
        raise ProgramError(
            "fluid.layers.sums got out, expected none. Arrays are never written to. Use what sums "
            "returns."
        )
    given: Any = list(input) if isinstance(input, list | tuple) else [input]
    if sequences.Sequence in map(type, given):
        return over_words(lambda *rows: sums(list(rows)), *given)
    arrays = [jnp.asarray(x) for x in given]
    shapes = [x.shape for x in arrays]
    if len(set(shapes)) != 1:
        raise ProgramError(
            f"fluid.layers.sums got arrays of shapes {shapes}, expected one shape. It adds them "
            "element by element. Use elementwise_add where one is smaller."
        )
    total: Any = functools.reduce(jnp.add, arrays)
    return total


def reshape(
    x: V,
    shape: Sequence[int],
    actual_shape: None = None,
    act: Activation | None = None,
    inplace: bool = True,
    name: str | None = None,
) -> V:
    """Return `x` in another shape.

    Arguments:
      x: `[B, ...]`, or a sequence, whose number of words must stay the same.
      shape: the new sizes, the batch axis first. 0 keeps the size of `x` at that position, and a
        single -1 is inferred from the others. Begin with 0 or -1.
      actual_shape: Fluid's dynamic shape; not supported, as programs have static shapes.
      inplace: has no effect.

    Raises:
      ProgramError: the sizes do not fit those of `x`, or `actual_shape` is given.

    >>> reshape(jnp.zeros([5, 4, 6]), shape=[0, -1, 3]).shape
    (5, 8, 3)
    """
    if actual_shape is not None:
        raise ProgramError(
            "fluid.layers.reshape got actual_shape, expected none. Programs have static shapes. "
            "Give the sizes in shape, with -1 for the one that follows from the others."
        )
    if isinstance(x, sequences.Sequence):
        return over_words(lambda rows: _reshape_words(rows, shape, act), x)
    found: Any = activate(_reshape(jnp.asarray(x), shape), act, "reshape")
    return found


def _reshape_words(rows: Array, shape: Sequence[int], act: Activation | None) -> Array:
    reshaped = _reshape(rows, shape)
    if reshaped.shape[:1] != rows.shape[:1]:
        raise ProgramError(
            f"fluid.layers.reshape got shape {list(shape)} for words of shape {rows.shape[1:]}, "
            "expected sizes that leave as many words. Their number is the length of a sequence. "
            "Use sequence_reshape, which changes the lengths too."
        )
    return activate(reshaped, act, "reshape")


def _reshape(x: Array, shape: Sequence[int]) -> Array:
    sizes = list(shape)
    try:
        return x.reshape([size or x.shape[number] for number, size in enumerate(sizes)])
    # A 0 beyond the axes of `x` has no size to keep; or the product of the sizes is not that of x.
    except (IndexError, TypeError) as error:
        raise ProgramError(
            f"fluid.layers.reshape got shape {sizes} for an array of shape {x.shape}, expected "
            "sizes with the same product. 0 keeps a size of the array, and one -1 is what the "
            "others leave."
        ) from error


def _apply(
    layer: str,
    function: Callable[[Array, Array], Array],
    x: Any,
    y: Any,
    axis: int,
    act: Activation | None,
) -> Any:
    if sequences.Sequence in (type(x), type(y)):
        if not isinstance(y, sequences.Sequence):
            y, num_axes = jnp.asarray(y), x.values.ndim - 1
            # Features of a word may be as many as there are examples, and are no vector an example.
            if num_axes - y.ndim if axis == -1 else axis:
                return over_words(lambda rows: _apply(layer, function, rows, y, axis, act), x)
            y = y.reshape(*y.shape, *[1] * (num_axes - y.ndim))
        return over_words(lambda x, y: _apply(layer, function, x, y, axis, act), x, y)
    x, y = jnp.asarray(x), jnp.asarray(y)
    start = x.ndim - y.ndim if axis == -1 else axis
    sizes = list(y.shape)
    # So that `[B, 1]` pairs with `[B]` at axis 0.
    while sizes and sizes[-1] == 1:
        sizes.pop()
    if not 0 <= start <= x.ndim or tuple(sizes) != x.shape[start : start + len(sizes)]:
        raise ProgramError(
            f"fluid.layers.{layer} got x of shape {x.shape}, y of shape {y.shape} and axis={axis}, "
            "expected the shape of y among the axes of x, from axis on. Only y is repeated. Choose "
            "another axis, or use the operators of jax.numpy."
        )
    shape = [1] * start + sizes + [1] * (x.ndim - start - len(sizes))
    y = y.reshape(shape)
    return activate(function(x, spread(y, x) if y.dtype == x.dtype else y), act, layer)
