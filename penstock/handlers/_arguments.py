"""Checks of handlers' arguments when a handler is made, so that no run fails at its first epoch."""

from __future__ import annotations

import inspect
from numbers import Integral, Real
from pathlib import Path


def is_number(value: object) -> bool:
    """Return whether a value is a real number; `True` is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_interval(owner: str, argument: str, value: object) -> None:
    """Raise unless `value` is `None` or a positive integer.

    Raises:
      ValueError: it is something else.
    """
    is_count = isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1
    if value is not None and not is_count:
        raise ValueError(
            f"{owner} got {argument}={value!r}, expected a positive integer or None. It is the "
            "interval; None turns it off."
        )


def check_file(owner: str, file: object) -> None:
    """Raise unless `file` is `None` or can be written to, which a path cannot.

    Raises:
      TypeError: it has no method `write`.
    """
    if file is not None and not hasattr(file, "write"):
        raise TypeError(
            f"{owner} got file={file!r}, expected an open text file. It is written to, and not "
            "opened. Pass file=open(path, 'w')."
        )


def check_test(owner: str, test: object) -> None:
    """Raise where `test` is no function that returns metrics, such as a reader.

    Raises:
      TypeError: it cannot be called, or yields batches.
    """
    # A reader can be called too: it would return an iterator, and no metric would be found in it.
    is_reader = hasattr(type(test), "__iter__") or inspect.isgeneratorfunction(test)
    if test is not None and (is_reader or not callable(test)):
        raise TypeError(
            f"{owner} got test={test!r}, expected an Evaluate or a function that returns metrics. "
            "A reader yields batches, which must be tested on. Make "
            f"evaluate = handlers.Evaluate(reader), and pass [evaluate, {owner}(test=evaluate)] to "
            "Trainer.train."
        )


def make_folder(owner: str, argument: str, folder: Path) -> None:
    """Make a folder before training, so that a run of hours does not end without its results.

    Raises:
      OSError: it cannot be made; of the same class as the system's.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise type(error)(
            f"{owner} got {argument}={str(folder)!r}, expected a folder that can be written "
            f"({error.strerror or error}). Its results are saved there. Give permission there, or "
            "choose another path."
        ) from error
