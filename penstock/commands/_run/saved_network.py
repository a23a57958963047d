"""A saved network, found by a path: a run's folder, parameters, a checkpoint, others' weights."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock import Trainer
from penstock._parameters import DATA_FILE
from penstock.commands._checks import UsageError
from penstock.commands._flags import ModelFlags, TrainFlags, make_train_flags
from penstock.commands._run.folder import RunFolder, find_run_folder
from penstock.commands._run.network import (
    Shape,
    last_layers,
    name_smallest_size,
    network_of,
    precision_of,
)
from penstock.commands._run.weights import find_weights, load_weights, read_entries


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedNetwork:
    """Where the weights of a network lie, and how it was trained.

    Arguments:
      weights: their folder or file.
      folder: the run's folder; None for weights of others.
      flags: those of the run, with the flags that are given now in their place.
    """

    weights: Path
    folder: RunFolder | None
    flags: TrainFlags


def find_network(prog: str, run: str | None, given: Mapping[str, Any]) -> SavedNetwork:
    """Find the weights that a path names, and the flags of their run.

    Arguments:
      prog: the command.
      run: the path on the command line; None where there is none.
      given: flags of `penstock train`, by name, which replace those of the run.

    Raises:
      UsageError: no path, or no run there and no `--model_name`.
      FileNotFoundError: nothing is there.
    """
    if run is None:
        raise UsageError(
            f"{prog} got no run, expected the folder of one, of parameters or of checkpoints, such "
            f"as `{prog} runs/digits_lenet`."
        )
    path = Path(run)
    weights = find_weights(str(path.parent), path.name) if path.name else path
    folder = find_run_folder(weights)
    if folder is None and "model_name" not in given:
        raise UsageError(
            f"{run!r} got weights without a config.json beside them, expected --model_name, "
            "and --dataset_name where it is to be evaluated."
        )
    config = {} if folder is None else {"config": str(folder.config)}
    return SavedNetwork(weights=weights, folder=folder, flags=make_train_flags(config | {**given}))


def load_network(found: SavedNetwork, shape: Shape) -> Trainer:
    """Return a trainer that holds the weights, for `test` and `infer`.

    Raises:
      ParameterError: they are of another network.
      ValueError: they tell another number of classes apart.
    """
    size = shape.image_shape[0]
    network = network_of(found.flags, shape)
    with name_smallest_size(network.model, size):
        entries = read_entries(found.weights, network.model, size)
    if entries.optional:  # a head without weights would be a random share of the loss
        network = network_of(found.flags, shape, counts_auxiliary=False)
    trainer = Trainer(
        network.train_program,
        infer_func=network.infer_program,
        precision=precision_of(found.flags.performance),
    )
    lines = load_weights(
        trainer,
        found.weights,
        ModelFlags(model_name=found.flags.model.model_name),
        model=network.model,
        image_size=size,
        last_layers=lambda: last_layers(found.flags, shape, trainer),
        entries=entries,
    )
    for note in entries.notes:
        print(note, file=sys.stderr)
    if entries.optional:
        print(
            f"no weights for the auxiliary head ({len(entries.optional)} arrays): it is left "
            "initial and out of the loss",
            file=sys.stderr,
        )
    is_checkpoint = found.weights.is_dir() and not (found.weights / DATA_FILE).exists()
    if is_checkpoint and found.flags.optimizer.moving_average_decay is not None:
        print(
            f"{found.weights} is a checkpoint: its parameters are used, not their moving average, "
            "which a run's `params` and `best` hold.",
            file=sys.stderr,
        )
    misfit = [line for line in lines if line.startswith("last layers")]
    if misfit:
        raise ValueError(
            f"--num_classes got {shape.num_classes}, expected that of the weights: "
            f"{misfit[0].removeprefix('last layers left initial ')}. Weights of 1001 classes have "
            "a background class first: --num_classes=1001 --labels_offset=-1."
        )
    return trainer
