"""`penstock eval`: how well a trained network does on a split of its data, class by class."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

import jax
import numpy as np

from penstock import Trainer
from penstock._errors import check_installed
from penstock._folder_lock import is_in_use
from penstock._json_values import encode_json
from penstock._text_tables import escape, find_columns, print_table, wrap_clauses, wrap_words
from penstock.commands._argument_parser import option, parse, positional
from penstock.commands._failures import command, one_line
from penstock.commands._flags import choose_flags
from penstock.commands._image_folders import SplitName
from penstock.commands._run import processes
from penstock.commands._run.announce import format_count, format_metrics
from penstock.commands._run.data import Data, open_for_evaluation
from penstock.commands._run.network import SavedNetwork, find_network, load_network
from penstock.commands._run.splits import Batch, BatchReader, find_part
from penstock.commands._run_folder.folder import RunFolder, SavedAnswers, write_answers
from penstock.handlers.figures import check_path, save
from penstock.handlers.report import findings

# The names of more classes would cover each other, and so would counts.
_MAX_NAMED, _MAX_NUMBERS = 40, 20


def draw_confusion(path: Path, matrix: np.ndarray, names: Sequence[str]) -> None:
    """Draw the matrix as shares of each row, with the counts where they are few."""
    check_installed("matplotlib", "plot", "the confusion matrix")
    from matplotlib.figure import Figure

    size = min(4 + 0.35 * len(names), 18)
    figure = Figure(figsize=(size + 1, size), dpi=120, layout="constrained")
    axes = figure.subplots()
    # A class without images is a row of zeros.
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="share of the class", shrink=0.8)
    axes.set(xlabel="taken for", ylabel="class")
    if len(names) <= _MAX_NAMED:
        # Names of folders are no formulas.
        turned = 90 if len(names) > 10 else 45
        axes.set_xticks(range(len(names)), names, rotation=turned, parse_math=False)
        axes.set_yticks(range(len(names)), names, parse_math=False)
    if len(names) <= _MAX_NUMBERS:
        for (row, column), count in np.ndenumerate(matrix):
            if count:
                colour = "white" if shares[row, column] > 0.5 else "black"
                axes.text(column, row, str(count), ha="center", va="center", color=colour)
    save(figure, path)


_EXAMPLES = """examples:
  penstock eval runs/digits_lenet
  penstock eval runs/digits_lenet/checkpoints/100 --split=train
  penstock eval resnet_v1_50.ckpt --model_name=resnet_v1_50 \\
      --dataset_name=image_folder --dataset_dir=photos --num_classes=1000

A run's flags are those it was trained with; training options given here
replace them."""
_FROM_TRAIN = choose_flags(
    *("dataset_name", "dataset_dir", "train_files", "eval_files", "num_classes", "labels_offset"),
    *("model_name", "preprocessing_name", "train_image_size", "batch_size"),
    *("num_preprocessing_threads", "skip_damaged", "plugin", "fastnn_compat"),
)
# Other data are told by their labels and names.
_ANSWERS_CHANGE_WITH = ("model_name", "preprocessing_name", "train_image_size", "fastnn_compat")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalFlags:
    """Evaluate a trained network on a split of its data, class by class.

    Arguments:
      run: the folder of a run, of parameters or of checkpoints, or a file of TF-Slim, Keras or
        torch.
      split: the part of the data to evaluate on.
      plot: the file for a picture of the confusion matrix, .png, .svg or .pdf; by default
        confusion.png in the run's folder, if that can be written; no picture where it is empty.
      json: print JSON, for programs to read.
    """

    run: str = positional("RUN")
    split: SplitName = "test"
    plot: str | None = option("FILE", None)
    json: bool = False

    def __post_init__(self) -> None:
        if self.plot:
            check_path("--plot", self.plot)


@command()
def run(argv: list[str]) -> None:
    """Run `penstock eval` with the arguments after the command's name."""
    flags, overrides = parse(EvalFlags, argv, epilog=_EXAMPLES, extra=_FROM_TRAIN)
    saved = find_network(flags.run, overrides)
    # Before the weights are read: a run that ends during the test may have better ones by then.
    is_whole_run = _is_whole_run(saved, overrides)
    processes.join_processes()
    data, reader, num_images = open_for_evaluation(saved.flags, flags.split, saved.weights)
    is_first = processes.is_writing_process()
    if data.preparation is not None and is_first:
        print(escape(data.preparation.summary), file=sys.stderr if flags.json else sys.stdout)
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    nan_counts: list[int] = []
    with processes.keep_stdout_clean(flags.json):
        trainer = load_network(saved, data.shape)
        tested = trainer.test(lambda: _collect(reader, trainer, pairs, nan_counts), confidence=0.95)
        metrics, loss = {name: float(value) for name, value in tested.items()}, tested["loss"]
        matrix = processes.sum_over_processes(
            findings.count_confusions(pairs, data.shape.num_classes)
        )
        num_nan = int(processes.sum_over_processes(np.array(sum(nan_counts))))
    if not is_first:
        return
    hits, whole = int(np.trace(matrix)), int(matrix.sum())
    if flags.json:
        intervals = {"accuracy_interval": findings.find_interval(hits, whole)}
        intervals["loss_interval"] = (loss.low, loss.high)
        facts = {"weights": str(saved.weights), **metrics, **intervals}
        facts |= {"split": flags.split, "images": num_images, "confusion": matrix.tolist()}
        facts["nan_answers"] = num_nan
        print(
            json.dumps(
                encode_json({**facts, "class_names": data.facts.class_names}), allow_nan=False
            )
        )
    else:
        name = saved.flags.dataset.title
        some = format_count(num_images, "image")
        about = f"{saved.weights} on {some}, the {flags.split} split of {name}:"
        print(wrap_words(about, find_columns()))
        print(wrap_clauses(format_metrics(metrics), find_columns()))
        # One image tells nothing of others.
        of_loss = "" if loss.low is None else f", the loss {loss.low:.4g} to {loss.high:.4g}"
        share = findings.format_interval(hits, whole)
        line = f"With 95 % confidence the accuracy is {share}{of_loss}."
        if num_nan:
            line += f" {num_nan:,} answers are nan; each counts as its first class of nan."
        print(f"{wrap_words(line, find_columns())}\n")
        rows = [row for _, row in findings.describe_classes(matrix, data.facts.class_names)]
        print_table(findings.CLASS_HEAD, rows, right={1, 2, 3})
    # Of several processes each has its own images only.
    is_whole_run = is_whole_run and _is_whole_run(saved, overrides)
    if saved.folder is not None and is_whole_run and jax.process_count() == 1:
        names, answers = (
            data.facts.names_digests[1] or "",
            map(np.concatenate, zip(*pairs, strict=True)),
        )
        # Two splits may be one part, and then their images are the same.
        is_test = flags.split != "train" and data.test_part == find_part(saved.flags, "test")
        split = "test" if is_test else flags.split
        write_answers(saved.folder, SavedAnswers(split, names, *answers))
    _plot(flags, saved.folder, matrix, data)


def _is_whole_run(saved: SavedNetwork, overrides: Container[str]) -> bool:
    """Say whether what answers is a run's network, as `penstock compare` takes it, unchanged."""
    folder = saved.folder
    if folder is None or any(name in overrides for name in _ANSWERS_CHANGE_WITH):
        return False
    # The best network of a run that goes on may be another at its end.
    return saved.weights == folder.find_weights() and not is_in_use(folder.path)


def _collect(
    reader: BatchReader,
    trainer: Trainer,
    pairs: list[tuple[np.ndarray, np.ndarray]],
    nan_counts: list[int],
) -> Iterator[Batch]:
    """Yield the batches of a reader; collect labels, predictions and the number of nan."""
    # Within the test: a second pass for the predictions would decode the images again.
    for batch in reader():
        probabilities = np.asarray(trainer.infer({"image": batch["image"]}))
        # A copy of the labels: the batch is the reader's.
        pairs.append((np.array(batch["label"]), probabilities.argmax(axis=-1)))
        nan_counts.append(int(np.isnan(probabilities).any(axis=-1).sum()))
        yield batch


def _plot(flags: EvalFlags, folder: RunFolder | None, matrix: np.ndarray, data: Data) -> None:
    own = None if folder is None else folder.path / "confusion.png"
    path = own if flags.plot is None else Path(flags.plot) if flags.plot else None
    if path is None:
        return
    try:
        draw_confusion(path, matrix, data.facts.class_names)
    except (ModuleNotFoundError, OSError) as error:
        # Only a picture that was asked for is worth a failure.
        if flags.plot is not None:
            raise
        note = f"no {path}: {one_line(error)}"
    else:
        note = f"the confusion matrix is in {path}"
    if not flags.json:
        print(f"\n{escape(note)}")
