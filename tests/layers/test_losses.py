"""Losses against optax, scipy and formulas in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special as sp

from penstock import layers
from tests.layers.programs import infer, normal, train

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


def test_cross_entropy_of_a_softmax_of_two_sequences_uses_its_logits():
    def function():
        a, b = (layers.data(name, [2], lod_level=1) for name in "ab")
        p = layers.fc([a, b], 2, act="softmax", param_attr=lambda *_: 500 * jnp.eye(2))
        return layers.cross_entropy(p, layers.data("y", [1], "int32", lod_level=1))

    feed = {"a": [[[1.0, -1.0]]] * 2, "b": [[[0.0, 0.0]], [[0.0, 0.0]] * 2], "y": [[[1]]] * 2}
    right, of_unequal = infer(function, feed)
    assert right.tolist() == [[1000]]
    assert np.isnan(of_unequal).all()


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


def of_logits(logits, label, **options):
    """Return losses and their gradients."""

    @jax.jit
    def run(logits, label):
        def total(logits):
            losses = layers.softmax_with_cross_entropy(logits, label, **options)
            return jnp.sum(losses), losses

        return jax.value_and_grad(total, has_aux=True)(logits)

    (_, losses), gradients = run(jnp.asarray(logits), label)
    return losses, gradients


def nll(logits, label):
    """Return the negative log likelihood of labels `[..., 1]`."""
    return -np.take_along_axis(sp.log_softmax(logits.astype(np.float64), -1), label, -1)


def test_cross_entropy_of_a_label_that_is_no_class_is_nan():
    label = np.array([[-1], [3], [-4], [4], [1000]], np.int32)
    is_nan = [True, False, True, True, True]
    assert np.isnan(of_logits(LOGITS, label)[0][:, 0]).tolist() == is_nan
    loss = infer(of_probabilities(), {"x": sp.softmax(LOGITS, axis=-1), "y": label})
    assert np.isnan(loss[:, 0]).tolist() == is_nan


@pytest.mark.parametrize("ignored", [-100, -1, 3, 255])
def test_cross_entropy_of_an_ignored_label_is_zero_with_zero_gradient(ignored):
    label = LABEL.copy()
    label[2] = ignored
    losses, gradients = of_logits(LOGITS, label, ignore_index=ignored)
    is_ignored = label[:, 0] == ignored
    assert ((losses[:, 0] == 0) == is_ignored).all()
    assert ((np.asarray(gradients) == 0).all(axis=1) == is_ignored).all()


def test_cross_entropy_of_half_precision_is_computed_in_float32():
    logits = jnp.asarray(LOGITS, jnp.bfloat16)
    losses, _ = of_logits(logits, LABEL)
    assert losses.dtype == jnp.float32
    np.testing.assert_allclose(losses, nll(np.asarray(logits, np.float32), LABEL), rtol=1e-6)


def test_labels_of_every_integer_dtype_are_the_same_classes():
    def judge(dtype):
        x, label = layers.data("x", [300]), layers.data("y", [1], dtype)
        losses = layers.softmax_with_cross_entropy(x, label), layers.hsigmoid(x, label, 200)
        binary = layers.sigmoid_cross_entropy_with_logits(x[:, :1], label)
        return *losses, binary, layers.one_hot(label, 300), layers.accuracy(x, label, k=200)

    # In a byte 156 is -100, which is ignored, and 259 is 3.
    x, label = normal(3, 300), np.array([[3], [156], [255]], np.uint8)
    dtypes = ("uint8", "uint32", "int32")
    results = [infer(lambda d=d: judge(d), {"x": x, "y": label}) for d in dtypes]
    for result in results[:2]:
        jax.tree.map(np.testing.assert_array_equal, result, results[2])
    assert all((loss != 0).all() for loss in results[2][:3])


def test_sigmoid_cross_entropy_is_its_formula_and_finite():
    @jax.jit
    def run(x, label):
        loss = lambda x: jnp.sum(layers.sigmoid_cross_entropy_with_logits(x, label))  # noqa: E731
        return layers.sigmoid_cross_entropy_with_logits(x, label), jax.grad(loss)(x)

    x = np.concatenate([LOGITS, [[-1000, 1000, 0, 0]]]).astype(np.float32)
    label = np.concatenate([sp.expit(normal(5, 4, seed=2)), [[1, 0, 0, 1]]]).astype(np.float32)
    losses, gradients = run(x, label)
    expected = -label * sp.log_expit(x) - (1 - label) * sp.log_expit(-x)
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradients, sp.expit(x) - label, rtol=1e-5, atol=1e-6)


def test_huber_loss_is_its_formula_and_so_is_its_gradient():
    label, deltas = normal(5, 4, seed=3), (0.5, 1.0, 3.0)

    @jax.jit
    def run(x):
        losses = [lambda x, d=d: layers.huber_loss(x, label, d) for d in deltas]
        return [(f(x), jax.grad(lambda x, f=f: jnp.sum(f(x)))(x)) for f in losses]

    distance = np.abs(LOGITS - label)
    for delta, (losses, gradients) in zip(deltas, run(LOGITS), strict=True):
        far = delta * (distance - delta / 2)
        expected = np.where(distance < delta, distance**2 / 2, far)
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
        np.testing.assert_allclose(gradients, np.clip(LOGITS - label, -delta, delta), rtol=1e-5)


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


def test_weight_decay_loss_of_float64_is_summed_in_it():
    def function():
        x = layers.data("x", [1])
        large = layers.create_parameter([2], "float64", "w", attr=lambda *_: jnp.full(2, 1e20))
        return x[:, 0] + layers.weight_decay_loss(1.0) + 0 * large[0]

    with jax.enable_x64(True):
        np.testing.assert_allclose(infer(function, {"x": normal(1, 1)}), 1e40)
