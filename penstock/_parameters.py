"""Parameters by name: in memory as a mapping, on disk as a folder with safetensors and JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import jax
import numpy as np
import numpy.typing as npt
from jax.typing import ArrayLike

from penstock import _parameter_names
from penstock._errors import ParameterError, UnknownNameError, find_os_error, nearest
from penstock._parameter_names import Key, Nested, spell
from penstock._paths import expand_path
from penstock._whole_files import replacing

DATA_FILE = "params.safetensors"
DESCRIPTION_FILE = "description.json"

Table = Mapping[Key, tuple[tuple[int, ...], np.dtype]]
"""Shape and dtype of every entry, by collection and path."""

T = TypeVar("T")


class Parameters(MutableMapping[str, np.ndarray]):
    """The parameters and running statistics of a network, by name.

    Reading an entry waits for the device and gives a copy on the host; assigning one replaces it in
    the network. Names are paths such as `"generator/fc_0/w"`; none can be added or removed.
    """

    def __init__(
        self,
        get: Callable[[], Mapping[str, Nested[jax.Array]]],
        put: Callable[[Mapping[str, Nested[ArrayLike]]], None],
    ) -> None:
        self._get, self._put = get, put

    def __getitem__(self, name: str) -> np.ndarray:
        """Return a copy of an entry; waits for the device."""
        entries = flatten(self._get())
        return np.array(jax.device_get(entries[_find_key(name, _index_by_name(entries))]))

    def __setitem__(self, name: str, value: npt.ArrayLike) -> None:
        """Replace an entry by an array of its shape, and of a dtype of the same kind."""
        self.update({name: value})

    def update(self, other: Any = (), /) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Replace several entries at once, all or none: one copy to the devices for all of them."""
        replaced = {}
        entries = flatten(self._get())
        keys = _index_by_name(entries)
        # All are checked before any is replaced.
        for name, value in dict(other).items():
            key = _find_key(name, keys)
            old, new = entries[key], np.asarray(value)
            if new.shape != old.shape or not np.can_cast(new.dtype, old.dtype, "same_kind"):
                raise ParameterError(
                    f"parameter {name!r} got shape {new.shape} and dtype {new.dtype}, expected "
                    f"shape {old.shape} and dtype {old.dtype}."
                )
            replaced[key] = new.astype(old.dtype)
        if replaced:
            self._put(nest({**entries, **replaced}))

    def __delitem__(self, name: str) -> None:
        """Refuse: a program's parameters are fixed."""
        raise TypeError(f"parameter {name!r} cannot be removed, its program needs it.")

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(_index_by_name(flatten(self._get())))

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(flatten(self._get()))

    def __repr__(self) -> str:
        """Return names and shapes."""
        shapes = {spell(p): tuple(v.shape) for (_, p), v in flatten(self._get()).items()}
        return f"Parameters({shapes})"


def _index_by_name(entries: Iterable[Key]) -> dict[str, Key]:
    return {spell(path): (collection, path) for collection, path in entries}


def _find_key(name: str, keys: Mapping[str, Key]) -> Key:
    if name not in keys:
        raise UnknownNameError(
            f"parameters got the name {name!r}, expected one of {sorted(keys)}."
            + nearest(str(name), keys)
        )
    return keys[name]


def flatten(variables: Mapping[str, Nested[object]]) -> dict[Key, Any]:
    """Return variables as a flat dict by collection and path."""
    return {
        (collection, path): value
        for collection, tree in variables.items()
        for path, value in _parameter_names.flatten(tree).items()
    }


def nest(entries: Mapping[Key, T]) -> dict[str, Nested[T]]:
    """Return what `flatten` was given."""
    # Both are there in any case: a network without batch norm has empty statistics.
    trees: dict[str, dict[tuple[str, ...], T]] = {"params": {}, "batch_stats": {}}
    for (collection, path), value in entries.items():
        trees[collection][path] = value
    return {name: _parameter_names.nest(tree) for name, tree in trees.items()}


def save(
    path: str | os.PathLike[str],
    variables: Mapping[str, Nested[ArrayLike]],
    *,
    about: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Write variables to the folder `path`, made or overwritten; one process writes.

    Each file appears whole or not at all; a crash leaves the previous parameters.

    Arguments:
      about: what belongs to them, as JSON: the preprocessing of their images for one.
    """
    # All have the same ones, and the folder is shared.
    if jax.process_index():
        return
    folder = expand_path(path)
    if folder.is_file():
        raise NotADirectoryError(
            f"param_path got {str(folder)!r}, which is a file, expected a folder or a new name."
        )
    folder.mkdir(parents=True, exist_ok=True)
    # All in one fetch: the device is waited for once.
    entries = {k: np.asarray(v) for k, v in jax.device_get(flatten(variables)).items()}
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
    # safetensors writes the memory as it lies.
    tensors = {spell((c, *p)): np.ascontiguousarray(v) for (c, p), v in entries.items()}
    with replacing(folder / DATA_FILE) as temporary:
        _write(tensors, temporary, folder / DATA_FILE)
    with replacing(folder / DESCRIPTION_FILE) as temporary:
        temporary.write_text(json.dumps(description, indent=1) + "\n")


def _write(tensors: dict[str, np.ndarray], path: Path, target: Path) -> None:
    """Write a file of safetensors; a disk that does not take it is an OSError, as elsewhere.

    Arguments:
      target: the name that it is to have, which an error says.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file(tensors, path, metadata={"format": "penstock parameters 1"})
    except SafetensorError as error:
        if (found := find_os_error(error, target)) is None:
            raise
        raise found from error


def read_about(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what `save` was given about the parameters in a folder; nothing where it says none.

    Raises:
      ParameterError: the description is damaged.
    """
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
    """Return the entries saved in the folder `path`, by collection and path.

    Raises:
      FileNotFoundError: there is no such folder, or no parameters in it.
      ParameterError: the file is damaged or foreign.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    file = expand_path(path) / DATA_FILE
    if not file.is_file():
        raise FileNotFoundError(
            f"param_path got {str(path)!r}, expected a folder with {DATA_FILE}, as "
            "trainer.save_params writes it."
        )
    try:
        tensors = load_file(file)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ParameterError(
            f"{str(file)!r} got damaged or is no safetensors file, expected one written by "
            f"trainer.save_params ({error})."
        ) from error
    entries = {}
    for name, value in tensors.items():
        # The collection is the first part of a name in the file; users never see it.
        collection, *rest = name.split("/")
        if collection not in ("params", "batch_stats") or not rest:
            raise ParameterError(
                f"{str(file)!r} got an entry {name!r}, expected names that begin with 'params/' or "
                "'batch_stats/'. It was not written by trainer.save_params."
            )
        entries[collection, tuple(rest)] = value
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
            if (c, p) in table and (tuple(v.shape), v.dtype) != _plain(table[c, p])
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
    """Raise unless the entries of a file are those of `table`.

    Raises:
      ParameterError: listing every missing, extra and mismatched entry.
    """
    found = list_differences(entries, table)
    if may_have_extra:
        found["extra"] = []
    if any(found.values()):
        lines = [f"  {kind}: {line}" for kind, each in found.items() for line in each]
        raise ParameterError(
            f"the parameters in {str(path)!r} do not fit the program:\n" + "\n".join([*lines, hint])
        )


def select_fitting(entries: Mapping[Key, np.ndarray], table: Table) -> dict[Key, np.ndarray]:
    """Return the entries that `table` has with the same shape and dtype."""
    return {
        key: value
        for key, value in entries.items()
        if key in table and (tuple(value.shape), value.dtype) == _plain(table[key])
    }


def _plain(entry: tuple[tuple[int, ...], np.dtype]) -> tuple[tuple[int, ...], np.dtype]:
    return tuple(entry[0]), np.dtype(entry[1])


def _show(entry: tuple[tuple[int, ...], np.dtype]) -> str:
    return f"{np.dtype(entry[1])}{list(entry[0])}"
