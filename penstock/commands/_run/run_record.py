"""run.json in the folder of a run, written while it trains; `runs.read_record` reads it."""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from penstock._files import replacing
from penstock._version import list_versions
from penstock.commands._run_folder.runs import check_record
from penstock.events import BeginTraining, EndEpoch, EndTraining, Event
from penstock.handlers.report.history import RunTimes, now


class Record:
    """Keep `run.json` in the folder of a run, from its beginning to its end.

    It holds the run's state, the versions, the devices, facts, and the seconds of `RunTimes`. It is
    written when training begins, after each epoch and at the end, so that a run that was killed has
    one too. A run that goes on adds to its seconds.
    Process 0 writes.
    """

    def __init__(self, path: Path, facts: Mapping[str, object]) -> None:
        self._path, self._facts = path, facts
        self._times = RunTimes()

    def __call__(self, event: Event) -> None:
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
        before: Mapping[str, Any] = {}
        if event.global_step:
            # One that a person has broken counts as none: times are no reason to end a run.
            with contextlib.suppress(ValueError):
                before = check_record(self._path)
        self._times.secs = before.get("seconds", {})
        devices = [] if event.trainer is None else list(event.trainer.builder.mesh.devices.flat)
        self._facts = {
            "started": before.get("started", now()),
            "versions": list_versions(),
            "platform": f"{platform.system()} {platform.machine()}",
            "devices": [f"{device.platform}: {device.device_kind}" for device in devices],
            "processes": jax.process_count(),
            **self._facts,
        }

    def _write(self, state: str, global_step: int) -> None:
        secs = {name: round(value, 3) for name, value in self._times.secs.items()}
        record = {"state": state, "global_step": global_step, "updated": now(), "seconds": secs}
        text = json.dumps({**record, **self._facts}, indent=1)
        # On a full disk training goes on; the log and the checkpoints say so.
        with contextlib.suppress(OSError), replacing(self._path) as temporary:
            temporary.write_text(f"{text}\n", encoding="utf-8")
