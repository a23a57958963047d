"""The record of a run: versions, devices, sizes of the data, and where the time went."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from penstock._version import list_versions
from penstock._whole_files import replacing
from penstock.events import BeginEpoch, BeginTraining, EndEpoch, EndTraining, Event

_COMPILATIONS = logging.getLogger("penstock.compilations")
SECONDS = ("steps", "data_wait", "compile", "between")


class Record:
    """Keep `run.json` in the folder of a run, from its beginning to its end.

    It holds the run's state, the versions, the devices, the facts that it is given, and `seconds`:
    of `steps`, of `data_wait` in them, of `compile`, and `between` epochs, where tests and saving
    are. It is written when training begins, after each epoch and at the end, so that a run that was
    killed has one too. A run that goes on adds to its seconds. Process 0 writes.

    Arguments:
      path: the file.
      facts: what else it holds, as JSON has it.
    """

    def __init__(self, path: Path, facts: Mapping[str, object]) -> None:
        self._path, self._facts = path, facts
        self._secs = dict.fromkeys(SECONDS, 0.0)
        self._mark = 0.0
        self._is_in_epoch = False
        self._compilations = _Compilations()

    def __call__(self, event: Event) -> None:
        """Count the seconds since the last event that ends a part, and write at those."""
        if jax.process_index():
            return
        match event:
            case BeginTraining():
                self._begin(event)
            case BeginEpoch():
                self._count(is_epoch=False)
                self._is_in_epoch = True
            case EndEpoch():
                self._count(is_epoch=True, data_wait=event.data_wait)
                self._is_in_epoch = False
                self._write("running", event.global_step)
            case EndTraining():
                self._count(is_epoch=self._is_in_epoch)
                self._compilations.stop()
                self._write(event.reason, event.global_step)

    def _begin(self, event: BeginTraining) -> None:
        before = read_record(self._path) if event.global_step else {}
        secs = before.get("seconds", {})
        self._secs = {name: float(secs.get(name, 0.0)) for name in SECONDS}
        devices = [] if event.trainer is None else list(event.trainer.builder.mesh.devices.flat)
        self._facts = {
            "started": before.get("started", _now()),
            "versions": list_versions(),
            "platform": f"{platform.system()} {platform.machine()}",
            "devices": [f"{device.platform}: {device.device_kind}" for device in devices],
            "processes": jax.process_count(),
            **self._facts,
        }
        self._compilations.start()
        self._mark, self._is_in_epoch = time.perf_counter(), False
        self._write("running", event.global_step)

    def _count(self, *, is_epoch: bool, data_wait: float | None = None) -> None:
        now, compiling = time.perf_counter(), self._compilations.take()
        secs = max(now - self._mark - compiling, 0.0)
        self._mark = now
        waited = secs * (data_wait or 0.0)
        self._secs["compile"] += compiling
        self._secs["data_wait"] += waited
        self._secs["steps" if is_epoch else "between"] += secs - waited

    def _write(self, state: str, global_step: int) -> None:
        secs = {name: round(value, 3) for name, value in self._secs.items()}
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


class _Compilations(logging.Handler):
    """Add up the seconds of compilations, which the builder logs."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._secs = 0.0
        self._level: int | None = None

    def start(self) -> None:
        self._secs = 0.0
        _COMPILATIONS.addHandler(self)
        if not _COMPILATIONS.isEnabledFor(logging.INFO):
            self._level = _COMPILATIONS.level
            _COMPILATIONS.setLevel(logging.INFO)

    def stop(self) -> None:
        _COMPILATIONS.removeHandler(self)
        if self._level is not None:
            _COMPILATIONS.setLevel(self._level)
            self._level = None

    def take(self) -> float:
        secs, self._secs = self._secs, 0.0
        return secs

    def emit(self, record: logging.LogRecord) -> None:
        # "compiled %s in %.1f s": the line before it, "compiling %s ...", has no number.
        if isinstance(record.args, tuple) and isinstance(record.args[-1], float):
            self._secs += record.args[-1]
