"""The page of the handler `Report`, made of what it has kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.handlers._hyperparameters import Hyperparameters, check_hyperparameters
from penstock.handlers.figures import Curve
from penstock.handlers.report import classes, overview
from penstock.handlers.report.curves import Metric, Points, draw_metrics
from penstock.handlers.report.history import History, Values, now
from penstock.handlers.report.overview import format_secs
from penstock.handlers.report.page import Page, add, add_details, add_table
from penstock.handlers.report.questions import Answers

_MAX_ROWS = 30
_STATES = {
    "completed": "complete",
    "stopped": "stopped by a handler, or by trainer.stop()",
    "interrupted": "interrupted",
    "failed": "failed",
    "running": "running when this page was written; it may have been killed since",
}
_OF_DATA = "Classes, mistakes, calibration and samples"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What a page tells of a run beside its history.

    Arguments:
      state: why training ended, or `running`.
      error: what ended it, if something did.
      num_steps, num_epochs: how many steps are done, and epochs in all, with those to come.
      description: what `trainer.describe()` said; empty without a trainer.
      parameters: the rows of `builder.parameter_table()`.
      hyperparameters: the user's own.
      secs: as `RunTimes` counts them.
    """

    state: str
    error: BaseException | None
    num_steps: int
    num_epochs: int
    description: Mapping[str, Any]
    parameters: Sequence[overview.ParameterRow]
    hyperparameters: Hyperparameters
    secs: Mapping[str, float]


def make_page(title: str, history: History, facts: Facts, answers: Answers | str) -> Page:
    """Return the page; parts that cannot be made say why.

    Arguments:
      answers: or why there are none.
    """
    page = Page(title)
    _add_summary(page, history, facts, answers)
    _add_run(page, history, facts)
    _add_curves(page, history)
    _add_epochs(page, history)
    if isinstance(answers, str):
        page.leave_out(_OF_DATA, answers)
    else:
        options = ("Report(num_mistakes=24)", "Report(num_samples=6)")
        classes.add_findings(page, answers.found, answers.names, options)
    why = "Nothing was measured yet. Times appear after the first epoch."
    overview.add_times(page, facts.secs, why)
    if facts.parameters:
        overview.add_parameters(page, facts.parameters)
    else:
        page.leave_out("Parameters by layer", "No trainer came with the event BeginTraining.")
    return page


def _add_summary(page: Page, history: History, facts: Facts, answers: Answers | str) -> None:
    cards = {}
    if isinstance(answers, Answers):
        cards |= classes.make_cards(answers.found, "images")
    elif history.tests:
        cards |= {f"test {name}": f"{value:.4g}" for name, value in history.tests[-1][1].items()}
    elif history.epochs:
        last = history.epochs[-1].values
        cards |= {f"{name}, last epoch": f"{value:.4g}" for name, value in last.items()}
    cards["steps"] = f"{facts.num_steps:,}"
    overview.add_cards(page.main, cards)
    if isinstance(answers, Answers) and answers.found.num_broken:
        add(page.main, "p", classes.describe_broken(answers.found), class_="missing")


def _add_run(page: Page, history: History, facts: Facts) -> None:
    section = page.add_section("What was run")
    said = facts.description
    devices, numbers = said.get("devices", {}), said.get("parameters", {})
    versions = ", ".join(f"{name} {each}" for name, each in said.get("versions", {}).items())
    error = ""
    if facts.error is not None:
        lines = str(facts.error).splitlines()
        error = f": {type(facts.error).__name__}{f': {lines[0]}' if lines else ''}"
    placed = ""
    if devices:
        placed = f"{devices['count']} x {devices['platform']}: {devices['kind']}"
        placed += f" in {devices['processes']} processes" * (devices["processes"] > 1)
    rows = {
        "state": _STATES[facts.state] + error,
        "epochs": f"{len(history.epochs)} of {facts.num_epochs}",
        "steps": f"{facts.num_steps:,}",
        "began": history.began,
        "last written": now(),
        "devices": placed,
        "parameters": _describe_parameters(numbers),
        "versions": versions,
    }
    add_table(section, ("what", "value"), [row for row in rows.items() if row[1]])
    add(section, "h3", "Hyperparameters")
    if facts.hyperparameters:
        _add_values(section, facts.hyperparameters)
    else:
        text = "None were given. Pass Report(hyperparameters=vars(arguments)) to show them."
        add(section, "p", text, class_="note")
    configuration = check_hyperparameters("Report", said.get("configuration"))
    if configuration:
        _add_values(add_details(section, "The trainer's arguments"), configuration)


def _describe_parameters(numbers: Mapping[str, int]) -> str:
    if not numbers:
        return ""
    num_trained, num_others = numbers["trainable"], numbers["all"] - numbers["trainable"]
    return f"{num_trained:,} trained" + (f", {num_others:,} other" if num_others else "")


def _add_values(parent: Any, values: Hyperparameters) -> None:
    add_table(parent, ("name", "value"), [(name, str(value)) for name, value in values.items()])


def _add_curves(page: Page, history: History) -> None:
    train, test = history.curves["train"], history.curves["test"]
    names = dict.fromkeys([*train, *test])
    # Of a run whose steps are not read, the means of its epochs.
    names |= dict.fromkeys(name for epoch in history.epochs for name in epoch.values)
    metrics = [
        Metric(
            name=name,
            train=_to_points(train[name]) if name in train else _find_means(history, name),
            test=_to_points(test.get(name, Curve())),
        )
        for name in names
    ]
    if any(len(each.train[0]) + len(each.test[0]) for each in metrics):
        # How fast it goes is no measure of what it learns.
        metrics.sort(key=lambda metric: metric.name == "examples_per_sec")
        draw_metrics(page.add_section("Curves"), metrics, history.num_left_out)
    else:
        page.leave_out("Curves", "No metrics were read yet. Report(every_steps=10) sets how often.")


def _to_points(curve: Curve) -> Points:
    return np.array(curve.x, float), np.array(curve.y, float)


def _find_means(history: History, name: str) -> Points:
    epochs = [each for each in history.epochs if name in each.values]
    x = np.array([each.num_steps for each in epochs], float)
    return x, np.array([each.values[name] for each in epochs], float)


def _add_epochs(page: Page, history: History) -> None:
    """Add a row for each epoch, with the test at its end, and for each other test."""
    title = "Epochs and tests"
    names = _list_names(epoch.values for epoch in history.epochs)
    tested = _list_names(values for _, values in history.tests)
    tests = dict(history.tests)
    rows: list[tuple[int, tuple[str, ...]]] = []
    for epoch in history.epochs:
        values = [*_format_values(epoch.values, names)]
        values += _format_values(tests.pop(epoch.num_steps, {}), tested)
        wait = "" if epoch.data_wait is None else f"{epoch.data_wait:.0%}"
        cells = (f"epoch {epoch.number + 1}", f"{epoch.num_steps:,}", *values)
        rows.append((epoch.num_steps, (*cells, _format_time(epoch.secs), wait)))
    for num_steps, values in tests.items():
        shown = [*[""] * len(names), *_format_values(values, tested)]
        rows.append((num_steps, ("test", f"{num_steps:,}", *shown, "", "")))
    if not rows:
        page.leave_out(title, "No epoch has ended yet, and nothing was tested.")
        return
    section = page.add_section(title)
    cells = [row for _, row in sorted(rows, reverse=True)]
    head = ("", "steps done", *names, *(f"test {name}" for name in tested), "time", "data wait")
    right = set(range(1, len(head)))
    text = "Newest first. The metrics of an epoch are means over its examples."
    add(section, "p", text, class_="note")
    add_table(section, head, cells[:_MAX_ROWS], right=right)
    if len(cells) > _MAX_ROWS:
        add_table(add_details(section, f"All {len(cells):,} rows"), head, cells, right=right)


def _format_time(secs: float) -> str:
    return f"{secs:.2g} s" if secs < 1 else format_secs(secs)


def _list_names(values: Iterable[Values]) -> list[str]:
    return list(dict.fromkeys(name for each in values for name in each))


def _format_values(values: Values, names: Sequence[str]) -> list[str]:
    return [f"{values[name]:.4g}" if name in values else "" for name in names]
