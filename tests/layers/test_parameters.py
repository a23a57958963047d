"""Parameters of one's own, their attributes, and which name means which parameter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import penstock as ps
from penstock import layers
from penstock._errors import ProgramError
from tests.layers.programs import initial


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


@pytest.mark.parametrize("initializer", [0.0, 0.1])
def test_create_parameter_refuses_a_number_for_an_initializer(initializer):
    with pytest.raises(TypeError, match=rf"initializer={initializer}, expected a function"):
        initial(lambda: layers.create_parameter([2], default_initializer=initializer))


HERE = r" at .*test_parameters\.py:\d+"
SHAPE_OF_TWIN = (
    rf"parameter 'twin/w' got shape \(3, 1\), dtype float32, trainable=True.*{HERE}.*expected "
    rf"shape \(4, 3\), dtype float32.*{HERE}.*The same name in the same scope is the same parameter"
)


def ask_twice(x, second):
    # On two lines: one that runs twice may make another regularizer each time.
    first = layers.fc(x, 1, param_attr=layers.ParamAttr(name="w"))
    return first, layers.fc(x, 1, param_attr=second)


# What a second layer does with a name that the first has.
CLASHES = {
    SHAPE_OF_TWIN: lambda x: layers.fc(layers.fc(x, 3, name="twin"), 1, name="twin"),
    **{
        rf"parameter 'w' got .*{shown}": (
            lambda x, attr=attr: ask_twice(x, attr)
        )
        for shown, attr in {
            "trainable=False": layers.ParamAttr(name="w", trainable=False),
            "learning_rate=0.5": layers.ParamAttr(name="w", learning_rate=0.5),
            r"regularizer=L2Decay\(coefficient=0.1\)": layers.ParamAttr(
                name="w", regularizer=layers.L2Decay(0.1)
            ),
        }.items()
    },
    r"layers.batch_norm got the name 'twin', which a layers.fc in the same scope has already "
    r"\(explicit name\). Two layers share parameters only when": (
        lambda x: layers.batch_norm(layers.fc(x, 1, name="twin"), name="twin")
    ),
    r"layers.fc got the name 'fc_0', which a layers.fc in the same scope has": (
        lambda x: layers.fc(layers.fc(x, 4), 1, name="fc_0")
    ),
    r"layers.fc got the name 'fc_0', which .*\(explicit name\)": (
        lambda x: layers.fc(layers.fc(x, 4, name="fc_0"), 1)
    ),
    "the name 'a/b', expected a non-empty string without '/'": (
        lambda x: layers.fc(x, 2, name="a/b")
    ),
    "layers.create_parameters got two arrays of the name 'net/a/b', expected one": (
        lambda x: layers.create_parameters({"a": {"b": np.ones(1)}, "a/b": np.ones(1)}, "net")
    ),
    "the name '', expected a non-empty string": lambda x: layers.fc(x, 2, name=""),
    "parameter 'twin' got the name of the layer that owns 'twin/w'. A name is either a parameter "
    "or a layer. Rename one.": lambda x: [
        layers.fc(x, 1, param_attr="twin", bias_attr=False),
        layers.fc(x, 1, name="twin"),
    ],
    "'head' got the name of the layer that owns 'head/w'": lambda x: [
        layers.fc(x, 2, name="head"),
        layers.fc(x, 2, param_attr="head"),
    ],
    r"layers.data 'x' got shape \(3,\) and dtype float32, expected shape \(4,\) and dtype float32, "
    "as before in the program. One input has one shape. Use another name for another.": (
        lambda x: layers.data("x", [3])
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", CLASHES)
def test_name_that_is_taken_or_none_is_an_error(message):
    with pytest.raises(ProgramError, match=message):
        ps.ProgramBuilder(infer_func=lambda: CLASHES[message](layers.data("x", [4])))


def test_param_attr_with_a_negative_learning_rate_says_what_it_means():
    with pytest.raises(ValueError, match=r"learning_rate=-1, expected a number of 0 or more"):
        layers.ParamAttr(learning_rate=-1)
