"""Gradients inside programs, and derivatives that users define."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.sparse.linalg import cg

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
def gradient_penalty_of_inputs(x, y, w, v):
    slopes = jax.vmap(jax.grad(lambda x: net((w, v), x)[0]))(x)
    return fit((w, v), x, y) + jnp.mean((jnp.linalg.norm(slopes, axis=1) - 1) ** 2)


@body(**NET)
def hessian_trace_by_products(x, y, w, v):
    gradient = jax.grad(fit)
    _, product = jax.jvp(lambda w: gradient((w, v), x, y)[0], (w,), (jnp.ones_like(w),))
    return fit((w, v), x, y) + 0.01 * jnp.sum(product**2)


@body(**NET)
def norms_of_gradients_by_example(x, y, w, v):
    gradients = jax.vmap(jax.grad(fit), in_axes=(None, 0, 0))((w, v), x[:, None], y[:, None])
    norms = jnp.sqrt(sum(jnp.sum(g**2, axis=(1, 2)) for g in gradients))
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


@jax.custom_vjp
def fixed_point(w, x):
    def update(state):
        z, _, n = state
        return jnp.tanh(z @ w * 0.3 + x), z, n + 1

    def goes_on(state):
        z, before, n = state
        return (jnp.max(jnp.abs(z - before)) > 1e-7) & (n < 80)

    return lax.while_loop(goes_on, update, (jnp.tanh(x), jnp.zeros_like(x), 0))[0]


def fixed_point_forward(w, x):
    z = fixed_point(w, x)
    return z, (w, x, z)


def fixed_point_backward(saved, g):
    w, x, z = saved
    _, pull = jax.vjp(lambda w, x, z: jnp.tanh(z @ w * 0.3 + x), w, x, z)
    total = lax.fori_loop(0, 40, lambda _, u: g + pull(u)[2], g)
    return pull(total)[:2]


fixed_point.defvjp(fixed_point_forward, fixed_point_backward)


@body(w=(5, 5), v=(6, 5))
def deep_equilibrium_of_the_batch(x, w, v):
    return jnp.mean((fixed_point(w, x @ v) - 0.3) ** 2)


@body(w=(6, 4))
def ridge_by_custom_linear_solve(x, y, w):
    h = jnp.tanh(x @ w)
    gram = h.T @ h / x.shape[0] + 0.1 * jnp.eye(4)
    solve = lambda matvec, b: jnp.linalg.solve(lax.stop_gradient(gram), b)  # noqa: E731
    head = lax.custom_linear_solve(
        lambda v: gram @ v, h.T @ y[:, 0] / x.shape[0], solve, symmetric=True
    )
    return jnp.mean((h @ head - y[:, 0]) ** 2)


@body(w=(6, 4), rtol=1e-4, reason="conjugate gradients stop by a residual: rounding moves the end")
def kernel_ridge_by_conjugate_gradients(x, y, w):
    h = jnp.tanh(x @ w)
    kernel = h @ h.T + jnp.eye(len(x))
    alpha, _ = cg(lambda v: kernel @ v, y[:, 0], tol=1e-6, maxiter=30)
    return jnp.sum(alpha * y[:, 0]) / len(x)


@body(w=(6, 4))
def gauss_newton_by_linearize(x, y, w):
    f = lambda w: jnp.sum(jnp.tanh(x @ w), axis=1) - y[:, 0]  # noqa: E731
    residual, tangent = jax.linearize(f, w)
    pull = jax.linear_transpose(tangent, w)
    (direction,) = pull(lax.stop_gradient(residual))
    return jnp.mean(residual**2) + 1e-3 * jnp.mean(tangent(direction) ** 2)
