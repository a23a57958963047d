"""The first lines of a run, and the last."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from penstock import Trainer, optimizers
from penstock.commands._flags import TrainFlags, UnusedFlags
from penstock.commands._run.assembly import Run
from penstock.commands._run.folder import RunFolder, list_checkpoint_steps

COMPILATIONS = logging.getLogger("penstock.compilations")


def announce(run: Run) -> None:
    """Print what is about to happen."""
    flags, data, trainer = run.flags, run.data, run.trainer
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
        f"{data.batch_size // len(devices)}; {_counted(data.steps_per_epoch, 'step')} an epoch",
        "ends": str(run.plan),
        "precision": _precision(flags, trainer),
        "optimizer": f"{flags.optimizer.optimizer}; learning rate "
        f"{optimizers.describe_schedule(**run.schedule)}",
        **_batch_norm(run),
        "writes to": str(run.folder.path),
        "starts": run.start[0],
    }
    for name, text in lines.items():
        print(f"  {name:10} {text}")
    for note in [*run.start[1:], *data.notes, *_unused(flags.unused)]:
        print(f"  {'':10} {note}")
    if trainer.global_step >= run.plan.num_steps:
        print(
            "\nThe run is over; these are its results. To go on raise what ends it, to begin anew "
            "add --overwrite=True."
        )
    print(flush=True)


def _batch_norm(run: Run) -> dict[str, str]:
    """Return the line about the running statistics, where the network has some."""
    settings = run.network.model.settings
    rows = run.trainer.builder.parameter_table()
    if all(row.collection != "batch_stats" for row in rows):
        return {}
    decay = f"{settings.batch_norm_decay:g}"
    if settings.batch_norm_warmup is False:
        return {"batch norm": f"a step keeps {decay} of the running statistics"}
    share = "(1 + step) / (10 + step)"
    return {"batch norm": f"a step keeps {share} of the running statistics, {decay} at most"}


def _precision(flags: TrainFlags, trainer: Trainer) -> str:
    chosen = str(trainer.builder.options.precision)
    asked = flags.performance.precision_name
    parts = flags.model.gradient_accumulation_steps
    accumulated = f"; gradients of {parts} parts of a batch added up" if parts > 1 else ""
    return f"{chosen}{f' ({asked})' if asked == 'auto' else ''}{accumulated}"


def _counted(count: int, thing: str) -> str:
    plural = f"{thing}es" if thing.endswith("s") else f"{thing}s"
    return f"{count:,} {thing if count == 1 else plural}"


def _unused(flags: UnusedFlags) -> list[str]:
    """Return a line that names the flags that were set and have no effect, if there are any."""
    defaults = dataclasses.asdict(UnusedFlags())
    mine = dataclasses.asdict(flags)
    names = [f"--{name}" for name, value in mine.items() if value != defaults[name]]
    return [f"no effect here: {', '.join(names)}"] if names else []


def conclude(run: Run) -> None:
    """Print how it went, where the files are, and what to do next."""
    evaluate, folder = run.handlers.evaluate, run.folder
    print()
    if evaluate is not None and evaluate.best is not None and evaluate.last is not None:
        (step, best), last = evaluate.best, evaluate.last
        now = f"last: {shown(last)} at step {run.trainer.global_step}"
        print(f"best test: {shown(best)} at step {step}; {now}")
    print(f"files in {folder.path}: {', '.join(_files(folder))}")
    path = shlex.quote(str(folder.path))
    if evaluate is not None:
        print(f"evaluate it:  penstock eval {path}")
    if run.data.shape.preprocessing is not None:
        print(f"use it:       penstock predict {path} IMAGE...")
    if not run.saves_checkpoints:
        print("no checkpoints: CheckpointSaverHook is not among --hooks")


@contextlib.contextmanager
def announce_compilations(flags: TrainFlags) -> Iterator[None]:
    """Print a line before each compilation, and one after it: a large network takes minutes."""
    # On a terminal the live line says it, and a line in its midst would break it.
    is_live = flags.logging.log_loss_every_n_iters <= 0 and sys.stdout.isatty()
    if flags.performance.task_index or is_live:
        yield
        return
    handler, before = _Printing(), (COMPILATIONS.level, COMPILATIONS.propagate)
    COMPILATIONS.addHandler(handler)
    COMPILATIONS.setLevel(logging.INFO)
    COMPILATIONS.propagate = False
    try:
        yield
    finally:
        COMPILATIONS.removeHandler(handler)
        COMPILATIONS.setLevel(before[0])
        COMPILATIONS.propagate = before[1]


class _Printing(logging.Handler):
    """Prints records as they stand, to whatever standard output is at the moment."""

    def emit(self, record: logging.LogRecord) -> None:
        print(record.getMessage(), flush=True)


def advice(run: Run) -> str:
    """Return what an interrupted run has saved, and how it goes on."""
    folder, stopped = run.folder, f"stopped at step {run.trainer.global_step}"
    if run.saves_checkpoints and (steps := list_checkpoint_steps(folder.checkpoints)):
        saved = "" if steps[-1] == run.trainer.global_step else f", saved at step {steps[-1]}"
        without = " without --overwrite=True" if run.flags.logging.overwrite else ""
        kept = f"; the run before is in {folder.replaced} until then" * folder.replaced.is_dir()
        return f"{stopped}{saved}; the same command{without} goes on from there{kept}"
    if (weights := folder.find_weights()) is None:
        back = "; the run before, which it was to replace, is back" * folder.replaced.is_dir()
        return f"{stopped}, before anything was saved{back}"
    return f"{stopped}; its network is in {weights}, but it has no checkpoint to go on from"


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
