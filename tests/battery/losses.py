"""Losses and augmentations of papers, written as they are found in repositories."""

import jax.numpy as jnp
import optax
from jax import lax

from tests.battery.harness import body

W = {"w": (6, 4), "b": (4,)}


@body(w=(6,))
def cox_partial_likelihood(x, y, label, w):
    risk, event = x @ w, (label > 0).astype(jnp.float32)
    order = jnp.argsort(-y[:, 0])
    risk, event = risk[order], event[order]
    at_risk = lax.cumlogsumexp(risk)
    return -jnp.sum((risk - at_risk) * event) / jnp.maximum(event.sum(), 1)


@body(**W)
def hard_example_mining(x, label, w, b):
    losses = optax.softmax_cross_entropy_with_integer_labels(x @ w + b, label)
    hardest, _ = lax.top_k(losses, max(1, x.shape[0] // 4))
    return jnp.mean(hardest), losses
