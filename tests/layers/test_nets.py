"""The nets against the layers they are made of, and attention against flax."""

import jax.numpy as jnp
import numpy as np
import pytest

from penstock import layers
from penstock._program.sequences import Sequence
from tests.layers.programs import infer, initial, normal, train

IMAGE = {"x": normal(2, 8, 8, 3)}


def test_simple_img_conv_pool_is_a_convolution_then_a_pooling():
    def program():
        x = layers.data("x", [8, 8, 3])
        net = layers.simple_img_conv_pool(
            x, 5, 3, 2, 2, 1, "avg", conv_stride=2, conv_padding=1, act="tanh", name="first"
        )
        by_hand = layers.conv2d(x, 5, 3, 2, 1, act="tanh", name="first")
        return net, layers.pool2d(by_hand, 2, "avg", 2, 1)

    assert list(initial(program)["params"]) == ["first"]
    np.testing.assert_array_equal(*infer(program, IMAGE))


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


def test_attention_of_bfloat16_has_its_softmax_in_float32():
    def program():
        q, k, v = (4 * layers.data(name, [9, 64], "bfloat16") for name in "qkv")
        wide = [x.astype(jnp.float32) for x in (q, k, v)]
        attend = layers.scaled_dot_product_attention
        return attend(q, k, v).astype(jnp.float32), attend(*wide)

    feed = {name: normal(2, 9, 64, seed=seed) for seed, name in enumerate("qkv")}
    own, exact = infer(program, {name: x.astype(jnp.bfloat16) for name, x in feed.items()})
    assert np.linalg.norm(own - exact) < 4e-3 * np.linalg.norm(exact)


def test_queries_or_keys_and_values_of_one_example_may_be_those_of_all():
    one, attend = normal(1, 4, 8, seed=1), layers.scaled_dot_product_attention

    def program():
        x = layers.data("x", [5, 8])
        every = jnp.tile(one, (x.shape[0], 1, 1))
        shared = attend(one, x, x), attend(x, one, one)
        return shared, (attend(every, x, x), attend(x, every, every))

    for shared, whole in zip(*infer(program, {"x": normal(3, 5, 8)}), strict=True):
        np.testing.assert_allclose(shared, whole, rtol=1e-6, atol=1e-6)

    def of_words():
        x, queries = layers.data("x", [5, 8]), Sequence(jnp.asarray(one), jnp.array([3]))
        return attend(queries, x, x), attend(one, x, x)

    words, whole = infer(of_words, {"x": normal(3, 5, 8)})
    np.testing.assert_allclose(words, whole[:, :3], rtol=1e-6, atol=1e-6)
