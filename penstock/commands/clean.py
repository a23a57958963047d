"""`penstock clean`: images whose label a network doubts that has not been trained on them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock import Trainer, handlers, readers
from penstock._files import can_write
from penstock._text_tables import escape, print_table
from penstock.commands._argument_parser import option, parse, positional
from penstock.commands._failures import UsageError, check_numbers, command
from penstock.commands._flags import choose_flags, make_train_flags, read_run_config
from penstock.commands._image_folders import SplitName
from penstock.commands._run.announce import format_count
from penstock.commands._run.data import open_for_evaluation
from penstock.commands._run.plan import Plan, make_plan
from penstock.commands._run.splits import BatchReader, find_root
from penstock.commands._run.training import load_start, make_trainer, read_start
from penstock.commands._run_folder import folder as run_folder
from penstock.commands._run_folder.folder import DoubtedImage
from penstock.commands._run_folder.runs import find_run_path, write_rows

_EXAMPLES = """examples:
  penstock clean runs/photos_resnet_cifar10_8
  penstock clean photos --folds=5 --num_epochs=20 --output=doubted.csv

It trains the run's network again for each fold, with the run's flags, or those
given here. Read the list from the top, where wrong labels gather."""
_FROM_TRAIN = choose_flags(
    "dataset_dir", "num_epochs", "stop_at_step", "batch_size", "learning_rate", "seed"
)
_NUM_SHOWN = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class CleanFlags:
    """List a run's images, those first whose label its network doubts most.

    The images to train on are dealt into folds. The network is trained on all folds but one, and
    asked about that one, so that it says nothing of an image that it has learned by heart. Of the
    other images, all of these networks are asked.

    Arguments:
      run: the folder of a run.
      folds: how many times to train.
      output: the list, a CSV file; by default doubted.csv in the run's folder.
    """

    run: str = positional("RUN")
    folds: int = 3
    output: str | None = option("FILE", None)

    def __post_init__(self) -> None:
        check_numbers(self, "folds>=2")


@command()
def run(argv: list[str]) -> None:
    """Run `penstock clean` with the arguments after the command's name."""
    flags, overrides = parse(CleanFlags, argv, epilog=_EXAMPLES, extra=_FROM_TRAIN)
    folder = run_folder.find_run_folder(find_run_path(flags.run))
    if folder is None:
        raise UsageError(
            f"got {flags.run!r}, expected the folder of a run, which says how to train "
            "its network again. `penstock runs` lists them."
        )
    output = Path(flags.output) if flags.output else folder.doubted
    # Now, and not when all folds are trained.
    if output.is_dir() or not output.parent.is_dir() or not can_write(output):
        raise UsageError(
            f"--output got {str(output)!r}, expected a file in a folder that can be written to. "
            "The list goes there. Name another."
        )
    config = {**read_run_config(folder.config), **overrides, "checkpointDir": str(folder.path)}
    plan = make_plan(make_train_flags(config))
    own, own_reader = _open(plan, "train")
    # The splits that are not trained on, each part of the data once.
    parts: dict[SplitName, object] = {"validation": plan.data.test, "test": plan.data.final_test}
    tests = [_open(plan, split) for split, reader in parts.items() if reader is not None]
    all_readers: list[Any] = [plan.data.train, own_reader]
    pairs = zip(*(readers.folds(r, flags.folds, by="label") for r in all_readers), strict=True)
    rows: list[tuple[float, DoubtedImage]] = []
    means: list[Any] = [0] * len(tests)
    builder = make_trainer(plan).builder  # of all folds: it compiles once
    for number, ((train, _), (_, held_out)) in enumerate(pairs, start=1):
        trainer = Trainer(builder, seed=plan.flags.performance.seed)
        _train(trainer, plan, train)
        labels, answers = _ask(trainer, held_out)
        rows += _doubt(plan, [own[row] for row in held_out.order.chosen], labels, answers)
        accuracy = np.mean(answers.argmax(axis=1) == labels)
        print(f"fold {number} of {flags.folds}: accuracy {accuracy:.2%}", flush=True)
        for place, (names, reader) in enumerate(tests):
            labels, answers = _ask(trainer, reader)
            means[place] = means[place] + answers / flags.folds
            if number == flags.folds:
                rows += _doubt(plan, names, labels, means[place])
    rows.sort()
    write_rows(output, [run_folder.DOUBTED_HEAD, *(row for _, row in rows)])
    print()
    shown = [tuple(map(escape, row)) for _, row in rows[:_NUM_SHOWN]]
    print_table(run_folder.DOUBTED_HEAD, shown, right={3, 4})
    wrong = format_count(sum(margin < 0 for margin, _ in rows), "image")
    print(f"\n{wrong} of {len(rows):,} taken for another class. The list: {escape(str(output))}")


def _open(plan: Plan, split: SplitName) -> tuple[list[str], BatchReader]:
    """Return the names of images to ask about, and a reader that gives them as they are tested."""
    num_devices = max(plan.data.batch_size // plan.flags.model.device_batch_size, 1)
    data, reader, number = open_for_evaluation(
        plan.flags, split, plan.folder.path, num_devices=num_devices
    )
    # Now too: without one of them, the others' answers would be those of the images before.
    if lost := number - sum(len(batch["label"]) for batch in reader()):
        raise ValueError(
            f"got {lost:,} of {number:,} images that cannot be decoded, expected none. The list "
            "has one row for each. Remove those that are named above."
        )
    if data.test_files is None:
        return [f"{data.test_part}#{n}" for n in range(number)], reader
    # Without parts all are named in one folder.
    is_part = (find_root(plan.flags.dataset) / data.test_part).is_dir()
    prefix = f"{data.test_part}{os.sep}" if data.test_part and is_part else ""
    return [f"{prefix}{name}" for name in data.test_files], reader


def _train(trainer: Trainer, plan: Plan, reader: readers.Reader[Any]) -> None:
    """Train a network as the run's was, on other images."""
    load_start(trainer, plan, read_start(plan))
    # As many steps, of fewer images: the schedule of the learning rate is one of steps.
    steps = plan.length.num_steps
    trainer.train(reader, handlers.StopAt(step=steps), num_epochs=steps)


def _ask(trainer: Trainer, reader: readers.Reader[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels of a part `[N]`, and the probabilities of the classes `[N, C]`."""
    columns = trainer.predict_all(reader, keep=["label"])
    return np.asarray(columns["label"]).reshape(-1), np.asarray(columns["output"])


def _doubt(
    plan: Plan, names: Sequence[str], labels: np.ndarray, answers: np.ndarray
) -> list[tuple[float, DoubtedImage]]:
    """Return rows of the list, and how much likelier each label is than any other class."""
    classes = plan.data.facts.class_names
    rows: list[tuple[float, DoubtedImage]] = []
    for name, label, answer in zip(names, labels.tolist(), answers, strict=True):
        other = int(np.argmax(np.where(np.arange(len(answer)) == label, -1, answer)))
        numbers = f"{answer[other]:.4f}", f"{answer[label]:.4f}"
        margin = float(answer[label] - answer[other])
        rows.append((margin, DoubtedImage(name, classes[label], classes[other], *numbers)))
    return rows
