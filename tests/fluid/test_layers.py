"""Fluid's layers: its layout, its defaults, and otherwise penstock's numbers."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import penstock as ps
import penstock.fluid as fluid
from penstock import layers
from tests.layers.programs import infer, initial, normal, train

CHANNELS_FIRST = normal(4, 3, 8, 8)

IMAGE_LAYERS = {
    "conv2d": {"num_filters": 6, "filter_size": 3, "stride": 2, "padding": 1, "act": "relu"},
    "conv2d_transpose": {"num_filters": 6, "filter_size": 3, "stride": 2},
    "pool2d": {"pool_size": 3, "pool_stride": 2, "pool_padding": 1, "pool_type": "avg"},
    "batch_norm": {"act": "relu"},
    "group_norm": {"groups": 3},
    "lrn": {"n": 3, "alpha": 0.5},
    "pad2d": {"paddings": [1, 0, 2, 3], "mode": "reflect"},
    "simple_img_conv_pool": {"num_filters": 6, "filter_size": 3, "pool_size": 2, "pool_stride": 2},
    "img_conv_group": {
        "conv_num_filter": [4, 6],
        "pool_size": 2,
        "pool_stride": 2,
        "conv_act": "relu",
        "conv_filter_size": [3, 1],
        "conv_padding": [1, 0],
        "conv_with_batchnorm": [True, False],
    },
}


def test_images_are_channels_first_and_numbers_the_same():
    def program():
        image, outs = layers.data("image", shape=[3, 8, 8]), {}
        for name, options in IMAGE_LAYERS.items():
            of_fluid = layers.scope(name)(getattr(fluid.layers, name))(image, **options)
            own = layers.scope(name)(getattr(layers, name))(jnp.moveaxis(image, 1, -1), **options)
            outs[name] = of_fluid, jnp.moveaxis(own, -1, 1)
        return outs

    for name, (of_fluid, own) in infer(program, {"image": CHANNELS_FIRST}).items():
        np.testing.assert_allclose(of_fluid, own, rtol=1e-5, atol=1e-6, err_msg=name)


ELSEWHERE_IN_FLUID = {"L1Decay", "L2Decay", "ParamAttr", "sequence_conv_pool"} | {
    *("transformer_decoder", "transformer_encoder", "transformer_encoder_layer")
}
NEVER_IN_FLUID = {
    *("KeyValueCache", "Sentences", "add_positions", "beam_decode", "bidirectional_gru"),
    *("bidirectional_lstm", "create_parameters", "depthwise_conv2d", "drop_path", "dynamic_rnn"),
    *("example_keys", "global_step", "greedy_decode", "init_cache", "multi_head_attention"),
    *("nnx_module", "position_embedding"),
    *("rms_norm", "rotary_embedding", "sample_decode"),
    *("segment_positions", "separable_conv2d", "sinusoidal_positions", "sown", "squeeze_excite"),
    *("monte_carlo", "remat", "tile_beams", "weight_decay_loss"),
}


def test_every_layer_of_fluid_is_offered():
    offered = set(vars(fluid.layers))
    assert set(layers.__all__) - offered == ELSEWHERE_IN_FLUID | NEVER_IN_FLUID


@pytest.mark.parametrize("name", ["conv2d", "pool2d", "simple_img_conv_pool", "img_conv_group"])
def test_use_cudnn_is_accepted(name):
    assert "use_cudnn" in inspect.signature(getattr(fluid.layers, name)).parameters


def test_dropout_scales_in_test_and_infer():
    def program():
        return fluid.layers.dropout(layers.data("x", shape=[1000]), 0.25)

    ones = {"x": np.ones([2, 1000], "float32")}
    np.testing.assert_allclose(infer(program, ones), 0.75)

    def trained():
        return layers.mean(program()), program()

    step = train(trained, ones, is_tested=True)
    assert set(np.unique(step.values[1])) == {0.0, 1.0}
    assert step.test_values[0] == pytest.approx(0.75)


def test_dropout_in_conv_group_scales_too():
    def program():
        return fluid.nets.img_conv_group(
            layers.data("image", shape=[3, 8, 8]),
            conv_num_filter=[4],
            pool_size=1,
            conv_with_batchnorm=True,
            conv_batchnorm_drop_rate=rate,
        )

    feed = {"image": CHANNELS_FIRST}
    rate = 0.0
    whole = infer(program, feed)
    rate = 0.5
    np.testing.assert_allclose(infer(program, feed), 0.5 * whole, rtol=1e-6)


@pytest.mark.quick("None")
@pytest.mark.parametrize(("implementation", "factor"), [(None, 0.5), ("upscale_in_train", 1.0)])
def test_is_test_of_dropout_does_in_training_what_test_does(implementation, factor):
    options = {} if implementation is None else {"dropout_implementation": implementation}

    def program():
        x = layers.data("x", shape=[8])
        return layers.mean(fluid.layers.dropout(x, 0.5, is_test=True, **options))

    assert train(program, {"x": np.ones([2, 8], "float32")}).values == pytest.approx(factor)


def test_is_test_of_batch_norm_leaves_the_statistics():
    def program():
        x = fluid.layers.batch_norm(layers.data("x", shape=[8]), is_test=True)
        return layers.mean(x)

    step = train(program, {"x": 3 + normal(16, 8)})
    assert not np.any(step.batch_stats["batch_norm_0"]["mean"])


def test_errors_point_at_the_users_line():
    def program():
        x = layers.data("image", shape=[3, 8, 8])
        a = fluid.layers.conv2d(x, num_filters=2, filter_size=3, param_attr="shared")
        return a, fluid.nets.simple_img_conv_pool(x, 2, 5, 2, 2, param_attr="shared")

    with pytest.raises(ValueError, match="parameter 'shared' got shape") as raised:
        ps.ProgramBuilder(infer_func=program)
    first = program.__code__.co_firstlineno
    assert f"test_layers.py:{first + 3}, expected" in str(raised.value)
    assert f"as at {program.__code__.co_filename}:{first + 2}" in str(raised.value)


def test_param_attr_takes_its_name_first():
    attr = fluid.ParamAttr("w", fluid.initializer.Constant(2.0), 0.5, trainable=False)
    expected = layers.ParamAttr(
        name="w", initializer=attr.initializer, learning_rate=0.5, trainable=False
    )
    assert attr == expected

    def program():
        return fluid.layers.fc(layers.data("x", shape=[3]), size=2, param_attr=attr)

    assert np.all(initial(program)["params"]["w"] == 2.0)


@pytest.mark.parametrize(
    ("initializer", "variance", "mean"),
    [
        (fluid.initializer.Uniform(-1.0, 2.0), 9 / 12, 0.5),
        (fluid.initializer.Normal(1.0, 0.5), 0.25, 1.0),
        (fluid.initializer.Xavier(), 2 / 500, 0.0),
        (fluid.initializer.Xavier(uniform=False), 2 / 500, 0.0),
        (fluid.initializer.MSRA(), 2 / 300, 0.0),
        (fluid.initializer.MSRA(uniform=False), 2 / 300, 0.0),
    ],
)
def test_initializer_draws_from_its_distribution(initializer, variance, mean):
    def program():
        return (
            layers.create_parameter([300, 200], name="w", attr=initializer)
            + layers.data("x", shape=[1]).sum()
        )

    value = initial(program)["params"]["w"]
    assert value.var() == pytest.approx(variance, rel=0.05)
    assert value.mean() == pytest.approx(mean, abs=0.02)


@pytest.mark.parametrize("is_uniform", [False, True])
@pytest.mark.parametrize(("kind", "scale"), [("Xavier", 1.0), ("MSRA", 2.0)])
def test_initializer_takes_the_size_of_a_bias_for_its_inputs_and_outputs(kind, scale, is_uniform):
    draw = getattr(fluid.initializer, kind)(is_uniform)
    value = draw(jax.random.key(0), (20_000,), "float32")
    assert value.var() == pytest.approx(scale / 20_000, rel=0.05)
    assert (abs(value).max() <= (3 * scale / 20_000) ** 0.5) == is_uniform
