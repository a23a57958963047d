"""The folder of a run: which one it is, and what is in it."""

from __future__ import annotations

import contextlib
import itertools
import json
import shlex
from argparse import ArgumentTypeError
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from penstock._checkpoint import CheckpointConfig, Store
from penstock._errors import listed, nearest
from penstock._files import replacing
from penstock._parameters import DATA_FILE
from penstock.commands._argument_parser import FlagValue
from penstock.commands._flags import TRAIN_FLAGS, read_value
from penstock.commands._image_folders import PARTS, has_images, has_parts
from penstock.commands._run_folder import runs
from penstock.readers.convert.slim import read_labels, write_labels

# Flags that change the test data: results on other data cannot be compared.
_TEST_DATA = ("dataset_name", "eval_files", "labels_offset")
# Flags that change the data to train on. A run may go on with it, as where it has been moved.
_TRAIN_DATA = ("dataset_dir", "train_files")
_COUNTS = {"num_train": "train on", "num_test": "test on", "num_final_test": "test on at the end"}
# How many classes or flags a sentence names.
_MOST_NAMED = 3


class RunFolder:
    """Paths in the folder of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"  # the flags, as `--config` takes them
        self.data = path / "data.json"  # the shapes of the images and their preprocessing
        self.checkpoints = path / "checkpoints"
        self.params = path / "params"  # the last parameters
        self.best = path / "best"  # the parameters of the best test
        self.log = path / "log.csv"  # the metrics, a row for each reading
        self.profile = path / "profile"  # traces
        self.record = path / "run.json"  # what `Record` writes
        self.replaced = path / "replaced"  # the run before, kept until this one is over
        self.explanations = path / "explained"  # the pictures of `penstock predict --explain`
        self.samples = path / "samples"  # images to try the network on, of a run on digits
        self.doubted = path / "doubted.csv"  # the list of `penstock clean`
        self.answers = path / "answers.npz"  # of `penstock eval`, which `compare` compares

    def find_weights(self) -> Path | None:
        """Return where the network's weights are: the best, the last, or the checkpoints."""
        candidates = (self.best, self.params, self.checkpoints)
        return next((path for path in candidates if has_weights(path)), None)

    def list_made(self) -> list[Path]:
        named = [path for path in vars(self).values() if path != self.path]
        named += [self.path / name for name in ("labels.txt", "confusion.png", "report.html")]
        # Logs and best parameters of earlier runs: `log.csv.1`.
        earlier = [*self.path.glob("log.csv.*"), *self.path.glob("best.*")]
        named += [path for path in earlier if path.suffix[1:].isdigit()]
        return [path for path in named if path.exists() or path.is_symlink()]


class SavedAnswers(NamedTuple):
    """What a network said of the images of a split, `[N]` each, in the order of its reader.

    `names` tells other images of the same labels, see `Split.names_digest`; empty without names.
    """

    split: str
    names: str
    label: np.ndarray
    predicted: np.ndarray


def write_answers(folder: RunFolder, answers: SavedAnswers) -> None:
    """Write answers into a run's folder, as far as it can be written to."""
    with (
        contextlib.suppress(OSError),
        replacing(folder.answers) as temporary,
        temporary.open("wb") as file,
    ):
        np.savez_compressed(file, **answers._asdict())


def read_answers(path: Path) -> SavedAnswers | None:
    """Return the answers in the folder of a run; None where there are none that can be read."""
    try:
        with RunFolder(path).answers.open("rb") as stored, np.load(stored) as file:
            texts = str(file["split"]), str(file["names"])
            return SavedAnswers(*texts, file["label"], file["predicted"])
    # What zipfile, zlib and numpy raise for damage has no class in common.
    except Exception:
        return None


class DoubtedImage(NamedTuple):
    """An image of the list of `penstock clean`; probabilities as text of four digits."""

    image: str
    label: str
    taken_for: str
    its_probability: str
    that_of_the_label: str


DOUBTED_HEAD = tuple([name.replace("_", " ") for name in DoubtedImage._fields])


def read_doubted(folder: RunFolder) -> list[DoubtedImage]:
    """Return the list in a run's folder, none where there is none that can be read."""
    head, *rows = runs.read_rows(folder.doubted) or [()]
    return [DoubtedImage(*row) for row in rows] if tuple(head) == DOUBTED_HEAD else []


class Facts(NamedTuple):
    """Facts about a run's data."""

    image_shape: tuple[int, ...]  # `[H, W, C]` that the network gets
    stored_shape: tuple[int, ...] | None  # of the images it was trained on, where all had one
    class_names: tuple[str, ...]
    preprocessing: Mapping[str, object] | None = None  # as `preprocessing.describe` has it
    num_train: int | None = None  # None where it is not known, or depends on the devices
    num_test: int | None = None
    num_final_test: int | None = None
    names_digests: tuple[str | None, ...] = ()  # of these three, where images are files
    auto_batch_size: int | None = None


class RunDescription(NamedTuple):
    """What a run writes into its folder, and compares with what is there."""

    config: Mapping[str, object]
    facts: Facts
    num_steps: int
    overwrites: bool
    saves_checkpoints: bool


def find_run_folder(path: Path) -> RunFolder | None:
    """Return the folder of a run that a path is, or is in; None where there is none."""
    # As far up as from a run's `checkpoints/100`.
    candidates = (path, *list(path.parents)[:2])
    return next(
        (RunFolder(folder) for folder in candidates if RunFolder(folder).data.exists()), None
    )


def has_weights(path: Path) -> bool:
    """Say whether a folder has parameters or checkpoints of penstock, or is a checkpoint."""
    if not path.is_dir():
        return False
    # A folder called like a step need not be one: another's, `2024`, may be empty.
    is_checkpoint = path.name.isdigit() and any(path.iterdir())
    return (path / DATA_FILE).is_file() or is_checkpoint or bool(list_steps(path))


def find_weights(model_dir: str | None, name: str | None) -> Path:
    """Return the folder or file of weights that flags name, else say what is there."""
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
    there = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    what = "a folder without weights" if path.is_dir() else "nothing"
    if run := runs.suggest_run(path):
        hint = f" {run}"
    elif path.is_dir() and has_images(path):
        hint = f" It holds images; to train on them: penstock train {shlex.quote(str(path))}."
    else:
        hint = nearest(path.name, there)
    raise FileNotFoundError(
        f"{str(path)!r} got {what}, expected parameters, checkpoints or a run of penstock, or a "
        f"file of TF-Slim, Keras or torch.{hint}"
    )


def list_steps(path: Path) -> list[int]:
    return Store(CheckpointConfig(directory=path)).steps()


def _list_runs(default: Path) -> Iterator[RunFolder]:
    """Yield the runs in the folders of a name: the default, and that with a number."""
    for number in itertools.count(1):
        folder = RunFolder(default if number == 1 else Path(f"{default}-{number}"))
        # A run that failed before it saved anything need not be kept.
        if folder.find_weights() is None:
            return
        yield folder


def choose_folder(default: Path, run: RunDescription) -> tuple[RunFolder, list[str]]:
    """Return the first folder that is free or the run's own: the default, or that with a number.

    The same command finds its folder again, unless the data have changed since. For a new run a
    sentence says how it differs from the last one, of the same flags if there is one.
    """
    by_data = by_flags = None
    taken = list(_list_runs(default))
    for folder in taken:
        changed = find_differences(folder, run.config)
        # How many classes there are was counted in the data.
        differing = {name: was for name, was in changed.items() if name != "num_classes"}
        if differing:
            parts = [f"--{name}={new} ({old} before)" for name, (old, new) in differing.items()]
            by_flags = ("flags differ from", folder, parts)
        elif run.overwrites or can_resume(folder, run):
            changes = [] if run.overwrites else find_changes(folder, run.facts)
            if changes:
                by_data = ("the data changed since", folder, changes)
            elif not changed:
                return folder, []
    free = RunFolder(Path(f"{default}-{len(taken) + 1}" if taken else default))
    if (reason := by_data or by_flags) is None:
        return free, []
    why, before, parts = reason
    more = [f"and {len(parts) - _MOST_NAMED} more"] * (len(parts) > _MOST_NAMED)
    what = "; ".join([*parts[:_MOST_NAMED], *more])
    return free, [f"this is a new run because {why} {before.path}: {what}"]


def recall_batch_size(named: str | None, default: Path, config: Mapping[str, object]) -> int | None:
    """Return what `--batch_size=auto` came to in the run that goes on; None for a new one.

    It is in the folder that a flag names, or has the default name and the same flags.
    """
    for folder in _list_runs(default) if named is None else [RunFolder(Path(named))]:
        with contextlib.suppress(OSError, ValueError):
            size = read_facts(folder).auto_batch_size
            differing = find_differences(folder, config).keys() - {"batch_size"}
            if folder.find_weights() and size is not None and (named or not differing):
                return size
    return None


def describe_differences(changed: Mapping[str, tuple[FlagValue, FlagValue]]) -> list[str]:
    return [f"--{name} was {old}, is {new}" for name, (old, new) in changed.items()]


def can_resume(folder: RunFolder, run: RunDescription) -> bool:
    """Say whether a folder's run has a checkpoint, or was killed before it had one."""
    return (
        run.saves_checkpoints if list_steps(folder.checkpoints) else not has_weights(folder.params)
    )


def check_usable(folder: RunFolder, run: RunDescription) -> None:
    """Raise unless a run may write into a folder."""
    if run.overwrites or folder.find_weights() is None:
        return
    changed, changes = find_differences(folder, run.config), find_changes(folder, run.facts)
    steps = list_steps(folder.checkpoints)
    is_over = bool(steps) and steps[-1] >= run.num_steps
    if "model_name" in changed:
        why = "It has another network, and its checkpoints do not fit"
    elif is_over and any(name in changed for name in _TRAIN_DATA):
        why = "That run is over, so the new data would not be read, and its results are of the old"
    elif any(name in changed for name in _TEST_DATA):
        why = "Its tests are of other data, and its best network would be compared with theirs"
    elif changes:
        why = "The data changed since that run, so its tests cannot be compared with new ones"
    elif can_resume(folder, run) and (steps or not changed):
        return
    elif steps:
        why = "CheckpointSaverHook is not among --hooks, so it cannot go on and would start again"
    else:
        why = "It has no checkpoint to go on from, and its best network would be replaced"
    was = "".join(f"; {change}" for change in [*describe_differences(changed), *changes])
    raise ValueError(
        f"--checkpointDir={str(folder.path)!r} got the folder of another run{was}; expected a new "
        f"one. {why}. Name another folder, or replace that run by --overwrite=True."
    )


def find_differences(
    folder: RunFolder, config: Mapping[str, object]
) -> dict[str, tuple[FlagValue, FlagValue]]:
    """Return which flags differ from those the folder's run had: before and now, by name."""
    try:
        before, _ = runs.read_flags(folder.path)
        values = {
            # Compared as values: the file's text may write a number in another way.
            name: (read_value(TRAIN_FLAGS[name], before[name]), read_value(TRAIN_FLAGS[name], now))
            for name, now in runs.flatten(config).items()
            # A flag that a folder does not know is newer than its run.
            if name not in (*runs.SILENT, *runs.DISPLAY) and name in before
        }
    # A description that cannot be read tells no difference.
    except (ValueError, ArgumentTypeError):
        return {}
    return {name: (old, new) for name, (old, new) in values.items() if old != new}


def find_changes(folder: RunFolder, facts: Facts) -> list[str]:
    try:
        before = read_facts(folder)
    # A description that cannot be read tells no difference.
    except (OSError, ValueError):
        return []
    changes: list[str] = []
    old_names, new_names = before.class_names, facts.class_names
    if old_names != new_names:
        changes += _say_classes([name for name in old_names if name not in new_names], "gone")
        changes += _say_classes([name for name in new_names if name not in old_names], "new")
        changes = changes or ["the classes have another order"]
    if before.num_train is not None:
        for name, what in _COUNTS.items():
            old, new = (getattr(own, name) or 0 for own in (before, facts))
            # Of runs of before, which have two digests, the last is not known.
            is_told = name != "num_final_test" or len(before.names_digests) > 2
            is_other = old != new and is_told
            changes += [f"{new:,} images to {what} ({old:,} before)"] * is_other
    is_known = bool(before.names_digests) and not changes
    if is_known and before.names_digests != facts.names_digests[: len(before.names_digests)]:
        changes.append("some images have other names")
    return changes


def _say_classes(names: Sequence[str], how: str) -> list[str]:
    verb = "class {} is" if len(names) == 1 else "classes {} are"
    return [f"the {verb.format(listed(names, _MOST_NAMED))} {how}"] if names else []


def check_apart(folder: RunFolder, dataset_dir: str | None, *, has_classes: bool) -> None:
    """Raise where the run's files would lie among those of the data."""
    if dataset_dir is None:
        return
    mine, data = folder.path.resolve(), Path(dataset_dir).resolve()
    parts = [p for p in (data / "train", *(data / n for n in PARTS["test"])) if p.is_dir()]
    roots = parts if has_parts(data) else [data]
    is_class = has_classes and any(p in mine.parents for p in roots)
    if mine == data or mine in roots or is_class:
        what = "a class of images" if is_class else "files of the data set"
        raise ValueError(
            f"the run's folder got {str(folder.path)!r}, expected one outside of --dataset_dir="
            f"{dataset_dir!r}. The next run would take it for {what}. Choose another with "
            "--output_dir or --checkpointDir."
        )


def write_description(folder: RunFolder, run: RunDescription) -> None:
    """Make the folder, and write the flags of the run and the facts about its data there."""
    folder.path.mkdir(parents=True, exist_ok=True)
    with replacing(folder.config) as temporary:
        temporary.write_text(json.dumps(run.config, indent=1) + "\n", encoding="utf-8")
    write_labels(folder.path / "labels.txt", run.facts.class_names)
    # The names of the classes are in labels.txt.
    facts = {name: value for name, value in run.facts._asdict().items() if name != "class_names"}
    folder.data.write_text(json.dumps(facts) + "\n", encoding="utf-8")


def read_facts(folder: RunFolder) -> Facts:
    """Return what a run's folder says about its images and classes."""
    try:
        values = json.loads(folder.data.read_text(encoding="utf-8"))
        # Runs of before lack some of them.
        values = {name: values[name] for name in Facts._fields if name in values}
        tuples = {name: tuple(v) for name, v in values.items() if isinstance(v, list)}
        facts = Facts(**{**values, **tuples, "class_names": ()})
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"the run's {str(folder.data)!r} got text that is cut off or something else, expected "
            "what `penstock train` writes there. Repeat that `penstock train` to write it again."
        ) from error
    labels = read_labels(folder.path)
    return facts._replace(class_names=tuple(labels[number] for number in sorted(labels)))
