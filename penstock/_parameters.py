"""Parameters by name: in memory as a mapping, on disk as a folder with safetensors and JSON."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import jax
import numpy as np
import numpy.typing as npt
from jax.typing import ArrayLike

from penstock import _mesh, _model_file
from penstock._checkpoint import CheckpointConfig, Contents, Store, is_step
from penstock._errors import CheckpointError, ParameterError, check_known
from penstock._files import expand_path, replacing, write_tensors
from penstock._parameter_names import (
    Key,
    Nested,
    Selection,
    flatten_variables,
    nest_variables,
    spell,
)
from penstock._program.frame import Variables

_LOGGER = logging.getLogger("penstock")

DATA_FILE = "params.safetensors"
DESCRIPTION_FILE = "description.json"

Table = Mapping[Key, tuple[tuple[int, ...], np.dtype]]
"""Shape and dtype of every entry, by collection and path."""

T = TypeVar("T")


class Parameters(MutableMapping[str, np.ndarray]):
    """The parameters and running statistics of a network, by name.

    Reading an entry waits for the device and gives a copy on the host; assigning one replaces it in
    the network. Names are paths such as `"generator/fc_0/w"`; none can be added or removed. One
    that is split over several processes is read by all of them, in the same order.
    """

    def __init__(
        self,
        get: Callable[[], Mapping[str, Nested[jax.Array]]],
        put: Callable[[Mapping[str, Nested[ArrayLike]]], None],
        call: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._get, self._put, self._call = get, put, call

    def _entries(self) -> dict[str, tuple[Key, jax.Array]]:
        entries = flatten_variables(self._get())
        return {spell(path): ((collection, path), v) for (collection, path), v in entries.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        """Return a copy of an entry; waits for the device."""
        entry = _find(name, self._entries())[1]
        # A process that is alone here would wait for the parts of the others for ever.
        with self._call("reading parameters") if _mesh.is_shared(entry) else nullcontext():
            return np.array(_mesh.fetch_whole(entry))

    def __setitem__(self, name: str, value: npt.ArrayLike) -> None:
        """Replace an entry by an array of its shape, and of a dtype of the same kind."""
        self.update({name: value})

    def update(self, other: Any = (), /) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Replace several entries at once, all or none: one copy to the devices for all of them."""
        entries, values = self._entries(), dict(other)
        replaced: dict[Key, Any] = dict(entries.values())
        # All are checked before any is replaced.
        for name, value in values.items():
            (key, old), new = _find(name, entries), np.asarray(value)
            if new.shape != old.shape or not np.can_cast(new.dtype, old.dtype, "same_kind"):
                raise ParameterError(
                    f"parameter {name!r} got shape {new.shape} and dtype {new.dtype}, expected "
                    f"shape {old.shape} and dtype {old.dtype}."
                )
            replaced[key] = new.astype(old.dtype)
        if values:
            self._put(nest_variables(replaced))

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"parameter {name!r} cannot be removed, its program needs it.")

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries())

    def __len__(self) -> int:
        return len(self._entries())

    def __repr__(self) -> str:
        shapes = {name: tuple(value.shape) for name, (_, value) in self._entries().items()}
        return f"Parameters({shapes})"


def _find(name: str, entries: Mapping[str, T]) -> T:
    check_known("parameters", name, entries)
    return entries[name]


def save(
    path: str | os.PathLike[str],
    variables: Mapping[str, Nested[ArrayLike]],
    *,
    about: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Write variables to the folder `path`, made or overwritten; one process writes. Collective.

    Each file appears whole or not at all; a crash leaves the previous parameters.
    """
    whole = _mesh.gather(flatten_variables(variables))
    folder = expand_path(path)
    # All have the same ones, and the folder is shared.
    if jax.process_index():
        _AWAITED[folder.absolute()] = _sum_up(jax.device_get(whole))
        return
    if folder.is_file():
        raise NotADirectoryError(
            f"param_path got {str(folder)!r}, which is a file, expected a folder or a new name."
        )
    folder.mkdir(parents=True, exist_ok=True)
    entries = {k: np.asarray(v) for k, v in jax.device_get(whole).items()}
    description = {
        "format": "penstock parameters",
        "version": 1,
        "entries": [
            {"name": spell(p), "collection": c, "shape": list(v.shape), "dtype": str(v.dtype)}
            for (c, p), v in entries.items()
        ],
    }
    if about:
        description["about"] = dict(about)
    tensors = {spell((c, *p)): np.asarray(v, order="C") for (c, p), v in entries.items()}
    write_tensors(folder / DATA_FILE, tensors, {"format": "penstock parameters 1"})
    with replacing(folder / DESCRIPTION_FILE) as temporary:
        temporary.write_text(json.dumps(description, indent=1) + "\n")


_AWAITED: dict[Path, int] = {}
"""The checksums of what process 0 is writing, by folder: the others do not wait in `save`."""

_PATIENCE_SECS = 60.0


def _sum_up(entries: Mapping[Key, np.ndarray]) -> int:
    total = 0
    for (collection, path), value in sorted(entries.items(), key=lambda entry: entry[0]):
        total = zlib.crc32(f"{collection}/{spell(path)}".encode(), total)
        total = zlib.crc32(np.ascontiguousarray(value).tobytes(), total)
    return total


def _read_awaited(path: str | os.PathLike[str], awaited: int) -> dict[Key, np.ndarray]:
    """Return the entries of a folder once process 0 has written them there."""
    end = time.monotonic() + _PATIENCE_SECS
    while time.monotonic() < end:
        with contextlib.suppress(FileNotFoundError, ParameterError):
            if _sum_up(entries := read(path)) == awaited:
                return entries
        time.sleep(0.05)
    _LOGGER.warning(
        "process 0 has not written to %s within %.0f s what this process saved there: what is "
        "there is read",
        path,
        _PATIENCE_SECS,
    )
    return read(path)


def read_about(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what `save` was given about the parameters in a folder; nothing where it says none."""
    file = expand_path(path) / DESCRIPTION_FILE
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")).get("about", {}))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ParameterError(
            f"{str(file)!r} got damaged ({error}), expected what trainer.save_params wrote. Remove "
            "it: the parameters can be read without it."
        ) from error


def read(path: str | os.PathLike[str]) -> dict[Key, np.ndarray]:
    """Return the entries saved in the folder `path`, by collection and path."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if (awaited := _AWAITED.pop(expand_path(path).absolute(), None)) is not None:
        return _read_awaited(path, awaited)
    file = expand_path(path) / DATA_FILE
    if not file.is_file():
        raise FileNotFoundError(
            f"param_path got {str(path)!r}, expected a folder of save_params, with {DATA_FILE}."
        )
    try:
        tensors = load_file(file)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ParameterError(
            f"{str(file)!r} got damaged or is no safetensors file, expected one written by "
            f"trainer.save_params ({error})."
        ) from error
    return _split_names(tensors, file)


def _split_names(tensors: Mapping[str, np.ndarray], file: Path) -> dict[Key, np.ndarray]:
    entries = {}
    for name, value in tensors.items():
        # The collection is the first part of a name in the file; users never see it.
        collection, *path = name.split("/")
        if collection not in ("params", "batch_stats") or not path:
            raise ParameterError(
                f"{str(file)!r} got an entry {name!r}, expected names that begin with 'params/' or "
                "'batch_stats/'. It was not written by trainer.save_params."
            )
        entries[collection, tuple(path)] = value
    return entries


def list_differences(entries: Mapping[Key, np.ndarray], table: Table) -> dict[str, list[str]]:
    """Return what is missing, extra and mismatched in `entries`, each as a list of lines."""
    return {
        "missing": [f"{spell(p)} {_show(table[c, p])}" for c, p in table if (c, p) not in entries],
        "extra": [
            f"{spell(p)} {_show((v.shape, v.dtype))}"
            for (c, p), v in entries.items()
            if (c, p) not in table
        ],
        "mismatched": [
            f"{spell(p)} got {_show((v.shape, v.dtype))}, expected {_show(table[c, p])}"
            for (c, p), v in entries.items()
            if (c, p) in table and (tuple(v.shape), v.dtype) != table[c, p]
        ],
    }


def check(
    path: str | os.PathLike[str],
    entries: Mapping[Key, np.ndarray],
    table: Table,
    *,
    may_have_extra: bool,
    hint: str,
) -> None:
    """Raise unless the entries of a file are those of `table`."""
    differences = list_differences(entries, table)
    if may_have_extra:
        differences["extra"] = []
    if any(differences.values()):
        lines = [f"  {kind}: {line}" for kind, group in differences.items() for line in group]
        raise ParameterError(
            f"the parameters in {str(path)!r} do not fit the program:\n" + "\n".join([*lines, hint])
        )


def select_fitting(entries: Mapping[Key, np.ndarray], table: Table) -> dict[Key, np.ndarray]:
    """Return the entries that `table` has with the same shape and dtype."""
    return {
        key: value
        for key, value in entries.items()
        if key in table and (tuple(value.shape), value.dtype) == table[key]
    }


def _show(entry: tuple[tuple[int, ...], np.dtype]) -> str:
    return f"{entry[1]}{list(entry[0])}"


PARAMETER_NAMES = "parameter_names"
"""The key in a checkpoint's description of what its arrays are called in the parameter tree."""


_PARTS_OF_RUN = ("best", "params", "checkpoints")
"""Where the folder of a run of `penstock train` has parameters, in this order."""


def has_parameters(param_path: str | os.PathLike[str]) -> bool:
    """Return whether a path is there to start from: a script may name where it will save to."""
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
    table: Table,
    live: Variables,
    *,
    partial: bool,
    skip_mismatched: bool,
) -> tuple[dict[str, Nested[ArrayLike]], dict[str, list[str]]]:
    """Read what a selection takes of the parameters at a path; say and print what it left out."""
    # Before the file is read: a misspelt pattern should not wait for gigabytes.
    selection.check(table)
    entries = selection.rename_entries(read_parameters(param_path))
    chosen, wanted = selection.select(entries), selection.select(table)
    fitting = select_fitting(chosen, wanted)
    if not partial:
        # What is left out by request is taken from both sides, and the rest must fit exactly.
        left = {key for key in chosen if skip_mismatched and key in wanted and key not in fitting}
        check(
            param_path,
            {key: value for key, value in chosen.items() if key not in left},
            {key: value for key, value in wanted.items() if key not in left},
            may_have_extra=False,
            hint="Pass partial=True to load what fits and keep the rest.",
        )
    report = {
        "loaded": sorted(spell(path) for _, path in fitting),
        "excluded": sorted(spell(path) for _, path in table.keys() - wanted.keys()),
        **list_differences(chosen, wanted),
    }
    if partial or skip_mismatched or not selection.is_all:
        _print_report(param_path, report)
    return nest_variables({**flatten_variables(live), **fitting}), report


_MOST_EXCLUDED = 4


def _print_report(param_path: str | os.PathLike[str], report: Mapping[str, list[str]]) -> None:
    print(f"{len(report['loaded'])} entries loaded from {os.fspath(param_path)}")
    reasons = {
        "excluded": "kept, not asked for",
        "missing": "kept, not in the file",
        "mismatched": "kept, of another shape or dtype in the file",
        "extra": "left in the file, the program has none of that name",
    }
    for kind, reason in reasons.items():
        lines = report[kind]
        # What was left out by request is no news; of a large network it would be hundreds of lines.
        if kind == "excluded" and len(lines) > _MOST_EXCLUDED:
            num_more = len(lines) - _MOST_EXCLUDED
            lines = [*lines[:_MOST_EXCLUDED], f"{num_more} more of {len(report[kind])}"]
        for line in lines:
            print(f"  {reason}: {line}")


def read_parameters(path: str | os.PathLike[str]) -> dict[Key, np.ndarray]:
    """Return the entries of a folder of parameters, of checkpoints or of a run, or a model file."""
    folder = expand_path(path)
    if _model_file.is_model_file(folder):
        return _read_model(folder)
    for place in (folder, *(folder / name for name in _PARTS_OF_RUN)):
        if (place / DATA_FILE).exists():
            return read(place)
        # A folder of checkpoints may itself be called by a number.
        contents = None
        if place.is_dir():
            newest = Store(CheckpointConfig(directory=place)).read_newest()
            contents = newest or _read_one(place)
        if contents is not None:
            return _name_entries(contents, str(place))
    return read(path)


def _read_model(file: Path) -> dict[Key, np.ndarray]:
    manifest, weights, _ = _model_file.read(file)
    begin = f"param_path got the model {str(file)!r} with weights of "
    why = "Others were rounded. Use the run that it was made of."
    check_known(begin, manifest.weights, ["float32"], why, ParameterError)
    return _split_names(weights, file)


def _read_one(folder: Path) -> Contents | None:
    if not is_step(folder.name):
        return None
    # One checkpoint is read through the folder it lies in, which verifies it.
    store = Store(CheckpointConfig(directory=folder.parent))
    return store.read(int(folder.name)) if int(folder.name) in store.steps() else None


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
