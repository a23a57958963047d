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


@body(w=(6, 8), v=(72, 8), scale=())
def clip(x, image, w, v, scale):
    text, picture = unit(x @ w), unit(image.reshape(len(x), -1) @ v)
    logits = jnp.exp(scale) * text @ picture.T
    labels = jnp.arange(logits.shape[0])
    rows = jnp.take_along_axis(jax.nn.log_softmax(logits, axis=1), labels[:, None], axis=1)
    columns = jnp.take_along_axis(jax.nn.log_softmax(logits, axis=0), labels[None], axis=0)
    hits = jnp.mean(jnp.argmax(logits, axis=1) == labels)
    return -(rows.mean() + columns.mean()) / 2, hits


@body(w=(6, 8))
def batch_hard_triplets(x, label, w):
    d = distances(jnp.tanh(x @ w))
    same = label[:, None] == label[None, :]
    furthest = jnp.max(jnp.where(same, d, -jnp.inf), axis=1)
    nearest = jnp.min(jnp.where(same, jnp.inf, d), axis=1)
    return jnp.mean(jnp.maximum(furthest - jnp.minimum(nearest, 10.0) + 0.5, 0))


@body(w=(6, 5), sizes=(24, 19))  # / (n - 1)
def vicreg(x, w):
    a, b = x @ w, jnp.sin(x) @ w
    n, d = a.shape

    def spread(z):
        z = z - z.mean(axis=0)
        cov = z.T @ z / (n - 1)
        off = jnp.sum(cov**2) - jnp.sum(jnp.diag(cov) ** 2)
        return jnp.mean(jax.nn.relu(2 - jnp.sqrt(z.var(axis=0) + 1e-4))) + off / d

    return jnp.mean((a - b) ** 2) + spread(a) + spread(b)


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
