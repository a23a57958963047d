"""Loops, branches, and Python that looks at the batch's size."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from tests.battery.harness import body

SQUARE = {"w": (6, 4), "v": (4, 4)}


@body(w=(6, 4))
def loop_until_the_batch_agrees(x, w):
    def step(state):
        scale, n = state
        return scale * 0.8, n + 1

    start = (jnp.float32(4.0), 0)
    is_wide = lambda s: (jnp.std(jnp.tanh(x @ w) * s[0]) > 0.6) & (s[1] < 50)  # noqa: E731
    scale, rounds = lax.while_loop(is_wide, step, start)
    return jnp.mean((x @ w * lax.stop_gradient(scale)) ** 2), rounds


@body(**SQUARE)
def branch_on_a_mean(x, w, v):
    h = x @ w
    return lax.cond(
        h.mean() > 0, lambda h: jnp.mean(jnp.tanh(h @ v) ** 2), lambda h: jnp.max(h @ v) ** 2, h
    )


@body(**SQUARE)
def scan_over_the_examples(x, w, v):
    def step(carry, row):
        carry = 0.9 * carry + jnp.tanh(row @ w + carry @ v)
        return carry, jnp.sum(carry)

    last, sums = lax.scan(step, jnp.zeros(4), x)
    return jnp.mean(last**2) + jnp.mean(sums**2) / 10, sums


@body(**SQUARE)
def branch_on_the_number_of_examples(x, w, v):
    h = jnp.tanh(x @ w)
    if len(x) > 20:
        h = h - h.mean(axis=0)
    elif x.shape[0] % 2:
        h = 2 * h
    return jnp.mean((h @ v) ** 2)


@body(w=(6, 4))
def size_in_arithmetic(x, y, w):
    n = x.shape[0]
    error = x @ w - y
    return jnp.sum(error**2) / (n + 1) + jnp.log(n) * jnp.sum(w**2) / n, jnp.float32(n)


@body(**SQUARE)
def vmap_with_an_axis_name(x, w, v):
    def each(row):
        h = jnp.tanh(row @ w)
        h = h - lax.pmean(h, "examples")
        return jnp.sum((h @ v) ** 2) / lax.psum(1, "examples")

    return jax.vmap(each, axis_name="examples")(x).sum() / 10


@body(**SQUARE)
def own_jits_with_static_arguments(x, w, v):
    @functools.partial(jax.jit, static_argnames="power")
    def loss(h, power):
        return jnp.mean(jnp.abs(h - jnp.median(h, axis=0)) ** power)

    return loss(x @ w, power=2) + loss(jnp.tanh(x @ w) @ v, power=3)
