"""The page of the handler `Report`, and the sections that every page of a run has."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.handlers._arguments import Hyperparameters, check_hyperparameters
from penstock.handlers.figures import Curve
from penstock.handlers.report.curves import Metric, Points, draw_calibration, draw_metrics
from penstock.handlers.report.findings import (
    CLASS_HEAD,
    Answers,
    Findings,
    describe_classes,
    format_interval,
    format_share,
)
from penstock.handlers.report.history import History, Values, now
from penstock.handlers.report.page import (
    Element,
    Page,
    add,
    add_details,
    add_note,
    add_picture,
    add_table,
)

_MAX_LAYERS = 40
_PARTS = {
    "steps": "training steps",
    "data_wait": "waiting for data",
    "measure": "measuring gradients and updates",
    "compile": "compiling",
    "between": "between steps: tests, saving, logs",
}


def add_cards(parent: Element, cards: Mapping[str, str]) -> None:
    """Add figures that a reader looks at first, each with its name below it."""
    grid = add(parent, "div", class_="cards")
    for name, value in cards.items():
        card = add(grid, "div", class_="card")
        add(card, "b", value)
        add(card, "span", name)


def add_times(page: Page, secs: Mapping[str, float], why: str) -> None:
    """Add where the time went, as `RunTimes` counts it; `why` stands where nothing was counted."""
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
    add_note(section, "The wait for data is sampled. It is 0 if epochs are too short to sample.")


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
    """What a page tells of a run beside its history; empty where there was no trainer."""

    state: str
    error: BaseException | None
    num_steps: int
    num_epochs: int
    description: Mapping[str, Any]
    parameters: Sequence[Any]
    hyperparameters: Hyperparameters
    secs: Mapping[str, float]


def make_page(title: str, history: History, facts: Facts, answers: Answers | str) -> Page:
    """Return the page; parts that cannot be made, such as answers that are text, say why."""
    page = Page(title)
    _add_summary(page, history, facts, answers)
    _add_run(page, history, facts)
    _add_curves(page, history)
    _add_epochs(page, history)
    options = ("Report(num_mistakes=24)", "Report(num_samples=6)")
    add_answers(page, answers, options)
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
        cards |= make_cards(answers.findings, "images")
    elif history.tests:
        cards |= {f"test {name}": f"{value:.4g}" for name, value in history.tests[-1][1].items()}
    elif history.epochs:
        last = history.epochs[-1].values
        cards |= {f"{name}, last epoch": f"{value:.4g}" for name, value in last.items()}
    cards["steps"] = f"{facts.num_steps:,}"
    add_cards(page.main, cards)
    if isinstance(answers, Answers) and answers.findings.num_broken:
        add(page.main, "p", describe_broken(answers.findings), class_="missing")


def _add_run(page: Page, history: History, facts: Facts) -> None:
    section = page.add_section("What was run")
    about = facts.description
    versions = ", ".join(f"{name} {text}" for name, text in about.get("versions", {}).items())
    error = ""
    if facts.error is not None:
        lines = str(facts.error).splitlines()
        error = f": {type(facts.error).__name__}{f': {lines[0]}' if lines else ''}"
    placed = trained = ""
    if about:
        devices, numbers = about["devices"], about["parameters"]
        num_other = numbers["all"] - numbers["trainable"]
        trained = f"{numbers['trainable']:,} trained"
        trained += f", {num_other:,} other" * (num_other > 0)
        placed = f"{devices['count']} x {devices['platform']}: {devices['kind']}"
        placed += f" in {devices['processes']} processes" * (devices["processes"] > 1)
    rows = {
        "state": _STATES[facts.state] + error,
        "epochs": f"{len(history.epochs)} of {facts.num_epochs}",
        "steps": f"{facts.num_steps:,}",
        "began": history.began,
        "last written": now(),
        "devices": placed,
        "parameters": trained,
        "versions": versions,
    }
    add_table(section, ("what", "value"), [row for row in rows.items() if row[1]])
    add(section, "h3", "Hyperparameters")
    if facts.hyperparameters:
        _add_values(section, facts.hyperparameters)
    else:
        text = "None were given. Pass Report(hyperparameters=vars(arguments)) to show them."
        add_note(section, text)
    configuration = check_hyperparameters("Report", about.get("configuration"))
    if configuration:
        _add_values(add_details(section, "The trainer's arguments"), configuration)


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
            train=_to_points(train.get(name) or _find_means(history, name)),
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


def _find_means(history: History, name: str) -> Curve:
    epochs = [epoch for epoch in history.epochs if name in epoch.values]
    return Curve([epoch.num_steps for epoch in epochs], [epoch.values[name] for epoch in epochs])


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
        secs = f"{epoch.secs:.2g} s" if epoch.secs < 1 else format_secs(epoch.secs)
        rows.append((epoch.num_steps, (*cells, secs, wait)))
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
    add_note(section, text)
    add_table(section, head, cells[:_MAX_ROWS], right=right)
    if len(cells) > _MAX_ROWS:
        add_table(add_details(section, f"All {len(cells):,} rows"), head, cells, right=right)


def _list_names(values: Iterable[Values]) -> list[str]:
    return list(dict.fromkeys(name for own in values for name in own))


def _format_values(values: Values, names: Sequence[str]) -> list[str]:
    return [f"{values[name]:.4g}" if name in values else "" for name in names]


# Of more classes the cells of a table are too many to read, and a picture shows them.
_MAX_CELLS = 30
_MAX_PAIRS = 20
_MAX_CLASSES = 50
_NO_PICTURE = "Its images are neither gray nor RGB, so they are not shown."


def make_cards(findings: Findings, images: str) -> dict[str, str]:
    """Return what is looked at first, by name; the number of images is called `images`."""
    hits = int(np.trace(findings.matrix))
    cards = {
        "accuracy": f"{findings.accuracy:.2%}",
        "with 95 % confidence": format_interval(hits, findings.num_images),
    }
    if len(findings.matrix) > 5:
        cards["top-5 accuracy"] = f"{findings.num_top_5 / max(findings.num_images, 1):.2%}"
    cards["cross entropy"] = f"{findings.cross_entropy:.4g}"
    cards[images] = f"{findings.num_images:,}"
    cards["calibration error"] = f"{findings.calibration_error:.1%}"
    return cards


def describe_broken(findings: Findings) -> str:
    """Return a sentence about the images that got no probabilities."""
    why = "that are not finite: the training diverged."
    return f"{findings.num_broken:,} images got probabilities {why}"


def add_answers(page: Page, answers: Answers | str, options: tuple[str, str]) -> None:
    """Add all sections about classes, or why not; `options` ask for more mistakes and samples."""
    if isinstance(answers, str):
        page.leave_out("Classes, mistakes, calibration and samples", answers)
        return
    findings, names = answers.findings, answers.names
    _add_classes(page, findings, names)
    _add_confusion(page, findings, names)
    _add_mistakes(page, answers, options[0])
    _add_calibration(page, findings)
    _add_samples(page, findings, names, options[1])


def _add_classes(page: Page, findings: Findings, names: Sequence[str]) -> None:
    section = page.add_section("Classes")
    rows = describe_classes(findings.matrix, names)
    # A class without images has no recall: it comes last.
    rows.sort(key=lambda row: 2.0 if row[0] is None else row[0])
    add_note(section, "The class with the lowest recall comes first.")
    _add_class_rows(section, rows[:_MAX_CLASSES])
    if len(rows) > _MAX_CLASSES:
        _add_class_rows(add_details(section, f"All {len(rows):,} classes"), rows)


def _add_class_rows(parent: Element, rows: Sequence[tuple[float | None, tuple[str, ...]]]) -> None:
    shares = [recall or 0.0 for recall, _ in rows]
    add_table(parent, CLASS_HEAD, [row for _, row in rows], right={1, 2, 3}, bars=(2, shares))


def _add_confusion(page: Page, findings: Findings, names: Sequence[str]) -> None:
    """Add the confusion matrix, and the pairs of classes that are confused most often."""
    section = page.add_section("Confusion matrix")
    add_note(section, "Rows are the true classes, columns the predicted ones.")
    # A class without images is a row of zeros.
    shares = findings.matrix / np.maximum(findings.matrix.sum(axis=1, keepdims=True), 1)
    if len(names) <= _MAX_CELLS:
        _add_matrix(section, findings.matrix, shares, names)
    else:
        picture = np.rint(255 * (1 - shares)).astype(np.uint8)[:, :, np.newaxis]
        # A cell of a thousand classes is less than a pixel; of forty it is a square.
        side = -(-560 // len(names))
        picture = picture.repeat(side, axis=0).repeat(side, axis=1)
        alt = "confusion matrix: the darker, the larger the share of the row"
        image = add_picture(section, picture, alt=alt, max_pixels=1200)
        image.set("class", "picture matrix-picture")
    wrong = findings.matrix.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_MAX_PAIRS]
    pairs = [divmod(int(place), len(names)) for place in order if wrong.flat[place]]
    if not pairs:
        return
    add(section, "h3", "Confused most often")
    rows = [
        (
            names[a],
            names[b],
            f"{wrong[a, b]:,}",
            format_share(wrong[a, b], findings.matrix[a].sum()),
        )
        for a, b in pairs
    ]
    add_table(section, ("class", "taken for", "images", "share of the class"), rows, right={2, 3})


def _add_matrix(
    section: Element, matrix: np.ndarray, shares: np.ndarray, names: Sequence[str]
) -> None:
    table = add(add(section, "div", class_="scroll"), "table", class_="matrix")
    line = add(add(table, "thead"), "tr")
    add(line, "th")
    for name in names:
        add(line, "th", name, title=name, scope="col")
    body = add(table, "tbody")
    for row, name in enumerate(names):
        line = add(body, "tr")
        add(line, "th", name, title=name, scope="row")
        for column, share in enumerate(shares[row]):
            count = int(matrix[row, column])
            cell = add(line, "td", f"{count:,}" if count else "")
            # A mistake of one in a hundred is to be seen too.
            cell.set("style", f"--share: {0.12 + 0.53 * share if count else 0:.2f}")
            if row == column:
                cell.set("class", "hit")


def _add_mistakes(page: Page, answers: Answers, option: str) -> None:
    findings, names, files = answers.findings, answers.names, answers.files
    title = "Worst mistakes"
    num_wrong = findings.num_images - int(np.trace(findings.matrix))
    if not num_wrong:
        number = findings.num_images
        some = f"all {number:,} images are" if number > 1 else "the one image is"
        page.leave_out(title, f"There are none: {some} right.")
        return
    if not findings.mistakes:
        page.leave_out(title, f"None were asked for. {option} shows them.")
        return
    if all(example.image is None for example in findings.mistakes):
        page.leave_out(title, _NO_PICTURE)
        return
    section = page.add_section(title)
    add_note(
        section,
        f"{len(findings.mistakes):,} of {num_wrong:,}, starting with the lowest probability of the "
        f"true class.{'' if files else ' The number is the index of the image in the data.'}",
    )
    figures = add(section, "div", class_="pictures")
    for example in findings.mistakes:
        figure = add(figures, "figure")
        predicted, label = names[example.predicted], names[example.label]
        if example.image is not None:
            alt = f"{label}, taken for {predicted}"
            add_picture(figure, example.image, alt=alt, max_pixels=160)
        caption = add(figure, "figcaption")
        text = f"predicted: {predicted}, {_format_likelihood(example.sureness)}"
        add(caption, "div", text, class_="said")
        text = f"true: {label}, {_format_likelihood(example.right_share)}"
        add(caption, "div", text, class_="truth")
        part = "" if example.process is None else f" of process {example.process}"
        number = f"#{example.number:,}{part}"
        add(caption, "div", files[example.number] if files else number, class_="note")


def _format_likelihood(share: float) -> str:
    """Return a probability as a percentage of two digits that count.

    >>> [_format_likelihood(share) for share in (0.987, 0.0027, 1e-9)]
    ['99%', '0.27%', 'under 0.001%']
    """
    if share < 1e-5:
        return "under 0.001%"
    return f"{share:.0%}" if share >= 0.1 else f"{100 * share:.2g}%"


def _add_calibration(page: Page, findings: Findings) -> None:
    section = page.add_section("Calibration")
    sure = findings.bins[:, 1].sum() / max(findings.num_images, 1)
    add(
        section,
        "p",
        f"The mean confidence is {sure:.1%}, the accuracy {findings.accuracy:.1%}. A bar below the "
        "dashed line shows a network that is too confident there, a bar above it one that is not "
        f"confident enough. The expected calibration error is {findings.calibration_error:.1%}.",
    )
    bins = [
        (int(count), total / count, hits / count) if count else (0, 0.0, 0.0)
        for count, total, hits in findings.bins
    ]
    figures = add(section, "div", class_="figures")
    draw_calibration(figures, bins)
    rows = [
        (
            f"{number / len(bins):.0%} to {(number + 1) / len(bins):.0%}",
            f"{count:,}",
            f"{right:.1%}",
        )
        for number, (count, _, right) in enumerate(bins)
        if count
    ]
    add_table(add(figures, "div"), ("confidence", "images", "accuracy"), rows, right={1, 2})


def _add_samples(page: Page, findings: Findings, names: Sequence[str], option: str) -> None:
    title = "Samples of each class"
    examples = [example for kept in findings.samples.values() for example in kept]
    if not examples:
        page.leave_out(title, f"None were asked for. {option} shows them.")
        return
    if all(example.image is None for example in examples):
        page.leave_out(title, _NO_PICTURE)
        return
    section = page.add_section(title)
    num_classes = int((findings.matrix.sum(axis=1) > 0).sum())
    shown = f" {len(findings.samples)} of {num_classes:,} classes are shown."
    add_note(
        section,
        "As the network gets them. A frame marks a mistake."
        + shown * (num_classes > len(findings.samples)),
    )
    for label in sorted(findings.samples):
        row = add(section, "div", class_="class-row")
        add(row, "b", names[label])
        pictures = add(row, "div")
        for example in findings.samples[label]:
            if example.image is None:
                continue
            text = names[label]
            if example.label != example.predicted:
                text += f", taken for {names[example.predicted]}"
            image = add_picture(pictures, example.image, alt=text, max_pixels=112)
            image.set("title", text)
            if text != names[label]:
                image.set("class", f"{image.get('class')} wrong")
