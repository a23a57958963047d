"""Names that shift between modes or objectives, where shapes alone would not tell."""

import optax
import pytest
from flax import linen as nn

import penstock as ps
from penstock import layers


def dense(hidden):
    """Return a layer made by a helper: the same line for every call."""
    return layers.fc(hidden, 4)


def flax_dense(hidden):
    """Return a flax module's output, made by a helper."""
    return nn.Dense(4)(hidden)


@pytest.mark.parametrize("make", [dense, flax_dense])
def test_train_only_layer_behind_a_helper_is_refused(make):
    def program():
        hidden = layers.data("x", shape=[4])
        if layers.is_training():
            hidden = make(hidden)
        return layers.mean(make(hidden))

    with pytest.raises(ps.ProgramError, match="shifts automatic names"):
        ps.ProgramBuilder(program, optax.sgd(0.1))


@pytest.mark.parametrize("make", [dense, flax_dense])
def test_infer_function_called_after_another_layer_is_refused(make):
    def infer_program():
        return make(layers.data("x", shape=[4]))

    def train_program():
        make(layers.data("x", shape=[4]))
        return layers.mean(infer_program())

    with pytest.raises(ps.ProgramError, match="shifts automatic names"):
        ps.ProgramBuilder(train_program, optax.sgd(0.1), infer_func=infer_program)


@pytest.mark.parametrize("make", [dense, flax_dense])
def test_infer_function_called_twice_in_training_is_accepted(make):
    def infer_program():
        return make(make(layers.data("x", shape=[4])))

    def train_program():
        return layers.mean(infer_program() - infer_program())

    ps.ProgramBuilder(train_program, optax.sgd(0.1), infer_func=infer_program)


def test_one_line_with_other_names_for_two_objectives_is_refused():
    def first():
        return layers.mean(dense(layers.data("x", shape=[4])))

    def second():
        return layers.mean(dense(layers.fc(layers.data("x", shape=[4]), 4)))

    objectives = {
        name: ps.Objective(f, optax.sgd(0.1)) for name, f in [("a", first), ("b", second)]
    }
    with pytest.raises(ps.ProgramError, match=r"'fc_1' for what is 'fc_0'.*layers.scope"):
        ps.ProgramBuilder(objectives)


def test_one_parameter_with_other_attributes_for_two_objectives_is_refused():
    def objective(trainable):
        def function():
            attr = layers.ParamAttr(trainable=trainable)
            x = layers.data("x", shape=[4])
            return layers.mean(layers.fc(x, 4, param_attr=attr, name="f"))

        return ps.Objective(function, optax.sgd(0.1))

    with pytest.raises(ps.ProgramError, match="One parameter has one set of attributes"):
        ps.ProgramBuilder({"a": objective(True), "b": objective(False)})


def test_two_modules_on_one_line_are_told_apart_in_every_mode():
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, *, train):
            return nn.Dense(1)(nn.Dropout(0.5, deterministic=not train)(nn.Dense(3)(x)))

    def program():
        return layers.mean(Block()(layers.data("x", shape=[4]), train=layers.is_training()))

    builder = ps.ProgramBuilder(program, optax.sgd(0.1))
    assert set(builder.init().variables["params"]["Block_0"]) == {"Dense_0", "Dense_1"}
