"""What XLA's partitioner splits wrongly: such programs are computed whole on every device."""

import jax
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
    result = lax.reduce(lax.stop_gradient(h), jnp.float32(1), lambda a, b: a + b + a * b, (0,))
    return jnp.mean(h**2), jnp.tanh(result)


@body(**W)
def order_of_an_uneven_batch(x, w):
    h = jnp.sort(jnp.tanh(x @ w), axis=0)
    return jnp.mean(h[:3] ** 2) + jnp.median(h, axis=0).sum(), h


PARTS = {**W, "sizes": (24, 19)}


@body(**PARTS)
def cumulative_operations_over_a_part(x, w):
    h = jnp.tanh(x @ w)[1:]
    return jnp.mean(jnp.cumsum(h, axis=0) ** 2), lax.cummax(h).sum(), lax.cumlogsumexp(h).sum()


@body(**PARTS)
def cumulative_operations_over_pairs(x, w):
    h = jnp.tanh(x @ w)
    pairs = h[: len(h) // 2 * 2].reshape(-1, 2, 3)
    loss = jnp.mean(jnp.cumsum(pairs, axis=0) ** 2)
    return loss, lax.cummax(pairs).sum(), lax.cumlogsumexp(pairs).sum()


@body(**PARTS)
def overlapping_windows_of_a_part(x, w):
    h = jnp.tanh(x @ w)[1:]
    return jnp.mean(lax.reduce_window(h, -jnp.inf, lax.max, (3, 1), (1, 1), "SAME") ** 2)


@body(**PARTS)
def overlapping_windows_of_a_part_of_fixed_size(x, w):
    h = jnp.tanh(x @ w)[:16]
    return jnp.mean(lax.reduce_window(h, -jnp.inf, lax.max, (3, 1), (1, 1), "SAME") ** 2)


@body(**PARTS)
def exclusive_or_of_a_half(x, w):
    h = jnp.tanh(x @ w)
    signs = jnp.sign(h[: len(h) // 2]).astype(jnp.int32)
    return jnp.mean(h**2), jnp.bitwise_xor.reduce(signs).sum()


@body(**PARTS)
def order_of_a_part(x, w):
    h = jnp.tanh(x @ w)
    part, more = jnp.sort(h[1:], axis=0), jnp.sort(jnp.concatenate([h, w[:1]]), axis=0)
    return jnp.mean(part[:3] ** 2) + jnp.median(more, axis=0).sum()


@body(**W)
def order_in_each_example(x, w):
    h = jnp.tanh(x @ w)
    return jnp.mean(jnp.sort(h, axis=1)[:, 0] ** 2) + jnp.mean(jnp.median(h, axis=1))


@body(table=(5, 3))
def lookups_by_unsigned_numbers(x, label, table):
    label = label.astype(jnp.uint8)
    rows = jnp.take(table, label, axis=0, mode="fill")
    return jnp.mean(rows**2) + jnp.mean(jax.vmap(lambda row, n: row[n])(rows, label % 3))


@jax.custom_vjp
def clip_by_the_batch(h):
    return h


def clip_gradient(h, g):
    high = lax.cummax(h) + jnp.cumsum(h, axis=0) + lax.cumlogsumexp(g)
    return (g * jnp.tanh(high),)


clip_by_the_batch.defvjp(lambda h: (h, h), clip_gradient)


@body(**W)
def cumulative_operations_in_a_gradient_of_its_own(x, w):
    return jnp.mean(clip_by_the_batch(jnp.tanh(x @ w)) ** 2)


@jax.custom_jvp
def weigh_by_the_batch(h):
    return h


@weigh_by_the_batch.defjvp
def weigh_tangent(primals, tangents):
    (h,), (t,) = primals, tangents
    return h, t * jnp.tanh(lax.cummax(h) + jnp.cumsum(h, axis=0) + lax.cumlogsumexp(h))


@body(**W)
def cumulative_operations_in_a_tangent_of_its_own(x, w):
    return jnp.mean(weigh_by_the_batch(jnp.tanh(x @ w)) ** 2)


@body(**W)
def cumulative_operations_in_a_transpose_of_its_own(x, w):
    def weigh(r, g):
        return g * jnp.tanh(lax.cummax(r) + jnp.cumsum(r, axis=0) + lax.cumlogsumexp(r))

    h = jnp.tanh(x @ w)
    kept = lax.stop_gradient(h)
    return jnp.mean(jax.custom_derivatives.linear_call(lambda _, h: h, weigh, kept, h) ** 2)


@body(**W)
def examples_spread_apart_without_the_first(x, w):
    h = lax.pad(jnp.tanh(x @ w), 0.0, ((-1, 2, 1), (0, 0, 0)))
    return jnp.mean(h**2 * jnp.arange(len(h))[:, None])
