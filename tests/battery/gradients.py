"""Gradients inside programs, and derivatives that users define."""

import jax
import jax.numpy as jnp

from tests.battery.harness import body

NET = {"w": (6, 5), "v": (5, 1)}


def net(params, x):
    return jnp.tanh(x @ params[0]) @ params[1]


def fit(params, x, y):
    return jnp.mean((net(params, x) - y) ** 2)


@body(**NET)
def maml(x, y, w, v):
    params = (w, v)
    inner = jax.grad(fit)(params, x[::2], y[::2])
    adapted = jax.tree.map(lambda p, g: p - 0.05 * g, params, inner)
    return fit(adapted, x, y)


@body(**NET)
def gradient_of_a_given_mean(x, y, mean, w, v):
    inner = jax.grad(lambda w: mean((net((w, v), x) - y) ** 2))(w)
    return mean((net((w - 0.05 * inner, v), x) - y) ** 2) + 0.1 * jnp.sum(inner**2)


@body(**NET)
def norms_of_gradients_by_example(x, y, w, v):
    each = jax.vmap(jax.grad(fit), in_axes=(None, 0, 0))((w, v), x[:, None], y[:, None])
    norms = jnp.sqrt(sum(jnp.sum(g**2, axis=(1, 2)) for g in each))
    return fit((w, v), x, y) + 0.01 * jnp.var(norms), norms


@jax.custom_vjp
def centre_gradients(x):
    return x * 1.0


centre_gradients.defvjp(lambda x: (x * 1.0, None), lambda _, g: (g - g.mean(axis=0),))


@body(w=(6, 4))
def custom_vjp_that_looks_at_the_batch(x, w):
    return jnp.mean(jnp.cos(3 * centre_gradients(x @ w)))


@jax.custom_jvp
def whitened(x):
    return (x - x.mean(0)) / (x.std(0) + 1)


@whitened.defjvp
def whitened_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return whitened(x), (t - 0.5 * t.mean(0)) / (x.std(0) + 1)


@body(w=(6, 4))
def custom_jvp_that_looks_at_the_batch(x, w):
    return jnp.mean(jnp.sin(whitened(x @ w)))


@body(w=(6, 5), v=(5, 5))
def checkpointed_blocks(x, w, v):
    block = jax.checkpoint(lambda h: h + jnp.tanh((h - h.mean(0)) @ v))
    h = x @ w
    for _ in range(3):
        h = block(h)
    return jnp.mean(h**2)
