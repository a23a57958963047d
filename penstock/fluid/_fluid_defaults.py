"""Layers whose defaults or arguments differ in Fluid, and its arithmetic; `fluid.layers` has them.

`use_cudnn`, `is_sparse` and `is_distributed` are accepted and change nothing: XLA chooses the
kernels, and they never changed values.

Arithmetic is for scripts that call it by name; new code writes `x + y`. In `elementwise_*` the axes
of `y` are consecutive axes of `x`: they begin at `axis`, or end with those of `x` by default. Axes
of size 1 at the end of `y` do not count. Unlike numpy's broadcasting, `x` is never made larger.

Of sequences every word is a row, as in Fluid, and so the first axis: `y` is a sequence of the same
lengths, `[B, ...]` with `axis=0`, a vector an example for all of its words, or features of a word.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.dtypes import canonicalize_dtype
from jax.typing import DTypeLike

from penstock import layers
from penstock._errors import ProgramError, check_choice, check_type
from penstock._program import sequences
from penstock._program.frame import V, over_words, spread
from penstock.fluid import sequence_moves
from penstock.layers.activations import Activation, activate
from penstock.layers.dropout import DropoutImplementation
from penstock.layers.parameters import Attr


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

    >>> def program():
    ...     words = fluid.layers.data(name="words", shape=[1], dtype="int64", lod_level=1)
    ...     return fluid.layers.sequence_pool(words, "last")
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> words = fluid.create_lod_tensor([[3, 4, 5], [6]], [[3, 1]], fluid.CPUPlace())
    >>> builder.infer(builder.init(), {"words": words}).tolist()
    [[5], [6]]
    """
    order = "Fluid's order is name, shape, append_batch_size, dtype. Pass dtype by name."
    thing = f"fluid.layers.data {name!r} got append_batch_size="
    check_type(thing, append_batch_size, bool, f"True or False. {order}")
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


Sizes = int | Sequence[int]

_ONLY_IN_FLUID = {"use_cudnn", "is_test", "data_layout"}


def shared(arguments: dict[str, Any], **extra: Any) -> dict[str, Any]:
    """Return those of a layer's arguments that penstock's has too, and others."""
    return {name: x for name, x in arguments.items() if name not in _ONLY_IN_FLUID} | extra


def conv2d(
    input: jax.Array,
    num_filters: int,
    filter_size: Sizes,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int | None = None,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    use_cudnn: bool = True,
    act: Activation | None = None,
    name: str | None = None,
) -> jax.Array:
    """Apply a two-dimensional convolution to channels-first images.

    See `penstock.layers.conv2d`; kernels are `[height, width, C / groups, num_filters]` here too.

    Arguments:
      input: `[B, C, H, W]`.

    Returns:
      `[B, num_filters, H', W']`.

    >>> def program():
    ...     return fluid.layers.conv2d(fluid.layers.data("image", [1, 8, 8]), 4, filter_size=5)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"image": [[[[0.0] * 8] * 8]]}).shape
    (1, 4, 4, 4)
    """
    return layers.conv2d(**shared(locals(), groups=groups or 1, data_format="NCHW"))


def conv2d_transpose(
    input: jax.Array,
    num_filters: int,
    output_size: Sizes | None = None,
    filter_size: Sizes | None = None,
    padding: Sizes = 0,
    stride: Sizes = 1,
    dilation: Sizes = 1,
    groups: int | None = None,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    use_cudnn: bool = True,
    act: Activation | None = None,
    name: str | None = None,
) -> jax.Array:
    """Apply a two-dimensional transposed convolution to channels-first images.

    See `penstock.layers.conv2d_transpose`.

    Arguments:
      input: `[B, C, H, W]`.

    Returns:
      `[B, num_filters, H', W']`.

    >>> def program():
    ...     image = fluid.layers.data(name="image", shape=[1, 4, 4])
    ...     return fluid.layers.conv2d_transpose(image, 3, filter_size=2, stride=2)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"image": [[[[0.0] * 4] * 4]]}).shape
    (1, 3, 8, 8)
    """
    return layers.conv2d_transpose(**shared(locals(), groups=groups or 1, data_format="NCHW"))


def pool2d(
    input: jax.Array,
    pool_size: Sizes = -1,
    pool_type: Literal["max", "avg"] = "max",
    pool_stride: Sizes = 1,
    pool_padding: Sizes = 0,
    global_pooling: bool = False,
    use_cudnn: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
    exclusive: bool = True,
) -> jax.Array:
    """Pool windows of channels-first images; see `penstock.layers.pool2d`.

    Arguments:
      input: `[B, C, H, W]`.

    Returns:
      `[B, C, H', W']`.

    >>> pool2d(jnp.arange(16.0).reshape(1, 1, 4, 4), pool_size=2, pool_stride=2).tolist()
    [[[[5.0, 7.0], [13.0, 15.0]]]]
    """
    del name
    return layers.pool2d(**shared(locals(), data_format="NCHW"))


def batch_norm(
    input: jax.Array,
    act: Activation | None = None,
    is_test: bool = False,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    data_layout: Literal["NCHW", "NHWC"] = "NCHW",
    name: str | None = None,
    use_global_stats: bool = False,
) -> jax.Array:
    """Normalise each channel over the batch; see `penstock.layers.batch_norm`.

    Arguments:
      input: `[B, C]`, `[B, C, H, W]`, any `[B, C, ...]`.
      is_test: use the running statistics in training too, like `use_global_stats`. The test and
        infer programs always do.

    Returns:
      The input's shape.

    >>> def program():
    ...     return fluid.layers.batch_norm(fluid.layers.data(name="image", shape=[3, 8, 8]))
    >>> params = ps.ProgramBuilder(infer_func=program).init().variables["params"]
    >>> params["batch_norm_0"]["scale"].shape
    (3,)
    """
    use_global_stats = is_test or use_global_stats
    return layers.batch_norm(**shared(locals(), data_format=data_layout))


def group_norm(
    input: jax.Array,
    groups: int,
    epsilon: float = 1e-5,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    act: Activation | None = None,
    data_layout: Literal["NCHW", "NHWC"] = "NCHW",
    name: str | None = None,
) -> jax.Array:
    """Normalise each example's channels in groups; see `penstock.layers.group_norm`.

    Arguments:
      input: `[B, C, H, W]`.

    Returns:
      The input's shape.

    >>> def program():
    ...     return fluid.layers.group_norm(fluid.layers.data("image", [4, 8, 8]), groups=2)
    >>> params = ps.ProgramBuilder(infer_func=program).init().variables["params"]
    >>> params["group_norm_0"]["scale"].shape
    (4,)
    """
    return layers.group_norm(**shared(locals(), data_format=data_layout))


def lrn(
    input: jax.Array,
    n: int = 5,
    k: float = 1.0,
    alpha: float = 1e-4,
    beta: float = 0.75,
    name: str | None = None,
    data_format: Literal["NCHW", "NHWC"] = "NCHW",
) -> jax.Array:
    """Apply local response normalization across channels; see `penstock.layers.lrn`.

    Arguments:
      input: `[B, C, H, W]`.

    Returns:
      The input's shape.

    >>> lrn(jnp.array([[[[3.0]], [[4.0]]]]), n=3, k=11.0, alpha=1.0, beta=0.5).tolist()
    [[[[0.5]], [[0.66...]]]]
    """
    return layers.lrn(input, n, k, alpha, beta, data_format=data_format)


def pad2d(
    input: jax.Array,
    paddings: Sequence[int] = (0, 0, 0, 0),
    mode: Literal["constant", "reflect", "edge"] = "constant",
    pad_value: float = 0.0,
    data_format: Literal["NCHW", "NHWC"] = "NCHW",
    name: str | None = None,
) -> jax.Array:
    """Pad channels-first images; see `penstock.layers.pad2d`.

    Arguments:
      input: `[B, C, H, W]`.
      paddings: `[top, bottom, left, right]` in pixels.

    Returns:
      `[B, C, top + H + bottom, left + W + right]`.

    >>> pad2d(jnp.ones([1, 3, 2, 2]), [0, 1, 2, 0]).shape
    (1, 3, 3, 4)
    """
    return layers.pad2d(input, paddings, mode, pad_value, data_format)


def dropout(
    x: jax.Array,
    dropout_prob: float,
    is_test: bool = False,
    *,
    name: str | None = None,
    dropout_implementation: DropoutImplementation = "downgrade_in_infer",
) -> jax.Array:
    """Set elements to zero at random; by default test and infer multiply by `1 - dropout_prob`.

    See `penstock.layers.dropout`, whose default is the other implementation. The seed is the
    Trainer's.

    Arguments:
      x: `[B, ...]`.
      is_test: in training, do what the test program does.

    Returns:
      The input's shape and dtype.

    >>> def program():
    ...     return fluid.layers.dropout(fluid.layers.data(name="x", shape=[2]), 0.5)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"x": [[1.0, 2.0]]}).tolist()
    [[0.5, 1.0]]
    """
    if is_test:
        # What the test program does: only one of the two leaves the values as they are.
        return x if dropout_implementation == "upscale_in_train" else x * (1.0 - dropout_prob)
    return layers.dropout(x, dropout_prob, name=name, dropout_implementation=dropout_implementation)


def embedding(
    input: jax.Array,
    size: Sequence[int],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Attr = None,
    dtype: DTypeLike = "float32",
    *,
    name: str | None = None,
) -> jax.Array:
    """Look up rows of a table; see `penstock.layers.embedding`.

    Arguments:
      input: integer ids, `[B, ...]`; a last axis of size 1 is dropped.
      size: `[vocabulary, width]`.
      is_distributed: has no effect: there is no parameter server.
      dtype: float32, as for every parameter.

    Returns:
      `[B, ..., width]`.

    >>> def program():
    ...     word = fluid.layers.data(name="word", shape=[1], dtype="int64")
    ...     return fluid.layers.embedding(word, size=[100, 16], param_attr="shared_w")
    >>> ps.ProgramBuilder(infer_func=program).init().variables["params"]["shared_w"].shape
    (100, 16)
    """
    order = "Fluid's order is input, size, is_sparse, is_distributed, padding_idx."
    expected = f"True or False. {order} Pass padding_idx by its name."
    check_type("fluid.layers.embedding got is_distributed=", is_distributed, bool, expected)
    why = 'Parameters are. Use Trainer(..., precision="bfloat16") for products in another.'
    check_choice("fluid.layers.embedding got dtype=", np.dtype(dtype).name, ["float32"], why)
    return layers.embedding(input, size, padding_idx, param_attr, name)


def sequence_softmax(
    input: sequences.Sequence, use_cudnn: bool = False, name: str | None = None
) -> sequences.Sequence:
    """Return the softmax over the words of each sequence; see `penstock.layers.sequence_softmax`.

    `use_cudnn` has no effect.

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
    return sequence_moves.im2sequence(input, filter_size, stride, sides, name, data_format="NCHW")


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
            "fluid.layers.sums got out, expected none. No array is written to. Use what it returns."
        )
    inputs: Any = list(input) if isinstance(input, list | tuple) else [input]
    if sequences.Sequence in map(type, inputs):
        return over_words(lambda *rows: sums(list(rows)), *inputs)
    arrays = [jnp.asarray(x) for x in inputs]
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
    result: Any = activate(_reshape(jnp.asarray(x), shape), act, "reshape")
    return result


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
            "sizes with the same product. 0 keeps a size of the array, one -1 is what others leave."
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
