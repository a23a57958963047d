"""A trained network, found by a path: a run's folder, parameters, a checkpoint, others' weights."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path

from penstock import Trainer, models
from penstock._errors import nearest
from penstock._parameters import DATA_FILE
from penstock.commands._flags import ModelFlags, TrainFlags, UsageError, fastnn_defaults, parse
from penstock.commands._run import _folder, _weights
from penstock.commands._run._folder import RunFolder
from penstock.commands._run._network import (
    Shape,
    last_layers,
    name_smallest_size,
    network_of,
    precision_of,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """Where weights lie, and what is known of the run they are of.

    Arguments:
      weights: the folder or file.
      folder: of the run; None for weights of others.
      flags: of the run, with what was given now in their place.
    """

    weights: Path
    folder: RunFolder | None
    flags: TrainFlags


def find(prog: str, paths: list[str], given: Mapping[str, str]) -> Found:
    """Find the weights that the first path names, and the flags of their run.

    Arguments:
      prog: the command.
      paths: words of the command line; the first is the run.
      given: flags of `penstock train` that replace those of the run.

    Raises:
      UsageError: no path, or no run there and no `--model_name`.
      FileNotFoundError: there is nothing.
    """
    if not paths:
        raise UsageError(
            f"{prog} got no run, expected the folder of one, of parameters or of checkpoints, such "
            f"as `{prog} runs/digits_lenet`."
        )
    path = Path(paths[0])
    weights = _weights.weights_path(str(path.parent), path.name) if path.name else path
    folder = _folder.run_folder_of(weights)
    if folder is None and "model_name" not in given:
        raise UsageError(
            f"{paths[0]!r} got weights without a config.json beside them, expected --model_name, "
            "and --dataset_name where it is to be evaluated."
        )
    words = [] if folder is None else [f"--config={folder.config}"]
    words += [f"--{name}={text}" for name, text in given.items()]
    defaults = {"": TrainFlags, "fastnn_compat": fastnn_defaults}
    return Found(
        weights=weights,
        folder=folder,
        flags=parse(TrainFlags, words, prog=prog, defaults=defaults)[0],
    )


def trained(found: Found, shape: Shape) -> Trainer:
    """Return a trainer that holds the weights, for `test` and `infer`.

    Raises:
      ParameterError: they are of another network.
      ValueError: they tell another number of classes apart.
    """
    size = shape.image_shape[0]
    network = network_of(found.flags, shape)
    with name_smallest_size(network.model, size):
        entries = _weights.read_entries(found.weights, network.model, size)
    if entries.optional:  # a head without weights would be a random share of the loss
        network = network_of(found.flags, shape, counts_auxiliary=False)
    trainer = Trainer(
        network.train_program,
        infer_func=network.infer_program,
        precision=precision_of(found.flags.performance),
    )
    lines = _weights.load_weights(
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


def model_named(name: str) -> models.Model:
    """Return a network.

    Raises:
      UsageError: there is none of that name.
    """
    if name not in (known := models.names()):
        raise UsageError(f"--model_name got {name!r}.{nearest(name, known)}")
    return models.get(name)
