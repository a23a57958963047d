"""The sections about a run of `penstock train`: what was run, and the command that repeats it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from penstock.commands._flags.config_file import flatten, to_json
from penstock.commands._flags.train import make_defaults
from penstock.handlers.report.page import Page, add, add_details, add_table

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
    usual = flatten(json.loads(json.dumps(to_json(make_defaults(flags)))))
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
    state = str(record.get("state"))
    # The last step was --stop_at_step.
    if state == "stopped" and planned and done == planned:
        state = "completed"
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
        ("state", _STATES.get(state, "")),
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


def add_command(page: Page, flags: Mapping[str, object]) -> None:
    """Add the command that repeats the run."""
    title = "Repeat it"
    if not flags:
        page.leave_out(title, "The flags are not known: there is no config.json.")
        return
    section = page.add_section(title)
    add(section, "pre", make_command(flags))
    add(section, "p", "It writes into a folder of its own, repeated/runs.", class_="note")
