"""Parameters from files into a live network: a folder of parameters, or a checkpoint."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jax.typing import ArrayLike

from penstock import _parameters
from penstock._checkpoint import CheckpointConfig, Contents, Store, is_step
from penstock._errors import CheckpointError
from penstock._parameter_names import Key, Nested, spell
from penstock._paths import expand_path
from penstock._program.requests import Variables
from penstock._selection import Selection

_LOGGER = logging.getLogger("penstock")

PARAMETER_NAMES = "parameter_names"
"""The key in a checkpoint's description of what its arrays are called in the parameter tree."""


_PARTS_OF_RUN = ("best", "params", "checkpoints")
"""Where the folder of a run of `penstock train` has parameters, in this order."""


def has_parameters(param_path: str | os.PathLike[str]) -> bool:
    """Return whether a path is there to start from; say what that means.

    A script may name the folder that it will save to, which is not there yet or empty. Any other
    must hold parameters, which reading it tells.
    """
    folder = expand_path(param_path)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        _LOGGER.info("parameters loaded from %s", os.fspath(param_path))
        return True
    _LOGGER.warning(
        "no parameters at %s yet: training starts from initial values", os.fspath(param_path)
    )
    return False


def load_parameters(
    param_path: str | os.PathLike[str],
    selection: Selection,
    table: _parameters.Table,
    live: Variables,
    *,
    partial: bool,
    skip_mismatched: bool,
) -> tuple[dict[str, Nested[ArrayLike]], dict[str, list[str]]]:
    """Read what a selection takes of the parameters at a path; prints what it left out.

    Arguments:
      table: shape and dtype of every entry of the program.
      live: the variables that keep what is not loaded.

    Returns:
      The new variables, and a report by kind, see `Trainer.load_params`.

    Raises:
      ParameterError: listing every missing, extra or mismatched entry.
    """
    # Before the file is read: a misspelt pattern should not wait for gigabytes.
    selection.check(table)
    # Renamed first, since patterns match the program's names.
    entries = selection.rename_entries(read_parameters(param_path))
    chosen, wanted = selection.select(entries), selection.select(table)
    fitting = _parameters.select_fitting(chosen, wanted)
    if not partial:
        # What is left out by request is taken from both sides, and the rest must fit exactly.
        left = {key for key in chosen if skip_mismatched and key in wanted and key not in fitting}
        _parameters.check(
            param_path,
            {key: value for key, value in chosen.items() if key not in left},
            {key: value for key, value in wanted.items() if key not in left},
            may_have_extra=False,
            hint="Pass partial=True to load what fits and keep the rest.",
        )
    report = {
        "loaded": sorted(spell(path) for _, path in fitting),
        "excluded": sorted(spell(path) for _, path in table.keys() - wanted.keys()),
        **_parameters.list_differences(chosen, wanted),
    }
    if partial or skip_mismatched or not selection.is_all:
        _print_report(param_path, report)
    return _parameters.nest({**_parameters.flatten(live), **fitting}), report


def _print_report(param_path: str | os.PathLike[str], report: Mapping[str, list[str]]) -> None:
    print(f"{len(report['loaded'])} entries loaded from {os.fspath(param_path)}")
    reasons = {
        "excluded": "kept, not asked for",
        "missing": "kept, not in the file",
        "mismatched": "kept, of another shape or dtype in the file",
        "extra": "left in the file, the program has none of that name",
    }
    for kind, reason in reasons.items():
        for line in report[kind]:
            print(f"  {reason}: {line}")


def read_parameters(path: str | os.PathLike[str]) -> dict[Key, np.ndarray]:
    """Return parameters and running statistics by collection and path.

    Arguments:
      path: a folder of parameters, one of checkpoints, of which the newest is read, one of them, or
        the folder of a run.

    Raises:
      FileNotFoundError: there is none of these.
      ParameterError, CheckpointError: the file is damaged.
    """
    folder = expand_path(path)
    for place in (folder, *(folder / name for name in _PARTS_OF_RUN)):
        if (place / _parameters.DATA_FILE).exists():
            return _parameters.read(place)
        # A folder of checkpoints may itself be called by a number.
        contents = (_read_newest(place) or _read_one(place)) if place.is_dir() else None
        if contents is not None:
            return _name_entries(contents, str(place))
    return _parameters.read(path)


def _read_newest(folder: Path) -> Contents | None:
    store = Store(CheckpointConfig(directory=folder))
    try:
        return store.read_newest()
    finally:
        store.close()


def _read_one(folder: Path) -> Contents | None:
    if not is_step(folder.name):
        return None
    # One checkpoint is read through the folder it lies in, which verifies it.
    store = Store(CheckpointConfig(directory=folder.parent))
    try:
        return store.read(int(folder.name)) if int(folder.name) in store.steps() else None
    finally:
        store.close()


def _name_entries(contents: Contents, where: str) -> dict[Key, np.ndarray]:
    # Leaf names are made for files, and lose what a path's parts are called.
    names: Mapping[str, Sequence[str]] | None = contents.extra.get(PARAMETER_NAMES)
    if names is None:
        raise CheckpointError(
            f"checkpoint {where} got no names of parameters, expected those that later versions "
            "write. Resume it with Trainer(..., checkpoint=...) and write it with save_params."
        )
    return {
        (collection, tuple(path)): contents.leaves[leaf]
        for leaf, (collection, *path) in names.items()
    }
