"""Optimizers by name: which there are, what each option does, and what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from penstock import UnknownNameError, optimizers
from penstock.optimizers import OptimizerOptions

DEPRECATED = {"optimistic_adam"}  # optax warns of it, and a warning is an error here

PARAMS = {
    "fc_0": {"w": jnp.full((3, 4), 0.5), "b": jnp.zeros(4)},
    "conv2d_0": {"w": jnp.full((3, 3, 2, 4), 0.3, jnp.bfloat16)},
}


def described(tree):
    """Return the shape and dtype of each leaf."""
    return jax.tree.map(lambda x: (x.shape, x.dtype.name), tree)


def rate_in(state):
    """Return the learning rate that an optimizer's state holds, as a number."""
    rate: Any = optimizers.learning_rate(state)
    assert rate.dtype == jnp.float32
    return float(rate)


def battery():
    """Return every optimizer's name; most of optax's cost some seconds together."""
    ours = {*optimizers.names()[:8], "adamw", "lamb", "lion"}
    rest = sorted(set(optimizers.names()) - ours - DEPRECATED)
    return sorted(ours) + [pytest.param(name, marks=pytest.mark.slow) for name in rest]


@pytest.mark.quick("lamb", "momentum", "ftrl")
@pytest.mark.parametrize("name", battery())
def test_optimizer_steps_and_keeps_the_arrays_of_its_state(name):
    optimizer = optimizers.get(name, 0.01, max_gradient_norm=1.0, moving_average_decay=0.9)
    start = jax.jit(optimizer.init)(PARAMS)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(start))

    @jax.jit
    def step(params, state):
        def value_fn(params):
            leaves = jax.tree.leaves(optax.tree.cast(params, jnp.float32))
            return sum(jnp.sum(0.25 * x**2 + 0.1 * x) for x in leaves)

        value, gradients = jax.value_and_grad(value_fn)(params)
        updates, state = optimizer.update(
            gradients, state, params, value=value, grad=gradients, value_fn=value_fn
        )
        return optax.apply_updates(params, updates), state

    params, state = PARAMS, start
    for _ in range(3):
        params, state = step(params, state)
    assert described(state) == described(start)
    assert described(params) == described(PARAMS)
    leaves = jax.tree.leaves(params)
    assert all(np.isfinite(np.asarray(leaf, np.float32)).all() for leaf in leaves)
    assert (params["fc_0"]["b"] != 0).any()
    assert rate_in(state) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("lamb", {}, optax.lamb(0.01)),
        ("optax.adam", {}, optax.adam(0.01)),
        ("optax.adam", {"b1": 0.5, "nesterov": True}, optax.adam(0.01, b1=0.5, nesterov=True)),
        ("optax.contrib.muon", {}, optax.contrib.muon(0.01)),
        ("nadamw", {"weight_decay": 0.5}, optax.nadamw(0.01, weight_decay=0.5)),
        ("polyak_sgd", {}, optax.polyak_sgd(0.01)),
    ],
)
def test_optimizer_of_optax_is_optaxs_own(name, options, expected):
    params = {"w": jnp.float32([[1.0, -2.0], [0.5, 3.0]])}
    ours = optimizers.get(name, 0.01, options=OptimizerOptions(optax_options=options))
    update, updates = None, []
    for optimizer in (ours, optax.with_extra_args_support(expected)):
        state = optimizer.init(params)
        for _ in range(3):
            update, state = optimizer.update(params, state, params, value=jnp.float32(1.0))
        updates.append(update)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), *updates)


def test_gradients_are_clipped_together_before_the_optimizer_sees_them():
    params = {"a": jnp.float32([3.0]), "b": jnp.float32([4.0])}
    for limit, share in ((1.0, 0.2), (2.5, 0.5), (10.0, 1.0), (None, 1.0)):
        optimizer: Any = optimizers.get("momentum", 1.0, max_gradient_norm=limit)
        update, state = optimizer.update(params, optimizer.init(params), params)
        assert float(update["a"][0]) == pytest.approx(-3.0 * share)
        assert float(update["b"][0]) == pytest.approx(-4.0 * share)
        velocity: Any = optax.tree.get(state, "trace")
        assert float(velocity["b"][0]) == pytest.approx(4.0 * share)


def test_learning_rate_of_the_last_update_is_in_the_state():
    optimizer = optimizers.get("adam", lambda step: 0.5 / (1 + step), moving_average_decay=0.9)
    params = {"w": jnp.ones(2)}
    state = optimizer.init(params)
    rates = [rate_in(state)]
    for _ in range(3):
        _, state = optimizer.update(params, state, params)
        rates.append(rate_in(state))
    assert rates == pytest.approx([0.5, 0.5, 0.25, 0.5 / 3])


def test_learning_rate_is_none_where_the_state_holds_none_or_several():
    params = {"a": jnp.ones(2), "b": jnp.ones(2), "learning_rate": jnp.ones(2)}
    plain = optax.adam(0.1)
    both = optax.partition(
        {"a": optimizers.get("sgd", 0.1), "b": optimizers.get("sgd", 0.2)},
        {"a": "a", "b": "b", "learning_rate": "b"},
    )
    assert optimizers.learning_rate(plain.init(params)) is None
    assert optimizers.learning_rate(both.init(params)) is None
    injected = optax.inject_hyperparams(optax.adam)(0.1)
    assert rate_in(injected.init(params)) == pytest.approx(0.1)


def test_state_of_a_constant_rate_has_the_structure_of_a_scheduled_one():
    states = [
        optimizers.get("rmsprop", rate).init({"w": jnp.ones(2)})
        for rate in (0.1, optax.cosine_decay_schedule(0.1, 10))
    ]
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])
    assert described(states[0]) == described(states[1])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "adamm",
            {},
            "optimizers.get got 'adamm', expected one of 'adadelta', 'adagrad', 'adam', "
            "'adamweightdecay', 'ftrl', 'momentum', 'rmsprop', 'sgd', or the name of an optimizer "
            "of optax; optimizers.names() has them all. Did you mean 'adam'?",
        ),
        (
            "optax.lion2",
            {},
            "optimizers.get got 'optax.lion2', expected one of 'adadelta', 'adagrad', 'adam', "
            "'adamweightdecay', 'ftrl', 'momentum', 'rmsprop', 'sgd', or the name of an optimizer "
            "of optax; optimizers.names() has them all. Did you mean 'lion'?",
        ),
        (
            "lion",
            {"weight_decy": 0.5},
            "optimizers.get got for optax's 'lion' the option 'weight_decy', expected one of 'b1', "
            "'b2', 'mu_dtype', 'weight_decay', 'mask'. Did you mean 'weight_decay'?",
        ),
        (
            "optax.contrib.dpsgd",
            {},
            "optimizers.get got 'optax.contrib.dpsgd', expected one of optimizers.names(). It "
            "needs a random key, a clipping norm and noise. Give the Trainer what "
            "optax.contrib.dpsgd(...) returns.",
        ),
    ],
)
def test_unknown_name_is_refused_with_the_nearest(name, options, message):
    with pytest.raises(UnknownNameError) as caught:
        optimizers.get(name, 0.1, options=OptimizerOptions(optax_options=options))
    assert str(caught.value) == message


def test_option_of_optax_is_refused_for_tensorflows_optimizers():
    with pytest.raises(ValueError, match=r"optax_options=\{'b1': 0.5\} for 'adam', expected none"):
        optimizers.get("adam", 0.1, options=OptimizerOptions(optax_options={"b1": 0.5}))


@pytest.mark.parametrize("rate", [-0.1, float("nan"), float("inf"), "0.1", True, None])
def test_learning_rate_that_is_no_rate_is_refused(rate):
    with pytest.raises(ValueError, match=r"learning_rate got .*, expected a finite number of 0 or"):
        optimizers.get("sgd", rate)


@pytest.mark.parametrize("norm", [0.0, -1.0, float("nan")])
def test_gradient_norm_that_is_not_positive_is_refused(norm):
    with pytest.raises(ValueError, match=r"max_gradient_norm got .*, expected a number above 0"):
        optimizers.get("sgd", 0.1, max_gradient_norm=norm)


def test_options_outside_their_ranges_are_refused_all_at_once():
    with pytest.raises(ValueError, match="OptimizerOptions got") as caught:
        OptimizerOptions(
            momentum=1.0,
            rmsprop_decay=1.5,
            opt_epsilon=-1.0,
            ftrl_learning_rate_power=0.5,
            exclude_from_weight_decay=("bias", "("),
        )
    assert str(caught.value) == (
        "OptimizerOptions got momentum=1.0, expected a number from 0 to below 1; "
        "rmsprop_decay=1.5, expected a number from 0 to 1; opt_epsilon=-1.0, expected a number of "
        "0 or more; ftrl_learning_rate_power=0.5, expected a number of 0 or less; "
        "exclude_from_weight_decay='(', expected a regular expression."
    )
