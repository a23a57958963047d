"""Handlers of a run's events: its record in `run.json`, and FastNN's hooks."""

from __future__ import annotations

import contextlib
import json
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from penstock import handlers
from penstock._files import replacing
from penstock._version import list_versions
from penstock.commands._run_folder.runs import check_record
from penstock.events import BeginStep, BeginTraining, EndEpoch, EndStep, EndTraining, Event
from penstock.handlers.report.history import RunTimes, now

_WARM_UP_STEPS = 3


class Record:
    """Keep `run.json` in the folder of a run, from its beginning to its end.

    It holds the run's state, the versions, the devices, facts, and the seconds of `RunTimes`. It is
    written when training begins, after each epoch and at the end, so that a run that was killed has
    one too. A run that goes on adds to its seconds. Process 0 writes.
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
        self._times.begin(before.get("seconds", {}))
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


class Benchmark:
    """Measure examples per second in windows of steps, and print them at the end of training.

    A window begins and ends when the device has done its steps. The first steps, which compile, are
    left out.
    """

    def __init__(self, every_steps: int) -> None:
        self._every_steps = every_steps
        self._num_steps = self._num_examples = 0
        self._marks: list[tuple[float, int]] = []

    def __call__(self, event: Event) -> None:
        match event:
            case BeginTraining():
                self._num_steps, self._marks = 0, []
            case EndStep():
                self._num_steps += 1
                self._num_examples += event.num_examples
                past = self._num_steps - _WARM_UP_STEPS
                if past >= 0 and past % self._every_steps == 0:
                    # Reading waits for the device: without it the clock would measure how fast
                    # steps are queued.
                    event.metrics  # noqa: B018
                    self._marks.append((time.perf_counter(), self._num_examples))
            case EndTraining() if event.error is None:
                print(self.summary(), flush=True)

    def summary(self) -> str:
        every = self._every_steps
        if len(self._marks) < 2:
            return (
                f"benchmark: no window of {every} steps after the first {_WARM_UP_STEPS}; raise "
                "--stop_at_step"
            )
        secs, num_examples = np.diff(self._marks, axis=0).T
        rates = num_examples / np.maximum(secs, 1e-9)
        # Medians: one window in which another program was busy does not count.
        rate, step = np.median(rates), np.median(secs / every)
        return (
            f"benchmark: {rate:.1f} examples/s, {min(rates):.1f} to {max(rates):.1f} in "
            f"{len(rates)} windows of {every} steps; {1000 * step:.3g} ms a step"
        )


def evaluate_at_end(evaluate: handlers.Evaluate, event: Event) -> None:
    """Test the last parameters of a run, before other handlers log its end."""
    # It does not test the same state twice.
    if isinstance(event, EndTraining) and event.error is None:
        evaluate()


class ProfileEvery:
    """Trace one step of every so many, each into a folder of its own, `step-<number>`."""

    def __init__(self, directory: Path, every_steps: int) -> None:
        self._directory, self._every_steps = directory, every_steps
        self._profile: handlers.Profile | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, BeginStep) and (event.global_step + 1) % self._every_steps == 0:
            folder = self._directory / f"step-{event.global_step + 1}"
            self._profile = handlers.Profile(folder, first_step=0, num_steps=1)
        if self._profile is not None:
            self._profile(event)
            if isinstance(event, EndStep | EndTraining):
                self._profile = None


def print_placement(event: Event) -> None:
    if not isinstance(event, BeginTraining) or event.trainer is None:
        return
    devices = list(event.trainer.builder.mesh.devices.flat)
    print("device placement: parameters and optimizer state on each, a part of every batch")
    for number, device in enumerate(devices):
        print(
            f"  {device.platform}:{device.id} {device.device_kind}, process "
            f"{device.process_index}: rows {number}/{len(devices)} of each batch"
        )
