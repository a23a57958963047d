"""The preprocessing of a run: a flag's, that of its weights, or the network's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from penstock import _parameters, models, preprocessing
from penstock.commands._flags import TrainFlags
from penstock.commands._run_folder.folder import (
    RunFolder,
    find_run_folder,
    find_weights,
    read_facts,
)
from penstock.models import weights as weight_files
from penstock.preprocessing import Preprocessing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preparation:
    """How the images of a run are prepared, and why so.

    Arguments:
      name: of the preprocessing, for `--preprocessing_name`.
      summary: its name and where it comes from, in one line.
      is_noteworthy: whether it is another than the network's own.
    """

    preprocessing: Preprocessing
    name: str
    summary: str
    is_noteworthy: bool

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about it for the first lines of a run."""
        return (self.summary,) if self.is_noteworthy else ()


def choose_preparation(flags: TrainFlags, weights: Path | None = None) -> Preparation:
    """Choose a run's preprocessing: the flag, else that of its weights, else the network's own.

    Arguments:
      weights: what it starts from or evaluates; None for initial values.

    Raises:
      ValueError: with `--fastnn_compat`, where FastNN has none for the network.
      UnknownNameError: the weights name one that is not registered here.
    """
    asked, follows_fastnn = flags.preprocessing.preprocessing_name, _follows_fastnn(flags)
    model, own = models.get(flags.model.model_name), _choose_own_name(flags)
    of_weights = None if weights is None else find_preprocessing(weights, model)
    shown = "" if of_weights is None else format_preprocessing(of_weights)
    if of_weights is not None and asked in (None, _get_name(of_weights)) and not follows_fastnn:
        return Preparation(
            preprocessing=of_weights,
            name=_get_name(of_weights),
            summary=f"images: {shown}, which the weights were trained with",
            is_noteworthy=True,
        )
    name = asked or own
    chosen = preprocessing.get(name)
    why = "FastNN's for the network" if follows_fastnn else "the network's own"
    summary = f"images: {name}, {why if asked is None else 'as --preprocessing_name asks'}"
    is_other = of_weights is not None and of_weights != chosen
    if is_other:
        summary += f", though the weights were trained with {shown}"
    return Preparation(preprocessing=chosen, name=name, summary=summary, is_noteworthy=is_other)


def find_starting_weights(flags: TrainFlags) -> Path | None:
    """Return the path of the weights that a fine-tuning starts from; None without any.

    Where they are gone it is the run's own folder: a run goes on without them.
    """
    if flags.model.task_type == "pretrain":
        return None
    try:
        return find_weights(flags.model.model_dir, flags.model.ckpt_file_name)
    except FileNotFoundError:
        name = f"{flags.dataset.title}_{flags.model.model_name}"
        path = flags.logging.checkpointDir or Path(flags.logging.output_dir) / "runs" / name
        return Path(path) if RunFolder(Path(path)).data.exists() else None


def find_preprocessing(weights: Path, model: models.Model) -> Preprocessing | None:
    """Return the preprocessing that belongs to weights; None where nothing says it.

    Arguments:
      weights: parameters, a checkpoint, the folder of a run, or a file of others.

    Raises:
      UnknownNameError: it is not registered here.
    """
    if not weights.is_dir():
        return weight_files.find_preprocessing(model, weights)
    description = _parameters.read_about(weights).get("preprocessing") or _read_from_run(weights)
    return None if description is None else preprocessing.restore(description)


def describe_weights(
    chosen: Preprocessing, left_initial: tuple[str, ...] = ()
) -> dict[str, object]:
    """Return the description that is saved with parameters.

    Arguments:
      left_initial: entries that the weights did not have.
    """
    about: dict[str, object] = {"preprocessing": preprocessing.describe(chosen)}
    return about | ({"left_initial": list(left_initial)} if left_initial else {})


def format_preprocessing(chosen: Preprocessing) -> str:
    """Return a preprocessing as text: its name, and the options that are not its defaults.

    >>> format_preprocessing(preprocessing.Vgg(resize_side_min=300))
    'vgg (resize_side_min=300)'
    """
    description = preprocessing.describe(chosen)
    options = ", ".join(f"{name}={value}" for name, value in description["options"].items())
    return f"{description['name']} ({options})" if options else description["name"]


def _get_name(chosen: Preprocessing) -> str:
    return preprocessing.describe(chosen)["name"]


def _read_from_run(weights: Path) -> Mapping[str, object] | None:
    """Return the preprocessing that the folder of the weights' run describes."""
    folder = find_run_folder(weights)
    try:
        return None if folder is None else read_facts(folder).preprocessing
    # A damaged description: the network's own will do.
    except (OSError, ValueError, KeyError):
        return None


def _follows_fastnn(flags: TrainFlags) -> bool:
    return flags.fastnn_compat and flags.preprocessing.preprocessing_name is None


def _choose_own_name(flags: TrainFlags) -> str:
    """Return the name of the network's own preprocessing, or of FastNN's for it."""
    model_name = flags.model.model_name
    if flags.fastnn_compat and model_name.startswith("resnet_v2_"):
        # FastNN's choice, though the published weights were trained with inception's.
        return "vgg"
    if _follows_fastnn(flags) and model_name == "nasnet_cifar":
        raise ValueError(
            "--preprocessing_name got none for nasnet_cifar, expected cifarnet: FastNN has no "
            "entry for the network, and --fastnn_compat=True keeps to that."
        )
    return models.get(model_name).preprocessing
