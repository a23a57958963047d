"""Parameters of one's own, their attributes, and which name means which parameter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from penstock import layers
from penstock._errors import ProgramError
from tests.layers.programs import initial, normal, train

FEED = {"x": normal(5, 3)}


def test_param_attr_name_shares_one_parameter_between_layers():
    def function():
        x = layers.data("x", [3])
        a = layers.fc(x, 3, param_attr="shared", bias_attr=False)
        return layers.fc(a, 3, param_attr=layers.ParamAttr(name="shared"))

    params = initial(function)["params"]
    assert sorted(params) == ["fc_1", "shared"]
    assert list(params["fc_1"]) == ["b"]


def test_regularizers_add_to_the_gradient_and_not_to_the_loss():
    def function(regularizer):
        def program():
            attr = layers.ParamAttr(name="w", regularizer=regularizer)
            return layers.mean(layers.fc(layers.data("x", [3]), 2, param_attr=attr))

        return program

    w = initial(function(None))["params"]["w"]
    plain = train(function(None), FEED)
    for regularizer, added in (
        (layers.L2Decay(0.5), 0.5 * w),
        (layers.L1Decay(0.5), 0.5 * np.sign(w)),
    ):
        step = train(function(regularizer), FEED)
        np.testing.assert_allclose(step.gradients["w"], plain.gradients["w"] + added, atol=1e-6)
        assert step.values == plain.values


def test_create_parameter_is_zero_where_it_is_a_bias_and_xavier_elsewhere():
    def function():
        return (
            layers.create_parameter([3]),
            layers.create_parameter([30, 20], is_bias=True),
            layers.create_parameter([30, 20], name="w"),
            layers.create_parameter([2], default_initializer=jax.nn.initializers.ones),
            layers.create_parameter([2], attr=layers.ParamAttr(name="named"), dtype="bfloat16"),
            layers.data("x", [3]),
        )

    params = initial(function)["params"]
    assert not params["parameter_0"].any()
    assert not params["parameter_1"].any()
    assert 0 < np.abs(params["w"]).max() <= np.sqrt(6 / 50)
    assert params["parameter_2"].tolist() == [1, 1]
    assert params["named"].dtype == jnp.bfloat16


def test_initial_values_depend_on_the_seed_and_the_name_alone():
    def program(*names):
        return lambda: [layers.fc(layers.data("x", [3]), 2, name=name) for name in names]

    first = initial(program("a", "b"))["params"]
    swapped = initial(program("b", "a"))["params"]
    other = initial(program("a", "b"), seed=1)["params"]
    np.testing.assert_array_equal(first["a"]["w"], swapped["a"]["w"])
    assert not np.array_equal(first["a"]["w"], first["b"]["w"])
    assert not np.array_equal(first["a"]["w"], other["a"]["w"])


@pytest.mark.parametrize(
    ("difference", "shown"),
    [
        ({"trainable": False}, "trainable=False"),
        ({"learning_rate": 0.5}, "learning_rate=0.5"),
        ({"regularizer": layers.L2Decay(0.1)}, r"regularizer=L2Decay\(coefficient=0.1\)"),
    ],
)
def test_parameter_of_one_name_with_other_attributes_is_an_error(difference, shown):
    def function():
        x = layers.data("x", [3])
        layers.fc(x, 2, param_attr=layers.ParamAttr(name="w"))
        return layers.fc(x, 2, param_attr=layers.ParamAttr(name="w", **difference))

    with pytest.raises(ProgramError, match=rf"parameter 'w' got .*{shown}"):
        initial(function)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("conv", "conv", r"layers.fc got the name 'conv', which a layers.conv2d .* has already"),
        ("fc_0", None, r"layers.fc got the name 'fc_0', which .*\(explicit name\)"),
        ("a/b", None, r"the name 'a/b', expected a non-empty string without '/'"),
        ("", None, r"the name '', expected a non-empty string"),
    ],
)
def test_name_that_is_taken_or_none_is_an_error(first, second, message):
    def function():
        x = layers.data("x", [4, 4, 1])
        if first == "conv":
            layers.conv2d(x, 1, 3, name=first)
        else:
            layers.fc(x, 2, name=first)
        return layers.fc(x, 2, name=second)

    with pytest.raises(ProgramError, match=message):
        initial(function)


def test_parameter_with_the_name_of_a_layer_is_an_error():
    def function():
        x = layers.data("x", [3])
        layers.fc(x, 2, name="head")
        return layers.fc(x, 2, param_attr="head")

    with pytest.raises(ProgramError, match=r"'head' got the name of the layer that owns 'head/w'"):
        initial(function)


def test_param_attr_with_a_negative_learning_rate_says_what_it_means():
    with pytest.raises(ValueError, match=r"learning_rate=-1, expected 0 or more"):
        layers.ParamAttr(learning_rate=-1)
