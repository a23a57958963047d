"""What handlers take: arguments checked when one is made, metrics by name, hyperparameters."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from penstock._errors import check_type
from penstock.events import Metrics, Training


def check_file(owner: str, file: object) -> None:
    """Raise unless `file` is `None` or can be written to, which a path cannot."""
    if file is not None and not hasattr(file, "write"):
        raise TypeError(
            f"{owner} got file={file!r}, expected an open text file. It is written to, and not "
            "opened. Pass file=open(path, 'w')."
        )


def check_test(owner: str, test: object) -> None:
    """Raise where `test` is no function that returns metrics, such as a reader."""
    # A reader can be called too: it would return an iterator, and no metric would be found in it.
    is_reader = hasattr(type(test), "__iter__") or inspect.isgeneratorfunction(test)
    if test is not None and (is_reader or not callable(test)):
        raise TypeError(
            f"{owner} got test={test!r}, expected an Evaluate or a function that returns metrics. "
            "A reader yields batches, to be tested on. Make evaluate = handlers.Evaluate(reader), "
            f"and pass [evaluate, {owner}(test=evaluate)] to Trainer.train."
        )


def make_folder(owner: str, folder: Path) -> None:
    """Make a folder before training, so that a run of hours does not end without its results."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain_write(owner, folder, error) from error


def explain_write(owner: str, path: object, error: OSError) -> OSError:
    """Return an error of the same class that names the path and says what to do."""
    return OSError(
        error.errno,
        f"{owner} got the path {str(path)!r}, expected one that can be written "
        f"({error.strerror or error}). What it keeps of the run is missing or has gaps. Make room "
        "or give permission there, or choose another path.",
    )


def as_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return names as a tuple; a single name may be given as a string."""
    if isinstance(names, str):
        return (names,)
    sequence = tuple(names) if isinstance(names, Iterable) else (names,)
    why = "They name what a program function returns. Pass names=['loss', 'accuracy']."
    for name in sequence:
        check_type("names", name, str, f"a list of strings. {why}")
    if len(set(sequence)) < len(sequence):
        raise ValueError(
            f"names got {names!r}, expected each name once. Of two values with one name only the "
            "last would be shown. Give each value a name of its own."
        )
    return sequence


def name_values(metrics: Metrics, names: Sequence[str]) -> dict[str, float | np.ndarray]:
    """Return metrics by name, arrays included.

    Values of a dict have its keys. Others have `names`, then `metric_2` and so on. Nested ones, and
    those of several objectives, are called `outer inner`.

    >>> name_values({"a": (0.5, 0.25), "b": 1.0}, ["loss"])
    {'a loss': 0.5, 'a metric_1': 0.25, 'b': 1.0}
    """
    if isinstance(metrics, Mapping):
        entries = list(metrics.items())
    elif isinstance(metrics, tuple | list):
        more = [f"metric_{i}" for i in range(len(names), len(metrics))]
        entries, names = list(zip([*names, *more], metrics, strict=False)), ()
    else:
        entries = [(names[0] if names else "loss", metrics)]
    values: dict[str, float | np.ndarray] = {}
    for key, value in entries:
        if isinstance(value, tuple | list | Mapping):
            values |= {f"{key} {name}": part for name, part in name_values(value, names).items()}
        elif value is not None:
            values[str(key)] = cast("float | np.ndarray", value)
    return values


def name_scalars(metrics: Metrics, names: Sequence[str]) -> dict[str, float]:
    """Return the scalars among metrics by name, as Python numbers; see `name_values`.

    >>> name_scalars((0.5, np.ones(3)), ["loss"])
    {'loss': 0.5}
    """
    scalars: dict[str, float] = {}
    for name, value in name_values(metrics, names).items():
        # `penstock.fluid` fetches arrays without axes.
        if isinstance(value, np.ndarray | np.generic) and value.ndim == 0:
            value = value.item()
        if isinstance(value, int | float):
            scalars[name] = value
    return scalars


Hyperparameters = dict[str, bool | int | float | str]


def check_hyperparameters(owner: str, values: Mapping[str, Any] | None) -> Hyperparameters:
    """Return a user's values by name: dicts in them as `outer/inner`, what is no number as text.

    >>> check_hyperparameters("WandB", {"rate": 0.1, "sizes": [1, 2], "net": {"depth": 3}})
    {'rate': 0.1, 'sizes': '[1, 2]', 'net/depth': 3}
    """
    expected = "a dict of values by name. Pass vars(arguments) of what argparse returned."
    check_type(f"{owner} got hyperparameters=", values, Mapping | None, expected)
    return dict(_flatten(values or {}, ""))


def list_hyperparameters(
    hyperparameters: Hyperparameters,
    trainer: Training | None,
    parts: Sequence[str] = ("configuration", "devices", "parameters", "versions"),
) -> Hyperparameters:
    """Return the user's hyperparameters, and those parts of `trainer.describe()`."""
    described: dict[str, Any] = {} if trainer is None else trainer.describe()
    # The table is as long as the network; a user's own "table" is one value like another.
    values = {
        part: {name: value for name, value in described[part].items() if name != "table"}
        for part in parts
        if part in described
    }
    return {**dict(_flatten(values, "")), **hyperparameters}


def _flatten(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}/")
        elif isinstance(value, bool | int | float | str):
            yield f"{prefix}{name}", value
        # What is not set is no value.
        elif value is not None:
            yield f"{prefix}{name}", _as_text(value)


def _as_text(value: object) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
