"""Losses over many classes that score only a few: sampled classes, or nodes of a tree."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.nn import initializers

from penstock._errors import ProgramError, check_choice, check_int
from penstock._parameter_names import Path
from penstock._program import sequences
from penstock._program.frame import Frame, current_frame, widen
from penstock.layers import arguments
from penstock.layers.initializers import XAVIER
from penstock.layers.parameters import Attr, parameter

Sampler = Literal["uniform", "log_uniform", "custom_dist"]
Rows = TypeVar("Rows", jax.Array, sequences.Sequence)


class _Noise(NamedTuple):
    """A distribution of classes: how they are drawn, and the log probability of any."""

    draw: Callable[[jax.Array, tuple[int, ...]], jax.Array]
    log_probability: Callable[[jax.Array], jax.Array]


def nce(
    input: Rows,
    label: Rows,
    num_total_classes: int,
    sample_weight: jax.Array | None = None,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    num_neg_samples: int = 10,
    name: str | None = None,
    sampler: Sampler = "uniform",
    custom_dist: Sequence[float] | None = None,
    seed: int = 0,
    ignore_index: int = -100,
) -> Rows:
    """Return the noise-contrastive estimation loss, per example (Gutmann and Hyvarinen 2010).

    For a class c let `o = sigmoid(x @ w[c] + b[c])`, and q its noise probability times
    `num_neg_samples`. The loss is the sum of `-log(o / (o + q))` over the labels and of `-log(q /
    (o + q))` over the noise classes, divided by `num_neg_samples + 1`. The noise may contain a
    label. It depends on the seed, the step, the layer's name and the shape; in test and infer it is
    the same at every call. A label outside the classes gives nan. Parameters: `w`
    `[num_total_classes, D]`, Xavier uniform; `b` `[num_total_classes, 1]`, zeros. Source: Fluid's
    `nce`, whose `"log_uniform"` never draws the last class.

    Arguments:
      input: `[B, D]`, or a sequence `[B, T, D]`; the losses are `[B, 1]` or a sequence `[B, T, 1]`.
      label: classes `[B, num_true]`, or a sequence `[B, T, num_true]`.
      sample_weight: factors for the losses, `[B, 1]`.
      num_neg_samples: the number of noise classes for each example.
      sampler: `"uniform"`; `"log_uniform"`, for classes sorted by frequency, with probabilities
        proportional to `log((c + 2) / (c + 1))`; or `"custom_dist"`.
      custom_dist: the probability of each class, for `"custom_dist"`.
      seed: if not 0, used instead of the program's seed, with the same noise at every step.
      ignore_index: an example all of whose labels have this value has loss 0. It still counts in a
        mean.

    >>> def program():
    ...     x, word = layers.data("x", [4]), layers.data("word", [1], "int32")
    ...     return layers.nce(x, word, 1000, num_neg_samples=5)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> builder.infer(builder.init(), {"x": [[0.0] * 4], "word": [[3]]}).shape
    (1, 1)
    """
    frame = current_frame("nce")
    _check_noise(num_total_classes, num_neg_samples, sampler, custom_dist)
    path = frame.names.layer("nce", name)
    x, ids = _as_rows("nce", input, label)
    noise = _make_noise(sampler, num_total_classes, custom_dist)
    sampled = noise.draw(frame.layer_key(path, seed), (x.shape[0], num_neg_samples))
    is_class = jnp.all((ids >= 0) & (ids < num_total_classes), axis=1)
    classes = jnp.concatenate([jnp.clip(ids, 0, num_total_classes - 1), sampled], axis=1)
    log_q = noise.log_probability(classes) + math.log(num_neg_samples)
    attrs = (param_attr, bias_attr)
    scores = _score(frame, path, "nce", num_total_classes, attrs, x, classes)
    loss = _tell_from_noise(scores, log_q, ids.shape[1]) / (num_neg_samples + 1)
    loss = _judge(loss, is_class, ids, ignore_index)
    return _weighted(_like(input, loss), sample_weight)


def hsigmoid(
    input: Rows,
    label: Rows,
    num_classes: int,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    name: str | None = None,
    ignore_index: int = -100,
) -> Rows:
    """Return the hierarchical softmax loss, per example (Morin and Bengio 2005).

    The classes are the leaves of a complete binary tree: class c is node `c + num_classes` of a
    heap whose root is node 1, and node n has the children `2 * n` and `2 * n + 1`. At each inner
    node on the path to the label, the sigmoid of the node's score is the probability of the second
    child. A label outside the classes gives nan. Parameters: `w` `[num_classes - 1, D]`, Xavier
    uniform; `b` `[num_classes - 1, 1]`, zeros. Source: Fluid's `hsigmoid`, which adds log 2 for
    each level missing from a short path and clips scores at 40.

    Arguments:
      input: `[B, D]`, or a sequence `[B, T, D]`; the losses are `[B, 1]` or a sequence `[B, T, 1]`.
      label: classes `[B, 1]`, or a sequence `[B, T, 1]`.
      num_classes: the number of classes, at least 2.
      ignore_index: labels with this value have loss 0. They still count in a mean.

    >>> def program():
    ...     x, word = layers.data("x", [4]), layers.data("word", [1], "int32")
    ...     return layers.hsigmoid(x, word, num_classes=8)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> loss = builder.infer(builder.init(), {"x": [[0.0] * 4], "word": [[3]]})
    >>> round(float(jnp.exp(-loss[0, 0])), 4)  # 3 choices of two
    0.125
    """
    frame = current_frame("hsigmoid")
    path = frame.names.layer("hsigmoid", name)
    x, ids = _as_rows("hsigmoid", input, label)
    why = "The loss is of the way to one leaf. Give each label an example, or use layers.nce."
    arguments.check_shape("layers.hsigmoid got labels", ids, why, ["B", 1])
    is_class = (ids >= 0) & (ids < num_classes)
    nodes, is_second = _ways_to_leaves(jnp.clip(ids, 0, num_classes - 1), num_classes)
    attrs, nodes_or_root = (param_attr, bias_attr), jnp.maximum(nodes, 0)
    scores = _score(frame, path, "hsigmoid", num_classes - 1, attrs, x, nodes_or_root)
    costs = jax.nn.softplus(jnp.where(is_second, -scores, scores))
    loss = jnp.sum(jnp.where(nodes >= 0, costs, 0), axis=1)
    return _like(input, _judge(loss, is_class[:, 0], ids, ignore_index))


def _judge(loss: jax.Array, is_class: jax.Array, ids: jax.Array, ignore_index: int) -> jax.Array:
    """Return losses `[R]`, 0 where all labels are to be ignored, else nan where one is no class."""
    is_ignored = jnp.all(ids == ignore_index, axis=1)
    return jnp.where(is_ignored, 0, jnp.where(is_class, loss, jnp.nan))


def _tell_from_noise(scores: jax.Array, log_q: jax.Array, num_true: int) -> jax.Array:
    """Return the losses `[R]` of scores `[R, n]`, the first ones of labels, the others of noise."""
    log_o = jax.nn.log_sigmoid(scores)
    # Constants, which would be taken for weights that nothing trains.
    log_q = lax.stop_gradient(log_q.astype(log_o.dtype))
    total = jnp.logaddexp(log_o, log_q)
    of_labels, of_noise = (total - log_o)[:, :num_true], (total - log_q)[:, num_true:]
    return jnp.sum(of_labels, axis=1) + jnp.sum(of_noise, axis=1)


def _ways_to_leaves(ids: jax.Array, num_classes: int) -> tuple[jax.Array, jax.Array]:
    """Return nodes above leaves, `[R, depth]`, -1 beyond the root, and which go to child 2."""
    leaves = ids + num_classes
    levels = jnp.arange((2 * num_classes - 1).bit_length() - 1, dtype=ids.dtype)[None]
    return (leaves >> (levels + 1)) - 1, (leaves >> levels) & 1 == 1


def _score(
    frame: Frame,
    path: Path,
    layer: str,
    size: int,
    attrs: tuple[Attr, Attr],
    x: jax.Array,
    classes: jax.Array,
) -> jax.Array:
    """Return the scores `[R, n]` of classes `[R, n]` for rows `[R, D]`, in float32 or wider."""
    w = parameter(frame, path, "w", [size, x.shape[1]], XAVIER, attrs[0], layer=layer)
    x, picked = frame.promote(x, w[classes])
    scores = widen(jnp.einsum("rd,rnd->rn", x, picked))
    if attrs[1] is False:
        return scores
    b = parameter(frame, path, "b", [size, 1], initializers.zeros, attrs[1], layer=layer)
    return scores + b[classes, 0]


def _as_rows(layer: str, input: Rows, label: Rows) -> tuple[jax.Array, jax.Array]:
    """Return inputs `[R, D]` and labels `[R, num_true]`, of all words where they are sequences."""
    if isinstance(input, sequences.Sequence) != isinstance(label, sequences.Sequence):
        raise ProgramError(
            f"layers.{layer} got one Sequence among its input and labels, expected both or none. "
            "Each word has a label. Declare both with lod_level=1."
        )
    if isinstance(input, sequences.Sequence) and isinstance(label, sequences.Sequence):
        # Zeros in the padding, so that no gradient of it is nan.
        x, ids = input.masked(), label.masked()
    else:
        x, ids = jnp.asarray(input), jnp.asarray(label)
    ids = arguments.integers(layer, "labels", ids)
    leading = x.shape[:-1]
    if x.ndim not in (2, 3) or ids.shape[: len(leading)] != leading or ids.ndim > x.ndim:
        raise ProgramError(
            f"layers.{layer} got an input of shape {x.shape} and labels of shape {ids.shape}, "
            "expected [B, D] and [B, 1], or sequences [B, T, D] and [B, T, 1]. Each row has its "
            "labels. Reshape one of them."
        )
    num_rows = math.prod(leading)
    return x.reshape(num_rows, x.shape[-1]), ids.reshape(num_rows, -1)


def _like(input: Rows, loss: jax.Array) -> Rows:
    """Return losses of rows `[R]` as those of examples, or of the words of sequences."""
    if not isinstance(input, sequences.Sequence):
        return loss.reshape(-1, 1)
    return input.with_values(loss.reshape(*input.values.shape[:2], 1))


def _weighted(loss: Rows, sample_weight: jax.Array | None) -> Rows:
    if sample_weight is None:
        return loss
    weight = jnp.asarray(sample_weight)
    batch = loss.lengths.shape[0] if isinstance(loss, sequences.Sequence) else loss.shape[0]
    why = "Each example has one weight. Reshape it."
    arguments.check_shape("layers.nce got a sample_weight", weight, why, [batch], [batch, 1])
    return loss * weight.reshape(batch, 1)


def _make_noise(sampler: Sampler, size: int, custom: Sequence[float] | None) -> _Noise:
    if sampler == "uniform":
        return _Noise(
            lambda key, shape: jax.random.randint(key, shape, 0, size),
            lambda ids: jnp.full(ids.shape, -math.log(size), jnp.float32),
        )
    if sampler == "log_uniform":
        span = math.log(size + 1)

        def draw(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
            # Inverts the distribution function, log(c + 1) / log(size + 1).
            places = jnp.expm1(jax.random.uniform(key, shape) * span)
            return jnp.minimum(places.astype(jnp.int32), size - 1)

        return _Noise(
            draw, lambda ids: jnp.log(jnp.log1p(1 / (ids.astype(jnp.float32) + 1)) / span)
        )
    probabilities = np.asarray(custom, np.float64)
    probabilities = probabilities / probabilities.sum()
    shares, aliases = _make_alias_table(probabilities)
    table = np.full(size, -np.inf)
    np.log(probabilities, out=table, where=probabilities > 0)
    logs = jnp.asarray(table, jnp.float32)

    def draw_alias(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        for_column, for_share = jax.random.split(key)
        columns = jax.random.randint(for_column, shape, 0, size)
        is_own = jax.random.uniform(for_share, shape) < jnp.asarray(shares)[columns]
        return jnp.where(is_own, columns, jnp.asarray(aliases)[columns])

    return _Noise(draw_alias, lambda ids: logs[ids])


def _make_alias_table(probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each column's own share, and the class of the rest (Walker 1977, Vose 1991)."""
    size = len(probabilities)
    heights = probabilities * size
    aliases = np.arange(size, dtype=np.int32)
    small = [int(column) for column in np.flatnonzero(heights < 1)]
    large = [int(column) for column in np.flatnonzero(heights >= 1)]
    while small and large:
        low, high = small.pop(), large[-1]
        aliases[low] = high
        heights[high] -= 1 - heights[low]
        if heights[high] < 1:
            small.append(large.pop())
    # What is left is full but for rounding.
    heights[small + large] = 1
    return heights.astype(np.float32), aliases


def _check_noise(
    size: int, num_neg_samples: int, sampler: str, custom: Sequence[float] | None
) -> None:
    check_choice("layers.nce got sampler=", sampler, ("uniform", "log_uniform", "custom_dist"))
    why = "Labels are told from noise. Use 10 samples, say."
    check_int("layers.nce got num_total_classes=", size, 1, error=ProgramError)
    check_int("layers.nce got num_neg_samples=", num_neg_samples, 1, why, ProgramError)
    if (custom is not None) != (sampler == "custom_dist"):
        kind = "None" if custom is None else "a list"
        raise ProgramError(
            f"layers.nce got sampler={sampler!r} and custom_dist of {kind}, expected custom_dist "
            "with the sampler 'custom_dist' alone. Another does not use it. Change one of them."
        )
    if custom is not None:
        values = np.asarray(custom, np.float64)
        is_good = values.shape == (size,) and (values >= 0).all()
        if not is_good or not np.isclose(values.sum(), 1, atol=1e-3):
            raise ProgramError(
                f"layers.nce got a custom_dist of shape {values.shape} with the sum "
                f"{values.sum():.4g}, expected {size} probabilities of the sum 1. Each class has "
                "one. Divide frequencies by their sum."
            )
