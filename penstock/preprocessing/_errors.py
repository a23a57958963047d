"""The error of images and arguments that a preprocessing cannot take."""

from __future__ import annotations

from penstock._errors import message as message


class PreprocessingError(ValueError):
    """An image, a size or an option does not suit a preprocessing."""
