"""Paths as users write them."""

from __future__ import annotations

import os
from pathlib import Path


def expand_path(path: str | os.PathLike[str]) -> Path:
    """Return a path with `~` and `~user` at its beginning replaced by the home folder.

    A shell replaces them only where they begin a word: `--output_dir=~/runs` and a path in a
    program arrive here as they were written.

    >>> expand_path("runs/a").parts
    ('runs', 'a')
    """
    return Path(os.path.expanduser(path))
