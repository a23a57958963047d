"""The weights that a run starts from, or that are evaluated: ours, checkpoints, or others'."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from penstock import Trainer, _parameters, models
from penstock._errors import ParameterError, nearest
from penstock._selection import Selection
from penstock.commands._checks import split_words
from penstock.commands._flags import ModelFlags
from penstock.commands._run.folder import RunFolder, has_weights
from penstock.trainer._sources import entries_at


def find_weights(model_dir: str | None, name: str | None) -> Path:
    """Return the folder or file of weights that flags name.

    Raises:
      FileNotFoundError: there is none; says what is there.
    """
    path = Path(model_dir or ".") / (name or "")
    if path.is_dir() and not has_weights(path):
        folder = RunFolder(path)
        # A run that replaces another may have saved nothing yet.
        inside = folder.find_weights() or RunFolder(folder.replaced).find_weights()
        if inside is not None:
            return inside
    if path.is_file() or has_weights(path) or Path(f"{path}.index").is_file():
        return path
    folder = path if path.is_dir() else path.parent
    there = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    what = "a folder without weights" if path.is_dir() else "nothing"
    raise FileNotFoundError(
        f"{str(path)!r} got {what}, expected parameters, checkpoints or a run of penstock, or a "
        f"file of TF-Slim, Keras or torch.{nearest(path.name, there)}"
    )


def load_weights(
    trainer: Trainer,
    path: Path,
    flags: ModelFlags,
    *,
    image_size: int,
    model: models.Model,
    last_layers: Callable[[], set[str]],
    entries: Entries | None = None,
) -> list[str]:
    """Put weights into a trainer's network; return what to say about it, a line each.

    Last layers for another number of classes are left initial.

    Arguments:
      model: the network.
      last_layers: gives the names of the parameters whose shape depends on the number of classes.
      entries: what `read_entries` gave, where the path was read before.

    Raises:
      ParameterError: the weights are of another network.
      UnknownNameError: a pattern matches nothing.
    """
    entries = read_entries(path, model, image_size) if entries is None else entries
    selection = Selection(
        include=split_words(flags.checkpoint_include_scopes) or None,
        exclude=split_words(flags.checkpoint_exclude_scopes) or None,
    )
    selection.check(trainer.builder.parameter_shapes)
    shapes = {row.name: tuple(row.shape) for row in trainer.builder.parameter_table()}
    wanted = [name for name in shapes if selection.takes(name)]
    misfits = [n for n in wanted if n in entries and entries[n].shape != shapes[n]]
    missing = [n for n in wanted if n not in entries]
    dropped = sorted(set(misfits) & last_layers()) if misfits else []
    problems = [
        f"{n} has {list(entries[n].shape)} there and {list(shapes[n])} here"
        for n in misfits
        if n not in dropped
    ]
    if not flags.ignore_missing_vars:
        optional = entries.optional
        problems += [f"{name} is not there" for name in missing if name not in optional]
    if problems or len(missing) == len(wanted):
        raise ParameterError(
            f"{str(path)!r} got weights that do not fit {model.name}: {'; '.join(problems)}. Is it "
            "another network's? --checkpoint_exclude_scopes leaves parts out."
        )
    loaded = {n: entries[n] for n in wanted if n in entries and n not in misfits}
    trainer.parameters.update(loaded)
    lines = [f"{len(loaded)} of {len(shapes)} arrays from {path}", *entries.notes]
    if dropped:
        sizes = f"{entries[dropped[0]].shape[-1]} classes there, {shapes[dropped[0]][-1]} here"
        lines.append(f"last layers left initial ({sizes}): {', '.join(dropped)}")
    left = [n for n in shapes if n not in loaded and n not in dropped]
    if left:
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        lines.append(f"left initial: {', '.join(left[:3])}{more}")
    return lines


@dataclasses.dataclass(frozen=True)
class Entries:
    """Arrays by our names, what to say about them, and what the network may do without.

    Arguments:
      optional: auxiliary heads that a file of others lacks, or lacked when it was imported.
    """

    arrays: Mapping[str, np.ndarray]
    optional: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self.arrays


def read_entries(path: Path, model: models.Model, image_size: int) -> Entries:
    """Read the weights in a folder of ours, or in a file of others.

    Raises:
      ParameterError: they are of another network.
    """
    if path.is_dir():
        named = {"/".join(keys): value for (_, keys), value in entries_at(path).items()}
        initial = tuple(_parameters.read_about(path).get("left_initial", ()))
        return Entries({name: np.asarray(value) for name, value in named.items()}, initial)
    found = models.load_weights(model, os.fspath(path), image_size=image_size)
    classes = f"{found.num_classes} classes, names of {found.source}"
    return Entries(found.entries, found.left_initial, (classes, *found.notes))
