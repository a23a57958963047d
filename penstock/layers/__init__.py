"""Layers: plain functions over arrays, called inside a program function.

A layer takes arrays and returns arrays, so `jnp` operations, flax.linen modules and `lax.scan` mix
freely with them. Layers that have parameters, statistics or randomness, or that depend on the
mode, find them in the program that is being built, and raise `LayerContextError` outside one.

Where a docstring says nothing else, a layer is the same in train, test and infer; `act` is the name
of an activation, applied last; `param_attr` is for the weight or scale, and `bias_attr` for the
bias, which `False` leaves out (see `ParamAttr`); and `name` has no effect if there are no
parameters. Examples assume `import jax`, `jax.numpy as jnp`, `numpy as np`, `penstock as ps` and
`from penstock import fluid, layers`.
"""

from typing import TYPE_CHECKING

from penstock._first_use import import_on_first_use as _import_on_first_use
from penstock.layers.activations import Activation as Activation
from penstock.layers.activations import elu as elu
from penstock.layers.activations import gelu as gelu
from penstock.layers.activations import hard_sigmoid as hard_sigmoid
from penstock.layers.activations import hard_swish as hard_swish
from penstock.layers.activations import leaky_relu as leaky_relu
from penstock.layers.activations import log_softmax as log_softmax
from penstock.layers.activations import logsigmoid as logsigmoid
from penstock.layers.activations import relu as relu
from penstock.layers.activations import relu6 as relu6
from penstock.layers.activations import selu as selu
from penstock.layers.activations import sigmoid as sigmoid
from penstock.layers.activations import softmax as softmax
from penstock.layers.activations import softplus as softplus
from penstock.layers.activations import softsign as softsign
from penstock.layers.activations import swish as swish
from penstock.layers.activations import tanh as tanh
from penstock.layers.attention import KeyValueCache as KeyValueCache
from penstock.layers.attention import init_cache as init_cache
from penstock.layers.attention import multi_head_attention as multi_head_attention
from penstock.layers.conv import conv2d as conv2d
from penstock.layers.conv import conv2d_transpose as conv2d_transpose
from penstock.layers.conv import depthwise_conv2d as depthwise_conv2d
from penstock.layers.conv import separable_conv2d as separable_conv2d
from penstock.layers.crf import crf_decoding as crf_decoding
from penstock.layers.crf import linear_chain_crf as linear_chain_crf
from penstock.layers.ctc import ctc_greedy_decoder as ctc_greedy_decoder
from penstock.layers.ctc import edit_distance as edit_distance
from penstock.layers.ctc import warpctc as warpctc
from penstock.layers.decoding import Sentences as Sentences
from penstock.layers.decoding import beam_decode as beam_decode
from penstock.layers.decoding import beam_search as beam_search
from penstock.layers.decoding import beam_search_decode as beam_search_decode
from penstock.layers.decoding import greedy_decode as greedy_decode
from penstock.layers.decoding import sample_decode as sample_decode
from penstock.layers.decoding import tile_beams as tile_beams
from penstock.layers.dense import embedding as embedding
from penstock.layers.dense import fc as fc
from penstock.layers.dropout import drop_path as drop_path
from penstock.layers.dropout import dropout as dropout
from penstock.layers.inputs import data as data
from penstock.layers.inputs import global_step as global_step
from penstock.layers.inputs import is_training as is_training
from penstock.layers.inputs import scope as scope
from penstock.layers.inputs import sown as sown
from penstock.layers.losses import accuracy as accuracy
from penstock.layers.losses import cross_entropy as cross_entropy
from penstock.layers.losses import huber_loss as huber_loss
from penstock.layers.losses import mean as mean
from penstock.layers.losses import (
    sigmoid_cross_entropy_with_logits as sigmoid_cross_entropy_with_logits,
)
from penstock.layers.losses import softmax_with_cross_entropy as softmax_with_cross_entropy
from penstock.layers.losses import square_error_cost as square_error_cost
from penstock.layers.losses import weight_decay_loss as weight_decay_loss
from penstock.layers.nets import glu as glu
from penstock.layers.nets import img_conv_group as img_conv_group
from penstock.layers.nets import scaled_dot_product_attention as scaled_dot_product_attention
from penstock.layers.nets import sequence_conv_pool as sequence_conv_pool
from penstock.layers.nets import simple_img_conv_pool as simple_img_conv_pool
from penstock.layers.nets import squeeze_excite as squeeze_excite
from penstock.layers.noise import example_keys as example_keys
from penstock.layers.noise import gaussian_random as gaussian_random
from penstock.layers.noise import gaussian_random_batch_size_like as gaussian_random_batch_size_like
from penstock.layers.noise import random_key as random_key
from penstock.layers.noise import uniform_random as uniform_random
from penstock.layers.noise import uniform_random_batch_size_like as uniform_random_batch_size_like
from penstock.layers.norm import batch_norm as batch_norm
from penstock.layers.norm import group_norm as group_norm
from penstock.layers.norm import l2_normalize as l2_normalize
from penstock.layers.norm import layer_norm as layer_norm
from penstock.layers.norm import lrn as lrn
from penstock.layers.norm import rms_norm as rms_norm
from penstock.layers.parameters import L1Decay as L1Decay
from penstock.layers.parameters import L2Decay as L2Decay
from penstock.layers.parameters import ParamAttr as ParamAttr
from penstock.layers.parameters import create_parameter as create_parameter
from penstock.layers.parameters import create_parameters as create_parameters
from penstock.layers.pool import pool2d as pool2d
from penstock.layers.positions import add_positions as add_positions
from penstock.layers.positions import position_embedding as position_embedding
from penstock.layers.positions import rotary_embedding as rotary_embedding
from penstock.layers.positions import segment_positions as segment_positions
from penstock.layers.positions import sinusoidal_positions as sinusoidal_positions
from penstock.layers.recurrent import bidirectional_gru as bidirectional_gru
from penstock.layers.recurrent import bidirectional_lstm as bidirectional_lstm
from penstock.layers.recurrent import dynamic_gru as dynamic_gru
from penstock.layers.recurrent import dynamic_lstm as dynamic_lstm
from penstock.layers.recurrent import dynamic_lstmp as dynamic_lstmp
from penstock.layers.reduce import reduce_max as reduce_max
from penstock.layers.reduce import reduce_mean as reduce_mean
from penstock.layers.reduce import reduce_min as reduce_min
from penstock.layers.reduce import reduce_prod as reduce_prod
from penstock.layers.reduce import reduce_sum as reduce_sum
from penstock.layers.sampled_losses import hsigmoid as hsigmoid
from penstock.layers.sampled_losses import nce as nce
from penstock.layers.sequence_layers import sequence_concat as sequence_concat
from penstock.layers.sequence_layers import sequence_conv as sequence_conv
from penstock.layers.sequence_layers import sequence_first_step as sequence_first_step
from penstock.layers.sequence_layers import sequence_last_step as sequence_last_step
from penstock.layers.sequence_layers import sequence_mask as sequence_mask
from penstock.layers.sequence_layers import sequence_pad as sequence_pad
from penstock.layers.sequence_layers import sequence_pool as sequence_pool
from penstock.layers.sequence_layers import sequence_reverse as sequence_reverse
from penstock.layers.sequence_layers import sequence_softmax as sequence_softmax
from penstock.layers.sequence_layers import sequence_unpad as sequence_unpad
from penstock.layers.shapes import concat as concat
from penstock.layers.shapes import cos_sim as cos_sim
from penstock.layers.shapes import flatten as flatten
from penstock.layers.shapes import one_hot as one_hot
from penstock.layers.shapes import pad2d as pad2d
from penstock.layers.shapes import topk as topk
from penstock.layers.transformer import transformer_decoder as transformer_decoder
from penstock.layers.transformer import transformer_encoder as transformer_encoder
from penstock.layers.transformer import transformer_encoder_layer as transformer_encoder_layer
from penstock.layers.transforms import monte_carlo as monte_carlo
from penstock.layers.transforms import remat as remat

if TYPE_CHECKING:
    from penstock.fluid.chunk_eval import chunk_eval as chunk_eval
    from penstock.fluid.rnn_blocks import DynamicRNN as DynamicRNN
    from penstock.fluid.rnn_blocks import StaticRNN as StaticRNN
    from penstock.fluid.rnn_blocks import dynamic_rnn as dynamic_rnn
    from penstock.fluid.rnn_blocks import gru_unit as gru_unit
    from penstock.fluid.rnn_blocks import lstm_unit as lstm_unit
    from penstock.fluid.sequence_moves import im2sequence as im2sequence
    from penstock.fluid.sequence_moves import lod_reset as lod_reset
    from penstock.fluid.sequence_moves import row_conv as row_conv
    from penstock.fluid.sequence_moves import sequence_enumerate as sequence_enumerate
    from penstock.fluid.sequence_moves import sequence_expand as sequence_expand
    from penstock.fluid.sequence_moves import sequence_reshape as sequence_reshape
    from penstock.fluid.sequence_moves import sequence_slice as sequence_slice
    from penstock.layers.nnx_modules import nnx_module as nnx_module

# What scripts written for Fluid call lives with them. The core does not import `penstock.fluid`; it
# loads on first use.
_FLUID = {
    "chunk_eval": ["chunk_eval"],
    "rnn_blocks": ["DynamicRNN", "StaticRNN", "dynamic_rnn", "gru_unit", "lstm_unit"],
    "sequence_moves": [
        *("im2sequence", "lod_reset", "row_conv", "sequence_enumerate", "sequence_expand"),
        *("sequence_reshape", "sequence_slice"),
    ],
}
_MODULE_OF = {
    name: f"penstock.fluid.{module}" for module, names in _FLUID.items() for name in names
} | {"nnx_module": "penstock.layers.nnx_modules"}
__getattr__, __dir__ = _import_on_first_use(__name__, _MODULE_OF)

# What `help(layers)` explains and `import *` takes: functions and classes, no modules.
__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    *(n for n, v in globals().items() if getattr(v, "__module__", "").startswith(__name__)),
    *_MODULE_OF,
]
