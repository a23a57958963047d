"""Loops, branches, and Python that looks at the batch's size."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from tests.battery.harness import body

SQUARE = {"w": (6, 4), "v": (4, 4)}


@body(**SQUARE)
def neural_ode_with_the_adjoint(x, w, v):
    @jax.custom_vjp
    def solve(v, h):
        return lax.fori_loop(0, 10, lambda _, h: h + 0.1 * jnp.tanh(h @ v), h)

    def backward(saved, g):
        v, h = saved

        def step(_, carry):
            h, g, total = carry
            _, pull = jax.vjp(lambda v, h: jnp.tanh(h @ v), v, h)
            of_v, of_h = pull(g)
            return h - 0.1 * jnp.tanh(h @ v), g + 0.1 * of_h, total + 0.1 * of_v

        _, g, total = lax.fori_loop(0, 10, step, (h, g, jnp.zeros_like(v)))
        return total, g

    def forward(v, h):
        end = solve(v, h)
        return end, (v, end)

    solve.defvjp(forward, backward)
    return jnp.mean((solve(v, x @ w) - 0.5) ** 2)


@body(**SQUARE)
def adaptive_solver_by_example(x, w, v):
    def solve(h):
        def step(state):
            h, t, dt = state
            slope = jnp.tanh(h @ v)
            better = 0.5 * (slope + jnp.tanh((h + dt * slope) @ v))
            error = dt * jnp.max(jnp.abs(better - slope))
            is_good = error < 0.05
            h, t = jnp.where(is_good, h + dt * better, h), jnp.where(is_good, t + dt, t)
            return h, t, jnp.where(is_good, 1.3 * dt, 0.5 * dt)

        return lax.while_loop(lambda s: s[1] < 1.0, step, (h, 0.0, 0.5))[0]

    end = lax.stop_gradient(jax.vmap(solve)(x @ w))
    return jnp.mean((end - jnp.tanh(x @ w)) ** 2), end


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
def switch_by_example(x, label, w, v):
    branches = [jnp.tanh, jnp.sin, jax.nn.softplus, jnp.square]
    h = jax.vmap(lambda n, h: lax.switch(n, branches, h))(label, x @ w @ v)
    return jnp.mean(h**2), h


@body(**SQUARE)
def scan_over_the_examples(x, w, v):
    def step(carry, row):
        carry = 0.9 * carry + jnp.tanh(row @ w + carry @ v)
        return carry, jnp.sum(carry)

    last, sums = lax.scan(step, jnp.zeros(4), x)
    return jnp.mean(last**2) + jnp.mean(sums**2) / 10, sums


@body(w=(6, 4))
def linear_recurrence_over_the_examples(x, w):
    decay, value = jax.nn.sigmoid(x @ w), x @ w
    combine = lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1])  # noqa: E731
    return jnp.mean(lax.associative_scan(combine, (decay, value))[1] ** 2)


@body(w=(6, 4))
def map_over_the_examples(x, w):
    rows = lax.map(lambda row: jnp.tanh(row @ w) / (1 + jnp.sum(row**2)), x)
    return jnp.sum(rows**2) / len(x), rows


@body(w=(6, 4))
def python_loop_over_the_examples(x, w):
    total = 0.0
    for n in range(len(x)):
        total = total + jnp.sum(jnp.tanh(x[n] @ w)) * (-1) ** n
    return total / x.shape[0]


@body(**SQUARE)
def branch_on_the_number_of_examples(x, w, v):
    h = jnp.tanh(x @ w)
    if len(x) > 20:
        h = h - h.mean(axis=0)
    elif x.shape[0] % 2:
        h = 2 * h
    return jnp.mean((h @ v) ** 2)


@body(w=(6, 4))
def halves_of_the_batch(x, w):
    n = x.shape[0] // 2
    a, b = x[:n] @ w, x[n:] @ w
    if not n:
        return jnp.mean(b**2)
    return (
        jnp.mean((a - b[:n]) ** 2) + jnp.mean(b[n:] ** 2) * b.shape[0] / len(x)
        if (len(b) > n)
        else jnp.mean((a - b) ** 2)
    )


@body(w=(6, 4))
def size_in_arithmetic(x, y, w):
    n = x.shape[0]
    error = x @ w - y
    return jnp.sum(error**2) / (n + 1) + jnp.log(n) * jnp.sum(w**2) / n, jnp.float32(n)


@body(**SQUARE)
def vmap_with_an_axis_name(x, w, v):
    def row_loss(row):
        h = jnp.tanh(row @ w)
        h = h - lax.pmean(h, "examples")
        return jnp.sum((h @ v) ** 2) / lax.psum(1, "examples")

    return jax.vmap(row_loss, axis_name="examples")(x).sum() / 10


@body(**SQUARE)
def own_jits_with_static_arguments(x, w, v):
    @functools.partial(jax.jit, static_argnames="power")
    def loss(h, power):
        return jnp.mean(jnp.abs(h - jnp.median(h, axis=0)) ** power)

    return loss(x @ w, power=2) + loss(jnp.tanh(x @ w) @ v, power=3)


@body(wi=(6, 8), wh=(8, 8), wo=(8, 1))
def recurrent_network_over_words(tokens, y, wi, wh, wo):
    def cell(h, word):
        new = jnp.tanh(wi[word % 6] + h @ wh)
        h = jnp.where((word > 0)[:, None], new, h)
        return h, h

    h, every = lax.scan(cell, jnp.zeros((tokens.shape[0], 8)), tokens.T)
    return jnp.mean((h @ wo - y) ** 2), every.swapaxes(0, 1)
