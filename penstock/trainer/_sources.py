"""Where parameters are read from: a folder of parameters, or a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock import _parameters
from penstock._checkpoint import CheckpointConfig, Contents, Store, is_step
from penstock._errors import CheckpointError

PARAMETER_NAMES = "parameter_names"
"""The key in a checkpoint's description of what its arrays are called in the parameter tree."""


def entries_at(path: str | os.PathLike[str]) -> dict[_parameters.Key, np.ndarray]:
    """Return parameters and running statistics by collection and path.

    Arguments:
      path: a folder of parameters, one of checkpoints, of which the newest is read, or one of them.

    Raises:
      FileNotFoundError: there is neither.
      ParameterError, CheckpointError: the file is damaged.
    """
    folder = Path(path)
    if folder.is_dir() and not (folder / _parameters.DATA_FILE).exists():
        contents = _newest(folder) or _single(folder)
        if contents is not None:
            return _variables(contents, str(path))
    return _parameters.read(path)


def _newest(folder: Path) -> Contents | None:
    store = Store(CheckpointConfig(directory=folder))
    try:
        return store.read_newest()
    finally:
        store.close()


def _single(folder: Path) -> Contents | None:
    if not is_step(folder.name):
        return None
    store = Store(CheckpointConfig(directory=folder.parent))
    try:
        return store.read(int(folder.name)) if int(folder.name) in store.steps() else None
    finally:
        store.close()


def _variables(contents: Contents, where: str) -> dict[_parameters.Key, np.ndarray]:
    names: Mapping[str, Any] | None = contents.extra.get(PARAMETER_NAMES)
    if names is None:
        raise CheckpointError(
            f"checkpoint {where} got no names of parameters, expected those that later versions "
            "write. Resume it with Trainer(..., checkpoint=...) and write it with save_params."
        )
    return {
        (collection, tuple(path)): contents.leaves[leaf]
        for leaf, (collection, *path) in names.items()
    }
