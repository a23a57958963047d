"""The error of images and arguments that a preprocessing cannot take."""

from __future__ import annotations


class PreprocessingError(ValueError):
    """An image, a size or an option does not suit a preprocessing."""


def message(thing: str, got: object, expected: str, why: str, remedy: str) -> str:
    """Format an error the way every error of penstock reads.

    >>> message("resize", "0 rows", "at least 1", "An image has pixels", "Pass e.g. 224")
    'resize got 0 rows, expected at least 1. An image has pixels. Pass e.g. 224.'
    """
    return f"{thing} got {got}, expected {expected}. {why}. {remedy}."
