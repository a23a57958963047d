"""The confusion matrix of a classifier, printed and as a picture."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from penstock.commands._tables import print_table
from penstock.handlers.report.findings import CLASS_HEAD, describe_classes

# The names of more classes would cover each other.
_MAX_NAMED = 40
# And the counts of more than these.
_MAX_NUMBERS = 20


def print_classes(matrix: np.ndarray, names: Sequence[str]) -> None:
    """Print images, recall, precision and the usual mistake of each class that occurs."""
    print_table(CLASS_HEAD, [row for _, row in describe_classes(matrix, names)], right={1, 2, 3})


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
        # Names of folders are no formulas.
        turned = 90 if len(names) > 10 else 45
        axes.set_xticks(range(len(names)), names, rotation=turned, parse_math=False)
        axes.set_yticks(range(len(names)), names, parse_math=False)
    if len(names) <= _MAX_NUMBERS:
        for (row, column), count in np.ndenumerate(matrix):
            if count:
                colour = "white" if shares[row, column] > 0.5 else "black"
                axes.text(column, row, str(count), ha="center", va="center", color=colour)
    with warnings.catch_warnings():
        # Letters that the font lacks, as of an emoji, are drawn as boxes: the table has them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(path, dpi=120)
