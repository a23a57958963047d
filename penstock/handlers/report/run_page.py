"""The page of the handler `Report`, and the sections that every page of a run has."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.handlers._arguments import Hyperparameters, check_hyperparameters
from penstock.handlers.figures import Curve
from penstock.handlers.report import classes
from penstock.handlers.report.curves import Metric, Points, draw_metrics
from penstock.handlers.report.history import History, Values, now
from penstock.handlers.report.page import Element, Page, add, add_details, add_table
from penstock.handlers.report.questions import Answers

_MAX_LAYERS = 40
_PARTS = {
    "steps": "training steps",
    "data_wait": "waiting for data",
    "measure": "measuring gradients and updates",
    "compile": "compiling",
    "between": "between epochs: tests, saving, logs",
}


def add_cards(parent: Element, cards: Mapping[str, str]) -> None:
    """Add figures that a reader looks at first, each with its name below it."""
    grid = add(parent, "div", class_="cards")
    for name, value in cards.items():
        card = add(grid, "div", class_="card")
        add(card, "b", value)
        add(card, "span", name)


def add_times(page: Page, secs: Mapping[str, float], why: str) -> None:
    """Add where the time went: steps, waiting for data, measuring, compiling, between epochs.

    Arguments:
      secs: as `RunTimes` counts them.
      why: what is said where nothing was counted.
    """
    title = "Where time went"
    total = sum(secs.get(name, 0.0) for name in _PARTS)
    if not total:
        page.leave_out(title, why)
        return
    section = page.add_section(title)
    add(section, "p", f"{format_secs(total)} in all.")
    bar = add(section, "div", class_="stack")
    # Most runs measure nothing.
    parts = {name: _PARTS[name] for name in _PARTS if name != "measure" or secs.get(name)}
    rows: list[tuple[str, ...]] = []
    for name, meaning in parts.items():
        share = secs.get(name, 0.0) / total
        add(bar, "i", class_=f"part-{name}", style=f"width: {100 * share:.2f}%", title=meaning)
        rows.append((meaning, format_secs(secs.get(name, 0.0)), f"{share:.1%}"))
    table = add_table(section, ("part", "time", "share"), rows, right={1, 2})
    for name, line in zip(parts, table.findall("tbody/tr"), strict=True):
        cell = line[0]
        swatch = add(cell, "span", class_=f"swatch part-{name}")
        swatch.tail, cell.text = cell.text, None
    add(
        section,
        "p",
        "The wait for data is sampled. It is 0 if epochs are too short to sample.",
        class_="note",
    )


def format_secs(secs: float) -> str:
    """Return seconds as a person reads them.

    >>> format_secs(0.5), format_secs(75), format_secs(7322)
    ('0.5 s', '1 min 15 s', '2 h 2 min')
    """
    if secs < 60:
        return f"{secs:.1f} s"
    minutes, seconds = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def add_parameters(page: Page, table: Sequence[Any]) -> None:
    """Add the parameters by layer, in the order of the network."""
    section = page.add_section("Parameters by layer")
    layers: dict[str, list[int]] = {}
    for row in table:
        layer = row.name.rpartition("/")[0] or row.name
        counts = layers.setdefault(layer, [0, 0])
        counts[row.collection != "params"] += row.size
    total = sum(counts[0] for counts in layers.values())
    statistics = sum(counts[1] for counts in layers.values())
    also = f", and {statistics:,} running statistics" if statistics else ""
    plural = "" if len(layers) == 1 else "s"
    add(section, "p", f"{total:,} parameters in {len(layers):,} layer{plural}{also}.")
    rows = [
        (name, f"{counts[0]:,}", f"{counts[0] / max(total, 1):.1%}")
        for name, counts in layers.items()
    ]
    shares = [counts[0] / max(total, 1) for counts in layers.values()]
    parent = section
    if len(rows) > _MAX_LAYERS:
        parent = add_details(section, f"All {len(rows):,} layers")
    add_table(parent, ("layer", "parameters", "share"), rows, right={1, 2}, bars=(2, shares))


_MAX_ROWS = 30
_STATES = {
    "completed": "complete",
    "stopped": "stopped by a handler, or by trainer.stop()",
    "interrupted": "interrupted",
    "failed": "failed",
    "running": "running when this page was written; it may have been killed since",
}


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
    parameters: Sequence[Any]
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
    options = ("Report(num_mistakes=24)", "Report(num_samples=6)")
    classes.add_answers(page, answers, options)
    why = "Nothing was measured yet. Times appear after the first epoch."
    add_times(page, facts.secs, why)
    if facts.parameters:
        add_parameters(page, facts.parameters)
    else:
        page.leave_out("Parameters by layer", "No trainer came with the event BeginTraining.")
    return page


def _add_summary(page: Page, history: History, facts: Facts, answers: Answers | str) -> None:
    cards = {}
    if isinstance(answers, Answers):
        cards |= classes.make_cards(answers.findings, "images")
    elif history.tests:
        cards |= {f"test {name}": f"{value:.4g}" for name, value in history.tests[-1][1].items()}
    elif history.epochs:
        last = history.epochs[-1].values
        cards |= {f"{name}, last epoch": f"{value:.4g}" for name, value in last.items()}
    cards["steps"] = f"{facts.num_steps:,}"
    add_cards(page.main, cards)
    if isinstance(answers, Answers) and answers.findings.num_broken:
        add(page.main, "p", classes.describe_broken(answers.findings), class_="missing")


def _add_run(page: Page, history: History, facts: Facts) -> None:
    section = page.add_section("What was run")
    about = facts.description
    devices, numbers = about.get("devices", {}), about.get("parameters", {})
    versions = ", ".join(f"{name} {text}" for name, text in about.get("versions", {}).items())
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
    configuration = check_hyperparameters("Report", about.get("configuration"))
    if configuration:
        _add_values(add_details(section, "The trainer's arguments"), configuration)


def _describe_parameters(numbers: Mapping[str, int]) -> str:
    if not numbers:
        return ""
    num_trained, num_frozen = numbers["trainable"], numbers["all"] - numbers["trainable"]
    return f"{num_trained:,} trained" + (f", {num_frozen:,} other" if num_frozen else "")


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
    if any(len(metric.train[0]) + len(metric.test[0]) for metric in metrics):
        # How fast it goes is no measure of what it learns.
        metrics.sort(key=lambda metric: metric.name == "examples_per_sec")
        draw_metrics(page.add_section("Curves"), metrics, history.num_left_out)
    else:
        page.leave_out("Curves", "No metrics were read yet. Report(every_steps=10) sets how often.")


def _to_points(curve: Curve) -> Points:
    return np.array(curve.x, float), np.array(curve.y, float)


def _find_means(history: History, name: str) -> Points:
    epochs = [epoch for epoch in history.epochs if name in epoch.values]
    x = np.array([epoch.num_steps for epoch in epochs], float)
    return x, np.array([epoch.values[name] for epoch in epochs], float)


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
    return list(dict.fromkeys(name for own in values for name in own))


def _format_values(values: Values, names: Sequence[str]) -> list[str]:
    return [f"{values[name]:.4g}" if name in values else "" for name in names]
