"""Objectives: each updates what it names, and leaves the rest bit for bit as it was."""

import enum

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from tests.networks import PLACES, assert_same_bits, host, linear_data, one_device


@layers.scope("generator")
def generator(noise):
    hidden = layers.batch_norm(layers.fc(noise, size=6), act="relu")
    return layers.fc(hidden, size=4)


@layers.scope("discriminator")
def discriminator(x):
    hidden = layers.batch_norm(layers.fc(x, size=6), act="relu")
    return layers.fc(hidden, size=1)


def fakes():
    x = layers.data("x", shape=[4])
    return generator(layers.gaussian_random_batch_size_like(x, [-1, 3], name="noise"))


def discriminator_program():
    """Return the loss of telling real from made examples; both networks run, with statistics."""
    real, fake = discriminator(layers.data("x", shape=[4])), discriminator(fakes())
    return layers.mean(jax.nn.softplus(-real) + jax.nn.softplus(fake))


def generator_program():
    return layers.mean(jax.nn.softplus(-discriminator(fakes())))


def objectives():
    return {
        "d": ps.Objective(discriminator_program, optax.adam(0.01), updates="discriminator"),
        "g": ps.Objective(generator_program, optax.adam(0.01), updates=["generator"]),
    }


@pytest.fixture(scope="module", params=PLACES.args[1])
def gan(request):
    return ps.ProgramBuilder(objectives(), place=request.param())


SCOPE_OF = {"d": "discriminator", "g": "generator"}


def parts(state, objective):
    """Return parameters, statistics and optimizer state of one side of the GAN."""
    scope = SCOPE_OF[objective]
    return host(
        {
            "params": state.variables["params"][scope],
            "batch_stats": state.variables["batch_stats"][scope],
            "opt_state": state.opt_state[objective],
        }
    )


@pytest.mark.quick("eight-d-g")
@pytest.mark.parametrize(("trained", "other"), [("d", "g"), ("g", "d")])
def test_step_of_one_side_leaves_the_other_bit_for_bit_as_it_was(gan, trained, other):
    state = gan.init(seed=1)
    state, _ = gan.train(state, {"x": linear_data(16)["x"]}, other)  # its Adam has moments
    before = parts(state, other), parts(state, trained)
    for _ in range(3):
        state, loss = gan.train(state, {"x": linear_data(16)["x"]}, trained)
    assert_same_bits(parts(state, other), before[0])
    after = parts(state, trained)
    pairs = zip(jax.tree.leaves(before[1]), jax.tree.leaves(after), strict=True)
    names = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(after)]
    # The first layer's bias has no gradient under batch norm; all the rest must move.
    unmoved = {name for name, (a, b) in zip(names, pairs, strict=True) if np.array_equal(a, b)}
    assert all("['fc_0']['b']" in name for name in unmoved)
    assert np.isfinite(float(loss))


def test_optimizer_state_of_an_objective_holds_its_own_parameters_alone(gan):
    state = gan.init()
    for name, scope in SCOPE_OF.items():
        assert list(state.opt_state[name][0].mu) == [scope]


def product(name):
    """Return an objective that, by gradient descent of rate 1, takes the other factor away."""

    def program():
        first = layers.create_parameter([1], name="first", attr=jax.nn.initializers.constant(8.0))
        second = layers.create_parameter([1], name="second", attr=jax.nn.initializers.constant(3.0))
        return jnp.sum(first * second) + 0 * layers.mean(layers.data("x", shape=[1]))

    return ps.Objective(program, optax.sgd(1.0), updates=name)


@pytest.mark.parametrize(
    ("schedule", "first", "second"),
    [
        ({"first": 1, "second": 1}, 8 - 3, 3 - 5),
        ({"second": 1, "first": 1}, 8 - -5, 3 - 8),
        ({"first": 2, "second": 1}, 8 - 3 - 3, 3 - 2),
    ],
)
def test_updates_of_a_round_see_what_earlier_ones_changed(schedule, first, second):
    objectives = {name: product(name) for name in ("first", "second")}
    trainer = ps.Trainer(objectives, place=one_device(), schedule=schedule)
    trainer.train([{"x": np.ones((1, 1), np.float32)}])
    assert {name: float(value[0]) for name, value in trainer.parameters.items()} == {
        "first": first,
        "second": second,
    }


def test_unknown_objective_and_none_of_several_are_refused_with_what_there_is():
    builder = ps.ProgramBuilder(objectives(), place=one_device())
    state = builder.init()
    for call in (builder.train, builder.test):
        for name, hint in ((None, ""), ("dd", " Did you mean 'd'?")):
            with pytest.raises(ps.UnknownNameError) as caught:
                call(state, {"x": linear_data(2)["x"]}, name)
            text = f"objective got {name!r}, expected one of 'd', 'g'.{hint}"
            assert str(caught.value) == text


def test_member_of_an_enum_of_str_names_an_objective():
    class Name(str, enum.Enum):  # noqa: UP042 - the text of a StrEnum would be the name
        D = "d"

    builder = ps.ProgramBuilder(objectives(), place=one_device())
    assert builder.choose_objective(Name.D) in builder.objectives


@pytest.mark.parametrize(
    ("updates", "path", "is_covered"),
    [
        (None, "a/fc_0/w", True),
        ("a", "a/fc_0/w", True),
        ("a/fc_0", "a/fc_0/w", True),
        ("a/fc_0/w", "a/fc_0/w", True),
        ("a/fc_0", "a/fc_00/w", False),
        ("a", "ab/fc_0/w", False),
        ("fc_0", "a/fc_0/w", False),
        (["b", "a/fc_0/b"], "a/fc_0/w", False),
        (["b", "a"], "a/fc_0/w", True),
    ],
)
def test_objective_covers_what_its_updates_name_and_what_is_below(updates, path, is_covered):
    objective = ps.Objective(generator_program, optax.sgd(0.1), updates=updates)
    assert objective.covers(path.split("/")) is is_covered


def test_objective_of_parts_of_a_layer_trains_these_alone():
    def program():
        prediction = layers.fc(layers.data("x", shape=[4]), size=1)
        return layers.mean(layers.square_error_cost(prediction, layers.data("y", shape=[1])))

    objective = ps.Objective(program, optax.sgd(0.1), updates="fc_0/b")
    builder = ps.ProgramBuilder({"bias": objective}, place=one_device())
    state = builder.init()
    before = host(state.variables["params"]["fc_0"])
    state, _ = builder.train(state, linear_data(4))
    after = host(state.variables["params"]["fc_0"])
    assert_same_bits(after["w"], before["w"])
    assert not np.array_equal(after["b"], before["b"])


def test_statistics_of_flax_modules_out_of_reach_stay_as_they_are():
    import flax.linen as nn

    def program():
        x = layers.data("x", shape=[4])
        hidden = nn.BatchNorm(use_running_average=not layers.is_training(), name="norm")(x)
        return layers.mean(jnp.square(layers.fc(hidden, size=1, name="head")))

    objective = ps.Objective(program, optax.sgd(0.1), updates="head")
    builder = ps.ProgramBuilder({"head": objective}, place=one_device())
    state = builder.init()
    before = host(state.variables["batch_stats"])
    state, _ = builder.train(state, {"x": linear_data(4)["x"]})
    assert_same_bits(state.variables["batch_stats"], before)


def test_what_is_no_objective_is_refused():
    with pytest.raises(TypeError) as caught:
        ps.ProgramBuilder({"a": generator_program, "b": ps.Objective(generator_program)})
    assert str(caught.value).startswith(
        "ProgramBuilder got objectives {'a': 'function'} and optimizer=None, expected a non-empty "
        "dict of name to ps.Objective and no optimizer beside it"
    )
    for wrong in ({}, objectives()):
        with pytest.raises(TypeError, match="expected a non-empty dict of name to"):
            ps.ProgramBuilder(wrong, optax.sgd(0.1))
