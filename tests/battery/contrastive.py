"""Losses that compare the examples of a batch with each other."""

import jax
import jax.numpy as jnp

from tests.battery.harness import body


def unit(z):
    return z / jnp.linalg.norm(z, axis=1, keepdims=True)


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
