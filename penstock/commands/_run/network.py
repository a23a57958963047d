"""Networks of the model library: their programs, their weights, and those saved before."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from penstock import ProgramBuilder, Trainer, _parameters, layers, models
from penstock._errors import ParameterError
from penstock._mesh import Place
from penstock._parameter_names import Selection, spell
from penstock._text_tables import escape
from penstock.commands._argument_parser import FlagValue
from penstock.commands._failures import UsageError
from penstock.commands._flags import TrainFlags, make_train_flags, read_run_config
from penstock.commands._run.data import Preparation, Shape, choose_preparation
from penstock.commands._run.processes import is_writing_process
from penstock.commands._run_folder import folder as run_folder
from penstock.commands._run_folder.runs import find_run_path
from penstock.models.classification import AUXILIARY_WEIGHT
from penstock.models.report import build_forward
from penstock.readers.images import SUFFIXES

_EVERYTHING = Selection()


def choose_model(flags: TrainFlags) -> models.Model:
    """Return the network of the model library with the settings that flags ask for."""
    wanted, is_fastnn = flags.model, flags.fastnn_compat
    settings = models.Settings(
        weight_decay=0.0 if is_fastnn else wanted.weight_decay,
        # FastNN never runs the updates of the running statistics.
        batch_norm_decay=1.0 if is_fastnn else wanted.batch_norm_decay,
        # A decay that is named, or FastNN's, holds from the first step: nothing warms up.
        batch_norm_warmup=False if is_fastnn or wanted.batch_norm_decay is not None else None,
        # FastNN's statistics are those of a device's share.
        batch_norm_group_size=wanted.batch_norm_group_size
        or (wanted.device_batch_size if is_fastnn else None),
    )
    return models.get(wanted.model_name, settings)


def make_network(
    flags: TrainFlags, shape: Shape, *, counts_auxiliary: bool = True
) -> models.Classifier:
    """Return the programs of a network, in whose loss an auxiliary head may count."""
    height, _, channels = shape.image_shape
    has_fastnns_accuracy = flags.fastnn_compat and flags.dataset.dataset_name == "mnist"
    return models.classifier(
        dataclasses.replace(choose_model(flags), num_channels=channels),
        shape.num_classes,
        image_size=height,
        label_smoothing=flags.model.label_smoothing,
        auxiliary_weight=AUXILIARY_WEIGHT if counts_auxiliary else 0.0,
        preprocess=None if shape.preprocessing is None else shape.preprocessing.device,
        accuracy=_compare_with_all_labels if has_fastnns_accuracy else layers.accuracy,
    )


def _compare_with_all_labels(logits: jax.Array, label: jax.Array) -> jax.Array:
    """Return the accuracy that FastNN logs for mnist.

    Its labels have a shape of `[B, 1]`, so that each prediction is compared with each label: what
    is logged is the sum over classes of the share predicted times the share labelled.
    """
    predicted = jnp.argmax(logits, axis=-1)[:, None]
    shares = [
        layers.mean((predicted == number).astype(jnp.float32))
        * layers.mean((label == number).astype(jnp.float32))
        for number in range(logits.shape[-1])
    ]
    return jnp.sum(jnp.stack(shares))


@contextlib.contextmanager
def name_smallest_size(model: models.Model, size: int) -> Iterator[None]:
    """Name the smallest images that a network takes where one for less than `size` is built."""
    try:
        yield
    except ValueError as error:
        smallest = _smallest_size(model, size)
        if smallest == size:
            raise
        raise ValueError(
            f"--train_image_size got {size}, expected {smallest} or more. With smaller "
            f"images, {model.name!r} has nothing left before its last layer. Leave the flag out "
            f"for {model.default_image_size}, the network's own."
        ) from error


def _smallest_size(model: models.Model, size: int) -> int:
    """Return the smallest image size from `size` on that a network takes, else `size`."""

    def is_accepted(side: int) -> bool:
        with contextlib.suppress(ValueError):
            return build_forward(model, 2, side) is not None
        return False

    # Building for a size that is too small ends early, at the layer that refuses it. One that fits
    # takes seconds for the largest networks. So the search begins with the small sizes.
    least, step = size - 1, 1
    while not is_accepted(least + step):
        least, step = least + step, 2 * step
        # Its size is not the reason: the network's own images would be refused too.
        if least > model.default_image_size:
            return size
    sizes = range(least + 1, least + step + 1)
    return sizes[bisect.bisect_left(sizes, True, key=is_accepted)]


def _find_last_layers(flags: TrainFlags, shape: Shape, trainer: Trainer) -> set[str]:
    # Found by building for one class more, not by names, which differ from network to network.
    wider = dataclasses.replace(shape, num_classes=shape.num_classes + 1)
    builder = ProgramBuilder(make_network(flags, wider).train_program)
    shapes = {row.name: row.shape for row in builder.parameter_table()}
    rows = trainer.builder.parameter_table()
    return {row.name for row in rows if shapes.get(row.name) != row.shape}


class Weights(NamedTuple):
    """The weights of a network, by the names of its parameters.

    `optional` are parameters of auxiliary heads that a file of others lacks, or lacked when it was
    imported: a network can do without them.
    """

    path: Path
    arrays: Mapping[str, np.ndarray]
    optional: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_weights(path: Path, model: models.Model, image_size: int) -> Weights:
    if path.is_dir():
        read = _parameters.read_parameters(path).items()
        arrays = {spell(keys): np.asarray(value) for (_, keys), value in read}
        return Weights(path, arrays, tuple(_parameters.read_about(path).get("left_initial", ())))
    foreign = models.load_weights(model, os.fspath(path), image_size=image_size)
    note = f"{foreign.num_classes} classes, names of {foreign.source}"
    return Weights(path, foreign.entries, foreign.left_initial, (note, *foreign.notes))


def load_weights(
    trainer: Trainer,
    weights: Weights,
    flags: TrainFlags,
    shape: Shape,
    *,
    selection: Selection = _EVERYTHING,
    ignores_missing: bool = False,
) -> tuple[list[str], str | None]:
    """Put weights into a trainer's network; last layers for other classes are left initial.

    Returns:
      Sentences about what was loaded; and the last layers that were left initial, or None.
    """
    arrays = weights.arrays
    selection.check(trainer.builder.programs.network.table)
    shapes = {row.name: tuple(row.shape) for row in trainer.builder.parameter_table()}
    wanted = [name for name in shapes if selection.takes(name)]
    there = [name for name in wanted if name in arrays]
    misfits = [name for name in there if arrays[name].shape != shapes[name]]
    # Asked only where something does not fit: it builds the network once more.
    dropped = sorted(set(misfits) & _find_last_layers(flags, shape, trainer)) if misfits else []
    problems = [
        f"{name} has {list(arrays[name].shape)} there and {list(shapes[name])} here"
        for name in misfits
        if name not in dropped
    ]
    if not ignores_missing:
        needed = [name for name in wanted if name not in weights.optional]
        problems += [f"{name} is not there" for name in needed if name not in arrays]
    if problems or not there:
        raise ParameterError(
            f"{str(weights.path)!r} got weights that do not fit {flags.model.model_name}: "
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


class SavedNetwork(NamedTuple):
    """Where weights lie, with their run's folder, if they have one, and the flags for them."""

    weights: Path
    folder: run_folder.RunFolder | None
    flags: TrainFlags


def find_network(run: str, overrides: Mapping[str, FlagValue]) -> SavedNetwork:
    """Find the weights that a path or a name names; overrides replace the flags of their run."""
    path = find_run_path(run)
    weights = run_folder.find_weights(str(path), None)
    folder = run_folder.find_run_folder(weights)
    if folder is None and "model_name" not in overrides:
        if path.suffix.lower() in SUFFIXES:
            raise UsageError(
                f"the run got the image {run!r}, expected the folder of a run. The images come "
                "after it: penstock predict runs/digits_lenet picture.png"
            )
        there = (path / "config.json").is_file()
        missing = "data.json in their folder" if there else "config.json and data.json beside them"
        raise UsageError(
            f"{run!r} got weights without {missing}, as `penstock train` writes, expected "
            "--model_name as well, and --dataset_name to evaluate it."
        )
    config = {} if folder is None else read_run_config(folder.config)
    flags = make_train_flags({**config, **overrides})
    return SavedNetwork(weights, folder, flags)


def open_network(
    saved: SavedNetwork, place: Place, *, explains: bool = False
) -> tuple[Trainer, run_folder.Facts, Preparation]:
    """Return a trainer that holds the weights, and what its images are and go through."""
    if saved.folder is not None:
        facts = run_folder.read_facts(saved.folder)
    else:
        size, model = saved.flags.image_size, models.get(saved.flags.model.model_name)
        count = saved.flags.dataset.num_classes or model.num_classes
        names = tuple(f"class {number}" for number in range(count))
        facts = run_folder.Facts((size, size, model.num_channels), None, names)
    preparation = choose_preparation(saved.flags, saved.weights)
    height, width, channels = facts.image_shape
    shape = Shape(
        image_shape=(height, width, channels),
        num_classes=len(facts.class_names),
        preprocessing=preparation.preprocessing,
    )
    return load_network(saved, shape, place, explains=explains), facts, preparation


def load_network(
    saved: SavedNetwork, shape: Shape, place: Place = None, *, explains: bool = False
) -> Trainer:
    """Return a trainer that holds the weights, for `test` and `infer`.

    With `explains`, `infer` also says where the network looks, as `Classifier.explain_program`.
    """
    size = shape.image_shape[0]
    network = make_network(saved.flags, shape)
    with name_smallest_size(network.model, size):
        weights = read_weights(saved.weights, network.model, size)
    # Else four tenths of a random head's cross entropy would be in the loss, and say nothing.
    if weights.optional:
        network = make_network(saved.flags, shape, counts_auxiliary=False)
    trainer = Trainer(
        network.train_program,
        infer_func=network.explain_program if explains else network.infer_program,
        place=place,
        precision=saved.flags.performance.make_precision(),
    )
    # All of them, whatever scopes the run itself was to leave out.
    _, misfit = load_weights(trainer, weights, saved.flags, shape)
    if misfit is not None:
        raise ValueError(
            f"--num_classes got {shape.num_classes}, expected that of the weights {misfit}. Those "
            "of 1001 have a background class first: --num_classes=1001 --labels_offset=-1."
        )
    notes = list(weights.notes)
    if weights.optional:
        notes.append(
            f"no weights for the auxiliary head ({len(weights.optional)} arrays): it is left "
            "initial and out of the loss"
        )
    is_checkpoint = saved.weights.is_dir() and not (saved.weights / _parameters.DATA_FILE).exists()
    if is_checkpoint and saved.flags.optimizer.moving_average_decay is not None:
        notes.append(
            f"{saved.weights} is a checkpoint: its parameters are used, not their moving average, "
            "which a run's `params` and `best` hold."
        )
    for note in notes if is_writing_process() else ():
        print(escape(note), file=sys.stderr)
    return trainer
