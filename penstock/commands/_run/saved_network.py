"""Networks that were saved before: runs, parameters, checkpoints, and weights of others."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from penstock import Trainer, models
from penstock._mesh import Place
from penstock._parameters import DATA_FILE
from penstock._text_tables import escape
from penstock.commands._argument_parser import FlagValue
from penstock.commands._failures import UsageError
from penstock.commands._flags import TrainFlags, make_train_flags, read_config
from penstock.commands._run.data import Preparation, choose_preparation
from penstock.commands._run.network import (
    Shape,
    find_image_size,
    load_weights,
    make_network,
    name_smallest_size,
    read_weights,
)
from penstock.commands._run.plan import make_precision
from penstock.commands._run.processes import is_writing_process
from penstock.commands._run_folder import folder as run_folder
from penstock.commands._run_folder.runs import find_run_path
from penstock.readers.images import SUFFIXES


class SavedNetwork(NamedTuple):
    """Where weights lie, with their run's folder, if they have one, and the flags for them."""

    weights: Path
    folder: run_folder.RunFolder | None
    flags: TrainFlags


def find_network(prog: str, run: str | None, overrides: Mapping[str, FlagValue]) -> SavedNetwork:
    """Find the weights that a path or a name names; overrides replace the flags of their run."""
    if run is None:
        raise UsageError(
            "got no run, expected the folder of one, of parameters or of checkpoints, such as "
            f"`{prog} runs/digits_lenet`."
        )
    path = find_run_path(run)
    weights = run_folder.find_weights(str(path.parent), path.name) if path.name else path
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
    config = {} if folder is None else read_config(folder.config)
    flags = make_train_flags({**config, **overrides})
    return SavedNetwork(weights, folder, flags)


def open_network(
    saved: SavedNetwork, place: Place, *, explains: bool = False
) -> tuple[Trainer, run_folder.Facts, Preparation]:
    """Return a trainer that holds the weights, and what its images are and go through."""
    if saved.folder is not None:
        facts = run_folder.read_facts(saved.folder)
    else:
        size, model = find_image_size(saved.flags), models.get(saved.flags.model.model_name)
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
        precision=make_precision(saved.flags.performance),
    )
    # All of them, whatever scopes the run itself was to leave out.
    _, misfit = load_weights(trainer, weights, saved.flags, shape)
    if misfit is not None:
        raise ValueError(
            f"--num_classes got {shape.num_classes}, expected that of the weights {misfit}. "
            "Weights of 1001 classes have a background class first: --num_classes=1001 "
            "--labels_offset=-1."
        )
    notes = list(weights.notes)
    if weights.optional:
        notes.append(
            f"no weights for the auxiliary head ({len(weights.optional)} arrays): it is left "
            "initial and out of the loss"
        )
    is_checkpoint = saved.weights.is_dir() and not (saved.weights / DATA_FILE).exists()
    if is_checkpoint and saved.flags.optimizer.moving_average_decay is not None:
        notes.append(
            f"{saved.weights} is a checkpoint: its parameters are used, not their moving average, "
            "which a run's `params` and `best` hold."
        )
    for note in notes if is_writing_process() else ():
        print(escape(note), file=sys.stderr)
    return trainer
