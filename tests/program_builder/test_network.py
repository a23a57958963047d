"""One parameter tree for all programs: names, initial values, and what happens when they differ."""

import re

import jax
import numpy as np
import optax
import pytest
from flax import linen as nn

import penstock as ps
from penstock import layers
from penstock._program.frame import make_root
from tests.networks import (
    assert_same_bits,
    host,
    linear_data,
    linear_program,
    one_device,
)


def make_builder(program=None, infer_func=None, **arguments):
    optimizer = None if isinstance(program, dict) or program is None else optax.sgd(0.1)
    return ps.ProgramBuilder(
        program, optimizer, infer_func=infer_func, place=one_device(), **arguments
    )


def names_of(builder):
    return [row.name for row in builder.parameter_table()]


def error_of(*args, **kwargs):
    with pytest.raises(ps.ProgramError) as caught:
        make_builder(*args, **kwargs)
    return str(caught.value)


def loss_of(prediction):
    return layers.mean(layers.square_error_cost(prediction, layers.data("y", shape=[1])))


# Names.


def nested_program():
    x = layers.data("x", shape=[4])
    encode = layers.scope("encoder")(lambda x: layers.fc(layers.fc(x, size=3), size=3, name="last"))
    hidden = encode(x) + encode(2 * x)
    hidden = layers.batch_norm(layers.fc(hidden, size=2))
    return loss_of(layers.fc(hidden, size=1) + layers.fc(hidden, size=1, name="skip"))


NESTED_NAMES = [
    *("encoder/fc_0/w", "encoder/fc_0/b", "encoder/last/w", "encoder/last/b"),
    *("fc_0/w", "fc_0/b", "batch_norm_0/scale", "batch_norm_0/bias"),
    *("fc_1/w", "fc_1/b", "skip/w", "skip/b"),
    *("batch_norm_0/mean", "batch_norm_0/variance"),
]


def test_names_count_by_kind_in_each_scope_in_the_order_of_creation():
    assert names_of(make_builder(nested_program)) == NESTED_NAMES


# Initial values.


def initial(program, seed=0):
    return host(make_builder(program).init(seed=seed).variables["params"])


def test_initial_values_depend_on_names_alone():
    def first():
        x = layers.data("x", shape=[4])
        return loss_of(layers.fc(layers.fc(x, size=3, name="a"), size=1, name="b"))

    def second():
        x = layers.data("x", shape=[4])
        # Of so many shapes that they are drawn by several programs.
        outputs = [layers.fc(layers.fc(x, size=size), size=1) for size in range(5, 12)]
        b = layers.fc(layers.fc(x, size=3, name="a"), size=1, name="b")
        return loss_of(b + sum(outputs))

    before, after = initial(first), initial(second)
    assert_same_bits({name: after[name] for name in before}, before)


def test_the_first_state_is_traced_once_also_where_several_programs_draw_it():
    def num_traces(sizes):
        calls = []

        def count(params):
            calls.append(params)
            return optax.EmptyState()

        def program():
            x = layers.data("x", shape=[4])
            return loss_of(sum(layers.fc(layers.fc(x, size=size), size=1) for size in sizes))

        optimizer = optax.chain(
            optax.GradientTransformation(count, lambda updates, state, _: (updates, state)),
            optax.sgd(0.1),
        )
        builder = ps.ProgramBuilder(program, optimizer, place=one_device())
        calls.clear()
        builder.init()
        return len(calls)

    assert num_traces(range(2, 4)) == num_traces(range(2, 14)) == 1


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1])
def test_root_of_a_seed_is_the_key_that_jax_makes_of_it(seed):
    expected = jax.random.key_data(jax.random.key(seed, impl="threefry2x32"))
    np.testing.assert_array_equal(make_root(seed), expected)


def test_seeds_of_more_than_32_bits_are_seeds_of_their_own():
    seeds = (0, 1, 2**32, 2**40, 2**40 + 1, 2**63, np.uint64(2**64 - 1))
    assert len({tuple(np.asarray(make_root(seed))) for seed in seeds}) == len(seeds)


@pytest.mark.parametrize("make", [np.int64, np.array, jax.device_put])
def test_array_of_one_integer_is_a_seed(make):
    np.testing.assert_array_equal(make_root(make(3)), make_root(3))


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, True, "a", None], ids=str)
def test_seed_that_is_no_integer_of_64_bits_is_refused(seed):
    text = re.escape(f"seed got {seed!r}, expected an integer from 0 to 2**64 - 1.")
    with pytest.raises(ValueError, match=text):
        ps.ProgramBuilder(lambda: layers.mean(layers.data("x", [1]))).init(seed)


def test_initial_values_differ_from_layer_to_layer_and_from_seed_to_seed():
    def program():
        x = layers.data("x", shape=[4])
        return loss_of(layers.fc(x, size=1) + layers.fc(x, size=1))

    params, other = initial(program), initial(program, seed=1)
    assert not np.array_equal(params["fc_0"]["w"], params["fc_1"]["w"])
    assert not np.array_equal(params["fc_0"]["w"], other["fc_0"]["w"])
    assert_same_bits(initial(program), params)


def test_initial_value_of_another_shape_is_refused():
    def program():
        wrong = layers.ParamAttr(initializer=lambda key, shape, dtype: np.zeros(3, np.float32))
        return loss_of(layers.fc(layers.data("x", shape=[4]), size=1, param_attr=wrong))

    with pytest.raises(
        ValueError, match=r"the initializer of 'fc_0/w' returned shape \(3,\) and dtype"
    ):
        make_builder(program).init()


# Train-only layers.


def auxiliary_of_another_shape_first():
    x = layers.data("x", shape=[4])
    auxiliary = layers.fc(x, size=2) if layers.is_training() else None
    return loss_of(layers.fc(x, size=1)) + (0 if auxiliary is None else layers.mean(auxiliary))


SHIFTS = "A layer that only one of them has shifts automatic names. Name it, create it last,"


def last(x):
    prediction = layers.fc(x, size=1)
    return prediction + (layers.fc(x, size=1) if layers.is_training() else 0)


def named(x):
    auxiliary = layers.fc(x, size=1, name="auxiliary") if layers.is_training() else 0
    return layers.fc(x, size=1) + auxiliary


def scoped(x):
    make = layers.scope("auxiliary")(lambda: layers.fc(x, size=1))
    auxiliary = make() if layers.is_training() else 0
    return layers.fc(x, size=1) + auxiliary


@pytest.mark.parametrize("network", [last, named, scoped])
def test_layer_of_training_alone_is_fine_last_or_with_a_name_or_in_a_scope(network):
    builder = make_builder(lambda: loss_of(network(layers.data("x", shape=[4]))))
    state, _ = builder.train(builder.init(), linear_data(4))
    assert np.isfinite(float(builder.test(state, linear_data(4))))
    assert len(names_of(builder)) == 4


def test_layers_made_in_a_loop_by_one_line_may_be_fewer_in_test():
    def program():
        hidden = layers.data("x", shape=[4])
        for _ in range(3 if layers.is_training() else 2):
            hidden = layers.fc(hidden, size=4)
        return loss_of(hidden[:, :1])

    assert len(names_of(make_builder(program))) == 6


# Names that shift where shapes alone would not tell.


def dense(hidden):
    """Return a layer made by a helper: the same line for every call."""
    return layers.fc(hidden, 4)


def flax_dense(hidden):
    """Return a flax module's output, made by a helper."""
    return nn.Dense(4)(hidden)


@pytest.mark.parametrize("is_in_test", [True, False])
@pytest.mark.parametrize("make", [dense, flax_dense])
def test_layer_of_training_alone_behind_a_helper_is_refused(make, is_in_test):
    """In the train program before what it has in common with its test, or with infer."""

    def infer_program():
        return make(layers.data("x", shape=[4]))

    def train_program():
        if layers.is_training() or not is_in_test:
            make(layers.data("x", shape=[4]))
        return layers.mean(infer_program())

    assert SHIFTS in error_of(train_program, infer_func=None if is_in_test else infer_program)


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

    text = error_of({"a": ps.Objective(first), "b": ps.Objective(second)})
    assert "got the name 'fc_1' for what is 'fc_0' in the train program of first" in text


def test_two_modules_on_one_line_are_told_apart_in_every_mode():
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, *, train):
            return nn.Dense(1)(nn.Dropout(0.5, deterministic=not train)(nn.Dense(3)(x)))

    def program():
        return layers.mean(Block()(layers.data("x", shape=[4]), train=layers.is_training()))

    builder = ps.ProgramBuilder(program, optax.sgd(0.1))
    assert set(builder.init().variables["params"]["Block_0"]) == {"Dense_0", "Dense_1"}


# Several objectives.


def objective(name, size=1, *, trainable=True, **arguments):
    def program():
        attr = layers.ParamAttr(trainable=trainable)
        x = layers.data("x", shape=[4])
        return loss_of(layers.fc(x, size=size, name=name, param_attr=attr)[:, :1])

    return ps.Objective(program, optax.sgd(0.1), **arguments)


def test_infer_function_beside_several_objectives_may_use_parts_of_the_tree():
    builder = make_builder(
        {"a": objective("one"), "b": objective("two")},
        infer_func=lambda: layers.fc(layers.data("x", shape=[4]), size=1, name="two"),
    )
    assert builder.infer(builder.init(), {"x": linear_data(2)["x"]}).shape == (2, 1)


def another_name_in_test():
    name = "tower" if layers.is_training() else "towel"
    return loss_of(layers.fc(layers.data("x", shape=[4]), size=1, name=name))


def frozen():
    attr = layers.ParamAttr(trainable=False)
    x = layers.data("x", shape=[4])
    return loss_of(layers.fc(x, size=1, param_attr=attr, bias_attr=False))


REFUSALS = {
    "layer of training alone that shifts later names": (
        auxiliary_of_another_shape_first,
        None,
        r"the test program of auxiliary_of_another_shape_first got .*'fc_0'.*" + SHIFTS,
    ),
    "parameter of test alone": (
        another_name_in_test,
        None,
        "the test program of another_name_in_test got the parameter 'towel/w', expected only "
        "parameters of the train program of another_name_in_test: 'tower/w', 'tower/b'. All "
        "programs share one parameter tree. Create the same layers in the same order in every "
        "mode, or name them. Did you mean 'tower/w'?",
    ),
    "infer function of another network": (
        linear_program,
        lambda: layers.fc(layers.data("x", [4]), size=7),
        r"the infer program of <lambda> got 'fc_0/w' with shape \(4, 7\) .*expected shape \(4, 1\) "
        "and dtype float32 as in the train program of linear_program",
    ),
    "input of another shape": (
        linear_program,
        lambda: layers.data("x", shape=[2, 2]),
        r"layers.data 'x' got shape \(2, 2\) and dtype float32, expected shape \(4,\) and dtype "
        "float32 as in another program. One name is one input.",
    ),
    "objectives that want one name with two shapes": (
        {"a": objective("one"), "b": objective("one", size=2)},
        None,
        r"the train program of program got 'one/w' with shape \(4, 2\) and dtype float32, expected "
        r"shape \(4, 1\) and dtype float32 as in another program. All programs share one parameter "
        "tree. Put each network into a layers.scope of its own.",
    ),
    "objectives that want one name with other attributes": (
        {"a": objective("one"), "b": objective("one", trainable=False)},
        None,
        "the train program of program got 'one/w' with trainable=False, learning_rate=1.0, "
        "regularizer=None, expected trainable=True, learning_rate=1.0, regularizer=None as in the "
        "train program of program. One parameter has one set of attributes. Use the same "
        "param_attr in both.",
    ),
    "nothing to train": (
        frozen,
        None,
        "Objective 'train' got nothing to train, expected at least one trainable parameter. Is "
        "everything it updates frozen, by trainable=False or freeze=...?",
    ),
    "infer function that wants more than several objectives have": (
        {"a": objective("one"), "b": objective("two")},
        lambda: layers.fc(layers.data("x", shape=[4]), size=1, name="tow"),
        "the infer program of <lambda> got the parameter 'tow/w', expected only parameters of the "
        "objectives: 'one/w', 'one/b', 'two/w', 'two/b'. All programs share one parameter tree. "
        "Create the same layers in the same order in every mode, or name them. Did you mean "
        "'two/w'?",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_programs_that_do_not_fit_together_are_refused(case):
    program, infer_func, pattern = REFUSALS[case]
    assert re.match(pattern.replace("?", "[?]"), error_of(program, infer_func=infer_func))
