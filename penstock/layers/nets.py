"""Small compositions of layers: Fluid's (`fluid.nets`), and squeeze and excite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp

from penstock._errors import ProgramError
from penstock._program import sequences
from penstock._program.frame import current_frame, spread
from penstock.layers import arguments
from penstock.layers._attending import Words, mix_values, open_words
from penstock.layers.activations import Activation, activate
from penstock.layers.arguments import DataFormat, Padding, check_divisor, check_shape
from penstock.layers.attention import check_operands
from penstock.layers.conv import conv2d
from penstock.layers.dense import fc
from penstock.layers.dropout import DropoutImplementation, dropout
from penstock.layers.initializers import XAVIER
from penstock.layers.norm import batch_norm
from penstock.layers.parameters import Attr, add_to_name, apply_shift, parameter
from penstock.layers.pool import pool2d
from penstock.layers.sequence_layers import PoolType, sequence_conv, sequence_pool


def simple_img_conv_pool(
    input: jax.Array,
    num_filters: int,
    filter_size: int | Sequence[int],
    pool_size: int | Sequence[int],
    pool_stride: int | Sequence[int],
    pool_padding: Padding = 0,
    pool_type: Literal["max", "avg"] = "max",
    global_pooling: bool = False,
    conv_stride: int | Sequence[int] = 1,
    conv_padding: Padding = 0,
    conv_dilation: int | Sequence[int] = 1,
    conv_groups: int = 1,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    act: Activation | None = None,
    name: str | None = None,
    data_format: DataFormat = "NHWC",
) -> jax.Array:
    """Apply `conv2d`, then `pool2d`. Source: Fluid's `simple_img_conv_pool`.

    The parameters are those of a `conv2d` called `name`. For the arguments see `conv2d` and
    `pool2d`. `act` is applied before the pooling.

    Arguments:
      input: `[B, H, W, C]`, or `[B, C, H, W]` with `data_format="NCHW"`.

    Returns:
      `[B, H', W', num_filters]`, in the input's layout.

    >>> def program():
    ...     image = layers.data("image", shape=[8, 8, 1])
    ...     return layers.simple_img_conv_pool(image, 20, 3, pool_size=2, pool_stride=2, act="relu")
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"image": [[[[0.0]] * 8] * 8]}).shape
    (1, 3, 3, 20)
    """
    how = (conv_stride, conv_padding, conv_dilation, conv_groups, param_attr, bias_attr)
    x = conv2d(input, num_filters, filter_size, *how, act, name, data_format)
    return pool2d(
        x, pool_size, pool_type, pool_stride, pool_padding, global_pooling, data_format=data_format
    )


def img_conv_group(
    input: jax.Array,
    conv_num_filter: Sequence[int],
    pool_size: int | Sequence[int],
    conv_padding: int | Sequence[Padding] = 1,
    conv_filter_size: int | Sequence[int | Sequence[int]] = 3,
    conv_act: Activation | None = None,
    param_attr: Attr | Sequence[Attr] = None,
    conv_with_batchnorm: bool | Sequence[bool] = False,
    conv_batchnorm_drop_rate: float | Sequence[float] = 0.0,
    pool_stride: int | Sequence[int] = 1,
    pool_type: Literal["max", "avg"] = "max",
    name: str | None = None,
    data_format: DataFormat = "NHWC",
    dropout_implementation: DropoutImplementation = "upscale_in_train",
) -> jax.Array:
    """Apply several `conv2d`, each with optional batch norm and dropout, then one `pool2d`.

    `conv_act` is applied after the batch norm if there is one. Dropout is applied only after a
    batch norm. Source: Fluid's `img_conv_group`, the block of VGG.

    Arguments:
      input: `[B, H, W, C]`, or `[B, C, H, W]` with `data_format="NCHW"`.
      conv_num_filter: the number of filters of each convolution. `conv_padding`,
        `conv_filter_size`, `param_attr`, `conv_with_batchnorm` and `conv_batchnorm_drop_rate` can
        also be lists, with a value for each convolution.
      dropout_implementation: see `dropout`.
      name: the layers are called `{name}_conv2d_0`, `{name}_batch_norm_0` and so on.

    Returns:
      `[B, H', W', conv_num_filter[-1]]`, in the input's layout.

    >>> def program():
    ...     image = layers.data("image", shape=[8, 8, 3])
    ...     return layers.img_conv_group(image, [4, 4], pool_size=2, pool_stride=2, conv_act="relu")
    >>> sorted(ps.ProgramBuilder(infer_func=program).init().variables["params"])
    ['conv2d_0', 'conv2d_1']
    """
    if not isinstance(conv_num_filter, (list, tuple)) or not conv_num_filter:
        raise ProgramError(
            f"layers.img_conv_group got conv_num_filter={conv_num_filter!r}, expected a list. Its "
            "length is the number of convolutions. Give one number of filters for each."
        )
    options = {
        "conv_num_filter": conv_num_filter,
        "conv_padding": conv_padding,
        "conv_filter_size": conv_filter_size,
        "param_attr": param_attr,
        "conv_with_batchnorm": conv_with_batchnorm,
        "conv_batchnorm_drop_rate": conv_batchnorm_drop_rate,
    }
    convolutions = _list_options(len(conv_num_filter), options)
    x = input
    for i, (num_filters, padding, size, attr, is_normed, rate) in enumerate(convolutions):
        # The activation comes after the normalisation, where there is one.
        act, own = None if is_normed else conv_act, _child(name, f"conv2d_{i}")
        x = conv2d(
            x, num_filters, size, 1, padding, 1, 1, attr, act=act, name=own, data_format=data_format
        )
        if is_normed:
            own = _child(name, f"batch_norm_{i}")
            x = batch_norm(x, conv_act, name=own, data_format=data_format)
            # Inside, as in Fluid: without a batch norm the rate is not looked at.
            own = _child(name, f"dropout_{i}")
            x = dropout(x, rate, own, dropout_implementation) if rate else x
    return pool2d(x, pool_size, pool_type, pool_stride, data_format=data_format)


def sequence_conv_pool(
    input: sequences.Sequence,
    num_filters: int,
    filter_size: int,
    param_attr: Attr = None,
    act: Activation | None = "sigmoid",
    pool_type: PoolType = "max",
    bias_attr: Attr = None,
    name: str | None = None,
) -> jax.Array:
    """Apply `sequence_conv`, then `sequence_pool`. Source: Fluid's `sequence_conv_pool`.

    The parameters are those of a `sequence_conv` called `name`. For the arguments see
    `sequence_conv` and `sequence_pool`. `act` is applied before the pooling.

    Arguments:
      input: values `[B, T, D]`.

    Returns:
      `[B, num_filters]`.

    >>> def program():
    ...     words = layers.data("words", shape=[8], lod_level=1)
    ...     return layers.sequence_conv_pool(words, 20, 3, act="tanh", pool_type="sqrt")
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"words": [jnp.ones([2, 8]), jnp.ones([5, 8])]}).shape
    (2, 20)
    """
    words = sequence_conv(
        input, num_filters, filter_size, param_attr=param_attr, bias_attr=bias_attr, act=act,
        name=name,
    )  # fmt: skip
    return sequence_pool(words, pool_type)


def glu(input: jax.Array, dim: int = -1) -> jax.Array:
    """Return `a * sigmoid(b)` for the halves `a` and `b` along `dim` (Dauphin et al. 2017).

    Source: Fluid's `glu`.

    >>> glu(jnp.array([[3.0, 0.0]])).tolist()
    [[1.5]]
    """
    x = jnp.asarray(input)
    if not -x.ndim <= dim < x.ndim or x.shape[dim] % 2:
        raise ProgramError(
            f"layers.glu got dim={dim} and an input of shape {x.shape}, expected an axis of even "
            "size. One half gates the other. Make it twice as wide, e.g. with layers.fc."
        )
    a, b = jnp.split(x, 2, axis=dim)
    return a * jax.nn.sigmoid(b)


def scaled_dot_product_attention(
    queries: Words,
    keys: sequences.Sequence | jax.Array,
    values: sequences.Sequence | jax.Array,
    num_heads: int = 1,
    dropout_rate: float = 0.0,
    name: str | None = None,
) -> Words:
    """Apply scaled dot-product attention (Vaswani et al. 2017).

    With several heads, and only then, queries, keys and values each go through an `fc` that keeps
    their width. In training, the attention weights are dropped with `dropout_rate`. Padding of
    sequences never counts. A query that is padding, or that has no key, gives 0. Source: Fluid's
    `scaled_dot_product_attention`, which applies dropout in test and infer too.

    Arguments:
      queries: an array `[B, Q, C]`, or a `Sequence` with such values. So are `keys` and `values`.
        Those of one example, `B` of 1, may be for all.
      keys: `[B, K, C]`. Keys and values are both arrays, or both sequences of the same lengths.
      values: `[B, K, V]`.
      num_heads: the number of heads, a divisor of C and V; a head has `C / num_heads` features.
      name: the layers are called `{name}_query`, `{name}_key`, `{name}_value` and `{name}_dropout`.

    Returns:
      `[B, Q, V]`, a sequence if `queries` is one.

    >>> def program():
    ...     x = layers.data("x", shape=[5, 8])
    ...     return layers.scaled_dot_product_attention(x, x, x, num_heads=2)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> sorted(builder.init().variables["params"])
    ['fc_0', 'fc_1', 'fc_2']
    """
    layer = "scaled_dot_product_attention"
    q, _ = open_words(layer, "queries", queries)
    k, key_words = open_words(layer, "keys", keys)
    v, value_words = open_words(layer, "values", values)
    check_operands(layer, q, k, v, key_words, value_words, may_share=True)
    why = "Queries [B, Q, C] are compared to keys [B, K, C], to mix values [B, K, V]."
    check_shape(f"layers.{layer} got keys", k, why, ["B", "K", q.shape[-1]])
    for width in (k.shape[-1], v.shape[-1]):
        check_divisor(f"layers.{layer} got num_heads=", num_heads, width, "Heads share the width.")
    if num_heads > 1:
        q = fc(q, q.shape[-1], num_flatten_dims=2, name=_child(name, "query"))
        k = fc(k, k.shape[-1], num_flatten_dims=2, name=_child(name, "key"))
        v = fc(v, v.shape[-1], num_flatten_dims=2, name=_child(name, "value"))
    q, k, v = (x.reshape(*x.shape[:2], num_heads, -1) for x in (q, k, v))

    def drop(weights: jax.Array) -> jax.Array:
        return dropout(weights, dropout_rate, name=_child(name, "dropout"))

    seen = None if key_words is None else key_words.mask[:, None]
    mixed = mix_values(q, k, v, seen, drop if dropout_rate else None)
    mixed = mixed.reshape(*mixed.shape[:2], -1)
    if key_words is not None and value_words is not None:
        mixed = jnp.where((key_words.lengths > 0)[:, None, None], mixed, 0)
        mixed = sequences.spoil_unequal(mixed, [key_words, value_words])
    if isinstance(queries, sequences.Sequence):
        lengths = jnp.broadcast_to(queries.lengths, mixed.shape[:1])
        words = sequences.Sequence(mixed, lengths)
        return cast(Words, words.with_values(words.masked()))
    return cast(Words, mixed)


def _list_options(count: int, options: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    columns = []
    for argument, value in options.items():
        column = list(value) if isinstance(value, (list, tuple)) else [value] * count
        if len(column) != count:
            raise ProgramError(
                f"layers.img_conv_group got {len(column)} values of {argument} for {count} "
                "convolutions, expected as many. A list gives one for each. Give one value for all."
            )
        columns.append(column)
    return list(zip(*columns, strict=True))


def _child(name: str | None, own: str) -> str | None:
    return None if name is None else f"{name}_{own}"


def squeeze_excite(
    input: jax.Array,
    num_squeezed: int,
    act: Activation | None = "relu",
    gate_act: Activation | Callable[[jax.Array], jax.Array] = "sigmoid",
    param_attr: Attr = None,
    bias_attr: Attr = None,
    name: str | None = None,
) -> jax.Array:
    """Multiply each channel by a gate computed from the means of all channels (Hu et al. 2018).

    Parameters: `squeeze/w` `[C, num_squeezed]` and `expand/w` `[num_squeezed, C]`, Xavier uniform,
    with biases `squeeze/b` and `expand/b`, zeros.

    Arguments:
      input: `[B, H, W, C]`.
      num_squeezed: the number of features between the two layers; a quarter of C is usual.
      act: name of the activation between the two layers.
      gate_act: name of the gate's activation, or a function.
      param_attr: for both weights; a name gets `_squeeze_w` and `_expand_w` behind it.
      bias_attr: for both biases; `False` leaves them out.

    Returns:
      The input's shape.

    >>> def program():
    ...     return layers.squeeze_excite(layers.data("image", [4, 4, 8]), num_squeezed=2)
    >>> params = ps.ProgramBuilder(infer_func=program).init().variables["params"]
    >>> params["squeeze_excite_0"]["squeeze"]["w"].shape
    (8, 2)
    """
    layer = "squeeze_excite"
    frame = current_frame(layer)
    x = jnp.asarray(input)
    channels, _ = arguments.check_image(layer, x, "NHWC")
    path = frame.names.layer(layer, name)

    def affine(y: jax.Array, part: str, size: int) -> jax.Array:
        own = (*path, part)
        attr = add_to_name(layer, "param_attr", param_attr, f"{part}_w")
        w = parameter(frame, own, "w", [y.shape[1], size], XAVIER, attr, layer=layer)
        y, w = frame.promote(y, w)
        attr = add_to_name(layer, "bias_attr", bias_attr, f"{part}_b")
        return apply_shift(frame, y @ w, own, attr, axis=-1, layer=layer, leaf="b")

    # `[B, C]`: others write the same sums as 1x1 convolutions.
    squeezed = activate(affine(jnp.mean(x, axis=(1, 2)), "squeeze", num_squeezed), act, layer)
    gate = affine(squeezed, "expand", channels)
    gate = gate_act(gate) if callable(gate_act) else activate(gate, gate_act, layer)
    return x * spread(gate[:, None, None, :], x)
