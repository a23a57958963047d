"""What XLA's partitioner splits wrongly: such programs are computed whole on every device."""

import jax.numpy as jnp
from jax import lax

from tests.battery.harness import body

W = {"w": (6, 3)}


@body(**W)
def two_cumulative_operations_over_one_array(x, w):
    h = jnp.tanh(x @ w)
    return jnp.mean(jnp.cumsum(h, axis=0) ** 2), lax.cummax(h), lax.cumlogsumexp(h)


@body(**W)
def overlapping_windows_of_examples(x, w):
    h = jnp.tanh(x @ w)
    high = lax.reduce_window(h, -jnp.inf, lax.max, (3, 1), (1, 1), "SAME")
    return jnp.mean(high**2), high


@body(**W)
def reduction_that_devices_do_not_know(x, w):
    h = jnp.tanh(x @ w)
    found = lax.reduce(lax.stop_gradient(h), jnp.float32(1), lambda a, b: a + b + a * b, (0,))
    return jnp.mean(h**2), jnp.tanh(found)


@body(**W)
def order_of_an_uneven_batch(x, w):
    h = jnp.sort(jnp.tanh(x @ w), axis=0)
    return jnp.mean(h[:3] ** 2) + jnp.median(h, axis=0).sum(), h
