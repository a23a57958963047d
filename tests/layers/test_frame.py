"""The frame: names within a program, inputs, and layers called where there is none."""

import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from tests.networks import linear_program, one_device


def make_builder(program):
    return ps.ProgramBuilder(program, optax.sgd(0.1), place=one_device())


def names_of(builder):
    return [row.name for row in builder.parameter_table()]


def error_of(program):
    with pytest.raises(ps.ProgramError) as caught:
        make_builder(program)
    return str(caught.value)


def loss_of(prediction):
    return layers.mean(layers.square_error_cost(prediction, layers.data("y", shape=[1])))


def test_second_use_of_a_name_with_another_shape_is_refused():
    def program():
        x = layers.data("x", shape=[4])
        return loss_of(layers.fc(layers.fc(x, size=3, name="twin"), size=1, name="twin"))

    text = error_of(program)
    assert text.startswith("parameter 'twin/w' got shape (3, 1), dtype float32, trainable=True")
    assert "expected shape (4, 3), dtype float32" in text
    assert text.count(f"at {__file__}:") == 2
    assert "The same name in the same scope is the same parameter" in text


@pytest.mark.parametrize(
    "second",
    [
        layers.ParamAttr(trainable=False),
        layers.ParamAttr(learning_rate=0.5),
        layers.ParamAttr(regularizer=layers.L2Decay(0.1)),
    ],
)
def test_second_use_of_a_name_with_another_configuration_is_refused(second):
    def program():
        x = layers.data("x", shape=[4])
        first = layers.fc(x, size=1, name="twin")
        return loss_of(first + layers.fc(x, size=1, name="twin", param_attr=second))

    assert "parameter 'twin/w' got shape (4, 1)" in error_of(program)


def test_same_name_with_the_same_shape_is_the_same_parameters():
    def program():
        x = layers.data("x", shape=[4])
        return loss_of(layers.fc(x, size=1, name="twin") + layers.fc(x, size=1, name="twin"))

    assert names_of(make_builder(program)) == ["twin/w", "twin/b"]


def test_name_of_a_layer_of_another_kind_is_refused():
    def program():
        hidden = layers.fc(layers.data("x", shape=[4]), size=1, name="twin")
        return loss_of(layers.batch_norm(hidden, name="twin"))

    assert error_of(program).startswith(
        "layers.batch_norm got the name 'twin', which a layers.fc in the same scope has already "
        "(explicit name). Two layers share parameters only when"
    )


def test_explicit_name_that_an_automatic_one_has_is_refused():
    def program():
        hidden = layers.fc(layers.data("x", shape=[4]), size=4)
        return loss_of(layers.fc(hidden, size=1, name="fc_0"))

    assert "layers.fc got the name 'fc_0', which a layers.fc in the same scope has" in error_of(
        program
    )


def test_parameter_with_the_name_of_a_layer_is_refused():
    def program():
        x = layers.data("x", shape=[4])
        first = layers.fc(x, size=1, param_attr="twin", bias_attr=False)
        return loss_of(first + layers.fc(x, size=1, name="twin"))

    assert error_of(program) == (
        "parameter 'twin' got the name of the layer that owns 'twin/w'. A name is either a "
        "parameter or a layer. Rename one."
    )


def test_input_declared_with_two_shapes_is_refused():
    def program():
        layers.data("x", shape=[3])
        return linear_program()

    assert error_of(program) == (
        "layers.data 'x' got shape (4,) and dtype float32, expected shape (3,) and dtype float32, "
        "as declared before in the same program. One input has one shape. Use another name for "
        "another input."
    )


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: layers.data("x", shape=[4]), "data"),
        (lambda: layers.fc(np.zeros((2, 4), np.float32), size=1), "fc"),
        (lambda: layers.mean(np.zeros(2)), "mean"),
        (lambda: layers.is_training(), "is_training"),
        (lambda: layers.scope("a")(lambda: 0)(), "scope"),
    ],
)
def test_layer_outside_a_program_is_refused(call, name):
    with pytest.raises(ps.LayerContextError) as caught:
        call()
    assert str(caught.value) == (
        f"layers.{name} got called outside a program, expected a call inside a program function. "
        "Layers need the parameters and the mode of a program. Put the call into a function and "
        "give that function to ps.Trainer, ps.ProgramBuilder or ps.Inferencer."
    )
    make_builder(linear_program)
    with pytest.raises(ps.LayerContextError):
        call()
