"""What is said of a program function that asks for values, or takes arguments."""

import traceback

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from tests.networks import linear_program


def as_condition(x):
    return x if x.sum() > 0 else -x


def as_number(x):
    return x * float(x.mean())


def as_numpy(x):
    return jnp.asarray(np.median(x))


def as_index(x):
    return x * [1.0, 2.0][x.sum().astype(int)]


def as_mask(x):
    return x[x[:, 0] > 0]


REMEDIES = {
    as_condition: "in an if, .* Use jnp.where(condition, a, b) .* jax.lax.cond",
    as_number: "in float(), .* Leave it an array",
    as_numpy: "in a function of NumPy.* Use that of jax.numpy",
    as_index: "in range() or the index of a Python list.* Use jax.lax.fori_loop",
    as_mask: "in an index of True and False.* Use jnp.where(mask, x, 0)",
}


@pytest.mark.parametrize("use", REMEDIES)
def test_program_that_asks_for_values_is_told_what_to_use(use):
    def my_program():
        return layers.mean(layers.fc(use(layers.data("x", shape=[3])), size=1))

    with pytest.raises((TypeError, IndexError)) as caught:
        ps.ProgramBuilder(my_program, optax.sgd(0.1))
    first, last = REMEDIES[use].split(".*")[0], REMEDIES[use].split(".*")[-1]
    line = f"{use.__code__.co_filename}:{use.__code__.co_firstlineno + 1}"
    assert str(caught.value).startswith(
        f"the train program of my_program asked for the values of an array at {line}, {first}"
    )
    assert last.strip() in str(caught.value)
    # JAX's own words are of our code, and of arguments that no user knows.
    text = "".join(traceback.format_exception_only(caught.value))
    assert "anchor" not in text
    assert "probe.py" not in text


def with_arguments(x, y, size=3):
    return x


@pytest.mark.parametrize(
    "make",
    [
        lambda: ps.ProgramBuilder(with_arguments, optax.sgd(0.1)),
        lambda: ps.ProgramBuilder(linear_program, optax.sgd(0.1), infer_func=with_arguments),
        lambda: ps.Objective(with_arguments, optax.sgd(0.1)),
        lambda: ps.Inferencer(with_arguments, "nowhere"),
    ],
    ids=["program_func", "infer_func", "objective", "inferencer"],
)
def test_program_with_arguments_is_refused_saying_how_data_comes_in(make):
    with pytest.raises(TypeError) as caught:
        make()
    assert str(caught.value) == (
        "a program got with_arguments(x, y, size=3), expected a function without arguments. Data "
        "comes in by layers.data: x = layers.data('x', shape=[...]), fed by that name. What is no "
        "data is bound before: functools.partial(with_arguments, ...)."
    )


def test_unknown_updates_get_the_nearest_name_at_every_depth():
    def my_program():
        with_scope = layers.scope("generator")(lambda x: layers.fc(x, size=1, name="head"))
        return layers.mean(with_scope(layers.data("x", shape=[3])))

    for wrong, right in (("generatr", "generator"), ("generator/haed", "generator/head")):
        objective = ps.Objective(my_program, optax.sgd(0.1), updates=wrong)
        with pytest.raises(ps.UnknownNameError, match=f"Did you mean '{right}'"):
            ps.ProgramBuilder({"one": objective})
