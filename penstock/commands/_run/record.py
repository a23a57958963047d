"""The record of a run: versions, devices, sizes of the data, and where the time went."""

from __future__ import annotations

import contextlib
import datetime
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from penstock._files import replacing
from penstock._version import list_versions
from penstock.events import BeginTraining, EndEpoch, EndTraining, Event
from penstock.handlers.report.history import RunTimes


class Record:
    """Keep `run.json` in the folder of a run, from its beginning to its end.

    It holds the run's state, the versions, the devices, the facts that it is given, and `seconds`:
    of `steps`, of `data_wait` and `measure` in them (of gradients), of `compile`, and `between`
    epochs, where tests and saving are. It is written when training begins, after each epoch and at
    the end, so that a run that was killed has one too. A run that goes on adds to its seconds.
    Process 0 writes.

    Arguments:
      path: the file.
      facts: what else it holds, as JSON has it.
    """

    def __init__(self, path: Path, facts: Mapping[str, object]) -> None:
        self._path, self._facts = path, facts
        self._times = RunTimes()

    def __call__(self, event: Event) -> None:
        """Count the seconds since the last event that ends a part, and write at those."""
        if jax.process_index():
            return
        if isinstance(event, BeginTraining):
            self._begin(event)
        self._times(event)
        match event:
            case BeginTraining() | EndEpoch():
                self._write("running", event.global_step)
            case EndTraining():
                self._write(event.reason, event.global_step)

    def _begin(self, event: BeginTraining) -> None:
        before = read_record(self._path) if event.global_step else {}
        self._times.secs = before.get("seconds", {})
        devices = [] if event.trainer is None else list(event.trainer.builder.mesh.devices.flat)
        self._facts = {
            "started": before.get("started", _now()),
            "versions": list_versions(),
            "platform": f"{platform.system()} {platform.machine()}",
            "devices": [f"{device.platform}: {device.device_kind}" for device in devices],
            "processes": jax.process_count(),
            **self._facts,
        }

    def _write(self, state: str, global_step: int) -> None:
        secs = {name: round(value, 3) for name, value in self._times.secs.items()}
        record = {"state": state, "global_step": global_step, "updated": _now(), "seconds": secs}
        text = json.dumps({**record, **self._facts}, indent=1)
        # On a full disk training goes on; the log and the checkpoints say so.
        with contextlib.suppress(OSError), replacing(self._path) as temporary:
            temporary.write_text(f"{text}\n", encoding="utf-8")


def read_record(path: Path) -> dict[str, Any]:
    """Return the record of a run; empty where there is none, as of runs of older versions.

    >>> read_record(Path("nowhere/run.json"))
    {}
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
