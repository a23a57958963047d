"""TensorFlow 1's update rules, against TensorFlow."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from penstock import optimizers
from penstock.optimizers import OptimizerOptions
from tests.optimizers import problem
from tests.optimizers.running import square, trajectory

GOLDENS = np.load(Path(__file__).with_name("goldens.npz"))


def with_options(case):
    """Return the parameters after each of the problem's steps."""

    def rate(step):
        return problem.learning_rate(step, True)

    optimizer = optimizers.get(case.name, rate if case.is_scheduled else 0.01, options=case.options)
    curvature = jnp.float32(problem.CURVATURE)
    disturbances = jnp.float32(problem.DISTURBANCES)
    rows = trajectory(
        optimizer,
        problem.START,
        lambda value, step: curvature * value + disturbances[step],
        max(problem.STEPS),
    )
    return rows[np.array(problem.STEPS) - 1]


@pytest.mark.parametrize(
    "case", [case for case in problem.CASES if case.key in GOLDENS], ids=lambda case: case.key
)
def test_rule_is_where_tensorflow_is_after_up_to_a_thousand_steps(case):
    np.testing.assert_allclose(with_options(case), GOLDENS[case.key], rtol=0, atol=1e-6)


def bert(case):
    """Return what BERT's published rule makes of the problem, in float64."""
    o, value, m, v, rows = case.options, problem.START, 0.0, 0.0, []
    for step in range(max(problem.STEPS)):
        g = problem.gradient(value, step)
        m = o.adam_beta1 * m + (1 - o.adam_beta1) * g
        v = o.adam_beta2 * v + (1 - o.adam_beta2) * g * g
        change = m / (np.sqrt(v) + o.opt_epsilon) + o.weight_decay_rate * value
        value = value - problem.learning_rate(step, case.is_scheduled) * change
        rows.append(value)
    return np.stack(rows)[np.array(problem.STEPS) - 1]


@pytest.mark.parametrize(
    "case",
    [
        *(case for case in problem.CASES if case.name == "adamweightdecay"),
        problem.Case(
            "adamweightdecay",
            "sharp",
            OptimizerOptions(opt_epsilon=1e-3, weight_decay_rate=0.5, adam_beta1=0.8),
        ),
    ],
    ids=lambda case: case.key,
)
def test_adamweightdecay_is_where_berts_rule_is_after_up_to_a_thousand_steps(case):
    np.testing.assert_allclose(with_options(case), bert(case), rtol=0, atol=1e-6)


DECAYED = {"fc_0": {"w": True, "b": False}, "Dense_0": {"kernel": True, "bias": False}}
NORMS = {
    "layer_norm_0": {"scale": False, "bias": False},
    "LayerNorm_1": {"scale": False},
    # BERT's rule names layer norms and biases; batch norm's shift, TensorFlow's beta, is neither.
    "conv": {"norm": {"scale": True, "bias": True}},
    "BatchNorm_0": {"bias": True},
}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (OptimizerOptions(), {**DECAYED, **NORMS, "table": {"b_side": True, "b": False}}),
        (
            OptimizerOptions(exclude_from_weight_decay=("^fc_0/",)),
            {"fc_0": {"w": False, "b": False}, "Dense_0": {"kernel": True, "bias": True}},
        ),
        (OptimizerOptions(exclude_from_weight_decay=()), {"fc_0": {"w": True, "b": True}}),
        (OptimizerOptions(weight_decay_rate=0.0), {"fc_0": {"w": False, "b": False}}),
    ],
    ids=["defaults", "pattern", "none", "rate 0"],
)
def test_adamweightdecay_leaves_out_what_the_patterns_find(options, expected):
    params = jax.tree.map(lambda _: jnp.ones(2), expected)
    zeros = jax.tree.map(jnp.zeros_like, params)
    optimizer = optimizers.get("adamweightdecay", 0.1, options=options)
    updates, _ = optimizer.update(zeros, optimizer.init(params), params)
    assert jax.tree.map(lambda update: bool((update < 0).all()), updates) == expected


def test_ftrl_with_l1_sets_parameters_to_exactly_zero():
    options = OptimizerOptions(ftrl_l1=10.0)
    optimizer = optimizers.get("ftrl", 0.1, options=options)
    rows = trajectory(optimizer, np.array([0.5, 100.0]), square, 20)
    assert rows[-1][0] == 0
    assert rows[-1][1] != 0


def test_ftrl_at_a_learning_rate_of_zero_changes_nothing():
    start = np.array([1.0, -2.0])
    late = optimizers.get("ftrl", lambda step: 0.01 * (jnp.asarray(step) >= 3))
    rows = trajectory(late, start, square, 8)
    assert (rows[:3] == np.float32(start)).all()
    prompt = trajectory(optimizers.get("ftrl", 0.01), start, square, 5)
    np.testing.assert_allclose(rows[3:], prompt, rtol=1e-6)


@pytest.mark.parametrize("name", ["ftrl", "sgd"])
def test_optimizer_that_needs_parameters_says_so(name):
    decay = None if name == "ftrl" else 0.9
    optimizer = optimizers.get(name, 0.1, moving_average_decay=decay)
    with pytest.raises(ValueError, match="got no parameters, expected them as the third argument"):
        optimizer.update(jnp.ones(2), optimizer.init(jnp.ones(2)))
