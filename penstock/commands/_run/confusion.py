"""The confusion matrix of a classifier: a table of classes, and a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from penstock.commands._tables import print_table

# The names of more classes would cover each other.
_MAX_NAMED = 40
# And the counts of more than these.
_MAX_NUMBERS = 20


def count_confusions(
    pairs: Iterable[tuple[np.ndarray, np.ndarray]], num_classes: int
) -> np.ndarray:
    """Return how often each class was predicted for each label, `[labels, predictions]`.

    Arguments:
      pairs: labels and predictions, `[B]` each.

    >>> count_confusions([(np.array([0, 1, 1]), np.array([0, 1, 0]))], 2).tolist()
    [[1, 0], [1, 1]]
    """
    matrix = np.zeros((num_classes, num_classes), np.int64)
    for labels, predictions in pairs:
        # Not `+=`, which counts a pair that is twice in a batch once.
        np.add.at(matrix, (labels.reshape(-1), predictions.reshape(-1)), 1)
    return matrix


CLASS_HEAD = ("class", "images", "recall", "precision", "most often taken for")
"""The columns of `describe_classes`."""


def describe_classes(
    matrix: np.ndarray, names: Sequence[str]
) -> list[tuple[float | None, tuple[str, ...]]]:
    """Return the recall and a row of the table, for each class that occurs.

    The recall of a class without images is None.
    """
    rows: list[tuple[float | None, tuple[str, ...]]] = []
    for number, name in enumerate(names):
        count, taken = int(matrix[number].sum()), int(matrix[:, number].sum())
        if not count and not taken:
            continue
        hits = int(matrix[number, number])
        others = matrix[number].copy()
        others[number] = 0
        worst = int(others.argmax())
        mistake = f"{names[worst]} ({others[worst]:,})" if others[worst] else ""
        shares = format_share(hits, count), format_share(hits, taken)
        recall = hits / count if count else None
        rows.append((recall, (name, f"{count:,}", *shares, mistake)))
    return rows


def print_classes(matrix: np.ndarray, names: Sequence[str]) -> None:
    """Print images, recall, precision and the usual mistake of each class that occurs."""
    print_table(CLASS_HEAD, [row for _, row in describe_classes(matrix, names)], right={1, 2, 3})


def format_share(part: int, whole: int) -> str:
    """Return a share in percent, `-` of nothing.

    >>> format_share(1, 8), format_share(0, 0)
    ('12.5%', '-')
    """
    return f"{part / whole:.1%}" if whole else "-"


def draw_confusion(path: Path, matrix: np.ndarray, names: Sequence[str]) -> None:
    """Draw the matrix as shares of each row, with the counts where they are few.

    Raises:
      ModuleNotFoundError: matplotlib is not installed; names the extra.
      OSError: the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the confusion matrix got no matplotlib, expected it installed: "
            'pip install "penstock[plot]".',
            name=error.name,
        ) from error
    size = min(4 + 0.35 * len(names), 18)
    figure = Figure(figsize=(size + 1, size), layout="constrained")
    axes = figure.subplots()
    # A class without images is a row of zeros.
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="share of the class", shrink=0.8)
    axes.set(xlabel="taken for", ylabel="class")
    if len(names) <= _MAX_NAMED:
        axes.set_xticks(range(len(names)), names, rotation=90 if len(names) > 10 else 45)
        axes.set_yticks(range(len(names)), names)
    if len(names) <= _MAX_NUMBERS:
        for (row, column), count in np.ndenumerate(matrix):
            if count:
                colour = "white" if shares[row, column] > 0.5 else "black"
                axes.text(column, row, str(count), ha="center", va="center", color=colour)
    figure.savefig(path, dpi=120)
