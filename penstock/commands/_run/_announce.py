"""The first lines of a run, and the last."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from penstock import Trainer, handlers
from penstock.commands._flags import TrainFlags, UnusedFlags
from penstock.commands._run._data import Data
from penstock.commands._run._folder import RunFolder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """How long a run is.

    Arguments:
      num_steps: it has, all parts of it together.
      by_epochs: steps that its epochs would have.
      stop_at: the step it stops at; None where nothing stops it before the epochs are over.
    """

    num_steps: int
    by_epochs: int
    stop_at: int | None

    def __str__(self) -> str:
        """Say what ends the run."""
        epochs = f"--num_epochs ({self.by_epochs:,} steps)"
        if self.stop_at is None:
            return f"after {epochs}"
        if self.stop_at < self.by_epochs:
            return f"at step {self.stop_at:,} by --stop_at_step, before {epochs} are over"
        return f"after {epochs}, before --stop_at_step={self.stop_at}"


def plan_of(flags: TrainFlags, data: Data) -> Plan:
    """Return how long a run is: until a step or for some epochs, whichever comes first."""
    by_epochs = flags.model.num_epochs * data.steps_per_epoch
    is_stopped = flags.logging.has_hook("StopAtStepHook") and flags.logging.stop_at_step > 0
    stop_at = flags.logging.stop_at_step if is_stopped else None
    return Plan(
        num_steps=by_epochs if stop_at is None else min(by_epochs, stop_at),
        by_epochs=by_epochs,
        stop_at=stop_at,
    )


def announce(
    flags: TrainFlags,
    data: Data,
    trainer: Trainer,
    plan: Plan,
    *,
    folder: RunFolder,
    schedule: str,
    start: Sequence[str],
) -> None:
    """Print what is about to happen."""
    rows = trainer.builder.parameter_table()
    num_params = sum(row.size for row in rows if row.collection == "params")
    devices = list(trainer.builder.mesh.devices.flat)
    shape = " x ".join(map(str, data.shape.image_shape))
    prepares = flags.preprocessing.preprocessing_name
    prepared = "" if prepares is None else f", {prepares} preprocessing"
    test = "nothing to test on" if data.num_test is None else f"{data.num_test:,} to test on"
    lines = {
        "model": f"{flags.model.model_name}, images {shape}{prepared}; {num_params:,} parameters",
        "data": f"{flags.dataset.dataset_name}: {data.num_train:,} images to train on, {test}; "
        f"{data.shape.num_classes} classes",
        "batch": f"{data.batch_size} = {_counted(jax.process_count(), 'process')} x "
        f"{_counted(len(devices) // jax.process_count(), 'device')} ({devices[0].device_kind}) x "
        f"{flags.model.batch_size}; {data.steps_per_epoch:,} steps an epoch",
        "ends": str(plan),
        "precision": _precision(flags, trainer),
        "optimizer": f"{flags.optimizer.optimizer}; learning rate {schedule}",
        "writes to": str(folder.path),
        "starts": start[0],
    }
    for name, text in lines.items():
        print(f"  {name:10} {text}")
    for note in [*start[1:], *data.notes, *_unused(flags.unused)]:
        print(f"  {'':10} {note}")
    print(flush=True)


def _precision(flags: TrainFlags, trainer: Trainer) -> str:
    chosen = str(trainer.builder.options.precision)
    asked = flags.performance.precision_name
    parts = flags.model.gradient_accumulation_steps
    accumulated = f"; gradients of {parts} parts of a batch added up" if parts > 1 else ""
    return f"{chosen}{f' ({asked})' if asked == 'auto' else ''}{accumulated}"


def _counted(count: int, thing: str) -> str:
    plural = f"{thing}es" if thing.endswith("s") else f"{thing}s"
    return f"{count} {thing if count == 1 else plural}"


def _unused(flags: UnusedFlags) -> list[str]:
    """Return a line that names the flags that were set and have no effect, if there are any."""
    defaults = dataclasses.asdict(UnusedFlags())
    mine = dataclasses.asdict(flags)
    names = [f"--{name}" for name, value in mine.items() if value != defaults[name]]
    return [f"no effect here: {', '.join(names)}"] if names else []


def conclude(
    folder: RunFolder, evaluate: handlers.Evaluate | None, *, step: int, is_saved: bool
) -> None:
    """Print how it went, where the files are, and what to do next."""
    best = None if evaluate is None else evaluate.best
    last = None if evaluate is None else evaluate.last
    print()
    if best is not None and last is not None:
        print(f"best test: {shown(best[1])} at step {best[0]}; last: {shown(last)} at step {step}")
    print(f"files in {folder.path}: {', '.join(_files(folder))}")
    path = shlex.quote(str(folder.path))
    if evaluate is not None:
        print(f"evaluate it:  penstock eval {path}")
    print(f"use it:       penstock predict {path} IMAGE...")
    if not is_saved:
        print("no checkpoints: CheckpointSaverHook is not among --hooks")


def shown(metrics: Mapping[str, Any]) -> str:
    """Return metrics as text, accuracies as percentages."""
    parts = [
        f"{name} {value:.2%}" if name in ("accuracy", "top_5") else f"{name} {value:.6g}"
        for name, value in metrics.items()
    ]
    return ", ".join(parts)


def _files(folder: RunFolder) -> list[str]:
    kinds = {
        folder.params: "params (the last)",
        folder.best: "best (the best test)",
        folder.checkpoints: "checkpoints",
        folder.log: "log.csv",
        folder.config: "config.json",
        folder.profile: "profile",
    }
    return [name for path, name in kinds.items() if path.exists()]
