"""What layers say of arguments that do not fit: `<layer> got <what>, expected <what>`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from penstock import layers
from penstock._program.sequences import Sequence
from tests.layers.programs import initial, normal

D = 8


def data(*shape, dtype="float32"):
    return layers.data(f"{dtype} {shape}", list(shape), dtype)


def ids(*shape):
    return data(*shape, dtype="int32")


def words(*shape, dtype="float32"):
    return layers.data(f"words {dtype} {shape}", list(shape), dtype, lod_level=1)


def tags():
    """Return ids `[B, T]`."""
    sequence = words(1, dtype="int32")
    return sequence.with_values(sequence.values[..., 0])


ARRAY, ONES = np.zeros((2, 8), "f"), jnp.ones([2], jnp.int32)
WORDS = Sequence(jnp.zeros([2, 3, 8]), jnp.array([3, 3]))
THREE = Sequence(jnp.ones([3, 4, 2]), jnp.asarray([4, 1, 0]))
TWO = Sequence(jnp.ones([2, 4, 2]), jnp.asarray([4, 1]))
NUMBERS = Sequence(jnp.ones([3, 4]), jnp.asarray([4, 1, 0]))
BEAMS = jnp.ones([1, 2], jnp.int32)

DENSE = {
    r"shape \[B, 4\] and num_flatten_dims=2": lambda: layers.fc(data(4), 5, num_flatten_dims=2),
    "fc got 0 inputs": lambda: layers.fc([], 5),
    "fc got 2 inputs and 1 param_attr": lambda: layers.fc([data(4)] * 2, 5, param_attr=[None]),
    "layers.fc got param_attr=3, expected a Param": lambda: layers.fc(data(4), 5, param_attr=3),
    r"'fc_0/w' got shape \(4, 0\), expected positive integers": lambda: layers.fc(data(4), 0),
    "layers.fc got act='rleu', expected None or one of 'relu', .* mean 'relu'": (
        lambda: layers.fc(data(4), 5, act="rleu")
    ),
    "layers.fc got act=.*Apply any other function to what the layer returns": (
        lambda: layers.fc(data(4), 5, act=jax.nn.relu)
    ),
    **{
        rf"got size=\[9, 4\] and padding_idx={row}, expected a number from -9 to 8": (
            lambda row=row: layers.embedding(ids(1), [9, 4], row)
        )
        for row in (9, -10)
    },
    "ids of dtype float32, expected integers": lambda: layers.embedding(data(1), [9, 4]),
    "drop_prob=1.0, expected a number from 0 to below": lambda: layers.drop_path(data(4), 1.0),
    **{
        f"dropout_prob={rate}, expected a number from 0 to 1": (
            lambda rate=rate: layers.dropout(data(2), rate)
        )
        for rate in (-0.1, 1.5, float("nan"))
    },
    "Did you mean 'upscale_in_train'": (
        lambda: layers.dropout(data(2), 0.5, dropout_implementation="upscale_train")
    ),
    "3, expected a sequence of positive sizes": lambda: layers.data("x", 3),
    r"data 'x' got shape \(4,\) .* expected shape \(3,\)": (
        lambda: (layers.data("x", [3]), layers.data("x", [4]))
    ),
}


def image_layer(name, *options, **arguments):
    return lambda: getattr(layers, name)(data(7, 6, 4), *options, **arguments)


CONV_ERRORS = {
    r"filter_size=\(3, 3, 3\), expected": {"filter_size": (3, 3, 3)},
    r"filter_size=3\.5, expected an integer of at least 1": {"filter_size": 3.5},
    "expected one of .* Did you mean 'SAME'": {"padding": "SMAE"},
    r"padding=\(1, 1, 1\), expected": {"padding": [(1, 1, 1), (0, 0)]},
    r"expected a padded height and width of at least \(9, 9\)": {"filter_size": 9},
    "groups=3, expected a divisor of 4": {"groups": 3},
    "Did you mean 'NHWC'": {"data_format": "NWHC"},
    "act='rleu'.* Did you mean 'relu'": {"act": "rleu"},
}
POOL_ERRORS = {
    "pool_size=-1, expected an integer of at least 1": {},
    "pool_type='mean', expected one of 'max', 'avg'": {"pool_size": 2, "pool_type": "mean"},
    "expected padding smaller than the window": {"pool_size": 2, "pool_padding": 2},
    r"expected a padded height and width of at least \(9, 9\)": {"pool_size": 9},
}
IMAGES = {
    **{
        f"layers.conv2d got .*{message}": image_layer("conv2d", 4, **{"filter_size": 3, **options})
        for message, options in CONV_ERRORS.items()
    },
    r"shape \[B, 16\], expected \[B, H, W, C\]": lambda: layers.conv2d(data(16), 4, 3),
    "got neither output_size nor filter_size": image_layer("conv2d_transpose", 1),
    r"from \(15, 13\) to less than a stride": image_layer(
        "conv2d_transpose", 1, filter_size=3, output_size=17, stride=2
    ),
    "expected an output_size": image_layer("conv2d_transpose", 1, output_size=2),
    "'depthwise_conv2d_0/depthwise' got shape": image_layer(
        "depthwise_conv2d", 3, depth_multiplier=0
    ),
    "'separable_conv2d_0/w' got shape .* Check the sizes": image_layer("separable_conv2d", 0, 3),
    r"'conv2d_0/w' got shape \(3, 3, 4, 0\), expected pos": image_layer("conv2d", 0, 3),
    **{
        f"layers.pool2d got .*{message}": image_layer("pool2d", **options)
        for message, options in POOL_ERRORS.items()
    },
    r"expected four numbers of 0 or more: top, bottom": image_layer("pad2d", [1, 1]),
    "layers.lrn got n=4, expected an odd positive number": image_layer("lrn", 4),
    r"layers.squeeze_excite got an input of shape .*, exp": (
        lambda: layers.squeeze_excite(data(4), 2)
    ),
    "got 3 values of conv_padding for 2 convolutions": image_layer(
        "img_conv_group", [4, 5], 2, conv_padding=[1, 1, 1]
    ),
    "conv_num_filter=4, expected a list": image_layer("img_conv_group", 4, 2),
}

NORMS = {
    "layers.batch_norm got momentum=1.5, expected a number from 0 to 1": (
        lambda: layers.batch_norm(data(3), momentum=1.5)
    ),
    "layers.batch_norm got data_format='NHCW', expected one of": (
        lambda: layers.batch_norm(data(3), data_format="NHCW")
    ),
    r"shape \[B\], expected \[B, \.\.\., C\]": lambda: layers.batch_norm(data(1)[:, 0]),
    "layers.batch_norm: group_size got 0, expected an integ": (
        lambda: layers.batch_norm(data(3), group_size=0)
    ),
    **{
        f"begin_norm_axis={axis} and .* from 1 to 2": (
            lambda axis=axis: layers.layer_norm(data(4, 6), begin_norm_axis=axis)
        )
        for axis in (0, 3, -3)
    },
    "group_norm got groups=4, expected a divisor of 6": lambda: layers.group_norm(data(6), 4),
    r"group_norm got an input of shape \[B\], expected \[B, ": (
        lambda: layers.group_norm(data(6)[:, 0], 4)
    ),
    r"rms_norm got an input of shape \[B\]": lambda: layers.rms_norm(data(1)[:, 0]),
}

LOSSES = {
    **{
        f"delta={delta}, expected a number above 0": (
            lambda delta=delta: layers.huber_loss(data(1), data(1), delta)
        )
        for delta in (0, float("nan"))
    },
    "labels of dtype float32, expected integers": (
        lambda: layers.softmax_with_cross_entropy(data(4), data(1))
    ),
    r"labels of shape \[B, 4\], expected \[B, 1\] or": (
        lambda: layers.softmax_with_cross_entropy(data(4), ids(4))
    ),
    r"labels of shape \[B, 1\], expected equal shapes": (
        lambda: layers.cross_entropy(data(4), data(1), soft_label=True)
    ),
    **{
        rf"layers.{name} got .* \(5, 1\) .* shape \(5,\)": (
            lambda name=name: getattr(layers, name)(jnp.ones([5, 1]), jnp.ones([5]))
        )
        for name in ("square_error_cost", "sigmoid_cross_entropy_with_logits")
    },
    r"scores of shape \[B, 3\] and k=4, expected a number from 1 to 3": (
        lambda: layers.accuracy(data(3), ids(1), k=4)
    ),
    "num_neg_samples=0, expected an integer of 1 or more": (
        lambda: layers.nce(data(4), ids(2), 5, num_neg_samples=0)
    ),
    "got sampler='zipf', expected one of": lambda: layers.nce(data(4), ids(2), 5, sampler="zipf"),
    "and custom_dist of None, exp": lambda: layers.nce(data(4), ids(2), 5, sampler="custom_dist"),
    "='uniform' and custom_dist of": lambda: layers.nce(data(4), ids(2), 5, custom_dist=[0.2] * 5),
    r"custom_dist of shape \(3,\) with the sum 0.7, expected 3 probabilities of the sum 1": (
        lambda: layers.nce(
            data(4), ids(2), 3, sampler="custom_dist", custom_dist=[0.5, 0.1, 0.1]
        )
    ),
    r"sample_weight of shape \[B, 4\], ": (
        lambda: layers.nce(data(4), ids(2), 5, sample_weight=data(4))
    ),
    "nce got labels of dtype float32, expected integers": lambda: layers.nce(data(4), data(4), 5),
    r"\[B, 4\] and labels of shape \[B, 1": (
        lambda: layers.nce(data(4), ids(2)[:, 0, None, None], 5)
    ),
    r"'hsigmoid_0/w' got shape \(0, 4\)": lambda: layers.hsigmoid(data(4), ids(1), 1),
    r"hsigmoid got labels of shape \[B, 2\], expected \[B, 1\]": (
        lambda: layers.hsigmoid(data(4), ids(2), 5)
    ),
    "hsigmoid got one Sequence among its input and labels, expected both or none": (
        lambda: layers.hsigmoid(words(4), ids(1), 5)
    ),
}  # fmt: skip

SHAPES = {
    r"sequences and axis=0, expected an axis of their word": (
        lambda: layers.concat([words(4), words(4)], axis=0)
    ),
    "layers.concat got .*, expected a list": lambda: layers.concat(data(4), axis=1),
    "flatten got .* and axis=0, expected .* from 1 to 3": (
        lambda: layers.flatten(normal(2, 3, 4), axis=0)
    ),
    "layers.one_hot got classes of dtype float32": lambda: layers.one_hot(data(1), 4),
    "layers.topk: k got 0, expected an integer of 1 or more": lambda: layers.topk(normal(3, 6), 0),
    r"cos_sim got Y of shape \(2, 6\), expected \[3, 6\] or \[1, 6\]": (
        lambda: layers.cos_sim(normal(3, 6), normal(2, 6))
    ),
    "glu got dim=-1 .* expected an axis of even size": lambda: layers.glu(normal(2, 6, 3)),
    "layers.reduce_mean got a sequence and dim=1, expect": (
        lambda: layers.reduce_mean(words(3), dim=1)
    ),
    "layers.reduce_max got dim=2 and an array of 2 axes": lambda: layers.reduce_max(data(3), dim=2),
}  # fmt: skip

NOISE = {
    r"gaussian_random got shape \[-1, 3\] with a size of -1, expected .* Use "
    r"layers.gaussian_random_batch_size_like": lambda: layers.gaussian_random([-1, 3]),
    "uniform_random got min=2.0 and max=1.0, expected a min that is not above": (
        lambda: layers.uniform_random([1, 3], min=2.0, max=1.0)
    ),
    "dtype argument to `uniform` must be a float .*int32": (
        lambda: layers.uniform_random([1, 3], dtype="int32")
    ),
    r"got shape \[-1, -1\] with a size of -1, expected .* Only the batch axis": (
        lambda: layers.gaussian_random_batch_size_like(data(1), [-1, -1])
    ),
    "got output_dim_idx=2, expected a number from 0 to 1": (
        lambda: layers.gaussian_random_batch_size_like(data(1), [-1, 3], output_dim_idx=2)
    ),
}


def attend(**options):
    return lambda: layers.multi_head_attention(data(5, D), **options)


def attend_from(*shape, **options):
    def call():
        x = data(5, D)
        cache = layers.init_cache(x.shape[0], *shape)
        return layers.multi_head_attention(x, cache=cache, **(options and {"keys": x}))

    return call


def dot_product(num_heads, *shapes):
    return lambda: layers.scaled_dot_product_attention(*(data(*s) for s in shapes), num_heads)


def decode(**options):
    options = {"num_layers": 2, "num_heads": 2, "ffn_size": 12, **options}
    return lambda: layers.transformer_decoder(data(5, D), **options)


ATTENTION = {
    "num_heads=3, expected a divisor of 8. Heads share": attend(num_heads=3),
    "num_heads=4 and num_kv_heads=3, expected a divisor of 4": attend(num_heads=4, num_kv_heads=3),
    r"and values \(7, 4, 8\)": attend(keys=normal(7, 5, D), values=normal(7, 4, D)),
    r"segment ids of shapes \[\(1, 4\)": attend(segment_ids=np.zeros((1, 4), np.int32)),
    r"ids of shapes \[\(1, 5\), \(1, 3\)\], expected": decode(
        segment_ids=(np.ones([1, 5], "i"), np.ones([1, 3], "i"))
    ),
    "segment ids of dtype float32, expected integers": attend(
        segment_ids=np.zeros((1, 5), np.float32)
    ),
    "dropout_prob=1.5, expected a number from 0 to 1": (attend(dropout_rate=1.5)),
    "param_attr=3, expected a ParamAttr": attend(param_attr=3),
    r"got a cache of shape \[B, 8, 2, 8\] for 5 words, expected": attend_from(8, 2, 8),
    "for 5 words, expected .* at most 3 words": attend_from(3, 1, 8),
    "got a cache and keys, values or segment_ids": attend_from(8, 2, 8, keys=True),
    r"queries of shape \[B, 5\], expected \[B, T, D\]": lambda: layers.multi_head_attention(
        data(5)
    ),
    r"queries of dtype int32, expected floats.* layers\.embedding for ids": (
        lambda: layers.multi_head_attention(ids(5, 1))
    ),
    r"\(Sequence\) and values \[B, 13, 8\] \(array\), expected": (
        lambda: layers.scaled_dot_product_attention(words(D), words(D), words(D).values)
    ),
    r"\[B, 6, 6\] \(array\), expected \[B, T, D\]": dot_product(1, [5, 8], [7, 8], [6, 6]),
    r"got keys of shape \[B, 7, 6\], expected \[B, K, 8\]. Queries": dot_product(
        1, [5, 8], [7, 6], [7, 6]
    ),
    "num_heads=4, expected a divisor of .* Heads share": dot_product(4, [5, 8], [7, 8], [7, 6]),
    "transformer_decoder got num_layers=0, expected 1 or more": decode(num_layers=0),
    "transformer_decoder got norm='batch'": decode(norm="batch"),
    "got 0 caches, expected 2, one for each layer": decode(caches=()),
    "expected a pair": decode(memory=normal(1, 5, D), segment_ids=np.ones([1, 5], "i")),
    "sinusoidal_positions: length got 0, expected": lambda: layers.sinusoidal_positions(0, 4),
    "sinusoidal_positions: width got -1, expected": lambda: layers.sinusoidal_positions(3, -1),
    r"expected \[B, T, N, H\] with an": lambda: layers.rotary_embedding(normal(1, 2, 1, 3)),
    "add_positions got an input of shape": lambda: layers.add_positions(normal(2, 3)),
    r"positions of shape \(2,": lambda: layers.add_positions(normal(2, 3, 4), jnp.arange(2)),
    r"segment ids of shape \(2,\), expected \[B, T\]": (
        lambda: layers.segment_positions(jnp.ones([2], int))
    ),
}

SEQUENCES = {
    r"sequence_pool got an array of shape \(3, 4, 2\) as input, expected a Sequence\.": (
        lambda: layers.sequence_pool(THREE.values, "sum")
    ),
    "sequence_pool got pool_type='avg', expected one of 'sum', 'average'": (
        lambda: layers.sequence_pool(THREE, "avg")
    ),
    "sequence_last_step got a float as input, expected a Sequence": (
        lambda: layers.sequence_last_step(1.0)
    ),
    r"sequence_softmax got a Sequence of shape \(3, 4, 2\), expected \[B, T, 1\] or \[B, T\]": (
        lambda: layers.sequence_softmax(THREE)
    ),
    "sequence_expand got ref_level=1, expected one of 0, -1": (
        lambda: layers.sequence_expand(THREE, THREE, ref_level=1)
    ),
    r"sequence_expand got x of shape \(2, 4, 2\), expected \[3, \.\.\.\]": (
        lambda: layers.sequence_expand(TWO.values, THREE)
    ),
    r"sequence_concat got Sequences of values \[\(3, 4, 2\), \(3, 4\)\], expected at least one": (
        lambda: layers.sequence_concat([THREE, NUMBERS])
    ),
    "sequence_reshape got new_dim=0, expected an integer of 1 or more": (
        lambda: layers.sequence_reshape(THREE, 0)
    ),
    r"sequence_reshape got a Sequence of shape \(3, 4\), expected \[B, T, D\]": (
        lambda: layers.sequence_reshape(NUMBERS, 2)
    ),
    "sequence_mask got maxlen=None, expected an integer of 1 or more": (
        lambda: layers.sequence_mask(THREE.lengths)
    ),
    r"sequence_pad got pad_value of shape \(3,\) and maxlen=None for words of shape \(2,\)": (
        lambda: layers.sequence_pad(THREE, jnp.zeros(3))
    ),
    r"sequence_unpad got an array of shape \(3,\), expected \[B, T, ...\]": (
        lambda: layers.sequence_unpad(THREE.lengths, THREE.lengths)
    ),
    r"sequence_unpad got length of shape \(2,\), expected \[3\] "
    r"or \[3, 1\]": lambda: layers.sequence_unpad(THREE.values, TWO.lengths),
    r"lod_reset got target_lod=\[0, 2, 5\] and no y, expected y alone. Offsets fix the number": (
        lambda: layers.lod_reset(THREE, target_lod=[0, 2, 5])
    ),
    "lod_reset got lengths in y of dtype float32, expected integers": (
        lambda: layers.lod_reset(THREE, jnp.zeros(3))
    ),
    "sequence_enumerate got win_size=0, expected an integer of 1 or more": (
        lambda: layers.sequence_enumerate(NUMBERS, 0)
    ),
    "sequence_conv got filter_stride=2, expected 1": (
        lambda: layers.sequence_conv(THREE, 2, 3, 2)
    ),
    r"sequence_conv got a Sequence of shape \(3, 4\), expected \[B, T, D\].*embedding": (
        lambda: layers.sequence_conv(NUMBERS, 2)
    ),
    r"'row_conv_0/w' got shape \(0, 2\), expected": lambda: layers.row_conv(THREE, -1),
    r"im2sequence got an input of shape \(3, 4, 2\), expected \[B, H, W, C\]": (
        lambda: layers.im2sequence(THREE.values)
    ),
    r"linear_chain_crf got an input of shape \[B, 13\], expected \[B": (
        lambda: layers.linear_chain_crf(tags(), tags())
    ),
    r"linear_chain_crf got .*labels of shape \[B, 13, 3\], expected": (
        lambda: layers.linear_chain_crf(words(3), words(3))
    ),
    r"an array of shape \[B, 13, 3\] as an input, expected a Sequence": (
        lambda: layers.linear_chain_crf(words(3).values, tags())
    ),
    "param_attr without a name, expected the": lambda: layers.crf_decoding(words(3), None),
    "linear_chain_crf got labels of dtype float32, expected integers": (
        lambda: layers.linear_chain_crf(words(3), tags() * 1.0)
    ),
    "warpctc got blank=3, expected a number from 0 to 2": (
        lambda: layers.warpctc(words(3), tags(), blank=3)
    ),
    "ctc_greedy_decoder got blank=-1, expected": lambda: layers.ctc_greedy_decoder(words(3), -1),
    r"labels of shape \[B, 13, 3\], expected \[B, T\] or \[B, T, 1\]": (
        lambda: layers.warpctc(words(3), words(3))
    ),
    r"array of shape \[B, 13\] as labels, expected a Se": (
        lambda: layers.edit_distance(tags(), tags().values)
    ),
    "chunk_eval got chunk_scheme='BIO', expected one of": (
        lambda: layers.chunk_eval(tags(), tags(), "BIO", 3)
    ),
    "num_chunk_types=0, expected an integer of 1": (
        lambda: layers.chunk_eval(tags(), tags(), "IOB", 0)
    ),
    r"got the excluded type 3, expected": (
        lambda: layers.chunk_eval(tags(), tags(), "IOB", 3, [3])
    ),
    r"chunk_eval got an array of shape \[B, 13\] as labels, expected a": (
        lambda: layers.chunk_eval(tags(), tags().values, "IOB", 3)
    ),
}  # fmt: skip

RECURRENT = {
    r"dynamic_lstm got an array of shape \(2, 8\) as input, expected a Sequence": (
        lambda: layers.dynamic_lstm(ARRAY, 8)
    ),
    r"dynamic_lstm got a sequence of shape \(2, 3, 8\) and 4 \* hidden = 16.*layers.fc": (
        lambda: layers.dynamic_lstm(WORDS, 16)
    ),
    "dynamic_gru got a sequence of .* 3 .* hidden = 9": lambda: layers.dynamic_gru(WORDS, 3),
    "dynamic_lstm got h_0 alone, expected both": lambda: layers.dynamic_lstm(WORDS, 8, ARRAY),
    r"dynamic_lstm got c_0 of shape \(2, 8\), expected \[2, 2\]": (
        lambda: layers.dynamic_lstm(WORDS, 8, ARRAY, ARRAY)
    ),
    "dynamic_lstm got bias_attr=False, expected a ParamAttr": (
        lambda: layers.dynamic_lstm(WORDS, 8, bias_attr=False)
    ),
    "dynamic_lstm got gate_activation='sigmoyd', expected .* 'sigmoid'": (
        lambda: layers.dynamic_lstm(WORDS, 8, gate_activation="sigmoyd")
    ),
    "dynamic_lstmp got cell_clip=-1.0, expected a number above 0": (
        lambda: layers.dynamic_lstmp(WORDS, 8, 1, cell_clip=-1.0)
    ),
    "bidirectional_lstm got an array of shape .2, 8. as input, expected a Sequence": (
        lambda: layers.bidirectional_lstm(ARRAY, 2)
    ),
    r"lstm_unit got cell_t_prev of shape \(2, 3\), expected \[2, 8\]": (
        lambda: layers.lstm_unit(ARRAY, ARRAY, ARRAY[:, :3])
    ),
    "gru_unit got an input of shape .* size=9, expected": lambda: layers.gru_unit(ARRAY, ARRAY, 9),
}  # fmt: skip


def step_of(logits, state=None):
    return lambda words, before: (logits(words), before if state is None else state)


def flat(words):
    return jnp.zeros([len(words), 3])


def search(step, state=(), first=ONES, **options):
    options = {"beam_size": 2, "end_id": 0, "max_length": 3, **options}
    return lambda: layers.beam_decode(step, state, first, **options)


def beams(scores, beam_size=2, ids=BEAMS, **options):
    return lambda: layers.beam_search(
        ids, ids * 1.0, None, jnp.ones(scores), beam_size, 0, **options
    )


def sample(**options):
    def step(words, state):
        return jnp.zeros([len(words), 6]), state

    return lambda: layers.sample_decode(step, data(6), ids(1), end_id=0, max_length=3, **options)


SEARCHES = {
    "got first_ids of dtype float32": search(step_of(flat), first=ONES.astype(jnp.float32)),
    r"shape \(2, 3\), expected \[B\]": search(step_of(flat), first=jnp.ones([2, 3], jnp.int32)),
    r"array of shape \(3, 1\), expected \[2, \.\.\.\]": search(step_of(flat), jnp.ones([3, 1])),
    "logits of 3 words and end_id=3": search(step_of(flat), end_id=3),
    r"logits of shape \(4, 1, 3\), expected \[4, V\]": search(
        step_of(lambda words: jnp.zeros([len(words), 1, 3]))
    ),
    "from step, expected a tuple": search(lambda words, state: flat(words)),
    "state of structure .* expected": search(step_of(flat, (1,))),
    r"shape \(4, 2\) and dtype float32 in the state .* expected shape \(4, 1\)": search(
        step_of(flat, jnp.ones([4, 2])), jnp.ones([2, 1])
    ),
    "beam_size got 0, expected an integer": search(step_of(flat), beam_size=0),
    "length_penalty=inf, expected a finite number of 0 or more": search(
        step_of(flat), length_penalty=float("inf")
    ),
    r"pre_ids of shape \(1, 2\), expected \[1, 3\]": beams([1, 3, 2]),
    "beam_size=5, expected a number from 1 to 4": beams([1, 2, 2], 5),
    "level=1, expected 0": beams([1, 2, 2], level=1),
    "layers.beam_search: beam_size got 1.5, expected an integer": beams([1, 2, 2], 1.5),
    "layers.beam_search got pre_ids of dtype float32": beams([1, 2, 2], ids=BEAMS * 1.0),
    r"beam_size=2, expected three of shape \[S, B, 2\]": lambda: layers.beam_search_decode(
        jnp.ones([3, 1, 2], int), jnp.ones([3, 1, 2]), jnp.ones([2, 1, 2], int), 2, 0
    ),
    "tile_beams.* beam_size got 0": lambda: layers.tile_beams(BEAMS, 0),
    "temperature=0.0, expected a finite number above 0.*greedy_decode": sample(temperature=0.0),
    "top_k got 0, expected an integer of 1 or more": sample(top_k=0),
    "top_p=1.5, expected a number above 0 and up to 1": sample(top_p=1.5),
    r"seed of shape \(3,\), expected \[B\] or .* Or a number": sample(seed=jnp.zeros([3], int)),
}  # fmt: skip

ERRORS = {
    **(DENSE | IMAGES | NORMS | LOSSES | SHAPES | NOISE),
    **(ATTENTION | SEQUENCES | RECURRENT | SEARCHES),
}


@pytest.mark.parametrize("message", ERRORS)
def test_wrong_argument_is_refused_with_what_is_expected(message):
    with pytest.raises(ValueError, match=message):
        initial(ERRORS[message])
