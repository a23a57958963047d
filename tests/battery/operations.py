"""Operations that mix the rows of a batch: sorting, transforms, segments, linear algebra."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.battery.harness import body

W = {"w": (6, 4)}


@body(**W)
def sorted_columns(x, w):
    h = jnp.sort(x @ w, axis=0)
    return jnp.mean(h * jnp.linspace(-1, 1, len(x))[:, None]), h


@body(**W)
def running_sums_and_products(x, w):
    h = jnp.tanh(x @ w)
    sums, products = jnp.cumsum(h, axis=0), jnp.cumprod(1 + 0.1 * h, axis=0)
    return jnp.mean(sums**2) + jnp.mean(products) + jnp.mean(lax.cummax(h)), sums


@body(**W)
def views_joined_and_split(x, w):
    both = jnp.concatenate([x, jnp.sin(x)]) @ w
    a, b = jnp.split(both - both.mean(0), 2)
    return jnp.mean((a - b) ** 2) + jnp.vstack([a, b]).std(), a


@body(**W)
def reduction_with_a_lambda(x, w):
    h = jnp.tanh(x @ w)
    largest = lax.reduce(jnp.abs(h), -jnp.inf, lambda a, b: jnp.maximum(a, b), (0,))
    both = lax.reduce(lax.stop_gradient(h), jnp.float32(0), lambda a, b: a + b + a * b * 0, (0, 1))
    return jnp.mean(h**2) + largest.sum(), both


@body(**W)
def windows_over_the_examples(x, w):
    h = jnp.tanh(x @ w)
    high = lax.reduce_window(h, -jnp.inf, lax.max, (3, 1), (1, 1), "SAME")
    total = lax.reduce_window(h, 0.0, lax.add, (2, 1), (2, 1), "SAME")
    return jnp.mean(high) + jnp.mean(total**2)


@body(**W)
def permuted_by_numpy(x, w):
    order = np.random.default_rng(0).permutation(len(x))
    h = x @ w
    return jnp.mean((h - 0.5 * h[order]) ** 2), h[np.argsort(order)]


@body(**W, rtol=1e-4, reason="a difference of means that nearly cancel")
def given_mean_of_things_without_rows(x, mean, w):
    h = jnp.tanh(x @ w)
    return mean(h.max(axis=0)) + mean(h.T) + mean(jnp.sum(h)) + mean(h / len(h)) + mean(w**2)
