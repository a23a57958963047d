"""Every metric in one program, and what other libraries make of the same rows."""

import functools
import itertools
import warnings
from collections import Counter

import jax.numpy as jnp
import numpy as np
import scipy.stats
from sklearn import metrics as sklearn

from penstock import layers, metrics

NUM_ROWS = 131  # no multiple of a batch size, nor of a number of devices
IGNORED = -100
NUM_CLASSES, NUM_LABELS, NUM_WORDS = 4, 3, 7


def make_data(seed=0):
    """Return the columns that a reader gives."""
    rng = np.random.default_rng(seed)
    n = NUM_ROWS
    logits = rng.normal(size=(n, NUM_CLASSES))
    true = rng.normal(size=(n, 2)) * [1, 3] + [20, -5]
    return {
        "classes": to_probabilities(logits),
        "label": spoil(rng.integers(0, NUM_CLASSES, (n, 1)), rng),
        "probability": rng.uniform(size=(n, 1)).astype(np.float32),
        "truth": spoil(rng.integers(0, 2, (n, 1)), rng),
        "many": rng.uniform(size=(n, NUM_LABELS)).astype(np.float32),
        "labels": spoil(rng.integers(0, 2, (n, NUM_LABELS)), rng),
        "chosen": rng.integers(0, NUM_CLASSES, (n, 2)).astype(np.int32),
        "pixels": spoil(rng.integers(0, NUM_CLASSES, (n, 2)), rng),
        "predicted": (true + rng.normal(size=(n, 2))).astype(np.float32),
        "true": true.astype(np.float32),
        "words": spoil(rng.integers(0, 4, (n, NUM_WORDS)), rng, 0.2),
        "reference": spoil(rng.integers(0, 4, (n, NUM_WORDS + 1)), rng, 0.2),
        "query": rng.integers(0, 20, (n, 1)).astype(np.int32),
        "weight": rng.integers(0, 4, (n, 1)).astype(np.float32),
    }


def to_probabilities(logits):
    """Return their softmax, `[N, C]`, float32."""
    exp = np.exp(logits)
    return (exp / exp.sum(axis=1, keepdims=True)).astype(np.float32)


def spoil(label, rng, share=0.1):
    """Return int32 labels of which some are ignored."""
    return np.where(rng.uniform(size=label.shape) < share, IGNORED, label).astype(np.int32)


def one_class(data):
    """All labels are the same."""
    same = {n: np.full_like(data[n], 1) for n in ("label", "truth", "labels")}
    return data | same | {"true": np.full_like(data["true"], 0.1)}


def no_positives(data):
    """No label is 1, and no probability above the threshold."""
    zeros = {name: np.zeros_like(data[name]) for name in ("truth", "labels")}
    return data | zeros | {"probability": data["probability"] / 4, "many": data["many"] / 4}


def ties(data):
    """Scores take few values."""
    coarse = {n: np.round(data[n] * 4) / 4 for n in ("classes", "probability", "many")}
    coarse["classes"] += coarse["classes"].sum(1, keepdims=True) == 0
    coarse["classes"] /= coarse["classes"].sum(1, keepdims=True)
    numbers = {name: np.round(data[name]) for name in ("predicted", "true")}
    return data | {n: v.astype(np.float32) for n, v in {**coarse, **numbers}.items()}


def no_weights(data):
    """All weights but those of two rows are 0."""
    weight = np.zeros_like(data["weight"])
    weight[5:7] = 2
    return data | {"weight": weight}


def ignored(data):
    """Most labels are ignored."""
    some = {n: np.full_like(data[n], IGNORED) for n in ("label", "truth", "labels")}
    for name, column in some.items():
        column[10:20] = np.where(data[name][10:20] == IGNORED, 0, data[name][10:20])
    return data | some


def far_from_zero(data):
    """Numbers whose mean is many times their deviation."""
    return data | {name: data[name] + np.float32(2000) for name in ("predicted", "true")}


DEGENERATE = (one_class, no_positives, ties, no_weights, ignored, far_from_zero)


# What is measured: of a metric's name the class, its inputs, and its options.
CLASSES = ("classes", "label")
BINARY = ("probability", "truth")
MANY = ("many", "labels")
NUMBERS = ("predicted", "true")
TEXT = ("words", "reference")
AVERAGES = ("micro", "macro", "weighted", None)

CASES = {
    "accuracy": (metrics.Accuracy, CLASSES, {}),
    "accuracy binary": (metrics.Accuracy, BINARY, {"threshold": 0.3}),
    "top 2": (metrics.TopK, CLASSES, {"k": 2}),
    **{
        f"{kind.__name__} {name} {average}": (kind, inputs, {"average": average})
        for kind in (metrics.Precision, metrics.Recall, metrics.F1, metrics.MeanIoU)
        for name, inputs in {"classes": CLASSES, "many": MANY, "binary": BINARY}.items()
        for average in (("binary", "macro") if name == "binary" else AVERAGES)
    },
    "dice": (metrics.Dice, CLASSES, {}),
    "iou of pixels": (
        metrics.MeanIoU,
        ("chosen", "pixels"),
        {"num_classes": NUM_CLASSES, "average": None},
    ),
    "f1 threshold": (metrics.F1, BINARY, {"threshold": 0.3}),
    "confusion": (metrics.ConfusionMatrix, CLASSES, {}),
    **{
        f"confusion {normalize}": (metrics.ConfusionMatrix, CLASSES, {"normalize": normalize})
        for normalize in ("true", "pred", "all")
    },
    **{
        f"{kind.__name__} {name} {average}": (kind, inputs, {"average": average})
        for kind in (metrics.AUC, metrics.AveragePrecision)
        for name, inputs in {"classes": CLASSES, "many": MANY}.items()
        for average in AVERAGES
    },
    "AUC binary": (metrics.AUC, BINARY, {}),
    "AveragePrecision binary": (metrics.AveragePrecision, BINARY, {}),
    "BinnedAUC": (metrics.BinnedAUC, BINARY, {"num_bins": 16}),
    "BinnedAveragePrecision": (metrics.BinnedAveragePrecision, CLASSES, {"num_bins": 16}),
    "log loss": (metrics.LogLoss, CLASSES, {}),
    "log loss binary": (metrics.LogLoss, BINARY, {}),
    "brier": (metrics.Brier, CLASSES, {}),
    "brier binary": (metrics.Brier, BINARY, {}),
    **{
        f"calibration {norm}": (metrics.CalibrationError, CLASSES, {"norm": norm, "n_bins": 10})
        for norm in ("l1", "l2", "max")
    },
    "calibration binary": (metrics.CalibrationError, BINARY, {}),
    "mse": (metrics.MSE, NUMBERS, {}),
    "rmse": (metrics.RMSE, NUMBERS, {}),
    "mae": (metrics.MAE, NUMBERS, {}),
    "mape": (metrics.MAPE, NUMBERS, {}),
    **{
        f"r2 {how}": (metrics.R2, NUMBERS, {"multioutput": how})
        for how in ("uniform_average", "raw_values", "variance_weighted")
    },
    "pearson": (metrics.Pearson, NUMBERS, {}),
    "spearman": (metrics.Spearman, NUMBERS, {}),
    "perplexity": (metrics.Perplexity, CLASSES, {}),
    "bleu": (metrics.BLEU, TEXT, {"n_gram": 2}),
    "bleu smooth": (metrics.BLEU, TEXT, {"smooth": True}),
    "edits": (metrics.EditDistance, TEXT, {}),
    "word error rate": (metrics.EditDistance, TEXT, {"normalized": True}),
    "recall at 2": (metrics.RetrievalRecall, (*BINARY, "query"), {"top_k": 2}),
    "recall at 2 of rows": (metrics.RetrievalRecall, MANY, {"top_k": 2}),
}

SHAPES = {name: value.shape[1:] for name, value in make_data().items()}
DTYPES = {name: value.dtype.name for name, value in make_data().items()}


# The first of each class, with weights.
QUICK = tuple({kind: f"{name} by weight" for name, (kind, *_) in reversed(CASES.items())}.values())
ALL = [*CASES, *(f"{name} by weight" for name in CASES)]


def program(names):
    """Return a loss, and metrics by name."""
    data = {n: layers.data(n, shape=list(s), dtype=DTYPES[n]) for n, s in SHAPES.items()}
    returned = {"loss": layers.mean(layers.fc(data["predicted"], size=1))}
    for name in names:
        kind, inputs, options = CASES[name.removesuffix(" by weight")]
        weight = data["weight"] if name.endswith(" by weight") else None
        returned[name] = kind.of(*[data[key] for key in inputs], sample_weight=weight, **options)
    return returned


def keeps_rows(name):
    """Return whether a case has none but in a test."""
    return issubclass(CASES[name.removesuffix(" by weight")][0], metrics.RowMetric)


# What the others say.


def expect(data, names):
    """Return what each of some metrics is of these rows."""
    expected = {}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # of what is not defined
        for name in names:
            kind, inputs, options = CASES[name.removesuffix(" by weight")]
            columns = [data[column] for column in inputs]
            weight = data["weight"][:, 0]
            weight = weight if name.endswith(" by weight") else np.ones_like(weight)
            expected[name] = REFERENCES[kind](*columns, weight=weight, **options)
    return expected


def counted(input, label, weight):
    """Return the rows that count: inputs in float64, labels and weights."""
    if label.shape[1] > 1:  # by element
        weight = np.broadcast_to(weight[:, None], label.shape)
        counts = (weight > 0) & (label != IGNORED)
        return input[counts].astype(np.float64), label[counts], weight[counts]
    counts = (weight > 0) & (label[:, 0] != IGNORED)
    input = input[:, 0] if input.shape[1] == 1 else input
    return input[counts].astype(np.float64), label[counts, 0], weight[counts]


def by_columns(score, input, label, weight, average):
    """Return the mean over columns of a function of scores, truth and weights."""
    if label.shape[1] > 1:
        columns = [counted(i, t, weight) for i, t in zip(by_row(input), by_row(label), strict=True)]
    else:
        input, label, weight = counted(input, label, weight)
        columns = [(input[:, k], (label == k) * 1, weight) for k in range(input.shape[1])]
    if average == "micro":
        columns = [tuple(map(np.concatenate, zip(*columns, strict=True)))]
    values = np.array([score(*column) for column in columns])
    if average is None:
        return values
    support = [w[t == 1].sum() for _, t, w in columns]
    weights = np.array(support if average == "weighted" else np.ones(len(values)))
    is_defined = ~np.isnan(values) & (weights > 0)
    if not is_defined.any():
        return np.nan if np.isnan(values).any() else 0.0
    return np.average(values[is_defined], weights=weights[is_defined])


def by_row(columns):
    """Return the columns of `[N, K]`, `[N, 1]` each."""
    return np.split(columns, columns.shape[1], axis=1)


def area(score, truth, weight):
    """Return scikit-learn's AUC, nan for one class."""
    if len(np.unique(truth)) < 2:
        return np.nan
    return sklearn.roc_auc_score(truth, score, sample_weight=weight)


def average_precision(score, truth, weight):
    """Return scikit-learn's average precision."""
    return sklearn.average_precision_score(truth, score, sample_weight=weight) if len(truth) else 0


def ranking(score):
    """Return a reference of a metric of ranks."""

    def reference(input, label, *, weight, average="macro"):
        if input.shape[1] == 1:
            return score(*counted(input, label, weight))
        return by_columns(score, input, label, weight, average)

    return reference


def binned(score):
    """Return a reference on scores that are cut to bins."""

    def reference(input, label, *, weight, num_bins):
        return ranking(score)(np.floor(input * num_bins), label, weight=weight)

    return reference


def predict(input, label, weight, threshold=0.5):
    """Return the truth, what is predicted, and weights, of the rows that count."""
    input, label, weight = counted(input, label, weight)
    predicted = input.argmax(axis=1) if input.ndim == 2 else (input > threshold) * 1
    return label, predicted, weight


def by_class(score):
    """Return a reference on classes, by a function of scikit-learn."""

    def reference(input, label, *, weight, average="binary", threshold=0.5, num_classes=None):
        if num_classes is not None:
            weight = np.repeat(weight, input.shape[1])
            input, label = np.eye(num_classes)[input.ravel()], label.reshape(-1, 1)
        if input.shape[1] > 1 and label.shape[1] > 1:  # scikit-learn has one weight for a row
            values, supports = [], []
            triples = []
            for i, t in zip(by_row(input), by_row(label), strict=True):
                triples.append(predict(i, t, weight, threshold))
            if average == "micro":
                triples = [tuple(map(np.concatenate, zip(*triples, strict=True)))]
            for truth, predicted, weights in triples:
                options = {"average": "binary", "zero_division": 0, "sample_weight": weights}
                values.append(score(truth, predicted, **options) if len(truth) else 0.0)
                supports.append(weights[truth == 1].sum())
            if average in ("micro", None):
                return np.array(values) if average is None else values[0]
            weighted = average == "weighted"
            if weighted and not np.sum(supports):
                return 0.0
            return np.average(values, weights=supports if weighted else None)
        truth, predicted, weight = predict(input, label, weight, threshold)
        options = {"labels": range(input.shape[1])} if average is None else {}
        options |= {"sample_weight": weight, "average": average, "zero_division": 0}
        return score(truth, predicted, **options) if len(truth) else 0.0

    return reference


def accuracy(input, label, *, weight, threshold=0.5):
    """Return scikit-learn's."""
    truth, predicted, weight = predict(input, label, weight, threshold)
    return sklearn.accuracy_score(truth, predicted, sample_weight=weight)


def top_k(input, label, *, weight, k):
    """Return scikit-learn's; of equal scores the lower class is first."""
    input, label, weight = counted(input, label, weight)
    input = input - 1e-9 * np.arange(NUM_CLASSES)
    options = {"sample_weight": weight, "labels": range(NUM_CLASSES)}
    return sklearn.top_k_accuracy_score(label, input, k=k, **options)


def confusion(input, label, *, weight, normalize=None):
    """Return scikit-learn's matrix."""
    truth, predicted, weight = predict(input, label, weight)
    return sklearn.confusion_matrix(
        truth, predicted, labels=range(NUM_CLASSES), sample_weight=weight, normalize=normalize
    )


def log_loss(input, label, *, weight):
    """Return scikit-learn's, clipped as float32 is."""
    input, label, weight = counted(input, label, weight)
    eps = np.finfo(np.float32).eps
    if input.ndim == 1:
        input = np.stack([1 - input, input], axis=1)
    losses = -np.log(np.clip(input[np.arange(len(label)), label], eps, 1 - eps))
    value = np.average(losses, weights=weight)
    if input.min() > 0 and input.max() < 1:  # else scikit-learn clips by float64
        input = input / input.sum(axis=1, keepdims=True)
        options = {"labels": range(input.shape[1]), "sample_weight": weight}
        assert abs(value - sklearn.log_loss(label, input, **options)) < 1e-6
    return value


def brier(input, label, *, weight):
    """Return scikit-learn's."""
    input, label, weight = counted(input, label, weight)
    if input.ndim == 1:
        return sklearn.brier_score_loss(label, input, sample_weight=weight, pos_label=1)
    input = input / input.sum(axis=1, keepdims=True)
    options = {"labels": range(input.shape[1]), "sample_weight": weight, "scale_by_half": False}
    return sklearn.brier_score_loss(label, input, **options)


def calibration(input, label, *, weight, n_bins=15, norm="l1"):
    """Return the calibration error, by a loop over bins."""
    input, label, weight = counted(input, label, weight)
    input = input.astype(np.float32)
    right = label == 1 if input.ndim == 1 else input.argmax(axis=1) == label
    confidence = input if input.ndim == 1 else input.max(axis=1)
    edges = np.asarray(jnp.linspace(0, 1, n_bins + 1))
    gaps, shares = [0.0], [0.0]
    for number, (low, high) in enumerate(itertools.pairwise(edges)):
        chosen = (confidence > low) & (confidence <= high)
        chosen |= (confidence == 0) if number == 0 else False
        if chosen.any():
            mean = np.average(confidence[chosen].astype(np.float64), weights=weight[chosen])
            gaps.append(abs(mean - np.average(right[chosen], weights=weight[chosen])))
            shares.append(weight[chosen].sum() / weight.sum())
    gaps, shares = np.array(gaps), np.array(shares)
    values = {"max": gaps.max(), "l1": gaps @ shares, "l2": np.sqrt(gaps**2 @ shares)}
    return values[norm]


def errors(score):
    """Return a reference on all numbers alike."""

    def reference(input, label, *, weight):
        input, label, weight = counted(input, label, weight)
        return score(label.astype(np.float64), input, sample_weight=weight)

    return reference


def r2(input, label, *, weight, multioutput):
    """Return scikit-learn's."""
    keep = weight > 0
    label, input = label[keep].astype(np.float64), input[keep].astype(np.float64)
    options = {"sample_weight": weight[keep], "multioutput": multioutput}
    return sklearn.r2_score(label, input, **options)


def correlation(score):
    """Return a reference of scipy's, for which a weight of 2 is a row twice."""

    def reference(input, label, *, weight):
        input, label, weight = counted(input, label, weight)
        times = weight.astype(int)
        return score(np.repeat(input, times), np.repeat(label.astype(np.float64), times)).statistic

    return reference


def perplexity(input, label, *, weight):
    """Return the exponential of scikit-learn's log loss."""
    logits = to_float64_probabilities(input)
    input, label, weight = counted(logits, label, weight)
    return np.exp(sklearn.log_loss(label, input, sample_weight=weight, labels=range(NUM_CLASSES)))


def to_float64_probabilities(logits):
    """Return their softmax in float64."""
    exp = np.exp(logits.astype(np.float64))
    return exp / exp.sum(axis=1, keepdims=True)


def read_words(rows):
    """Return lists of ids without those that are ignored."""
    return [[word for word in row if word != IGNORED] for row in rows.tolist()]


def bleu(words, reference, *, weight, n_gram=4, smooth=False):
    """Return BLEU of the set, by counters of n-grams."""
    matches, totals, lengths = np.zeros(n_gram), np.zeros(n_gram), np.zeros(2)
    for one, other, factor in zip(read_words(words), read_words(reference), weight, strict=True):
        lengths += factor * np.array([len(one), len(other)])
        for n in range(1, n_gram + 1):
            grams = [
                Counter(tuple(row[i : i + n]) for i in range(len(row) - n + 1))
                for row in (one, other)
            ]
            matches[n - 1] += factor * (grams[0] & grams[1]).total()
            totals[n - 1] += factor * grams[0].total()
    if smooth:
        matches[1:], totals[1:] = matches[1:] + 1, totals[1:] + 1
    if not matches.all():
        return 0.0
    return np.exp(min(0, 1 - lengths[1] / lengths[0]) + np.log(matches / totals).mean())


def edits(words, reference, *, weight, normalized=False):
    """Return the mean edit distance, by recursion."""
    pairs = list(zip(read_words(words), read_words(reference), strict=True))
    distances = [count_edits(tuple(one), tuple(other)) for one, other in pairs]
    counts = [len(other) if normalized else 1 for _, other in pairs]
    return np.sum(distances * weight) / np.sum(counts * weight)


@functools.cache
def count_edits(one, other):
    """Return the edit distance."""
    if not one or not other:
        return len(one) + len(other)
    replaced = count_edits(one[1:], other[1:]) + (one[0] != other[0])
    return min(replaced, count_edits(one[1:], other) + 1, count_edits(one, other[1:]) + 1)


def retrieval(scores, relevant, queries=None, *, weight, top_k):
    """Return the recall, the mean over all orders of equal scores."""
    values, weights = [], []
    if queries is None:
        queries = np.broadcast_to(np.arange(len(scores))[:, None], scores.shape)
        weight = np.broadcast_to(weight[:, None], scores.shape).ravel()
    scores, relevant, queries = scores.ravel(), relevant.ravel(), queries.ravel()
    for query in np.unique(queries):
        keep = (queries == query) & (relevant != IGNORED) & (weight > 0)
        if not keep.any():
            continue
        hits = relevant[keep] / max(relevant[keep].sum(), 1)
        rank = [(scores[keep] > s).sum() for s in scores[keep]]
        equal = [(scores[keep] == s).sum() for s in scores[keep]]
        # The chance that each is among the first.
        values.append(hits @ np.clip((top_k - np.array(rank)) / equal, 0, 1))
        weights.append(weight[keep].max())
    return np.average(values, weights=weights) if values else 0.0


REFERENCES = {
    metrics.Accuracy: accuracy,
    metrics.TopK: top_k,
    metrics.Precision: by_class(sklearn.precision_score),
    metrics.Recall: by_class(sklearn.recall_score),
    metrics.F1: by_class(sklearn.f1_score),
    metrics.MeanIoU: by_class(sklearn.jaccard_score),
    metrics.Dice: functools.partial(by_class(sklearn.f1_score), average="macro"),
    metrics.ConfusionMatrix: confusion,
    metrics.AUC: ranking(area),
    metrics.AveragePrecision: ranking(average_precision),
    metrics.BinnedAUC: binned(area),
    metrics.BinnedAveragePrecision: binned(average_precision),
    metrics.LogLoss: log_loss,
    metrics.Brier: brier,
    metrics.CalibrationError: calibration,
    metrics.MSE: errors(sklearn.mean_squared_error),
    metrics.RMSE: errors(sklearn.root_mean_squared_error),
    metrics.MAE: errors(sklearn.mean_absolute_error),
    metrics.MAPE: errors(sklearn.mean_absolute_percentage_error),
    metrics.R2: r2,
    metrics.Pearson: correlation(scipy.stats.pearsonr),
    metrics.Spearman: correlation(scipy.stats.spearmanr),
    metrics.Perplexity: perplexity,
    metrics.BLEU: bleu,
    metrics.EditDistance: edits,
    metrics.RetrievalRecall: retrieval,
}
