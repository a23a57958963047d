"""Python that runs beside a step: callbacks that compute, that write, and that print."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from tests.battery.harness import body

W = {"w": (6, 4)}


@body(**W)
def pure_callback_on_the_batch(x, w):
    h = x @ w
    shape = jax.ShapeDtypeStruct(h.shape, h.dtype)
    order = jax.pure_callback(
        lambda h: (np.argsort(np.argsort(h, axis=0), axis=0) / len(h)).astype(np.float32),
        shape,
        jax.lax.stop_gradient(h),
    )
    return jnp.mean((jnp.tanh(h) - order) ** 2), order


@body(**W)
def pure_callback_by_example(x, w):
    def row_norm(row):
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        return jax.pure_callback(
            lambda r: np.float32(np.linalg.norm(r)), shape, row, vmap_method="sequential"
        )

    size = jax.lax.stop_gradient(jax.vmap(row_norm)(x))
    return jnp.mean(jnp.sum((x @ w) ** 2, axis=1) / (1 + size)), size


@jax.custom_vjp
def host_square(x):
    return jax.pure_callback(lambda x: np.square(x), jax.ShapeDtypeStruct(x.shape, x.dtype), x)


host_square.defvjp(lambda x: (host_square(x), x), lambda x, g: (2 * x * g,))


@body(**W)
def pure_callback_with_a_gradient(x, w):
    return jnp.mean(host_square(jnp.tanh(x @ w) - 0.3))


@body(**W)
def io_callback_that_returns(x, w):
    h = x @ w
    shape = jax.ShapeDtypeStruct((4,), jnp.float32)
    centre = io_callback(
        lambda h: h.max(axis=0).astype(np.float32), shape, jax.lax.stop_gradient(h)
    )
    return jnp.mean((h - centre) ** 2)


@body(**W)
def debug_callbacks_and_prints(x, w):
    h = x @ w
    jax.debug.callback(lambda mean: None, h.mean())
    jax.debug.callback(lambda rows: None, h, ordered=False)
    jax.debug.print("{} rows, up to {}", len(h), h.max())
    return jnp.mean(jnp.tanh(h - h.max(axis=0)) ** 2)
