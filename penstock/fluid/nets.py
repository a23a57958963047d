"""`fluid.nets`: small compositions of layers; images are channels first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import jax

from penstock import layers
from penstock.fluid._fluid_defaults import Sizes, shared
from penstock.fluid._levels import on_last_level
from penstock.layers import glu as glu
from penstock.layers import scaled_dot_product_attention as scaled_dot_product_attention
from penstock.layers import transformer_decoder as transformer_decoder
from penstock.layers import transformer_encoder as transformer_encoder
from penstock.layers import transformer_encoder_layer as transformer_encoder_layer
from penstock.layers.activations import Activation
from penstock.layers.parameters import Attr

sequence_conv_pool = on_last_level(layers.sequence_conv_pool)


def simple_img_conv_pool(
    input: jax.Array,
    num_filters: int,
    filter_size: Sizes,
    pool_size: Sizes,
    pool_stride: Sizes,
    pool_padding: Sizes = 0,
    pool_type: Literal["max", "avg"] = "max",
    global_pooling: bool = False,
    conv_stride: Sizes = 1,
    conv_padding: Sizes = 0,
    conv_dilation: Sizes = 1,
    conv_groups: int = 1,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    act: Activation | None = None,
    use_cudnn: bool = True,
) -> jax.Array:
    """Apply `conv2d`, then `pool2d`, to channels-first images.

    See `penstock.layers.simple_img_conv_pool`; `use_cudnn` has no effect.

    Arguments:
      input: `[B, C, H, W]`.

    Returns:
      `[B, num_filters, H', W']`.

    >>> def program():
    ...     image = fluid.layers.data(name="image", shape=[1, 8, 8])
    ...     return fluid.nets.simple_img_conv_pool(image, 20, 3, pool_size=2, pool_stride=2)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"image": [[[[0.0] * 8] * 8]]}).shape
    (1, 20, 3, 3)
    """
    return layers.simple_img_conv_pool(**shared(locals(), data_format="NCHW"))


def img_conv_group(
    input: jax.Array,
    conv_num_filter: Sequence[int],
    pool_size: Sizes,
    conv_padding: Sizes | Sequence[Sizes] = 1,
    conv_filter_size: Sizes | Sequence[Sizes] = 3,
    conv_act: Activation | None = None,
    param_attr: Attr | Sequence[Attr] = None,
    conv_with_batchnorm: bool | Sequence[bool] = False,
    conv_batchnorm_drop_rate: float | Sequence[float] = 0.0,
    pool_stride: Sizes = 1,
    pool_type: Literal["max", "avg"] = "max",
    use_cudnn: bool = True,
) -> jax.Array:
    """Apply several convolutions, optionally with batch norm and dropout, then `pool2d`.

    See `penstock.layers.img_conv_group`. Here images are channels first, dropout scales in test and
    infer, and `use_cudnn` has no effect.

    Arguments:
      input: `[B, C, H, W]`.
      conv_num_filter: the number of filters of each convolution. The other arguments of
        convolutions are one value for all of them, or a list with one value for each.

    Returns:
      `[B, conv_num_filter[-1], H', W']`.

    >>> def program():
    ...     image = fluid.layers.data(name="image", shape=[1, 8, 8])
    ...     return fluid.nets.img_conv_group(image, [4, 6], pool_size=2, pool_stride=2)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"image": [[[[0.0] * 8] * 8]]}).shape
    (1, 6, 4, 4)
    """
    return layers.img_conv_group(
        **shared(locals(), data_format="NCHW", dropout_implementation="downgrade_in_infer")
    )
