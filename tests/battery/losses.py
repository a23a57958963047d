"""Losses and augmentations of papers, written as they are found in repositories."""

import jax
import jax.numpy as jnp
import optax
from jax import lax

from tests.battery.harness import body

W = {"w": (6, 4), "b": (4,)}


def one_hot(label):
    return jax.nn.one_hot(label, 4)


@body(**W)
def focal(x, label, w, b):
    p = jax.nn.softmax(x @ w + b)
    pt = jnp.sum(p * one_hot(label), axis=-1)
    return jnp.mean(-((1 - pt) ** 2.0) * jnp.log(pt + 1e-7))


@body(w=(2,), b=())
def dice_of_the_batch(image, w, b):
    p = jax.nn.sigmoid(image @ w + b)
    target = (image[..., 0] > 0.3).astype(jnp.float32)
    return 1 - (2 * jnp.sum(p * target) + 1) / (jnp.sum(p) + jnp.sum(target) + 1)


@body(w=(2,), b=())
def tversky_by_image(image, w, b):
    p = jax.nn.sigmoid(image @ w + b).reshape(image.shape[0], -1)
    t = (image[..., 1] > 0).reshape(image.shape[0], -1)
    tp, fp, fn = (p * t).sum(1), (p * ~t).sum(1), ((1 - p) * t).sum(1)
    return jnp.mean((1 - tp / (tp + 0.3 * fp + 0.7 * fn + 1e-3)) ** 0.75)


@body(**W)
def label_smoothing(x, label, w, b):
    targets = optax.smooth_labels(one_hot(label), 0.1)
    return optax.softmax_cross_entropy(x @ w + b, targets).mean()


@body(**W)
def mixup_with_the_reversed_batch(x, label, w, b):
    mixed, targets = 0.7 * x + 0.3 * x[::-1], one_hot(label)
    targets = 0.7 * targets + 0.3 * targets[::-1]
    return -jnp.mean(jnp.sum(targets * jax.nn.log_softmax(mixed @ w + b), -1))


@body(**W)
def mixup_with_a_permutation(x, label, key, w, b):
    order, portion = jax.random.split(key)
    order = jax.random.permutation(order, x.shape[0])
    lam = jax.random.beta(portion, 1.0, 1.0)
    logp = jax.nn.log_softmax((lam * x + (1 - lam) * x[order]) @ w + b)
    pick = lambda t: -jnp.take_along_axis(logp, t[:, None], axis=1).mean()  # noqa: E731
    return lam * pick(label) + (1 - lam) * pick(label[order])


@body(w=(72, 4))
def cutmix(image, label, w):
    rows, columns = jnp.mgrid[:6, :6]
    box = ((rows > 1) & (rows < 5) & (columns < 3))[None, :, :, None]
    mixed = jnp.where(box, jnp.roll(image, 1, axis=0), image)
    lam = 1 - box.mean()
    logp = jax.nn.log_softmax(mixed.reshape(len(image), -1) @ w)
    targets = lam * one_hot(label) + (1 - lam) * jnp.roll(one_hot(label), 1, 0)
    return -(logp * targets).sum() / len(image)


@body(w=(6,))
def cox_partial_likelihood(x, y, label, w):
    risk, event = x @ w, (label > 0).astype(jnp.float32)
    order = jnp.argsort(-y[:, 0])
    risk, event = risk[order], event[order]
    at_risk = lax.cumlogsumexp(risk)
    return -jnp.sum((risk - at_risk) * event) / jnp.maximum(event.sum(), 1)


@body(w=(6,))
def cox_by_a_matrix(x, y, label, w):
    risk, time = x @ w, y.squeeze(1)
    later = time[None, :] >= time[:, None]
    total = jax.nn.logsumexp(jnp.where(later, risk[None, :], -jnp.inf), axis=1)
    return -jnp.mean(jnp.where(label != 1, risk - total, 0.0))


@body(w=(6,))
def pairwise_ranking(x, y, w):
    s, t = x @ w, y[:, 0]
    better = (t[:, None] > t[None]).astype(s.dtype)
    losses = jax.nn.softplus(-(s[:, None] - s[None]))
    return jnp.sum(better * losses) / jnp.maximum(jnp.sum(better), 1)


@body(w=(6,))
def listwise_ranking(x, y, w):
    return -jnp.sum(jax.nn.softmax(y[:, 0]) * jax.nn.log_softmax(x @ w))


@body(w=(6,))
def list_mle(x, y, w):
    s = (x @ w)[jnp.argsort(y[:, 0], descending=True)]
    rest = jnp.flip(lax.cumlogsumexp(jnp.flip(s)))
    return jnp.mean(rest - s)


@body(w=(6,))
def approximate_ndcg(x, y, w):
    s, gain = x @ w, 2 ** jax.nn.sigmoid(y[:, 0]) - 1
    rank = 0.5 + jnp.sum(jax.nn.sigmoid((s[None] - s[:, None]) / 0.1), axis=1)
    ideal = jnp.sum(jnp.sort(gain)[::-1] / jnp.log2(2 + jnp.arange(gain.size)))
    return 1 - jnp.sum(gain / jnp.log2(1 + rank)) / ideal


@body(w=(6, 1))
def huber_around_the_median(x, y, w):
    error = y - x @ w
    delta = lax.stop_gradient(jnp.median(jnp.abs(error))) + 0.1
    return jnp.mean(optax.huber_loss(error, delta=delta))


@body(**W)
def classes_balanced_by_the_batch(x, label, w, b):
    counts = jnp.bincount(label, length=4)
    weights = (1 - 0.9) / (1 - 0.9 ** jnp.maximum(counts, 1))
    weights = weights / weights.sum() * 4
    losses = optax.softmax_cross_entropy_with_integer_labels(x @ w + b, label)
    return jnp.mean(weights[label] * losses)


@body(**W)
def hard_example_mining(x, label, w, b):
    losses = optax.softmax_cross_entropy_with_integer_labels(x @ w + b, label)
    hardest, _ = lax.top_k(losses, max(1, x.shape[0] // 4))
    return jnp.mean(hardest), losses


@body(w=(6, 2))
def maximum_mean_discrepancy(x, image, w):
    a, b = x @ w, image[:, 0, 0]

    def kernel(p, q):
        return jnp.mean(jnp.exp(-jnp.sum((p[:, None] - q[None]) ** 2, -1) / 2))

    return kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)


@body(w=(6,), sizes=(24, 21, 5))  # a correlation needs two examples
def one_minus_correlation(x, y, w):
    p, t = x @ w, y[:, 0]
    p, t = p - p.mean(), t - t.mean()
    return 1 - (p * t).sum() / jnp.sqrt((p**2).sum() * (t**2).sum())


@body(w=(6,))
def concordance(x, y, w):
    p, t = x @ w, y[:, 0]
    covariance = jnp.mean((p - p.mean()) * (t - t.mean()))
    return 1 - 2 * covariance / (p.var() + t.var() + (p.mean() - t.mean()) ** 2)


@body(w=(6, 3))
def quantile_regression(x, y, w):
    taus = jnp.array([0.1, 0.5, 0.9])
    error = y - x @ w
    return jnp.maximum(taus * error, (taus - 1) * error).sum(axis=1).mean()


@body(w=(6,))
def area_under_the_curve(x, label, w):
    s, positive = x @ w, label == 0
    pairs = positive[:, None] & ~positive[None, :]
    hinge = jnp.square(jax.nn.relu(1 - (s[:, None] - s[None, :])))
    return jnp.sum(jnp.where(pairs, hinge, 0)) / (pairs.sum() + 1e-6)


@body(w=(6,))
def one_dimensional_wasserstein(x, y, w):
    return jnp.abs(jnp.sort(x @ w) - jnp.sort(y.ravel())).mean()


@body(**W)
def mutual_information_of_clusters(x, w, b):
    p = jax.nn.softmax(x @ w + b)
    entropy = lambda q: -jnp.sum(q * jnp.log(q + 1e-8), -1)  # noqa: E731
    return entropy(p).mean() - entropy(p.mean(axis=0))


@body(w=(6, 2), b=(2,))
def gaussian_likelihood(x, y, w, b):
    mean, log_var = jnp.split(x @ w + b, 2, axis=1)
    return 0.5 * jnp.mean(log_var + (y - mean) ** 2 * jnp.exp(-log_var))


@body(w=(6, 5), transitions=(5, 5))
def conditional_random_field(image, tokens, w, transitions):
    scores = image[:, :, :3].reshape(len(image), 6, 6) @ w
    tags = tokens[:, :6] % 5
    gold = jnp.take_along_axis(scores, tags[..., None], axis=2).sum((1, 2))
    gold += transitions[tags[:, :-1], tags[:, 1:]].sum(1)

    def step(alpha, score):
        return jax.nn.logsumexp(alpha[:, :, None] + transitions[None], axis=1) + score, None

    alpha, _ = lax.scan(step, scores[:, 0], scores[:, 1:].swapaxes(0, 1))
    return jnp.mean(jax.nn.logsumexp(alpha, axis=1) - gold)


@body(w=(12, 9))
def connectionist_temporal_classification(image, tokens, w):
    logits = image.reshape(-1, 6, 12) @ w
    logits = jnp.repeat(logits, 3, axis=1)
    frames, words = jnp.zeros(logits.shape[:2]), tokens[:, :4]
    return optax.ctc_loss(logits, frames, words, (words == 0).astype(jnp.float32)).mean()
