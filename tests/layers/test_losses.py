"""Losses against optax, scipy and formulas in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special as sp

from penstock import layers
from penstock._errors import LayerContextError, ProgramError
from tests.layers.programs import infer, initial, normal, train

LOGITS = 3 * normal(5, 4)
LABEL = np.array([[0], [3], [1], [1], [2]], np.int32)
SOFT = sp.softmax(normal(5, 4, seed=1), axis=-1)


def of_probabilities(**arguments):
    def function():
        x = layers.data("x", [4])
        size = [4] if arguments.get("soft_label") else [1]
        label = layers.data("y", size, "float32" if size == [4] else "int32")
        return layers.cross_entropy(x, label, **arguments)

    return function


def test_cross_entropy_of_probabilities_equals_minus_their_logarithm():
    probabilities = sp.softmax(LOGITS, axis=-1)
    loss = infer(of_probabilities(), {"x": probabilities, "y": LABEL})
    expected = -np.log(np.take_along_axis(probabilities.astype(np.float64), LABEL, 1))
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_cross_entropy_of_soft_labels_equals_the_sum_over_classes():
    probabilities = sp.softmax(LOGITS, axis=-1)
    loss = infer(of_probabilities(soft_label=True), {"x": probabilities, "y": SOFT})
    expected = -np.sum(SOFT * np.log(probabilities), axis=1, keepdims=True)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.parametrize("softmax", ["act", "function"])
def test_cross_entropy_of_a_softmax_stays_finite_where_probabilities_vanish(softmax):
    def function():
        x = layers.data("x", [2])
        act = "softmax" if softmax == "act" else None
        p = layers.fc(x, 2, act=act, param_attr=lambda *_: 500 * jnp.eye(2), name="out")
        p = p if act else layers.softmax(p)
        return layers.mean(layers.cross_entropy(p, layers.data("y", [1], "int32"))), p

    step = train(function, {"x": [[1.0, -1.0]], "y": [[1]]})
    assert step.values[1].tolist() == [[1, 0]]
    assert step.values[0] == 1000
    np.testing.assert_allclose(step.gradients["out"]["b"], [1, -1], rtol=1e-6)


def test_cross_entropy_of_a_softmax_inside_scan_uses_its_logits():
    def function():
        label = layers.data("y", [1], "int32")

        def body(carry, x):
            return carry, layers.cross_entropy(layers.softmax(x), label)

        _, losses = jax.lax.scan(body, 0, layers.data("x", [3, 2]).swapaxes(0, 1))
        return losses.swapaxes(0, 1)

    losses = infer(function, {"x": [[[0.0, -500.0]] * 3], "y": [[1]]})
    assert losses[0, :, 0].tolist() == [500, 500, 500]


def test_cross_entropy_of_a_probability_of_zero_is_finite():
    loss = infer(of_probabilities(), {"x": [[1.0, 0, 0, 0]], "y": [[1]]})
    np.testing.assert_allclose(loss, [[-np.log(np.finfo(np.float32).tiny)]], rtol=1e-6)


def test_cross_entropy_outside_a_program_says_where_layers_may_be_called():
    with pytest.raises(LayerContextError, match=r"layers.cross_entropy got called outside"):
        layers.cross_entropy(jnp.ones([1, 2]), jnp.zeros([1, 1], jnp.int32))


def test_softmax_with_cross_entropy_equals_optax():
    loss = layers.softmax_with_cross_entropy(LOGITS, LABEL)
    expected = optax.softmax_cross_entropy_with_integer_labels(LOGITS, LABEL[:, 0])
    np.testing.assert_allclose(loss[:, 0], expected, rtol=1e-6)
    np.testing.assert_array_equal(layers.softmax_with_cross_entropy(LOGITS, LABEL[:, 0]), loss)
    soft = layers.softmax_with_cross_entropy(LOGITS, SOFT, soft_label=True)
    np.testing.assert_allclose(soft[:, 0], optax.softmax_cross_entropy(LOGITS, SOFT), rtol=1e-6)


def test_softmax_with_cross_entropy_of_sequences_keeps_their_axes():
    logits, label = normal(2, 3, 4), np.array([[0, 3, 1], [2, 2, 0]])
    expected = optax.softmax_cross_entropy_with_integer_labels(logits, label)[..., None]
    for shaped in (label, label[..., None]):
        actual = layers.softmax_with_cross_entropy(logits, shaped)
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize("wrong", [-1, -4, 4, 1000])
def test_cross_entropy_of_a_label_that_is_no_class_is_nan(wrong):
    label = LABEL.copy()
    label[2] = wrong
    loss = layers.softmax_with_cross_entropy(LOGITS, label)
    assert np.isnan(loss[:, 0]).tolist() == [False, False, True, False, False]
    loss = infer(of_probabilities(), {"x": sp.softmax(LOGITS, axis=-1), "y": label})
    assert np.isnan(loss[:, 0]).tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("ignored", [-100, -1, 3, 255])
def test_cross_entropy_of_an_ignored_label_is_zero_with_zero_gradient(ignored):
    label = LABEL.copy()
    label[2] = ignored

    def loss(logits):
        return layers.softmax_with_cross_entropy(logits, label, ignore_index=ignored)

    is_ignored = label[:, 0] == ignored
    assert ((loss(LOGITS)[:, 0] == 0) == is_ignored).all()
    gradient = jax.grad(lambda logits: jnp.sum(loss(logits)))(jnp.asarray(LOGITS))
    assert ((gradient == 0).all(axis=1) == is_ignored).all()


def test_cross_entropy_of_half_precision_is_computed_in_float32():
    logits = jnp.asarray(LOGITS, jnp.bfloat16)
    loss = layers.softmax_with_cross_entropy(logits, LABEL)
    assert loss.dtype == jnp.float32
    expected = optax.softmax_cross_entropy_with_integer_labels(
        logits.astype(jnp.float32), LABEL[:, 0]
    )
    np.testing.assert_allclose(loss[:, 0], expected, rtol=1e-6)


def test_sigmoid_cross_entropy_equals_optax_and_is_finite():
    label = sp.expit(normal(5, 4, seed=2))
    actual = layers.sigmoid_cross_entropy_with_logits(LOGITS, label)
    np.testing.assert_allclose(
        actual, optax.sigmoid_binary_cross_entropy(LOGITS, label), rtol=1e-5, atol=1e-6
    )
    extreme = jnp.asarray([[-1000.0, 1000.0]])
    loss, gradient = jax.value_and_grad(
        lambda x: jnp.sum(layers.sigmoid_cross_entropy_with_logits(x, jnp.asarray([[1, 0]])))
    )(extreme)
    assert loss == 2000
    assert gradient.tolist() == [[-1, 1]]


def test_square_error_cost_squares_the_difference():
    actual = layers.square_error_cost(LOGITS, SOFT)
    np.testing.assert_allclose(actual, (LOGITS - SOFT) ** 2, rtol=1e-6)


@pytest.mark.parametrize("delta", [0.5, 1.0, 3.0])
def test_huber_loss_equals_optax_in_value_and_gradient(delta):
    label = normal(5, 4, seed=3)
    actual = layers.huber_loss(LOGITS, label, delta)
    np.testing.assert_allclose(actual, optax.huber_loss(LOGITS, label, delta=delta), rtol=1e-5)
    gradient = jax.grad(lambda x: jnp.sum(layers.huber_loss(x, label, delta)))(jnp.asarray(LOGITS))
    np.testing.assert_allclose(gradient, np.clip(LOGITS - label, -delta, delta), rtol=1e-5)


@pytest.mark.parametrize("loss", ["square_error_cost", "sigmoid_cross_entropy_with_logits"])
def test_loss_of_another_shape_says_so_instead_of_spreading(loss):
    with pytest.raises(ProgramError, match=rf"layers.{loss} got .* \(5, 1\) .* shape \(5,\)"):
        getattr(layers, loss)(jnp.ones([5, 1]), jnp.ones([5]))


def test_huber_loss_with_a_delta_of_zero_says_what_it_expects():
    with pytest.raises(ProgramError, match=r"delta=0, expected a positive number"):
        layers.huber_loss(LOGITS, LOGITS, 0)


def test_cross_entropy_of_wrong_labels_says_what_it_expects():
    with pytest.raises(ProgramError, match=r"labels of dtype float32, expected integers"):
        layers.softmax_with_cross_entropy(LOGITS, LABEL.astype(np.float32))
    with pytest.raises(ProgramError, match=r"labels of shape \(5, 4\) .* expected \(5, 1\) or"):
        layers.softmax_with_cross_entropy(LOGITS, np.zeros([5, 4], np.int32))
    with pytest.raises(ProgramError, match=r"labels of shape \[B, 1\], expected equal shapes"):
        initial(
            lambda: layers.cross_entropy(
                layers.data("x", [4]), layers.data("y", [1]), soft_label=True
            )
        )


def decayed(applies_to=None):
    def function():
        x = layers.data("x", [4])
        ones = jax.nn.initializers.ones
        hidden = layers.fc(x, 3, param_attr=ones, name="hidden")
        hidden = layers.fc(hidden, 3, param_attr=ones, bias_attr=ones, name="twice")
        hidden = layers.fc(hidden, 3, param_attr=ones, bias_attr=ones, name="twice")
        return layers.weight_decay_loss(0.5, applies_to)

    return function


def test_weight_decay_loss_counts_each_kernel_once():
    step = train(decayed(), {"x": normal(2, 4)})
    assert step.values == pytest.approx(0.25 * (12 + 9))
    np.testing.assert_allclose(step.gradients["hidden"]["w"], 0.5)
    assert not step.gradients["twice"]["b"].any()


def test_weight_decay_loss_counts_what_the_caller_chooses():
    step = train(decayed(lambda path: path.startswith("twice")), {"x": normal(2, 4)})
    assert step.values == pytest.approx(0.25 * (9 + 3))
    assert not step.gradients["hidden"]["w"].any()


def test_weight_decay_loss_in_a_scope_counts_that_scope():
    def function():
        x = layers.data("x", [4])
        ones = jax.nn.initializers.ones
        layers.fc(x, 3, param_attr=ones)

        def inner():
            layers.fc(x, 2, param_attr=ones)
            return layers.weight_decay_loss(2.0)

        return layers.scope("part")(inner)()

    assert float(infer(function, {"x": normal(2, 4)})) == 8.0
