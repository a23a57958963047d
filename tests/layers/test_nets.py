"""The nets against the layers they are made of, and attention against flax."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from penstock import layers
from penstock._errors import ProgramError
from tests.layers.programs import infer, initial, normal, train

IMAGE = {"x": normal(2, 8, 8, 3)}


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_simple_img_conv_pool_is_a_convolution_then_a_pooling(data_format):
    shape = [8, 8, 3] if data_format == "NHWC" else [3, 8, 8]
    feed = IMAGE if data_format == "NHWC" else {"x": IMAGE["x"].transpose(0, 3, 1, 2)}

    def net():
        return layers.simple_img_conv_pool(
            layers.data("x", shape), 5, 3, 2, 2, 1, "avg", conv_stride=2, conv_padding=1,
            act="tanh", name="first", data_format=data_format,
        )  # fmt: skip

    def by_hand():
        x = layers.conv2d(
            layers.data("x", shape), 5, 3, 2, 1, act="tanh", name="first", data_format=data_format
        )
        return layers.pool2d(x, 2, "avg", 2, 1, data_format=data_format)

    variables = initial(net)
    assert list(variables["params"]) == ["first"]
    np.testing.assert_array_equal(infer(net, feed, variables), infer(by_hand, feed, variables))


@pytest.mark.slow
def test_img_conv_group_with_batch_norm_activates_after_it():
    def net():
        return layers.img_conv_group(
            layers.data("x", [8, 8, 3]), [4, 5], 2, conv_padding=[1, 0], conv_filter_size=[3, 2],
            conv_act="relu", conv_with_batchnorm=[True, False], conv_batchnorm_drop_rate=[0.5, 0.5],
            pool_stride=2, pool_type="avg",
        )  # fmt: skip

    def by_hand():
        x = layers.conv2d(layers.data("x", [8, 8, 3]), 4, 3, padding=1)
        x = layers.dropout(layers.batch_norm(x, act="relu"), 0.5)
        x = layers.conv2d(x, 5, 2, act="relu")
        return layers.pool2d(x, 2, "avg", 2)

    variables = initial(net)
    assert sorted(variables["params"]) == ["batch_norm_0", "conv2d_0", "conv2d_1"]
    assert variables["params"]["conv2d_1"]["w"].shape == (2, 2, 4, 5)
    np.testing.assert_array_equal(infer(net, IMAGE, variables), infer(by_hand, IMAGE, variables))
    in_training = [
        train(lambda f=f: (layers.mean(y := f()), y), IMAGE).values[1] for f in (net, by_hand)
    ]
    np.testing.assert_array_equal(*in_training)


def test_img_conv_group_of_one_name_shares_its_parameters():
    def net():
        x = layers.data("x", [8, 8, 3])
        return sum(
            layers.img_conv_group(x, [3, 3], 2, conv_with_batchnorm=True, name="block")
            for _ in range(2)
        )

    assert sorted(initial(net)["params"]) == [
        f"block_{kind}_{i}" for kind in ("batch_norm", "conv2d") for i in (0, 1)
    ]


def test_img_conv_group_with_lists_of_other_lengths_says_which():
    with pytest.raises(ProgramError, match=r"got 3 values of conv_padding for 2 convolutions"):
        initial(
            lambda: layers.img_conv_group(
                layers.data("x", [8, 8, 3]), [4, 5], 2, conv_padding=[1, 1, 1]
            )
        )
    with pytest.raises(ProgramError, match=r"conv_num_filter=4, expected a list"):
        initial(lambda: layers.img_conv_group(layers.data("x", [8, 8, 3]), 4, 2))


def test_glu_gates_one_half_by_the_other():
    x = normal(2, 6, 3)
    np.testing.assert_allclose(layers.glu(x, dim=1), nn.glu(x, axis=1), rtol=1e-6)
    with pytest.raises(ProgramError, match=r"glu got dim=-1 .* expected an axis of even size"):
        layers.glu(x)


def attend(num_heads, **arguments):
    def function():
        q, k, v = (layers.data(n, s) for n, s in (("q", [5, 8]), ("k", [7, 8]), ("v", [7, 6])))
        return layers.scaled_dot_product_attention(q, k, v, num_heads, **arguments)

    return function


QKV = {"q": normal(3, 5, 8), "k": normal(3, 7, 8, seed=1), "v": normal(3, 7, 6, seed=2)}


def test_attention_with_one_head_has_no_parameters_and_equals_flax():
    q, k, v = (x[:, :, None, :] for x in QKV.values())
    assert not initial(attend(1))["params"]
    expected = nn.dot_product_attention(q, k, v)[:, :, 0]
    np.testing.assert_allclose(infer(attend(1), QKV), expected, rtol=1e-5, atol=1e-6)


def test_attention_with_several_heads_projects_and_equals_flax():
    variables = initial(attend(2, name="heads"))
    projected = []
    for x, part in zip(QKV.values(), ("query", "key", "value"), strict=True):
        params = variables["params"][f"heads_{part}"]
        params["b"] = normal(x.shape[-1], seed=5)
        y = x @ params["w"] + params["b"]
        projected.append(y.reshape(*y.shape[:2], 2, -1))
    expected = nn.dot_product_attention(*projected).reshape(3, 5, 6)
    actual = infer(attend(2, name="heads"), QKV, variables)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_attention_drops_weights_in_training_only():
    def function():
        y = attend(1, dropout_rate=0.5)()
        return layers.mean(y), y

    step = train(function, QKV, is_tested=True)
    np.testing.assert_allclose(step.test_values[1], infer(attend(1), QKV), rtol=1e-6)
    assert not np.allclose(step.values[1], step.test_values[1])


@pytest.mark.parametrize(
    ("shapes", "num_heads", "message"),
    [
        (([5], [5], [5]), 1, "three axes each"),
        (([5, 8], [7, 6], [7, 6]), 1, "queries and keys of one width"),
        (([5, 8], [7, 8], [6, 6]), 1, "as many keys as values"),
        (([5, 8], [7, 8], [7, 6]), 4, "widths that num_heads divides"),
        (([5, 8], [7, 6], [6, 6]), 1, "of one width and as many keys as values"),
    ],
)
def test_attention_of_shapes_that_do_not_fit_says_why(shapes, num_heads, message):
    def function():
        arrays = (layers.data(f"x{i}", shape) for i, shape in enumerate(shapes))
        return layers.scaled_dot_product_attention(*arrays, num_heads)

    with pytest.raises(ProgramError, match=message):
        initial(function)


def test_attention_is_the_same_inside_scan():
    def function():
        x = layers.data("x", [4, 5, 8])

        def body(carry, step):
            return carry, layers.scaled_dot_product_attention(step, step, step, 2, name="heads")

        return jax.lax.scan(body, 0, x.swapaxes(0, 1))[1].swapaxes(0, 1)

    def once():
        x = layers.data("x", [5, 8])
        return layers.scaled_dot_product_attention(x, x, x, 2, name="heads")

    feed = normal(3, 4, 5, 8)
    variables = initial(once)
    np.testing.assert_allclose(
        infer(function, {"x": feed}, variables)[:, 2],
        infer(once, {"x": feed[:, 2]}, variables),
        rtol=1e-5,
        atol=1e-6,
    )
