"""Losses and augmentations of papers, written as they are found in repositories."""

import jax
import jax.numpy as jnp
import optax
from jax import lax

from tests.battery.harness import body

W = {"w": (6, 4), "b": (4,)}


@body(w=(2,), b=())
def dice_of_the_batch(image, w, b):
    p = jax.nn.sigmoid(image @ w + b)
    target = (image[..., 0] > 0.3).astype(jnp.float32)
    return 1 - (2 * jnp.sum(p * target) + 1) / (jnp.sum(p) + jnp.sum(target) + 1)


@body(**W)
def mixup_with_a_permutation(x, label, key, w, b):
    order, portion = jax.random.split(key)
    order = jax.random.permutation(order, x.shape[0])
    lam = jax.random.beta(portion, 1.0, 1.0)
    logp = jax.nn.log_softmax((lam * x + (1 - lam) * x[order]) @ w + b)
    pick = lambda t: -jnp.take_along_axis(logp, t[:, None], axis=1).mean()  # noqa: E731
    return lam * pick(label) + (1 - lam) * pick(label[order])


@body(w=(6,))
def cox_partial_likelihood(x, y, label, w):
    risk, event = x @ w, (label > 0).astype(jnp.float32)
    order = jnp.argsort(-y[:, 0])
    risk, event = risk[order], event[order]
    at_risk = lax.cumlogsumexp(risk)
    return -jnp.sum((risk - at_risk) * event) / jnp.maximum(event.sum(), 1)


@body(w=(6,))
def listwise_ranking(x, y, w):
    return -jnp.sum(jax.nn.softmax(y[:, 0]) * jax.nn.log_softmax(x @ w))


@body(**W)
def classes_balanced_by_the_batch(x, label, w, b):
    counts = jnp.bincount(label, length=4)
    weights = (1 - 0.9) / (1 - 0.9 ** jnp.maximum(counts, 1))
    weights = weights / weights.sum() * 4
    losses = optax.softmax_cross_entropy_with_integer_labels(x @ w + b, label)
    return jnp.mean(weights[label] * losses)


@body(w=(6, 5), transitions=(5, 5))
def conditional_random_field(image, tokens, w, transitions):
    scores = image[:, :, :3].reshape(len(image), 6, 6) @ w
    tags = tokens[:, :6] % 5
    gold = jnp.take_along_axis(scores, tags[..., None], axis=2).sum((1, 2))
    gold += transitions[tags[:, :-1], tags[:, 1:]].sum(1)

    def step(alpha, score):
        return jax.nn.logsumexp(alpha[:, :, None] + transitions[None], axis=1) + score, None

    alpha, _ = lax.scan(step, scores[:, 0], scores[:, 1:].swapaxes(0, 1))
    return jnp.mean(jax.nn.logsumexp(alpha, axis=1) - gold)


@body(w=(12, 9))
def connectionist_temporal_classification(image, tokens, w):
    logits = image.reshape(-1, 6, 12) @ w
    logits = jnp.repeat(logits, 3, axis=1)
    frames, words = jnp.zeros(logits.shape[:2]), tokens[:, :4]
    return optax.ctc_loss(logits, frames, words, (words == 0).astype(jnp.float32)).mean()
