"""How the tests run an optimizer by itself: thousands of steps in one compiled loop."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

Slope = Callable[[Any, Any], Any]


def trajectory(
    optimizer: optax.GradientTransformation, start: Any, slope: Slope, num_steps: int
) -> Any:
    """Return the parameters after each step, stacked on a leading axis.

    Arguments:
      slope: `(params, step) -> gradient`.
    """
    update: Any = optimizer.update

    def body(carry: Any, step: jax.Array) -> Any:
        params, opt_state = carry
        updates, opt_state = update(slope(params, step), opt_state, params)
        params = optax.apply_updates(params, updates)
        return (params, opt_state), params

    start = jax.tree.map(jnp.float32, start)
    run = jax.jit(lambda carry: jax.lax.scan(body, carry, jnp.arange(num_steps))[1])
    return jax.tree.map(np.asarray, run((start, optimizer.init(start))))


def square(params: Any, step: Any) -> Any:
    """Return the gradient of half the sum of all squares."""
    return params
