"""Operations that mix the rows of a batch: sorting, transforms, segments, linear algebra."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.battery.harness import body

W = {"w": (6, 4)}


@body(**W)
def best_of_the_batch(x, w):
    values, places = lax.top_k((x @ w).T, min(5, x.shape[0]))
    return jnp.mean(values**2) + jnp.mean(x[places] ** 2) * jnp.mean(w**2), places


@body(w=(9, 4), v=(4, 1))
def unique_words_embedded_once(tokens, y, w, v):
    words, places = jnp.unique(tokens, return_inverse=True, size=9, fill_value=0)
    embedded = jnp.tanh(w[words])[places.reshape(tokens.shape)]
    return jnp.mean((embedded.mean(axis=1) @ v - y) ** 2), words


@body(**W)
def spectrum_over_the_batch(x, w):
    return jnp.mean(jnp.abs(jnp.fft.rfft(x @ w, axis=0)) ** 2) / len(x)


@body(**W)
def prototypes_by_segments(x, label, w):
    z = x @ w
    sums = jax.ops.segment_sum(z, label, num_segments=4)
    counts = jax.ops.segment_sum(jnp.ones(len(z)), label, 4)
    centres = sums / jnp.maximum(counts, 1)[:, None]
    scores = -jnp.sum((z[:, None] - centres) ** 2, axis=-1)
    return -jnp.mean(jax.nn.log_softmax(scores)[jnp.arange(len(x)), label]), centres


@body(**W)
def extremes_of_segments(x, label, w):
    z = jnp.tanh(x @ w)
    high = jax.ops.segment_max(z, label, num_segments=4)
    low = jax.ops.segment_min(z, label, num_segments=4)
    return jnp.mean(jnp.where(jnp.isfinite(high), high - low, 0) ** 2)


@body(**W)
def whitening_by_cholesky(x, w):
    z = x @ w
    z = z - z.mean(axis=0)
    covariance = z.T @ z / len(z) + 0.1 * jnp.eye(4)
    white = jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(covariance), z.T, lower=True).T
    return jnp.mean(jnp.cos(white)), white


@body(**W)
def largest_eigenvalue(x, w):
    z = x @ w
    values = jnp.linalg.eigvalsh(z.T @ z / len(z))
    return values[-1] - 0.1 * jnp.log(values[-1] + 1), values


@body(**W)
def nuclear_norm(x, w):
    values = jnp.linalg.svd(jnp.tanh(x @ w) + 0.1 * x[:, :4], compute_uv=False)
    return jnp.sum(values) / x.shape[0]


@body(w=(6, 3), sizes=(24, 19))  # a gradient of QR needs as many rows as columns
def orthogonal_by_qr(x, w):
    q, r = jnp.linalg.qr(x @ w)
    return jnp.mean(jnp.abs(q) ** 3) * len(x) + jnp.mean(r**2) / len(x)


@body(w=(6, 4), a=())
def gaussian_process(x, y, w, a):
    z = x @ w
    kernel = jnp.exp(-((z[:, None] - z[None]) ** 2).sum(-1)) + jnp.exp(a) * jnp.eye(len(z))
    factor = jax.scipy.linalg.cho_factor(kernel, lower=True)
    fitted = jax.scipy.linalg.cho_solve(factor, y[:, 0])
    return (y[:, 0] @ fitted / 2 + jnp.log(jnp.diag(factor[0])).sum()) / len(z)


@body(**W)
def running_sums_and_products(x, w):
    h = jnp.tanh(x @ w)
    sums, products = jnp.cumsum(h, axis=0), jnp.cumprod(1 + 0.1 * h, axis=0)
    return jnp.mean(sums**2) + jnp.mean(products) + jnp.mean(lax.cummax(h)), sums


@body(**W)
def neighbours_by_roll_and_flip(x, w):
    h = jnp.tanh(x @ w)
    return jnp.mean((h - jnp.roll(h, 1, axis=0)) ** 2) + jnp.mean(h * jnp.flip(h, 0))


@body(**W)
def views_joined_and_split(x, w):
    both = jnp.concatenate([x, jnp.sin(x)]) @ w
    a, b = jnp.split(both - both.mean(0), 2)
    return jnp.mean((a - b) ** 2) + jnp.vstack([a, b]).std(), a


@body(**W)
def convolution_along_the_batch(x, w):
    h = (x @ w).T[:, None, :]
    kernel = jnp.array([[[0.25, 0.5, 0.25]]])
    smooth = lax.conv_general_dilated(h, kernel, (1,), "SAME")
    return jnp.mean((h - smooth) ** 2), smooth[:, 0].T


@body(w=(6,))
def ranks_by_searchsorted(x, y, w):
    ranks = jnp.searchsorted(jnp.sort(y[:, 0]), y[:, 0]) / len(y)
    return jnp.mean((jax.nn.sigmoid(x @ w) - ranks) ** 2), ranks


@body(**W)
def scattered_by_label(x, label, w):
    h = jnp.tanh(x @ w)
    sums = jnp.zeros((4, 4)).at[label].add(h)
    last = jnp.full((4,), -2.0).at[label].max(h[:, 0])
    return jnp.mean(sums**2) / len(x) + jnp.mean(last)


@body(**W)
def histogram_of_outputs(x, w):
    h = jnp.tanh(x @ w)
    edges = jnp.linspace(-1, 1, 6)
    soft = jnp.exp(-8 * (h.reshape(-1, 1) - edges) ** 2).mean(axis=0)
    counts, _ = jnp.histogram(h, bins=edges)
    return jnp.sum(soft * jnp.log(soft + 1e-6)), counts, jnp.digitize(h, edges)


@body(w=(6,))
def examples_that_are_chosen(x, y, w):
    (places,) = jnp.nonzero(y[:, 0] > 0, size=len(x), fill_value=-1)
    error = jnp.where(places >= 0, jnp.square((x @ w)[places] - y[places, 0]), 0)
    return error.sum() / jnp.maximum((places >= 0).sum(), 1)


@body(**W)
def permuted_by_numpy(x, w):
    order = np.random.default_rng(0).permutation(len(x))
    h = x @ w
    return jnp.mean((h - 0.5 * h[order]) ** 2), h[np.argsort(order)]


@body(**W)
def given_mean_of_a_square_matrix(x, mean, w):
    z = x @ w
    return mean((z @ z.T - jnp.eye(len(x))) ** 2) / 10


@body(**W, rtol=1e-4, reason="a difference of means that nearly cancel")
def given_mean_of_things_without_rows(x, mean, w):
    h = jnp.tanh(x @ w)
    return mean(h.max(axis=0)) + mean(h.T) + mean(jnp.sum(h)) + mean(h / len(h)) + mean(w**2)


@body(w=(6, 2))
def median_of_means_and_trimming(x, y, w):
    losses = jnp.sort(jnp.sum((x @ w - y) ** 2, axis=1))
    cut = len(losses) // 10
    return jnp.mean(losses[cut : len(losses) - cut]), losses
