"""Layers: plain functions over arrays, called inside a program function.

A layer takes arrays and returns arrays, so `jnp` operations, flax.linen modules and `lax.scan` mix
freely with them. Layers that have parameters, statistics or randomness, or that depend on the
mode, find them in the program that is being built, and raise `LayerContextError` outside one.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from penstock.layers.activations import (
    Activation as Activation,
)
from penstock.layers.activations import (
    elu,
    gelu,
    hard_sigmoid,
    hard_swish,
    leaky_relu,
    log_softmax,
    logsigmoid,
    relu,
    relu6,
    selu,
    sigmoid,
    softmax,
    softplus,
    softsign,
    swish,
    tanh,
)
from penstock.layers.attention import multi_head_attention
from penstock.layers.batch_norm import batch_norm
from penstock.layers.beam import Sentences, beam_search, beam_search_decode, tile_beams
from penstock.layers.beam_decode import beam_decode
from penstock.layers.conv import conv2d, conv2d_transpose
from penstock.layers.crf import crf_decoding, linear_chain_crf
from penstock.layers.ctc import ctc_greedy_decoder, edit_distance, warpctc
from penstock.layers.dense import embedding, fc
from penstock.layers.depthwise import depthwise_conv2d, separable_conv2d
from penstock.layers.dropout import drop_path, dropout
from penstock.layers.inputs import (
    data,
    global_step,
    is_training,
    scope,
    sown,
)
from penstock.layers.key_value_cache import KeyValueCache, init_cache
from penstock.layers.losses import (
    accuracy,
    cross_entropy,
    huber_loss,
    mean,
    sigmoid_cross_entropy_with_logits,
    softmax_with_cross_entropy,
    square_error_cost,
    weight_decay_loss,
)
from penstock.layers.monte_carlo import monte_carlo
from penstock.layers.nets import (
    glu,
    img_conv_group,
    scaled_dot_product_attention,
    sequence_conv_pool,
    simple_img_conv_pool,
    squeeze_excite,
)
from penstock.layers.nnx_modules import nnx_module
from penstock.layers.noise import (
    example_keys,
    gaussian_random,
    gaussian_random_batch_size_like,
    random_key,
    uniform_random,
    uniform_random_batch_size_like,
)
from penstock.layers.norm import group_norm, l2_normalize, layer_norm, lrn, rms_norm
from penstock.layers.parameter_trees import create_parameters
from penstock.layers.parameters import L1Decay, L2Decay, ParamAttr, create_parameter
from penstock.layers.pool import pool2d
from penstock.layers.positions import (
    add_positions,
    position_embedding,
    rotary_embedding,
    segment_positions,
    sinusoidal_positions,
)
from penstock.layers.recurrent import (
    bidirectional_gru,
    bidirectional_lstm,
    dynamic_gru,
    dynamic_lstm,
    dynamic_lstmp,
)
from penstock.layers.reduce import (
    reduce_all,
    reduce_any,
    reduce_max,
    reduce_mean,
    reduce_median,
    reduce_min,
    reduce_prod,
    reduce_std,
    reduce_sum,
    reduce_var,
)
from penstock.layers.rematerialization import remat
from penstock.layers.sampled_losses import hsigmoid, nce
from penstock.layers.sampling import greedy_decode, sample_decode
from penstock.layers.sequence_layers import (
    sequence_concat,
    sequence_conv,
    sequence_first_step,
    sequence_last_step,
    sequence_mask,
    sequence_pad,
    sequence_pool,
    sequence_reverse,
    sequence_softmax,
    sequence_unpad,
)
from penstock.layers.shapes import concat, cos_sim, flatten, one_hot, pad2d, topk
from penstock.layers.transformer import (
    transformer_decoder,
    transformer_encoder,
    transformer_encoder_layer,
)

if TYPE_CHECKING:
    from penstock.fluid.chunk_eval import chunk_eval as chunk_eval
    from penstock.fluid.dynamic_rnn import dynamic_rnn as dynamic_rnn
    from penstock.fluid.recurrent_units import gru_unit as gru_unit
    from penstock.fluid.recurrent_units import lstm_unit as lstm_unit
    from penstock.fluid.rnn_blocks import DynamicRNN as DynamicRNN
    from penstock.fluid.rnn_blocks import StaticRNN as StaticRNN
    from penstock.fluid.sequence_moves import im2sequence as im2sequence
    from penstock.fluid.sequence_moves import lod_reset as lod_reset
    from penstock.fluid.sequence_moves import row_conv as row_conv
    from penstock.fluid.sequence_moves import sequence_enumerate as sequence_enumerate
    from penstock.fluid.sequence_moves import sequence_expand as sequence_expand
    from penstock.fluid.sequence_moves import sequence_reshape as sequence_reshape
    from penstock.fluid.sequence_moves import sequence_slice as sequence_slice

__all__ = [
    # Inputs and parameters
    "L1Decay",
    "L2Decay",
    "ParamAttr",
    "create_parameter",
    "create_parameters",
    "data",
    "global_step",
    "is_training",
    "monte_carlo",
    "reduce_all",
    "reduce_any",
    "reduce_max",
    "reduce_mean",
    "reduce_median",
    "reduce_min",
    "reduce_prod",
    "reduce_std",
    "reduce_sum",
    "remat",
    "reduce_var",
    "scope",
    "sown",
    # Noise
    "example_keys",
    "gaussian_random",
    "gaussian_random_batch_size_like",
    "random_key",
    "uniform_random",
    "uniform_random_batch_size_like",
    # Layers with parameters
    "batch_norm",
    "conv2d",
    "conv2d_transpose",
    "depthwise_conv2d",
    "embedding",
    "fc",
    "group_norm",
    "layer_norm",
    "multi_head_attention",
    "nnx_module",
    "position_embedding",
    "rms_norm",
    "separable_conv2d",
    # Recurrent layers
    "DynamicRNN",
    "StaticRNN",
    "bidirectional_gru",
    "bidirectional_lstm",
    "dynamic_gru",
    "dynamic_lstm",
    "dynamic_lstmp",
    "dynamic_rnn",
    "gru_unit",
    "lstm_unit",
    # Layers without
    "drop_path",
    "dropout",
    "l2_normalize",
    "lrn",
    "pool2d",
    # Attention
    "KeyValueCache",
    "add_positions",
    "init_cache",
    "rotary_embedding",
    "segment_positions",
    "sinusoidal_positions",
    # Activations
    "elu",
    "gelu",
    "hard_sigmoid",
    "hard_swish",
    "leaky_relu",
    "log_softmax",
    "logsigmoid",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "softmax",
    "softplus",
    "softsign",
    "swish",
    "tanh",
    # Losses, and means over the batch
    "accuracy",
    "cross_entropy",
    "huber_loss",
    "mean",
    "sigmoid_cross_entropy_with_logits",
    "softmax_with_cross_entropy",
    "square_error_cost",
    "weight_decay_loss",
    # Losses of sequences and of many classes, and what is decoded
    "chunk_eval",
    "crf_decoding",
    "ctc_greedy_decoder",
    "edit_distance",
    "hsigmoid",
    "linear_chain_crf",
    "nce",
    "warpctc",
    # Searches for sentences
    "Sentences",
    "beam_decode",
    "beam_search",
    "beam_search_decode",
    "greedy_decode",
    "sample_decode",
    "tile_beams",
    # Shapes
    "concat",
    "cos_sim",
    "flatten",
    "one_hot",
    "pad2d",
    "topk",
    # Sequences
    "im2sequence",
    "lod_reset",
    "row_conv",
    "sequence_concat",
    "sequence_conv",
    "sequence_enumerate",
    "sequence_expand",
    "sequence_first_step",
    "sequence_last_step",
    "sequence_mask",
    "sequence_pad",
    "sequence_pool",
    "sequence_reshape",
    "sequence_reverse",
    "sequence_slice",
    "sequence_softmax",
    "sequence_unpad",
    # Nets
    "glu",
    "img_conv_group",
    "scaled_dot_product_attention",
    "sequence_conv_pool",
    "simple_img_conv_pool",
    "squeeze_excite",
    "transformer_decoder",
    "transformer_encoder",
    "transformer_encoder_layer",
]

# What scripts written for Fluid call lives with them. The core does not import `penstock.fluid`; it
# loads on first use.
_FLUID = {
    "chunk_eval": ("chunk_eval",),
    "dynamic_rnn": ("dynamic_rnn",),
    "recurrent_units": (
        "gru_unit",
        "lstm_unit",
    ),
    "rnn_blocks": (
        "DynamicRNN",
        "StaticRNN",
    ),
    "sequence_moves": (
        "im2sequence",
        "lod_reset",
        "row_conv",
        "sequence_enumerate",
        "sequence_expand",
        "sequence_reshape",
        "sequence_slice",
    ),
}
_MODULE_OF = {name: module for module, names in _FLUID.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a name on its first use (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    # A submodule may bear the name of its function.
    value = getattr(import_module(f"penstock.fluid.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the names that are imported, and those that are imported on first use."""
    return sorted({*globals(), *_MODULE_OF})
