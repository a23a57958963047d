"""The confusion matrix of a classifier: counted, and as a table of classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np


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


def format_share(part: int, whole: int) -> str:
    """Return a share in percent, `-` of nothing.

    >>> format_share(1, 8), format_share(0, 0)
    ('12.5%', '-')
    """
    return f"{part / whole:.1%}" if whole else "-"
