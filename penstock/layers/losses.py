"""Losses per example, in float32 or better, and the means over a batch that make one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from penstock._errors import ProgramError, check_number
from penstock._parameter_names import spell
from penstock._program import sequences
from penstock._program.frame import V, current_frame, find_logits, over_words, widen
from penstock.layers import arguments


def cross_entropy(
    input: V,
    label: V,
    soft_label: bool = False,
    ignore_index: int = -100,
) -> V:
    """Return the cross entropy between probabilities and labels, per example.

    If the probabilities come from a `softmax` of the same program, or from `act="softmax"`, the
    loss is computed from the logits, so that the loss and its gradient stay finite. Other
    probabilities are raised to at least the smallest normal float before the logarithm. A label
    outside the classes gives nan, which makes the mistake visible. Source: Fluid's
    `cross_entropy`.

    Arguments:
      input: probabilities `[B, ..., C]`, or a sequence of them if every word has a label. The
        losses are `[B, ..., 1]`, or a sequence.
      label: classes `[B, ..., 1]` or `[B, ...]`; with `soft_label`, probabilities `[B, ..., C]`.
      soft_label: whether the labels are probabilities.
      ignore_index: labels with this value have loss 0. They still count in a mean.

    >>> def program():
    ...     probabilities = layers.softmax(layers.data("logits", shape=[2]))
    ...     return layers.cross_entropy(probabilities, layers.data("label", [1], "int32"))
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"logits": [[0.0, -200.0]], "label": [[1]]}).tolist()
    [[200.0]]
    """
    how = (soft_label, ignore_index)
    if isinstance(input, sequences.Sequence):
        return over_words(lambda rows, label: cross_entropy(rows, label, *how), input, label)
    # By way of the logits where the input is a softmax of this program: finite for every label.
    logits: Any = find_logits("cross_entropy", input)
    if logits is None:
        x = widen(input)
        # The least normal number keeps the logarithm finite where a probability is 0.
        log_probabilities = jnp.log(jnp.maximum(x, jnp.finfo(x.dtype).tiny))
    else:
        log_probabilities = jax.nn.log_softmax(widen(logits))
    losses: Any = _cross_entropy("cross_entropy", log_probabilities, label, *how)
    return losses


def softmax_with_cross_entropy(
    logits: V,
    label: V,
    soft_label: bool = False,
    ignore_index: int = -100,
) -> V:
    """Return the cross entropy between the softmax of logits and labels, per example.

    A label outside the classes gives nan. Source: Fluid's `softmax_with_cross_entropy`.

    Arguments:
      logits: `[B, ..., C]`, or a sequence. The losses are `[B, ..., 1]`, or a sequence.
      label: classes `[B, ..., 1]` or `[B, ...]`; with `soft_label`, probabilities `[B, ..., C]`.
      soft_label: whether the labels are probabilities.
      ignore_index: labels with this value have loss 0. They still count in a mean.

    >>> softmax_with_cross_entropy(jnp.array([[0.0, -200.0]]), jnp.array([[1]])).tolist()
    [[200.0]]
    """

    def compute(logits: jax.Array, label: jax.Array) -> jax.Array:
        log_probabilities, how = jax.nn.log_softmax(widen(logits)), (soft_label, ignore_index)
        return _cross_entropy("softmax_with_cross_entropy", log_probabilities, label, *how)

    return over_words(compute, logits, label)


def sigmoid_cross_entropy_with_logits(x: V, label: V, ignore_index: int = -100) -> V:
    """Return `-label * log(sigmoid(x)) - (1 - label) * log(1 - sigmoid(x))`, element by element.

    It is finite for every finite logit. Source: Fluid's layer of the same name.

    Arguments:
      x: logits `[B, ...]`.
      label: probabilities, or zeros and ones, of the same shape.
      ignore_index: labels with this value have loss 0. They still count in a mean.

    Returns:
      The input's shape.

    >>> sigmoid_cross_entropy_with_logits(jnp.array([[200.0]]), jnp.array([[0.0]])).tolist()
    [[200.0]]
    """

    def compute(x: jax.Array, label: jax.Array) -> jax.Array:
        x, label = widen(x), widen(label)
        _check_same_shape("sigmoid_cross_entropy_with_logits", x, label)
        # The same function, without the exponential of a large number.
        return jnp.where(label == ignore_index, 0.0, jax.nn.softplus(x) - x * label)

    return over_words(compute, x, label)


def square_error_cost(input: V, label: V, ignore_index: float | None = None) -> V:
    """Return `(input - label) ** 2`, element by element. Source: Fluid's `square_error_cost`.

    Arguments:
      input: predictions `[B, ...]`.
      label: of the same shape.
      ignore_index: labels with this value have loss 0. They still count in a mean.

    Returns:
      The input's shape.

    >>> square_error_cost(jnp.array([[1.0]]), jnp.array([[4.0]])).tolist()
    [[9.0]]
    """
    if isinstance(input, sequences.Sequence):
        return over_words(lambda x, y: square_error_cost(x, y, ignore_index), input, label)
    squares: Any = jnp.square(_difference("square_error_cost", input, label, ignore_index))
    return squares


def huber_loss(input: V, label: V, delta: float, ignore_index: float | None = None) -> V:
    """Return the Huber loss, element by element.

    With `d = abs(input - label)` it is `d ** 2 / 2` up to `delta`, and `delta * (d - delta / 2)`
    beyond. Source: Fluid's `huber_loss`.

    Arguments:
      input: predictions `[B, ...]`.
      label: of the same shape.
      ignore_index: labels with this value have loss 0. They still count in a mean.

    Returns:
      The input's shape.

    >>> huber_loss(jnp.array([[1.0, 5.0]]), jnp.array([[0.0, 0.0]]), delta=2.0).tolist()
    [[0.5, 8.0]]
    """
    why = "From that difference on the loss grows in a straight line. 1.0 is usual."
    check_number("layers.huber_loss got delta=", delta, "(0, inf]", why, ProgramError)

    def compute(input: jax.Array, label: jax.Array) -> jax.Array:
        distance = jnp.abs(_difference("huber_loss", input, label, ignore_index))
        # One formula for both sides: no branch whose gradient could be nan.
        near = jnp.minimum(distance, delta)
        return near * (distance - 0.5 * near)

    return over_words(compute, input, label)


def weight_decay_loss(
    coefficient: float, applies_to: Callable[[str], bool] | None = None
) -> jax.Array:
    """Return `coefficient / 2` times the sum of squares of the weights used so far.

    Call it after the network, and add it to the loss. A parameter counts once, however often it is
    used, and is summed in float32 or wider whatever the program's precision. Only parameters of
    penstock's layers in the current scope count. Source: TF-Slim's `l2_regularizer`.

    Arguments:
      coefficient: the strength of the decay.
      applies_to: takes a parameter's path, such as `"block1/conv2d_0/w"`, and returns whether the
        parameter counts. By default only parameters named `w` count; biases, batch norm's scales
        and depthwise kernels do not.

    Returns:
      A scalar.

    >>> def program():
    ...     y = layers.fc(layers.data("x", [3]), 2, param_attr=jax.nn.initializers.ones)
    ...     return layers.weight_decay_loss(0.5)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> float(builder.infer(builder.init(), {"x": [[0.0] * 3]}))
    1.5
    """
    frame = current_frame("weight_decay_loss")
    applies_to = applies_to or (lambda path: path.endswith("/w") or path == "w")
    # Inside a scope only its own weights, by their paths below it.
    scope = frame.names.scope.path
    weights = [
        # A parameter of one's own may be of less. Not `jnp.vdot`, which is long to trace.
        lax.collapse(widen(value), 0)
        for path, value in frame.used.items()
        if path[: len(scope)] == scope and applies_to(spell(path[len(scope) :]))
    ]
    return 0.5 * coefficient * sum((lax.dot(w, w) for w in weights), jnp.zeros(()))


def mean(x: V) -> jax.Array:
    """Return the mean over the batch, a scalar.

    In a sequence every word has the same weight, as in Fluid; if a program returns this mean
    directly, the result of an epoch or a test is the mean over all words too. Source: Fluid's
    `mean`.

    Arguments:
      x: an array of any shape, or a sequence.

    >>> builder = ps.ProgramBuilder(infer_func=lambda: layers.mean(layers.data("x", shape=[2])))
    >>> float(builder.infer(builder.init(), {"x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]}))
    3.5
    """
    frame = current_frame("mean")
    return frame.mean_words(x) if isinstance(x, sequences.Sequence) else frame.mean(x)


def accuracy(input: V, label: V, k: int = 1, ignore_index: int = -100) -> jax.Array:
    """Return the fraction of examples whose label is among the `k` highest scores, a scalar.

    For sequences it is the fraction of words. Between equal scores, the lower class number ranks
    higher. A label outside the classes counts as wrong. Source: Fluid's `accuracy`.

    Arguments:
      input: scores or probabilities, `[B, ..., C]`, or a sequence of them.
      label: integers, `[B, ..., 1]` or `[B, ...]`, or a sequence of them.
      k: how many of the highest scores count, from 1 to C.
      ignore_index: labels with this value do not count, neither as right nor as wrong; an epoch or
        a test counts each of the others once.

    >>> def program():
    ...     return layers.accuracy(layers.data("x", [2]), layers.data("label", [1], "int32"))
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> float(builder.infer(builder.init(), {"x": [[0.9, 0.1], [0.8, 0.2]], "label": [[0], [1]]}))
    0.5
    """
    frame = current_frame("accuracy")

    def judge(rows: Any, label: Any) -> tuple[jax.Array, jax.Array]:
        right = is_right(rows, label, k)
        ids = arguments.integers("accuracy", "labels", label)
        return right, ids.reshape(right.shape) != ignore_index

    right, counts = over_words(judge, input, label)
    if isinstance(right, sequences.Sequence):
        right, counts = right.values, counts.values & counts.mask
    return frame.mean_counted(right, counts)


def is_right(input: Any, label: Any, k: int) -> jax.Array:
    """Return 1 for each row whose label is among the highest scores, and 0 for the others."""
    scores = jnp.asarray(input)
    thing = f"layers.accuracy got scores of shape {scores.shape} and k="
    why = "There are no more classes. Use a smaller k."
    check_number(thing, k, f"[1, {scores.shape[-1]}]", why, ProgramError)
    ids = _class_ids("accuracy", label, scores)
    # By counting, not by `lax.top_k`, for which XLA gathers all scores on each device.
    classes = jax.lax.broadcasted_iota(ids.dtype, scores.shape, ids.ndim)
    is_label = classes == ids[..., None]
    score = jnp.sum(jnp.where(is_label, scores, 0), axis=-1, keepdims=True)
    # Not `scores > score`: a nan ranks before all numbers.
    is_before = ~(scores <= score) | ((scores == score) & (classes < ids[..., None]))
    num_before = jnp.sum(is_before & ~is_label, axis=-1)
    return (jnp.any(is_label, axis=-1) & (num_before < k)).astype(jnp.float32)


def _difference(layer: str, input: Any, label: Any, ignore_index: float | None) -> jax.Array:
    input, label = widen(input), widen(label)
    _check_same_shape(layer, input, label)
    difference = input - label
    return difference if ignore_index is None else jnp.where(label == ignore_index, 0, difference)


def _cross_entropy(
    layer: str, log_probabilities: jax.Array, label: Any, soft_label: bool, ignore_index: int
) -> jax.Array:
    label = jnp.asarray(label)
    if soft_label:
        _check_same_shape(layer, log_probabilities, label)
        return -jnp.sum(label * log_probabilities, axis=-1, keepdims=True)
    ids = _class_ids(layer, label, log_probabilities)[..., None]
    # Picked by comparing, not by index: that and its gradient melt into the kernels of the softmax,
    # a gather and a scatter are kernels of their own, and negative indices count from the back.
    classes = jax.lax.broadcasted_iota(ids.dtype, log_probabilities.shape, ids.ndim - 1)
    picked = jnp.where(ids == classes, -log_probabilities, 0.0).sum(axis=-1, keepdims=True)
    is_class = (ids >= 0) & (ids < log_probabilities.shape[-1])
    return jnp.where(ids == ignore_index, 0.0, jnp.where(is_class, picked, jnp.nan))


def _class_ids(layer: str, label: jax.Array, input: jax.Array) -> jax.Array:
    """Return integer labels of the shape that `input` has without its class axis."""
    label, leading = arguments.integers(layer, "labels", label), input.shape[:-1]
    why = f"Each row of the input, of shape {input.shape}, has one. Reshape them."
    arguments.check_shape(f"layers.{layer} got labels", label, why, [*leading, 1], leading)
    return label.reshape(leading)


def _check_same_shape(layer: str, input: jax.Array, label: jax.Array) -> None:
    if input.shape != label.shape:
        raise ProgramError(
            f"layers.{layer} got an input of shape {input.shape} and labels of shape "
            f"{label.shape}, expected equal shapes. One would spread over the other. Reshape one."
        )
