"""A step on eight devices, on one, and by plain JAX and optax on the unpadded batch: the same."""

import itertools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import penstock as ps
from penstock import layers
from tests.networks import (
    PLACES,
    assert_close,
    assert_same_bits,
    class_data,
    eight_devices,
    host,
    linear_data,
    linear_program,
    one_device,
)

SIZES = (16, 16, 11)  # on eight devices the last batch leaves two of them with padding alone


def keep_gradients() -> optax.GradientTransformation:
    """Return plain gradient descent whose state is the gradient it was given last."""
    return optax.GradientTransformation(
        lambda params: jax.tree.map(jnp.zeros_like, params),
        lambda updates, state, params=None: (jax.tree.map(lambda g: -0.05 * g, updates), updates),
    )


# A network, as a program function and in plain JAX; the battery has many more.


def loss_by_example(logits, label):
    return optax.softmax_cross_entropy_with_integer_labels(logits, label[:, 0])


def conv_net():
    image = layers.data("x", shape=[6, 6, 1])
    label = layers.data("label", shape=[1], dtype="int32")
    hidden = layers.conv2d(image, num_filters=4, filter_size=3, bias_attr=False)
    hidden = layers.batch_norm(hidden, act="relu")
    hidden = layers.pool2d(hidden, pool_size=2, pool_stride=2)
    prediction = layers.fc(hidden, size=3, act="softmax")
    loss = layers.mean(layers.cross_entropy(prediction, label))
    return loss, layers.accuracy(prediction, label), prediction


def plain_conv_net(variables, batch):
    params, running = variables["params"], variables["batch_stats"]["batch_norm_0"]
    window = ("NHWC", "HWIO", "NHWC")
    w = params["conv2d_0"]["w"]
    hidden = jax.lax.conv_general_dilated(batch["x"], w, (1, 1), "VALID", dimension_numbers=window)
    mean, variance = hidden.mean((0, 1, 2)), hidden.var((0, 1, 2))
    normed = (hidden - mean[None, None, None]) / jnp.sqrt(variance + 1e-5)[None, None, None]
    norm = params["batch_norm_0"]
    hidden = nn.relu(normed * norm["scale"][None, None, None] + norm["bias"][None, None, None])
    hidden = nn.max_pool(hidden, (2, 2), (2, 2))
    hidden = hidden.reshape(hidden.shape[0], -1)
    logits = hidden @ params["fc_0"]["w"] + params["fc_0"]["b"][None]
    moved = {"mean": mean, "variance": variance}
    statistics = {name: 0.9 * running[name] + 0.1 * moved[name] for name in moved}
    return logits, {"batch_norm_0": statistics}


def make_batches():
    random = np.random.default_rng(0)
    batches = []
    for size in SIZES:
        x = random.normal(size=(size, 6, 6, 1)).astype(np.float32)
        label = random.integers(0, 3, size=(size, 1)).astype(np.int32)
        batches.append({"x": x, "label": label})
    return batches


class Steps(NamedTuple):
    """What came out of each step, and of the test program after the last."""

    initial: Any
    metrics: list[Any]
    gradients: list[Any]
    variables: list[Any]
    test: Any


def penstock_steps(program, batches, place):
    builder = ps.ProgramBuilder(program, keep_gradients(), place=place())
    state = builder.init(seed=3)
    initial = host(state.variables)
    metrics, gradients, variables = [], [], []
    for batch in batches:
        state, values = builder.train(state, batch)
        metrics.append(host(values))
        gradients.append(host(state.opt_state["train"]))
        variables.append(host(state.variables))
    test = host(builder.test(state, batches[-1]))
    return Steps(initial, metrics, gradients, variables, test)


def plain_steps(forward, batches, variables):
    """Train by JAX and optax alone, on batches that are not padded."""

    def loss_of(params, statistics, batch):
        logits, new = forward({"params": params, "batch_stats": statistics}, batch)
        loss = jnp.mean(loss_by_example(logits, batch["label"]))
        accuracy = jnp.mean((jnp.argmax(logits, -1) == batch["label"][:, 0]).astype(jnp.float32))
        return loss, ((loss, accuracy, nn.softmax(logits)), new)

    optimizer = optax.sgd(0.05)
    opt_state = optimizer.init(variables["params"])
    metrics, gradients, all_variables = [], [], []
    step = jax.jit(jax.value_and_grad(loss_of, has_aux=True))
    for batch in batches:
        (_, (values, statistics)), grads = step(
            variables["params"], variables["batch_stats"], batch
        )
        updates, opt_state = optimizer.update(grads, opt_state)
        params = optax.apply_updates(variables["params"], updates)
        variables = {"params": params, "batch_stats": statistics}
        metrics.append(host(values))
        gradients.append(host(grads))
        all_variables.append(host(variables))
    return metrics, gradients, all_variables


def test_steps_agree_on_one_device_on_eight_and_by_hand():
    batches = make_batches()
    one, eight = (penstock_steps(conv_net, batches, place) for place in (one_device, eight_devices))
    metrics, gradients, variables = plain_steps(plain_conv_net, batches, one.initial)
    assert_same_bits(eight.initial, one.initial)
    assert all(np.abs(g).max() > 1e-4 for g in jax.tree.leaves(one.gradients))
    for parts in zip(eight, one, strict=True):
        assert_close(*parts)
    assert_close(one[1:4], (metrics, gradients, variables))
    assert [values[2].shape for values in (*one.metrics, one.test)] == [
        (size, 3) for size in (*SIZES, SIZES[-1])
    ]


@PLACES
def test_loss_as_a_vector_over_examples_is_minimised_in_the_mean(place):
    def vector_program():
        prediction = layers.fc(layers.data("x", shape=[4]), size=1)
        return layers.square_error_cost(prediction, layers.data("y", shape=[1]))

    results = []
    for program in (linear_program, vector_program):
        builder = ps.ProgramBuilder(program, keep_gradients(), place=place())
        state = builder.init()
        for size in (16, 11):
            state, loss = builder.train(state, linear_data(size))
        assert loss.shape == ()
        results.append((host(loss), host(state.variables)))
    assert_close(results[1], results[0])


# How parameters are trained.


def attribute_program():
    """Return a loss of weights that are frozen, slow, and regularised in two ways."""
    x = layers.data("x", shape=[4])
    attr = layers.ParamAttr
    frozen = layers.fc(x, 1, param_attr=attr(trainable=False), bias_attr=False, name="frozen")
    slow = layers.fc(x, 1, param_attr=attr(learning_rate=0.25), bias_attr=False, name="slow")
    l1 = attr(regularizer=layers.L1Decay(0.3))
    l2 = attr(regularizer=layers.L2Decay(0.2))
    first = layers.fc(x, 1, param_attr=l1, bias_attr=False, name="l1")
    second = layers.fc(x, 1, param_attr=l2, bias_attr=False, name="l2")
    prediction = frozen + slow + first + second
    return layers.mean(layers.square_error_cost(prediction, layers.data("y", shape=[1])))


@PLACES
def test_attributes_of_parameters_give_the_updates_computed_by_hand(place):
    builder = ps.ProgramBuilder(attribute_program, optax.sgd(0.1), place=place())
    state = builder.init(seed=1)
    before = {name: leaf["w"] for name, leaf in host(state.variables["params"]).items()}
    data = linear_data(11)
    state, loss = builder.train(state, data)
    after = {name: leaf["w"] for name, leaf in host(state.variables["params"]).items()}
    error = data["x"] @ sum(before.values()) - data["y"]
    np.testing.assert_allclose(loss, np.mean(error**2), rtol=1e-5)  # the regularizers are not in it
    gradient = 2 * data["x"].T @ error / len(error)
    expected = {
        "frozen": before["frozen"],
        "slow": before["slow"] - 0.25 * 0.1 * gradient,
        "l1": before["l1"] - 0.1 * (gradient + 0.3 * np.sign(before["l1"])),
        "l2": before["l2"] - 0.1 * (gradient + 0.2 * before["l2"]),
    }
    assert_same_bits(after["frozen"], before["frozen"])
    assert_close(after, expected)


def test_learning_rate_of_a_parameter_scales_adams_step_too():
    builder = ps.ProgramBuilder(attribute_program, optax.adam(0.1), place=one_device())
    state = builder.init()
    before = host(state.variables["params"]["slow"]["w"])
    state, _ = builder.train(state, linear_data(4))
    moved = np.abs(host(state.variables["params"]["slow"]["w"]) - before)
    np.testing.assert_allclose(moved, 0.25 * 0.1, rtol=1e-3)


def test_optimizer_as_a_function_without_arguments_is_the_same_optimizer():
    results = []
    for optimizer in (optax.adam(0.01), lambda: optax.adam(0.01)):
        builder = ps.ProgramBuilder(linear_program, optimizer, place=one_device())
        state, _ = builder.train(builder.init(), linear_data(4))
        results.append(host(state.variables))
    assert_same_bits(*results)


def test_parameter_shared_by_name_gets_the_sum_of_its_gradients():
    def program():
        x, y = layers.data("x", shape=[4]), layers.data("y", shape=[1])
        shared = layers.ParamAttr(name="shared")
        first = layers.fc(x, size=1, param_attr=shared, bias_attr=False)
        second = layers.fc(2 * x, size=1, param_attr=shared, bias_attr=False)
        return layers.mean(layers.square_error_cost(first + second, y))

    builder = ps.ProgramBuilder(program, optax.sgd(0.1), place=one_device())
    state = builder.init()
    assert [row.name for row in builder.parameter_table()] == ["shared"]
    before, data = host(state.variables["params"]["shared"]), linear_data(8)
    state, _ = builder.train(state, data)
    gradient = 2 * (3 * data["x"]).T @ (3 * data["x"] @ before - data["y"]) / 8
    assert_close(host(state.variables["params"]["shared"]), before - 0.1 * gradient)


# Randomness.


def noisy_program():
    """Return a loss, the masks of two dropouts by example, and noise."""
    x = layers.data("x", shape=[4])
    label = layers.data("label", shape=[1], dtype="int32")
    mask, other = (layers.dropout(jnp.ones_like(x), dropout_prob=0.5) for _ in range(2))
    prediction = layers.fc(x * mask, size=3, act="softmax")
    noise = layers.gaussian_random_batch_size_like(x, [-1, 1], name="noise")
    return layers.mean(layers.cross_entropy(prediction, label)), mask, other, noise


def noises(place, seed=0, num_steps=3):
    builder = ps.ProgramBuilder(noisy_program, optax.sgd(0.1), place=place())
    state = builder.init(seed=seed)
    results = []
    for _ in range(num_steps):
        state, (_, *drawn) = builder.train(state, class_data(16))
        results.append(host(drawn))
    return results


def test_dropout_and_noise_differ_from_layer_to_layer_and_example_to_example():
    [(mask, other, noise)] = noises(eight_devices, num_steps=1)
    assert not np.array_equal(mask, other)
    assert len(np.unique(mask, axis=0)) > 8
    assert len(np.unique(noise)) == 16


def test_dropout_and_noise_differ_by_step_and_seed_and_are_the_same_for_the_same():
    drawn, other = noises(one_device), noises(one_device, seed=1, num_steps=1)
    assert_same_bits(noises(one_device, num_steps=1), drawn[:1])
    for before, after in (*itertools.pairwise(drawn), (drawn[0], other[0])):
        assert not any(map(np.array_equal, before, after))
