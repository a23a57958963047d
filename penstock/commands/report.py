"""`penstock report`: a run as one page of HTML, for a person to look at."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock import Trainer
from penstock._errors import UnknownNameError
from penstock._text_tables import escape, find_columns, wrap_words
from penstock.commands._argument_parser import FlagValue, option, parse, positional
from penstock.commands._failures import UsageError, check_numbers, command, nearest_path, one_line
from penstock.commands._flags import choose_flags, make_defaults, to_json, write_value
from penstock.commands._image_folders import SplitName
from penstock.commands._run.announce import format_count
from penstock.commands._run.data import open_for_evaluation
from penstock.commands._run.network import find_network, load_network
from penstock.commands._run_folder import runs
from penstock.commands._run_folder.folder import RunFolder, find_run_folder, read_doubted
from penstock.handlers.report import run_page
from penstock.handlers.report.curves import Metric, Points, draw_metrics
from penstock.handlers.report.findings import Answers, Findings, look
from penstock.handlers.report.page import Page, add, add_details, add_picture, add_table
from penstock.readers import DatasetNotFoundError
from penstock.readers.records.image_decoding import decode_image, read_image

_NUM_DOUBTED = 48
# Flags that say where a run lies, not what it is.
_PLACES = ("config", "overwrite", "checkpointDir", "output_dir")
_STATES = {
    "completed": "complete",
    "stopped": "stopped early, by a handler",
    "interrupted": "interrupted; the same command resumes it",
    "failed": "failed; this page has what it wrote before",
    "running": "running when this page was written; it may have been killed since",
}


def find_changed(flags: Mapping[str, object]) -> dict[str, object]:
    """Return the flags that have another value than the default, by name.

    >>> find_changed({"model_name": "vgg_16", "batch_size": 32})
    {'model_name': 'vgg_16'}
    """
    # Through JSON, as the run's own have been: a tuple is a list there.
    usual = runs.flatten(json.loads(json.dumps(to_json(make_defaults(flags)))))
    changed = {name: value for name, value in flags.items() if value != usual.get(name)}
    return {name: value for name, value in changed.items() if name not in _PLACES}


def make_command(flags: Mapping[str, object]) -> str:
    """Return the command line that repeats a run, in a folder of its own.

    >>> make_command({"model_name": "vgg_16", "dataset_dir": "my photos"})
    "penstock train --model_name=vgg_16 '--dataset_dir=my photos' --output_dir=repeated"
    """
    words = [f"--{name}={write_value(value)}" for name, value in find_changed(flags).items()]
    return shlex.join(["penstock", "train", *words, "--output_dir=repeated"])


def _add_doubted(page: Page, folder: RunFolder, flags: Mapping[str, object]) -> None:
    """Add the images whose label `penstock clean` doubts, where it was run."""
    rows = read_doubted(folder)
    wrong = [row for row in rows if row.its_probability > row.that_of_the_label]
    if not wrong:
        return
    section = page.add_section("Labels in doubt")
    some = f"{format_count(len(wrong), 'image')} of {len(rows):,}"
    text = f"{some} taken for another class by networks that were not trained on them, the surest "
    add(section, "p", f"{text} first. `penstock clean` wrote the list.", class_="note")
    figures = add(section, "div", class_="pictures")
    root = Path(str(flags.get("dataset_dir")))
    for row in wrong[:_NUM_DOUBTED]:
        figure = add(figures, "figure")
        # It may have been moved since, and a foreign list may name any file.
        with contextlib.suppress(OSError, ValueError):
            if (root / row.image).resolve().is_relative_to(root.resolve()):
                image = decode_image(read_image(root / row.image), name=row.image)
                add_picture(figure, image, alt=row.label, max_pixels=160)
        caption = add(figure, "figcaption")
        text = f"predicted: {row.taken_for}, {row.its_probability}"
        add(caption, "div", text, class_="said")
        add(caption, "div", f"label: {row.label}, {row.that_of_the_label}", class_="truth")
        add(caption, "div", row.image, class_="note")


def _add_run(page: Page, flags: Mapping[str, object], record: Mapping[str, Any]) -> None:
    section = page.add_section("What was run")
    if rows := [(name, text) for name, text in _describe_run(flags, record).items() if text]:
        add_table(section, ("what", "value"), rows)
    missing = ["run.json with versions, devices and times"] * (not record)
    for what in [*missing, *["config.json with flags"] * (not flags)]:
        text = f"There is no {what}. `penstock train` writes one."
        add(section, "p", text, class_="missing")
    if not flags:
        return
    changed = find_changed(flags)
    add(section, "h3", "Flags that differ from the defaults")
    if not changed:
        add(section, "p", "None.")
    places = [(section, changed)] if changed else []
    for place, values in [*places, (add_details(section, f"All {len(flags)} flags"), flags)]:
        add_table(place, ("flag", "value"), [(f"--{n}", write_value(v)) for n, v in values.items()])


def _describe_run(flags: Mapping[str, object], record: Mapping[str, Any]) -> dict[str, str]:
    done, planned = record.get("global_step"), record.get("num_steps")
    state, devices = str(record.get("state")), record.get("devices", [])
    # The last step was --stop_at_step.
    if state == "stopped" and planned and done == planned:
        state = "completed"
    test, processes = record.get("num_test"), record.get("processes", 1)
    tested = "nothing to test on" if test is None else f"{test:,} to test on"
    has_sizes = "num_train" in record
    sizes = f": {record['num_train']:,} images to train on, {tested}" if has_sizes else ""
    shape = " x ".join(map(str, record.get("image_shape", ())))
    counted = ", ".join(f"{devices.count(name)} x {name}" for name in dict.fromkeys(devices))
    return {
        "state": _STATES.get(state, ""),
        "steps": "" if done is None else f"{done:,}" + (f" of {planned:,}" if planned else ""),
        "began": str(record.get("started", "")),
        "last written": str(record.get("updated", "")),
        "network": f"{flags.get('model_name', '')}{f', images {shape}' if shape else ''}",
        "data": f"{flags.get('dataset_name', '')}{sizes}",
        "classes": str(record.get("num_classes", "")),
        "batch": f"{record['batch_size']} images" if "batch_size" in record else "",
        "devices": counted + (f" in {processes} processes" if processes > 1 else ""),
        "machine": str(record.get("platform", "")),
        "versions": ", ".join(map(" ".join, record.get("versions", {}).items())),
    }


def _add_command(page: Page, flags: Mapping[str, object]) -> None:
    title = "Repeat it"
    if not flags:
        page.leave_out(title, "The flags are not known: there is no config.json.")
        return
    section = page.add_section(title)
    add(section, "pre", make_command(flags))
    add(section, "p", "It writes into a folder of its own, repeated/runs.", class_="note")


_EXAMPLES = """examples:
  penstock report runs/digits_lenet
  penstock report runs/photos_mobilenet_v2 --dataset_dir=elsewhere/photos
  penstock report runs/digits_lenet --mistakes=100 --output=digits.html

A run's flags are those it was trained with; training options given here
replace them."""
_FROM_TRAIN = choose_flags(
    *("dataset_dir", "train_files", "eval_files", "batch_size"),
    *("num_preprocessing_threads", "skip_damaged", "plugin"),
)
_NO_TIMES = (
    "Nothing was measured. "
    "A run of `penstock train` writes it to run.json, from its first epoch on."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportFlags:
    """Show a run as one HTML page: curves, classes, the worst mistakes, times.

    Arguments:
      run: the folder of a run or of a sweep, or one with a log of CSVLog or JSONLog.
      output: the file to write; by default report.html in the run's folder.
      split: the part of the data to run the network on.
      mistakes: how many of the worst mistakes to show.
      samples: how many images of each class to show.
    """

    run: str = positional("RUN")
    output: str | None = option("FILE", None)
    split: SplitName = "test"
    mistakes: int = 24
    samples: int = 6

    def __post_init__(self) -> None:
        check_numbers(self, "mistakes>=0 samples>=0")


@command()
def run(argv: list[str]) -> None:
    """Run `penstock report` with the arguments after the command's name."""
    flags, overrides = parse(ReportFlags, argv, epilog=_EXAMPLES, extra=_FROM_TRAIN)
    path = runs.find_run_path(flags.run)
    trials = runs.read_rows(path / runs.TRIALS)
    folder, log = (RunFolder(path), runs.LogError()) if trials else _find_run(path)
    output = folder.path / "report.html" if flags.output is None else Path(flags.output)
    if output.is_dir():
        raise UsageError(f"--output got the folder {str(output)!r}, expected the name of a file.")
    output.parent.mkdir(parents=True, exist_ok=True)  # what is wrong there is said at once
    page = _make_sweep_page(path, trials) if trials else _make_page(folder, log, flags, overrides)
    page.write(output)
    for sentence in page.missing:
        print(wrap_words(f"left out: {sentence}", find_columns(sys.stderr), "  "), file=sys.stderr)
    print(f"{escape(str(output))}  ({output.stat().st_size / 1000:,.0f} kB; open it in a browser)")


def _find_run(path: Path) -> tuple[RunFolder, Sequence[runs.Row] | runs.LogError]:
    """Return the folder of a run, and its log or what is wrong with that."""
    folder = find_run_folder(path)
    try:
        log: Sequence[runs.Row] | runs.LogError
        log = runs.read_log(path if folder is None else folder.log)
    except runs.LogError as error:
        log = error
    if folder is not None:
        return folder, log
    if not isinstance(log, runs.LogError):
        return RunFolder(path if path.is_dir() else path.parent), log
    problem = "It has no data.json, as `penstock train` writes one, and no log that can be read"
    problem = runs.suggest_run(path) or f"{problem}: {log}"
    if not path.exists():
        problem = f"There is nothing with that name.{nearest_path(path)}"
    raise FileNotFoundError(
        f"the run got {str(path)!r}, expected a run's folder, such as runs/digits_lenet. {problem}"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Answers(Answers):
    trainer: Trainer
    weights: Path
    split: str


def _make_page(
    folder: RunFolder,
    log: Sequence[runs.Row] | runs.LogError,
    flags: ReportFlags,
    overrides: Mapping[str, FlagValue],
) -> Page:
    """Return the page of a run; parts that cannot be made say why."""
    page = Page(f"Report of {folder.path}")
    record, run_flags = runs.check_record(folder.record), {}
    # A log of CSVLog alone has none.
    with contextlib.suppress(UsageError):
        run_flags, _ = runs.read_flags(folder.path)
    answers = _ask(folder, flags, overrides)
    _add_summary(page, answers, record)
    _add_run(page, run_flags, record)
    if isinstance(log, runs.LogError):
        page.leave_out("Curves", one_line(log))
    else:
        draw_metrics(page.add_section("Curves"), _read_metrics(log))
    run_page.add_answers(page, answers, ("--mistakes=24", "--samples=6"))
    _add_doubted(page, folder, run_flags)
    run_page.add_times(page, record.get("seconds", {}), _NO_TIMES)
    if isinstance(answers, _Answers):
        run_page.add_parameters(page, answers.trainer.builder.parameter_table())
    else:
        page.leave_out("Parameters by layer", answers)
    _add_command(page, run_flags)
    return page


def _make_sweep_page(path: Path, trials: Sequence[Sequence[str]]) -> Page:
    """Return the page of a sweep, from the table of its trials, the best first."""
    page = Page(f"Sweep of {path}")
    head, *rows = runs.format_table(trials)
    states = [row[1] for row in rows]
    cards = {f"best {head[2]}": rows[0][2] if rows else "", "trials": str(len(rows))}
    run_page.add_cards(
        page.main, cards | {name: str(states.count(name)) for name in dict.fromkeys(states)}
    )
    add_table(page.add_section("Trials"), head, rows, right=range(2, len(head)))
    # Its folder may have been removed since.
    with contextlib.suppress(UsageError):
        _add_command(page, runs.read_flags(path / rows[0][0])[0])
    return page


def _read_metrics(log: Sequence[runs.Row]) -> list[Metric]:
    def find(name: str, *kinds: str) -> Points:
        rows = next(filter(None, (runs.find_rows(log, kind, name) for kind in kinds)), [])
        # The number of a step counts from 0; epochs and tests say how many steps were done.
        x = [row.global_step + (row.kind == "step") for row in rows]
        return np.array(x, float), np.array([row.metrics[name] for row in rows], float)

    # Means over epochs are drawn where no step was logged.
    names = dict.fromkeys(name for row in log for name in row.metrics)
    return [Metric(name=n, train=find(n, "step", "epoch"), test=find(n, "test")) for n in names]


def _ask(
    folder: RunFolder, flags: ReportFlags, overrides: Mapping[str, FlagValue]
) -> _Answers | str:
    """Return what the network says of a split; or why there is nothing to say."""
    if not folder.data.exists() or not folder.config.exists():
        return "It has no data.json and config.json of `penstock train`: no network can be asked."
    try:
        saved = find_network(str(folder.path), overrides)
        if saved.flags.dataset.dataset_name == "mock":
            return (
                "It was trained on ones, the mock data, to measure speed: no class can be learned."
            )
        data, reader, num_images = open_for_evaluation(saved.flags, flags.split, saved.weights)
        about = f"{saved.weights} on {format_count(num_images, 'image')}, the {flags.split} split"
        print(escape(f"evaluating {about} ..."), file=sys.stderr, flush=True)
        trainer = load_network(saved, data.shape)
        findings = Findings(
            data.shape.num_classes, num_mistakes=flags.mistakes, num_samples=flags.samples
        )
        look(reader(), trainer.infer, findings)
    except UsageError:
        raise
    except DatasetNotFoundError as error:
        return f"{one_line(error)} --split=train asks about what it was trained on."
    # The data has been moved, or nothing was saved yet: the rest of the page still helps.
    except (OSError, ValueError, UnknownNameError, ModuleNotFoundError) as error:
        return one_line(error)
    return _Answers(
        findings=findings,
        names=data.facts.class_names,
        trainer=trainer,
        weights=saved.weights,
        split=flags.split,
        # Where an image was left out while they were read, the numbers of the others are not those
        # of their files.
        files=data.test_files if findings.num_images == num_images else None,
    )


def _add_summary(page: Page, answers: _Answers | str, record: Mapping[str, Any]) -> None:
    cards: dict[str, str] = {}
    if isinstance(answers, _Answers):
        cards |= run_page.make_cards(answers.findings, f"{answers.split} images")
    if record.get("global_step"):
        cards["steps"] = f"{record['global_step']:,}"
    run_page.add_cards(page.main, cards)
    if not isinstance(answers, _Answers):
        return
    text = f"Parameters: {answers.weights}. Data: the {answers.split} split."
    if answers.findings.num_broken:
        text += f" {run_page.describe_broken(answers.findings)}"
        text += " A smaller --learning_rate helps most often."
    add(page.main, "p", text, class_="note")
