"""Layers whose defaults or arguments differ in Fluid; `fluid.layers` offers them.

`use_cudnn`, `is_sparse` and `is_distributed` are accepted and change nothing: XLA chooses the
kernels, and they never changed values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import jax
import numpy as np
from jax.typing import DTypeLike

from penstock import layers
from penstock._errors import ProgramError
from penstock._program import sequences
from penstock.fluid import sequence_moves
from penstock.layers.activations import Activation
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


Sizes = int | Sequence[int]

_ONLY_IN_FLUID = {"use_cudnn", "is_test", "data_layout"}


def shared(arguments: dict[str, Any], **others: Any) -> dict[str, Any]:
    """Return those of a layer's arguments that penstock's has too, and others."""
    return {name: x for name, x in arguments.items() if name not in _ONLY_IN_FLUID} | others


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
    if not isinstance(is_distributed, bool):
        raise TypeError(
            f"fluid.layers.embedding got is_distributed={is_distributed!r}, expected True or "
            "False. Fluid's order is input, size, is_sparse, is_distributed, padding_idx. Pass "
            "padding_idx by its name."
        )
    if np.dtype(dtype) != np.float32:
        raise ProgramError(
            f"fluid.layers.embedding got dtype={dtype!r}, expected float32. Parameters are float32 "
            'whatever the products are computed in. Use Trainer(..., precision="bfloat16") for '
            "those."
        )
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
