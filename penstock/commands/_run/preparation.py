"""Which preprocessing a run has: what was asked for, that of its weights, or the network's own."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock import _parameters, models, preprocessing
from penstock.commands._flags import TrainFlags
from penstock.commands._run.folder import RunFolder, find_run_folder
from penstock.commands._run.weights import find_weights
from penstock.models._weight_preprocessing import preprocessing_of as preprocessing_of_file
from penstock.preprocessing import Preprocessing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preparation:
    """How the images of a run are prepared.

    Arguments:
      preprocessing: what does it.
      name: of it, for `--preprocessing_name`.
      said: which it is and why, in one line.
      is_worth_saying: that it is not simply the network's own.
    """

    preprocessing: Preprocessing
    name: str
    said: str
    is_worth_saying: bool

    @property
    def notes(self) -> tuple[str, ...]:
        """What a run says among its first lines."""
        return (self.said,) if self.is_worth_saying else ()


def preparation_of(flags: TrainFlags, weights: Path | None = None) -> Preparation:
    """Choose a run's preprocessing: the flag, else that of its weights, else the network's own.

    Arguments:
      weights: what it starts from or evaluates; None for initial values.

    Raises:
      ValueError: FastNN has none for the network, and is to be followed.
      UnknownNameError: the weights want one that is not registered here.
    """
    carried = None if weights is None else carried_by(weights, models.get(flags.model.model_name))
    asked, own = flags.preprocessing.preprocessing_name, _own_name(flags)
    if carried is not None and asked in (None, _name(carried)) and not _follows_fastnn(flags):
        said = f"images: {show(carried)}, which the weights were trained with"
        return Preparation(
            preprocessing=carried, name=_name(carried), said=said, is_worth_saying=True
        )
    name = asked or own
    chosen = preprocessing.get(name)
    why = "FastNN's for the network" if _follows_fastnn(flags) else "the network's own"
    said = f"images: {name}, {why if asked is None else 'as --preprocessing_name asks'}"
    if carried is None or carried == chosen:
        return Preparation(preprocessing=chosen, name=name, said=said, is_worth_saying=False)
    said += f", though the weights were trained with {show(carried)}"
    return Preparation(preprocessing=chosen, name=name, said=said, is_worth_saying=True)


def starting_weights(flags: TrainFlags) -> Path | None:
    """Return what a fine-tuning starts from; None for initial values, or where there is nothing.

    Where its weights are gone it is the run's own folder, which goes on without them.
    """
    if flags.model.task_type == "pretrain":
        return None
    try:
        return find_weights(flags.model.model_dir, flags.model.ckpt_file_name)
    except FileNotFoundError:
        name = f"{flags.dataset.dataset_name}_{flags.model.model_name}"
        path = flags.logging.checkpointDir or Path(flags.logging.output_dir) / "runs" / name
        return Path(path) if RunFolder(Path(path)).data.exists() else None


def carried_by(weights: Path, model: models.Model) -> Preprocessing | None:
    """Return the preprocessing that belongs to weights; None where nothing says it.

    Arguments:
      weights: parameters, a checkpoint, the folder of a run, or a file of others.

    Raises:
      UnknownNameError: it is not registered here.
    """
    if not weights.is_dir():
        return preprocessing_of_file(model, weights)
    description = _parameters.read_about(weights).get("preprocessing") or _of_run(weights)
    return None if description is None else preprocessing.restore(description)


def about_weights(chosen: Preprocessing, left_initial: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return what a folder of parameters says beside them.

    Arguments:
      left_initial: entries that the weights did not have.
    """
    about: dict[str, Any] = {"preprocessing": preprocessing.describe(chosen)}
    return about | ({"left_initial": list(left_initial)} if left_initial else {})


def show(chosen: Preprocessing) -> str:
    """Return a preprocessing as people read it.

    >>> show(preprocessing.Vgg(resize_side_min=300))
    'vgg (resize_side_min=300)'
    """
    description = preprocessing.describe(chosen)
    options = ", ".join(f"{name}={value}" for name, value in description["options"].items())
    return f"{description['name']} ({options})" if options else description["name"]


def _name(chosen: Preprocessing) -> str:
    return preprocessing.describe(chosen)["name"]


def _of_run(weights: Path) -> Mapping[str, Any] | None:
    folder = find_run_folder(weights)
    try:
        return None if folder is None else _read(folder).get("preprocessing")
    except (OSError, ValueError, AttributeError):
        return None


def _read(folder: RunFolder) -> Any:
    return json.loads(folder.data.read_text(encoding="utf-8"))


def _follows_fastnn(flags: TrainFlags) -> bool:
    return flags.fastnn_compat and flags.preprocessing.preprocessing_name is None


def _own_name(flags: TrainFlags) -> str:
    """Return the name of the network's own preprocessing, or of FastNN's for it."""
    model_name = flags.model.model_name
    if flags.fastnn_compat and model_name.startswith("resnet_v2_"):
        return "vgg"  # though the published weights were trained with inception's
    if _follows_fastnn(flags) and model_name == "nasnet_cifar":
        raise ValueError(
            "--preprocessing_name got none for nasnet_cifar, expected cifarnet: FastNN has no "
            "entry for the network, and --fastnn_compat=True keeps to that."
        )
    return models.get(model_name).preprocessing
