"""Weights that a run starts from, or that are evaluated: of penstock, or of others."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from penstock import Trainer, _parameters, models
from penstock._errors import ParameterError
from penstock._parameter_names import Selection, spell
from penstock._parameters import read_parameters
from penstock.commands._checks import split_words
from penstock.commands._flags import ModelFlags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weights:
    """The weights of a network, by the names of its parameters.

    Arguments:
      path: where they lie.
      optional: parameters of auxiliary heads that a file of others lacks, or lacked when it was
        imported: a network can do without them.
      notes: sentences about them.
    """

    path: Path
    arrays: Mapping[str, np.ndarray]
    optional: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_weights(path: Path, model: models.Model, image_size: int) -> Weights:
    """Read the weights in a folder of ours, or in a file of others.

    Raises:
      ParameterError: they are of another network.
    """
    if path.is_dir():
        arrays = {spell(keys): value for (_, keys), value in read_parameters(path).items()}
        optional = tuple(_parameters.read_about(path).get("left_initial", ()))
        arrays = {name: np.asarray(value) for name, value in arrays.items()}
        return Weights(path=path, arrays=arrays, optional=optional)
    found = models.load_weights(model, os.fspath(path), image_size=image_size)
    note = f"{found.num_classes} classes, names of {found.source}"
    return Weights(
        path=path,
        arrays=found.entries,
        optional=found.left_initial,
        notes=(note, *found.notes),
    )


def load_weights(
    trainer: Trainer,
    weights: Weights,
    flags: ModelFlags,
    *,
    model: models.Model,
    find_last_layers: Callable[[], set[str]],
) -> tuple[list[str], str | None]:
    """Put weights into a trainer's network.

    Last layers for another number of classes are left initial.

    Arguments:
      find_last_layers: returns the parameters whose shape depends on the number of classes.

    Returns:
      Sentences about what was loaded; and the last layers that were left initial, or None.

    Raises:
      ParameterError: the weights are of another network.
      UnknownNameError: a pattern matches nothing.
    """
    arrays = weights.arrays
    selection = Selection(
        include=split_words(flags.checkpoint_include_scopes) or None,
        exclude=split_words(flags.checkpoint_exclude_scopes) or None,
    )
    selection.check(trainer.builder.programs.network.table)
    shapes = {row.name: tuple(row.shape) for row in trainer.builder.parameter_table()}
    wanted = [name for name in shapes if selection.takes(name)]
    there = [name for name in wanted if name in arrays]
    misfits = [name for name in there if arrays[name].shape != shapes[name]]
    # Asked only where something does not fit: it builds the network once more.
    dropped = sorted(set(misfits) & find_last_layers()) if misfits else []
    problems = [
        f"{name} has {list(arrays[name].shape)} there and {list(shapes[name])} here"
        for name in misfits
        if name not in dropped
    ]
    if not flags.ignore_missing_vars:
        needed = [name for name in wanted if name not in weights.optional]
        problems += [f"{name} is not there" for name in needed if name not in arrays]
    if problems or not there:
        raise ParameterError(
            f"{str(weights.path)!r} got weights that do not fit {model.name}: "
            f"{'; '.join(problems)}. Are they for another network? --checkpoint_exclude_scopes "
            "leaves parts out."
        )
    loaded = {name: arrays[name] for name in there if name not in misfits}
    trainer.parameters.update(loaded)
    lines = [f"{len(loaded)} of {len(shapes)} arrays from {weights.path}", *weights.notes]
    misfit = None
    if dropped:
        numbers = arrays[dropped[0]].shape[-1], shapes[dropped[0]][-1]
        misfit = f"({numbers[0]} classes there, {numbers[1]} here): {', '.join(dropped)}"
        lines.append(f"last layers left initial {misfit}")
    if left := [name for name in shapes if name not in loaded and name not in dropped]:
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        lines.append(f"left initial: {', '.join(left[:3])}{more}")
    return lines, misfit
