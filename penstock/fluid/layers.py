"""`fluid.layers`: penstock's layers with Fluid's defaults and argument names.

Images are channels first and `dropout` scales in test and infer. Most layers are `penstock.layers`
as they are. Those that Fluid never had, `separable_conv2d` for one, are in `penstock.layers` only.
"""

from penstock.fluid._elementwise import elementwise_add as elementwise_add
from penstock.fluid._elementwise import elementwise_div as elementwise_div
from penstock.fluid._elementwise import elementwise_max as elementwise_max
from penstock.fluid._elementwise import elementwise_min as elementwise_min
from penstock.fluid._elementwise import elementwise_mul as elementwise_mul
from penstock.fluid._elementwise import elementwise_pow as elementwise_pow
from penstock.fluid._elementwise import elementwise_sub as elementwise_sub
from penstock.fluid._elementwise import reshape as reshape
from penstock.fluid._elementwise import scale as scale
from penstock.fluid._elementwise import sums as sums
from penstock.fluid._inputs import data as data
from penstock.fluid._own import batch_norm as batch_norm
from penstock.fluid._own import conv2d as conv2d
from penstock.fluid._own import conv2d_transpose as conv2d_transpose
from penstock.fluid._own import dropout as dropout
from penstock.fluid._own import embedding as embedding
from penstock.fluid._own import group_norm as group_norm
from penstock.fluid._own import lrn as lrn
from penstock.fluid._own import pad2d as pad2d
from penstock.fluid._own import pool2d as pool2d
from penstock.fluid.nets import img_conv_group as img_conv_group
from penstock.fluid.nets import simple_img_conv_pool as simple_img_conv_pool
from penstock.layers import accuracy as accuracy
from penstock.layers import concat as concat
from penstock.layers import cos_sim as cos_sim
from penstock.layers import create_parameter as create_parameter
from penstock.layers import cross_entropy as cross_entropy
from penstock.layers import elu as elu
from penstock.layers import example_weights as example_weights
from penstock.layers import fc as fc
from penstock.layers import flatten as flatten
from penstock.layers import gelu as gelu
from penstock.layers import glu as glu
from penstock.layers import hard_sigmoid as hard_sigmoid
from penstock.layers import hard_swish as hard_swish
from penstock.layers import huber_loss as huber_loss
from penstock.layers import is_training as is_training
from penstock.layers import l2_normalize as l2_normalize
from penstock.layers import layer_norm as layer_norm
from penstock.layers import leaky_relu as leaky_relu
from penstock.layers import log_softmax as log_softmax
from penstock.layers import logsigmoid as logsigmoid
from penstock.layers import mean as mean
from penstock.layers import one_hot as one_hot
from penstock.layers import random_key as random_key
from penstock.layers import reduce_sum as reduce_sum
from penstock.layers import relu as relu
from penstock.layers import relu6 as relu6
from penstock.layers import scaled_dot_product_attention as scaled_dot_product_attention
from penstock.layers import scope as scope
from penstock.layers import selu as selu
from penstock.layers import sigmoid as sigmoid
from penstock.layers import sigmoid_cross_entropy_with_logits as sigmoid_cross_entropy_with_logits
from penstock.layers import softmax as softmax
from penstock.layers import softmax_with_cross_entropy as softmax_with_cross_entropy
from penstock.layers import softplus as softplus
from penstock.layers import softsign as softsign
from penstock.layers import square_error_cost as square_error_cost
from penstock.layers import swish as swish
from penstock.layers import tanh as tanh
from penstock.layers import topk as topk
