"""`penstock eval`: how well a trained network does on a split of its data, class by class."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from penstock import Trainer
from penstock.commands._flags import parse
from penstock.commands._run._announce import shown
from penstock.commands._run._confusion import confusion_of, draw_confusion, print_classes
from penstock.commands._run._data import Data, open_split
from penstock.commands._run._failures import run_command
from penstock.commands._run._trained import find, trained

PROG = "penstock eval"
_EXAMPLES = """examples:
  penstock eval runs/digits_lenet
  penstock eval runs/digits_lenet/checkpoints/100 --split=train
  penstock eval resnet_v1_50.ckpt --model_name=resnet_v1_50 --dataset_name=image_folder \\
      --dataset_dir=photos --num_classes=1000

The first word is the folder of a run, of parameters or of checkpoints, or a file of TF-Slim, Keras
or torch. A run's flags are those it was trained with; flags given here replace them."""
_OWN = ("split", "plot", "json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalFlags:
    """What `penstock eval` is asked for; without a value a flag is as in training.

    Arguments:
      split: test or train.
      plot: where the confusion matrix goes, a .png, .svg or .pdf; confusion.png in the run's folder
        without it, and empty for none.
      json: print it for programs to read.
      dataset_name: as in penstock train.
      dataset_dir: as in penstock train.
      train_files: as in penstock train.
      eval_files: as in penstock train.
      num_classes: as in penstock train.
      labels_offset: as in penstock train.
      model_name: as in penstock train.
      preprocessing_name: as in penstock train.
      train_image_size: as in penstock train.
      batch_size: as in penstock train; it changes the speed alone.
      num_preprocessing_threads: as in penstock train.
      skip_damaged: as in penstock train.
      plugin: as in penstock train.
      fastnn_compat: as in penstock train.
    """

    split: str = "test"
    plot: str | None = None
    json: bool = False
    dataset_name: str | None = None
    dataset_dir: str | None = None
    train_files: str | None = None
    eval_files: str | None = None
    num_classes: int | None = None
    labels_offset: int | None = None
    model_name: str | None = None
    preprocessing_name: str | None = None
    train_image_size: int | None = None
    batch_size: int | None = None
    num_preprocessing_threads: int | None = None
    skip_damaged: bool = False
    plugin: str | None = None
    fastnn_compat: bool = False

    def __post_init__(self) -> None:
        """Check the values."""
        from penstock.commands._flags._checks import check_choice

        check_choice("split", self.split, ("test", "train"))


def run(argv: list[str]) -> int:
    """Run `penstock eval` with the arguments after the command's name.

    Returns:
      The exit status: 0, 1 when it failed, 2 when it was called wrongly.
    """
    return run_command("eval", lambda: _evaluate(argv))


def _evaluate(argv: list[str]) -> None:
    flags, given, paths = parse(
        EvalFlags,
        argv,
        prog=PROG,
        defaults={"": EvalFlags},
        epilog=_EXAMPLES,
        takes_paths=True,
    )
    found = find(PROG, paths, {name: text for name, text in given.items() if name not in _OWN})
    batch_size = _batch_size(found.flags.model.batch_size)
    data, reader, num_images = open_split(
        found.flags, flags.split, found.weights, batch_size=batch_size
    )
    if data.preparation is not None:
        print(data.preparation.said, file=sys.stderr if flags.json else sys.stdout)
    trainer = trained(found, data.shape)
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    metrics = trainer.test(lambda: _noted(reader, trainer, pairs))
    matrix = confusion_of(pairs, data.shape.num_classes)
    name = found.flags.dataset.dataset_name
    if flags.json:
        counts = {"split": flags.split, "images": num_images, "confusion": matrix.tolist()}
        names = {"class_names": list(data.class_names)}
        print(json.dumps({"weights": str(found.weights), **metrics, **counts, **names}))
    else:
        print(f"{found.weights} on {num_images:,} images, the {flags.split} split of {name}:")
        print(f"{shown(metrics)}\n")
        print_classes(matrix, data.class_names)
    _plot(flags, found.folder, matrix, data)


def _batch_size(per_device: int) -> int:
    import jax

    return per_device * jax.device_count()


def _noted(
    reader: Any, trainer: Trainer, pairs: list[tuple[np.ndarray, np.ndarray]]
) -> Iterator[Any]:
    """Yield the batches of a reader, noting labels and predictions: images are decoded once."""
    for batch in reader:
        probabilities = trainer.infer({"image": batch["image"]})
        pairs.append((np.array(batch["label"]), np.asarray(probabilities).argmax(axis=-1)))
        yield batch


def _plot(flags: EvalFlags, folder: Any, matrix: np.ndarray, data: Data) -> None:
    if flags.plot == "" or (flags.plot is None and folder is None):
        return
    path = Path(flags.plot) if flags.plot is not None else folder.path / "confusion.png"
    try:
        draw_confusion(path, matrix, data.class_names)
    except ModuleNotFoundError as error:
        if flags.plot is not None:
            raise
        said = f"no {path}: {error}"
    else:
        said = f"the confusion matrix is in {path}"
    if not flags.json:
        print(f"\n{said}")
