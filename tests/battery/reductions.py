"""Every reduction of jax.numpy, of the batch, by column and by row; and metrics of a batch."""

import jax
import jax.numpy as jnp

from penstock import layers
from tests.battery.harness import body, program

W = {"w": (6, 4)}


def with_loss(h, metrics):
    """Return a loss that has the gradients of the metrics that are scalars, and the metrics."""
    smooth = [v for v in jax.tree.leaves(metrics) if v.ndim == 0 and v.dtype == jnp.float32]
    return jnp.mean(h**2) + 0.01 * sum(smooth), metrics


def each(h, *functions, axes=(None, 0, 1)):
    return [function(h, axis=axis) for function in functions for axis in axes]


@body(**W)
def sums_and_means(x, w):
    h = jnp.tanh(x @ w)
    return with_loss(h, each(h, jnp.sum, jnp.mean, jnp.average, jnp.count_nonzero))


@body(**W)
def places_of_extremes(x, w):
    h = jnp.tanh(x @ w)
    return with_loss(h, each(h, jnp.argmax, jnp.argmin, jnp.nanargmax, jnp.nanargmin))


@body(**W)
def spreads(x, w):
    h = x @ w
    return with_loss(h, [*each(h, jnp.var), *[v.std(0) for v in (h, x)], jnp.std(h)])


@body(**W)
def medians_and_quantiles(x, w):
    h = x @ w
    values = each(h, jnp.median, jnp.nanmedian)
    quantiles = [jnp.quantile(h, 0.3), jnp.percentile(h, 80, axis=0), jnp.nanquantile(h, 0.9)]
    return with_loss(h, [*values, *quantiles])


@program("x", "y", rtol=1e-4, reason="a sum of numbers of both signs, a hundredth of their sizes")
def reductions_of_layers():
    h = layers.fc(layers.data("x", [6]), 4)
    weights = layers.data("y", [1]) ** 2
    functions = (
        *(layers.reduce_sum, layers.reduce_mean, layers.reduce_max, layers.reduce_min),
        *(layers.reduce_std, layers.reduce_var, layers.reduce_median),
    )
    values = [function(h, dim=dim) for function in functions for dim in (None, 0, 1)]
    signs = [
        layers.reduce_all(h > -1),
        layers.reduce_any(h > 1, dim=0),
        layers.reduce_prod(1 + h / 9),
    ]
    loss = layers.reduce_sum(weights * h**2) / layers.reduce_sum(weights)
    return loss + 0.01 * layers.reduce_max(h) + 0.1 * layers.reduce_std(h), values, signs
