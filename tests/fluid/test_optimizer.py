"""Fluid's optimizers against its update rules, written out in numpy."""

import jax
import numpy as np
import optax
import pytest

import penstock.fluid as fluid
from penstock.fluid import optimizer

START = np.array([1.0, -2.0, 0.5, 3.0])
GRADIENTS = np.random.default_rng(0).normal(size=(6, 4))


def sgd(p, g, s, t):
    return p - 0.1 * g


def momentum(p, g, s, t):
    s["v"] = 0.9 * s.get("v", 0) + g
    return p - 0.1 * s["v"]


def nesterov(p, g, s, t):
    s["v"] = 0.9 * s.get("v", 0) + g
    return p - 0.1 * (g + 0.9 * s["v"])


def adagrad(p, g, s, t):
    s["m"] = s.get("m", 0) + g * g
    return p - 0.1 * g / (np.sqrt(s["m"]) + 1e-6)


def adam(p, g, s, t):
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["v"] = 0.999 * s.get("v", 0) + 0.001 * g * g
    rate = 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
    return p - rate * s["m"] / (np.sqrt(s["v"]) + 1e-8)


def adamax(p, g, s, t):
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["u"] = np.maximum(0.999 * s.get("u", 0) + 1e-8, np.abs(g))
    return p - 0.1 / (1 - 0.9**t) * s["m"] / s["u"]


def rmsprop(p, g, s, t):
    s["r"] = 0.95 * s.get("r", 0) + 0.05 * g * g
    s["v"] = 0.9 * s.get("v", 0) + 0.1 * g / np.sqrt(s["r"] + 1e-6)
    return p - s["v"]


def centered(p, g, s, t):
    s["r"] = 0.95 * s.get("r", 0) + 0.05 * g * g
    s["m"] = 0.95 * s.get("m", 0) + 0.05 * g
    return p - 0.1 * g / np.sqrt(s["r"] - s["m"] ** 2 + 1e-6)


def adadelta(p, g, s, t):
    s["g"] = 0.95 * s.get("g", 0) + 0.05 * g * g
    step = np.sqrt((s.get("x", 0) + 1e-6) / (s["g"] + 1e-6)) * g
    s["x"] = 0.95 * s.get("x", 0) + 0.05 * step * step
    return p - 0.1 * step


def decayed(p, g, s, t):
    return p - 0.1 * (g + 0.5 * p)


RULES = {
    sgd: optimizer.SGD(learning_rate=0.1),
    momentum: optimizer.Momentum(learning_rate=0.1, momentum=0.9),
    nesterov: optimizer.Momentum(0.1, 0.9, use_nesterov=True),
    adagrad: optimizer.Adagrad(learning_rate=0.1),
    adam: optimizer.Adam(learning_rate=0.1),
    adamax: optimizer.Adamax(learning_rate=0.1),
    rmsprop: optimizer.RMSProp(learning_rate=0.1, momentum=0.9),
    centered: optimizer.RMSProp(learning_rate=0.1, centered=True),
    adadelta: optimizer.Adadelta(learning_rate=0.1),
    decayed: optimizer.SGD(0.1, regularization=fluid.regularizer.L2Decay(0.5)),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_update_follows_fluids_rule(rule):
    transformation = RULES[rule]
    expected, memory = START, {}
    value = {"w": jax.numpy.float32(START)}
    state = transformation.init(value)
    for number, gradient in enumerate(GRADIENTS, start=1):
        expected = rule(expected, gradient, memory, number)
        slope = {"w": jax.numpy.float32(gradient)}
        updates, state = transformation.update(slope, state, value)
        value = optax.apply_updates(value, updates)
    np.testing.assert_allclose(value["w"], expected, rtol=2e-5)


def test_learning_rate_may_be_a_schedule():
    transformation = optimizer.SGD(lambda step: 0.1 / (1 + step))
    one = jax.numpy.float32(1.0)
    first, state = transformation.update(one, transformation.init(one))
    second, _ = transformation.update(one, state)
    assert (float(first), float(second)) == pytest.approx((-0.1, -0.05))


def test_own_regularizer_takes_the_place_of_the_optimizers():
    def program():
        decay = fluid.regularizer.L2Decay
        own = [fluid.ParamAttr(regularizer=decay(0.0)), fluid.ParamAttr(regularizer=decay(2.0))]
        x = fluid.layers.data("x", [1])
        return sum(0 * fluid.layers.mean(fluid.layers.fc(x, 1, param_attr=a)) for a in [None, *own])

    sgd = optimizer.SGD(0.1, regularization=fluid.regularizer.L2Decay(1.0))
    trainer = fluid.Trainer(program, sgd)
    before = dict(trainer.parameters)
    trainer.train(1, lambda event: None, [{"x": [[1.0]]}])
    for number, rest in enumerate((0.9, 1.0, 0.8)):
        name = f"fc_{number}/w"
        np.testing.assert_allclose(trainer.parameters[name], rest * before[name], rtol=1e-6)


def test_seeds_script_needs_no_learning_rate():
    one = jax.numpy.float32(1.0)
    update, _ = optimizer.SGD().update(one, optimizer.SGD().init(one))
    assert float(update) == pytest.approx(-0.001)


@pytest.mark.parametrize("name", ["SGD", "Momentum", "Adagrad", "Adam", "Adamax", "RMSProp"])
def test_optimizers_have_long_names(name):
    assert getattr(optimizer, f"{name}Optimizer") is getattr(optimizer, name)


def test_regularizers_and_initializers_have_long_names():
    assert fluid.regularizer.L1DecayRegularizer(0.5) == fluid.regularizer.L1Decay(0.5)
    assert fluid.regularizer.L2DecayRegularizer(regularization_coeff=8e-4).coefficient == 8e-4
    for name in ("Constant", "Uniform", "Normal", "Xavier", "MSRA"):
        long = getattr(fluid.initializer, f"{name}Initializer")
        assert long is getattr(fluid.initializer, name)
