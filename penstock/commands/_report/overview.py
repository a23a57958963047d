"""The sections about the run itself: what was run, where time went, parameters, the command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from penstock.commands._flags import TrainFlags
from penstock.commands._flags.config_file import flatten, to_json
from penstock.commands._flags.train import fastnn_defaults
from penstock.commands._report.page import Element, Page, add, add_details, add_table

# Flags that say where a run lies, not what it is.
_PLACES = ("config", "overwrite", "checkpointDir", "output_dir")
_MAX_ROWS = 40
_PARTS = {
    "steps": "training steps",
    "data_wait": "waiting for data in them",
    "compile": "compiling",
    "between": "between epochs: tests, saving, logs",
}
_STATES = {
    "completed": "complete",
    "stopped": "stopped by a handler, such as at the last step that was asked for",
    "interrupted": "interrupted; the same command goes on",
    "failed": "failed; what it wrote until then is here",
    "running": "at work when this report was made, or killed",
}


class ParameterRow(Protocol):
    """A row of `ProgramBuilder.parameter_table`."""

    @property
    def name(self) -> str:
        """Its name, parts between slashes."""
        ...

    @property
    def collection(self) -> str:
        """`params`, or the name of statistics."""
        ...

    @property
    def size(self) -> int:
        """How many numbers it has."""
        ...


def find_changed(flags: Mapping[str, object]) -> dict[str, object]:
    """Return the flags that have another value than the default, by name.

    >>> find_changed({"model_name": "vgg_16", "batch_size": 32})
    {'model_name': 'vgg_16'}
    """
    default = fastnn_defaults() if flags.get("fastnn_compat") else TrainFlags()
    # Through JSON, as the run's own have been: a tuple is a list there.
    usual = flatten(json.loads(json.dumps(to_json(default))))
    return {
        name: value
        for name, value in flags.items()
        if name not in _PLACES and value != usual.get(name)
    }


def make_command(flags: Mapping[str, object]) -> str:
    """Return the command line that repeats a run, in a folder of its own.

    >>> make_command({"model_name": "vgg_16", "dataset_dir": "my photos"})
    "penstock train --model_name=vgg_16 '--dataset_dir=my photos' --output_dir=repeated"
    """
    words = [f"--{name}={_as_word(value)}" for name, value in find_changed(flags).items()]
    return shlex.join(["penstock", "train", *words, "--output_dir=repeated"])


def _as_word(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def add_cards(parent: Element, cards: Mapping[str, str]) -> None:
    """Add figures that a reader looks at first, each with its name below it."""
    grid = add(parent, "div", class_="cards")
    for name, value in cards.items():
        card = add(grid, "div", class_="card")
        add(card, "b", value)
        add(card, "span", name)


def add_run(page: Page, flags: Mapping[str, object], record: Mapping[str, Any]) -> None:
    """Add what was run: state, data, devices, versions and flags."""
    section = page.add_section("What was run")
    rows = [(name, text) for name, text in _describe_run(flags, record) if text]
    if rows:
        add_table(section, ("what", "value"), rows)
    if not record:
        add(
            section,
            "p",
            "There is no run.json with versions, devices and times. `penstock train` writes one.",
            class_="missing",
        )
    if not flags:
        add(
            section,
            "p",
            "There is no config.json with flags. `penstock train` writes one.",
            class_="missing",
        )
        return
    changed = find_changed(flags)
    add(section, "h3", "Flags that differ from the defaults")
    if changed:
        add_table(section, ("flag", "value"), [(f"--{n}", _as_word(v)) for n, v in changed.items()])
    else:
        add(section, "p", "None.")
    details = add_details(section, f"All {len(flags)} flags")
    add_table(details, ("flag", "value"), [(f"--{n}", _as_word(v)) for n, v in flags.items()])


def _describe_run(flags: Mapping[str, object], record: Mapping[str, Any]) -> list[tuple[str, str]]:
    done, planned = record.get("global_step"), record.get("num_steps")
    steps = "" if done is None else f"{done:,}" + (f" of {planned:,}" if planned else "")
    test = record.get("num_test")
    sizes = ""
    if "num_train" in record:
        tested = "nothing to test on" if test is None else f"{test:,} to test on"
        sizes = f": {record['num_train']:,} images to train on, {tested}"
    shape = " x ".join(map(str, record.get("image_shape", ())))
    devices = record.get("devices", [])
    counted = [f"{devices.count(each)} x {each}" for each in dict.fromkeys(devices)]
    processes = record.get("processes", 1)
    versions = ", ".join(f"{name} {each}" for name, each in record.get("versions", {}).items())
    return [
        ("state", _STATES.get(str(record.get("state")), "")),
        ("steps", steps),
        ("began", str(record.get("started", ""))),
        ("last written", str(record.get("updated", ""))),
        ("network", f"{flags.get('model_name', '')}{f', images {shape}' if shape else ''}"),
        ("data", f"{flags.get('dataset_name', '')}{sizes}"),
        ("classes", str(record.get("num_classes", ""))),
        ("batch", f"{record['batch_size']} images" if "batch_size" in record else ""),
        ("devices", ", ".join(counted) + (f" in {processes} processes" if processes > 1 else "")),
        ("machine", str(record.get("platform", ""))),
        ("versions", versions),
    ]


def add_times(page: Page, record: Mapping[str, Any]) -> None:
    """Add where the time went: steps, waiting for data, compiling, between epochs."""
    title = "Where time went"
    secs = record.get("seconds") or {}
    total = sum(secs.get(name, 0.0) for name in _PARTS)
    if not total:
        why = (
            "Nothing was measured. A run of `penstock train` writes it to run.json, from its first "
        )
        page.leave_out(title, f"{why}epoch on.")
        return
    section = page.add_section(title)
    add(section, "p", f"{format_secs(total)} of training, in all.")
    bar = add(section, "div", class_="stack")
    rows: list[tuple[str, ...]] = []
    for number, (name, meaning) in enumerate(_PARTS.items()):
        share = secs.get(name, 0.0) / total
        add(bar, "i", class_=f"t{number}", style=f"width: {100 * share:.2f}%", title=meaning)
        rows.append((meaning, format_secs(secs.get(name, 0.0)), f"{share:.1%}"))
    table = add_table(section, ("part", "time", "share"), rows, right={1, 2})
    for number, line in enumerate(table.findall("tbody/tr")):
        cell = line[0]
        swatch = add(cell, "span", class_=f"swatch t{number}")
        swatch.tail, cell.text = cell.text, None
    add(
        section,
        "p",
        "Waiting for data is sampled, and 0 where epochs are too short for it.",
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


def add_parameters(page: Page, table: Sequence[ParameterRow]) -> None:
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
    add(section, "p", f"{total:,} parameters in {len(layers):,} layers{also}.")
    rows = [
        (name, f"{counts[0]:,}", f"{counts[0] / max(total, 1):.1%}")
        for name, counts in layers.items()
    ]
    shares = [counts[0] / max(total, 1) for counts in layers.values()]
    parent = section
    if len(rows) > _MAX_ROWS:
        parent = add_details(section, f"All {len(rows):,} layers")
    add_table(parent, ("layer", "parameters", "share"), rows, right={1, 2}, bars=(2, shares))


def add_command(page: Page, flags: Mapping[str, object]) -> None:
    """Add the command that repeats the run."""
    title = "Repeat it"
    if not flags:
        page.leave_out(title, "The flags are not known: there is no config.json.")
        return
    section = page.add_section(title)
    add(section, "pre", make_command(flags))
    add(section, "p", "It writes into a folder of its own, repeated/runs.", class_="note")
