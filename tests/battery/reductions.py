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


def reduce(h, *functions, axes=(None, 0, 1)):
    return [function(h, axis=axis) for function in functions for axis in axes]


@body(**W)
def sums_and_means(x, w):
    h = jnp.tanh(x @ w)
    return with_loss(h, reduce(h, jnp.sum, jnp.mean, jnp.average, jnp.count_nonzero))


@body(**W)
def products(x, w):
    h = 1 + 0.1 * jnp.tanh(x @ w)
    return with_loss(h, reduce(h, jnp.prod, jnp.nanprod))


@body(**W)
def extremes(x, w):
    h = jnp.tanh(x @ w)
    return with_loss(h, reduce(h, jnp.max, jnp.min, jnp.amax, jnp.amin, jnp.ptp))


@body(**W)
def places_of_extremes(x, w):
    h = jnp.tanh(x @ w)
    return with_loss(h, reduce(h, jnp.argmax, jnp.argmin, jnp.nanargmax, jnp.nanargmin))


@body(**W)
def spreads(x, w):
    h = x @ w
    return with_loss(h, [*reduce(h, jnp.var), *[v.std(0) for v in (h, x)], jnp.std(h)])


@body(**W, sizes=(24, 19))  # / (n - 1)
def spreads_without_bias(x, w):
    h = x @ w
    values = [h.std(ddof=1), h.var(axis=0, ddof=1), jnp.cov(h.T), jnp.corrcoef(h, rowvar=False)]
    return with_loss(h, values)


@body(**W)
def medians_and_quantiles(x, w):
    h = x @ w
    values = reduce(h, jnp.median, jnp.nanmedian)
    quantiles = [jnp.quantile(h, 0.3), jnp.percentile(h, 80, axis=0), jnp.nanquantile(h, 0.9)]
    return with_loss(h, [*values, *quantiles])


@body(**W)
def reductions_without_nan(x, w):
    h = x @ w
    holes = jnp.where(h > 1, jnp.nan, jnp.tanh(h)).at[0].set(0.1)
    functions = (jnp.nansum, jnp.nanmean, jnp.nanmax, jnp.nanmin, jnp.nanstd, jnp.nanvar)
    metrics = reduce(holes, *functions, axes=(None, 0))
    return jnp.mean(h**2), metrics


@body(**W)
def logarithms_of_sums(x, w):
    h = x @ w
    values = [
        *reduce(h, jax.nn.logsumexp),
        jnp.logaddexp.reduce(h, axis=0),
        jax.nn.softmax(h, axis=0),
    ]
    return with_loss(h, values)


@body(**W)
def norms(x, w):
    h = x @ w
    kinds = (None, "fro", "nuc", 1, jnp.inf)
    values = [jnp.linalg.norm(h, order) for order in kinds]
    return with_loss(h, [*values, *reduce(h, jnp.linalg.norm, axes=(0, 1)), jnp.vdot(h, h)])


@body(**W)
def means_with_weights_and_masks(x, y, w):
    h = x @ w
    weights = jax.nn.sigmoid(y[:, 0])
    mean = jnp.average(h, axis=0, weights=weights)
    chosen = jnp.mean(h, where=(y > -9) & (h > -1))
    return with_loss(h, [mean, chosen, jnp.sum(h[:, 0] * weights) / jnp.sum(weights)])


@body(**W)
def ufuncs_that_reduce(x, w):
    h = jnp.tanh(x @ w)
    signs = jnp.sign(h).astype(jnp.int32)
    values = [jnp.add.reduce(h), jnp.maximum.reduce(h), jnp.minimum.reduce(h, axis=None)]
    return with_loss(h, [*values, jnp.multiply.reduce(1 + h / 10), jnp.bitwise_xor.reduce(signs)])


@body(w=(6,))
def area_by_ranks_and_rank_correlation(x, y, label, w):
    s, positive = x @ w, label < 2
    rank = jnp.argsort(jnp.argsort(s)) + 1.0
    count = positive.sum()
    area = (jnp.sum(rank * positive) - count * (count + 1) / 2) / (count * (len(s) - count))
    spearman = jnp.corrcoef(rank, jnp.argsort(jnp.argsort(y[:, 0])))[0, 1]
    return jnp.mean((s - y[:, 0]) ** 2), area, spearman


@program("x", "y", rtol=1e-4, reason="a sum of numbers of both signs, a hundredth of their sizes")
def reductions_of_layers():
    h = layers.fc(layers.data("x", [6]), 4)
    weights = layers.data("y", [1]) ** 2
    functions = layers.reduce_sum, layers.reduce_mean, layers.reduce_max, layers.reduce_min
    values = [function(h, dim=dim) for function in functions for dim in (None, 0, 1)]
    spread = [jnp.std(h), jnp.var(h, axis=0), jnp.median(h, axis=1), layers.reduce_prod(1 + h / 9)]
    signs = jnp.all(h > -1), jnp.any(h > 1, axis=0)
    loss = layers.reduce_sum(weights * h**2) / layers.reduce_sum(weights)
    return loss + 0.01 * layers.reduce_max(h) + 0.1 * jnp.std(h), values, spread, signs
