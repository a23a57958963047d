"""Losses that compare the examples of a batch with each other."""

import jax
import jax.numpy as jnp
from jax import lax

from tests.battery.harness import body


def unit(z):
    return z / jnp.linalg.norm(z, axis=1, keepdims=True)


def distances(z):
    squares = jnp.sum((z[:, None] - z[None]) ** 2, axis=-1)
    return jnp.sqrt(squares + 1e-6)


@body(w=(6, 8))
def simclr(x, w):
    z = unit(jnp.concatenate([jnp.tanh(x @ w), jnp.tanh((x + 0.1 * x**2) @ w)]))
    n = len(x)
    logits = z @ z.T / 0.5 - 1e9 * jnp.eye(2 * n)
    targets = jnp.concatenate([jnp.arange(n) + n, jnp.arange(n)])
    return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(2 * n), targets])


@body(w=(6, 8))
def simclr_by_roll(x, w):
    z = unit(jnp.concatenate([x @ w, (0.9 * x) @ jnp.abs(w)]))
    similar = jnp.exp(z @ z.T / 0.2) * (1 - jnp.eye(z.shape[0]))
    positive = jnp.exp(jnp.sum(z * jnp.roll(z, x.shape[0], axis=0), axis=1) / 0.2)
    return -jnp.log(positive / similar.sum(axis=1)).mean(), positive[: x.shape[0]]


@body(w=(6, 8))
def supervised_contrastive(x, label, w):
    z = unit(x @ w)
    other = 1 - jnp.eye(len(x))
    same = (label[:, None] == label[None, :]) * other
    logits = z @ z.T / 0.3
    logp = logits - jnp.log(jnp.sum(jnp.exp(logits) * other, axis=1, keepdims=True) + 1e-6)
    return -jnp.mean((same * logp).sum(1) / jnp.maximum(same.sum(1), 1))


@body(w=(6, 8), v=(72, 8), scale=())
def clip(x, image, w, v, scale):
    text, picture = unit(x @ w), unit(image.reshape(len(x), -1) @ v)
    logits = jnp.exp(scale) * text @ picture.T
    labels = jnp.arange(logits.shape[0])
    rows = jnp.take_along_axis(jax.nn.log_softmax(logits, axis=1), labels[:, None], axis=1)
    columns = jnp.take_along_axis(jax.nn.log_softmax(logits, axis=0), labels[None], axis=0)
    hits = jnp.mean(jnp.argmax(logits, axis=1) == labels)
    return -(rows.mean() + columns.mean()) / 2, hits


@body(w=(6, 8), v=(72, 8), bias=())
def siglip(x, image, w, v, bias):
    logits = 5 * unit(x @ w) @ unit(image.reshape(x.shape[0], -1) @ v).T + bias
    signs = 2 * jnp.eye(x.shape[0]) - 1
    return -jnp.sum(jax.nn.log_sigmoid(signs * logits)) / x.shape[0]


@body(w=(6, 8))
def batch_hard_triplets(x, label, w):
    d = distances(jnp.tanh(x @ w))
    same = label[:, None] == label[None, :]
    furthest = jnp.max(jnp.where(same, d, -jnp.inf), axis=1)
    nearest = jnp.min(jnp.where(same, jnp.inf, d), axis=1)
    return jnp.mean(jnp.maximum(furthest - jnp.minimum(nearest, 10.0) + 0.5, 0))


@body(w=(6, 8))
def semi_hard_triplets(x, label, w):
    d = distances(x @ w)
    same = label[:, None] == label
    valid = same[:, :, None] & ~same[:, None, :]
    margins = d[:, :, None] - d[:, None, :] + 1.0
    chosen = valid & (margins > 0) & (margins < 1)
    return jnp.sum(jnp.where(chosen, margins, 0)) / jnp.maximum(jnp.sum(chosen), 1)


@body(w=(6, 8))
def n_pairs(x, label, w):
    z = x @ w
    logits = z @ jnp.roll(z, 1, axis=0).T
    targets = (label[:, None] == jnp.roll(label, 1)[None]).astype("float32") + 1e-3
    targets = targets / targets.sum(axis=1, keepdims=True)
    return -(targets * jax.nn.log_softmax(logits)).sum(axis=1).mean()


@body(w=(6, 5), sizes=(24, 21, 5))  # of one example the deviation is 0
def barlow_twins(x, w):
    def normal(z):
        return (z - z.mean(0)) / (z.std(0) + 1e-3)

    c = normal(x @ w).T @ normal(jnp.tanh(x @ w)) / x.shape[0]
    on = jnp.sum((jnp.diagonal(c) - 1) ** 2)
    return on + 0.05 * jnp.sum((c - jnp.diag(jnp.diag(c))) ** 2)


@body(w=(6, 5), sizes=(24, 21, 5))  # / (n - 1)
def vicreg(x, w):
    a, b = x @ w, jnp.sin(x) @ w
    n, d = a.shape

    def spread(z):
        z = z - z.mean(axis=0)
        cov = z.T @ z / (n - 1)
        off = jnp.sum(cov**2) - jnp.sum(jnp.diag(cov) ** 2)
        return jnp.mean(jax.nn.relu(2 - jnp.sqrt(z.var(axis=0) + 1e-4))) + off / d

    return jnp.mean((a - b) ** 2) + spread(a) + spread(b)


@body(w=(6, 4))
def alignment_and_uniformity(x, w):
    z = unit(x @ w)
    apart = jnp.sum((z[:, None] - z[None]) ** 2, -1)
    return jnp.mean(jnp.sum((z - unit(jnp.tanh(x) @ w)) ** 2, 1)) + jnp.log(
        jnp.mean(jnp.exp(-2 * apart))
    )


@body(w=(6, 4), prototypes=(4, 3))
def swav_with_sinkhorn(x, w, prototypes):
    scores = unit(x @ w) @ prototypes
    q = jnp.exp(lax.stop_gradient(scores) / 0.5).T
    q = q / q.sum()
    for _ in range(3):
        q = q / q.sum(axis=1, keepdims=True) / q.shape[0]
        q = q / q.sum(axis=0, keepdims=True) / q.shape[1]
    logp = jax.nn.log_softmax(unit(jnp.tanh(x @ w)) @ prototypes / 0.3)
    return -jnp.mean(jnp.sum((q * q.shape[1]).T * logp, axis=1))


@body(w=(6, 4), head=(4, 4))
def byol(x, w, head):
    online = unit((x @ w) @ head)
    target = lax.stop_gradient(unit(jnp.tanh(x @ w)))
    return 2 - 2 * jnp.einsum("bd,bd->b", online, target).mean()


@body(w=(6, 4))
def mean_shift_to_nearest_neighbours(x, w):
    z = unit(x @ w)
    _, nearest = lax.top_k(lax.stop_gradient(z @ z.T), min(3, len(x)))
    return jnp.mean(jnp.sum((z[:, None] - z[nearest]) ** 2, axis=-1))
