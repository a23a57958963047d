"""What a run prints before its first step, and after its last."""

from __future__ import annotations

import contextlib
import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence

import jax

from penstock import Trainer, models, optimizers
from penstock._text_tables import escape, find_columns, wrap_clauses, wrap_words
from penstock.commands._run.plan import Plan
from penstock.commands._run_folder.folder import list_steps

COMPILATIONS = logging.getLogger("penstock.compilations")


def announce(plan: Plan, trainer: Trainer, start: Sequence[str]) -> None:
    data, wanted, rows = plan.data, plan.flags, trainer.builder.parameter_table()
    num_test, num_final_test = data.facts.num_test, data.facts.num_final_test
    num_params = sum(row.size for row in rows if row.collection == "params")
    devices, num_processes = list(trainer.builder.mesh.devices.flat), jax.process_count()
    num_devices = len(devices) // num_processes
    shape = " x ".join(map(str, data.shape.image_shape))
    prepared = "" if data.preparation is None else f", {data.preparation.name} preprocessing"
    test = "nothing to test on" if num_test is None else f"{num_test:,} to test on"
    if num_final_test is not None:
        test = (
            f"{num_test:,} to choose the best network on ({data.test_part}), "
            f"{num_final_test:,} to test that on at the end"
        )
    precision = str(trainer.builder.programs.options.precision)
    precision += " (auto)" if wanted.performance.precision_name == "auto" else ""
    if (parts := wanted.model.gradient_accumulation_steps) > 1:
        precision += f"; gradients of {parts} parts of a batch added up"
    if split := wanted.performance.state_sharding:
        precision += f"; state split over the devices ({split})"
    has_batch_norm = any(row.collection == "batch_stats" for row in rows)
    rate = optimizers.describe_schedule(**plan.schedule)
    lines = {
        "model": f"{wanted.model.model_name}, images {shape}{prepared}; {num_params:,} parameters",
        "data": f"{wanted.dataset.title}: {data.num_train:,} images to train on, {test}; "
        f"{data.shape.num_classes} classes",
        "batch": f"{data.batch_size} = {format_count(num_processes, 'process')} x "
        f"{format_count(num_devices, 'device')} ({devices[0].device_kind}) x "
        f"{data.batch_size // len(devices)}; "
        f"{format_count(data.steps_per_epoch, 'step')} an epoch",
        "ends": str(plan.length),
        "precision": precision,
        "optimizer": f"{wanted.optimizer.optimizer}; learning rate {rate}",
        "batch norm": _describe_batch_norm(plan.programs.model.settings) if has_batch_norm else "",
        "writes to": str(plan.folder.path),
        "starts": start[0],
    }
    # Also where it is no terminal: they are for a person.
    columns = find_columns() or 80
    notes = [("", note) for note in (*start[1:], *plan.notes)]
    for name, text in [*((n, text) for n, text in lines.items() if text), *notes]:
        print(wrap_clauses(f"  {name:10} {text}", columns, " " * 13))
    if trainer.global_step >= plan.length.num_steps:
        limit = "num_epochs" if plan.length.stop_at is None else "stop_at_step"
        over = (
            "The run is complete; these are its results. To train longer, add "
            f"--checkpointDir={shlex.quote(str(plan.folder.path))} and a larger --{limit}. To "
            "start again, add --overwrite."
        )
        print(f"\n{wrap_words(over, columns)}")
    print(flush=True)


def _describe_batch_norm(settings: models.Settings) -> str:
    decay, size = f"{settings.batch_norm_decay:g}", settings.batch_norm_group_size
    text = f"a step keeps {decay} of the running statistics"
    if settings.batch_norm_warmup is not False:
        text = f"a step keeps (1 + step) / (10 + step) of the running statistics, {decay} at most"
    if size is not None:
        text += f"; groups of {format_count(size, 'image')} have statistics of their own"
    return text


def format_count(count: int, thing: str) -> str:
    """Return a number of things in words: "1 image", "1,200 images"."""
    plural = f"{thing}es" if thing.endswith("s") else f"{thing}s"
    return f"{count:,} {thing if count == 1 else plural}"


def conclude(plan: Plan, step: int, final: Mapping[str, float] | None) -> None:
    """Print the results, `final` on the part that nothing was chosen on, and what to do next."""
    evaluate, folder, columns = plan.evaluate, plan.folder, find_columns()
    print()
    if evaluate is not None and evaluate.best is not None and evaluate.last is not None:
        now = f"last: {format_metrics(evaluate.last)} at step {step}"
        best_step, best = evaluate.best
        best_line = f"best test: {format_metrics(best)} at step {best_step}; {now}"
        print(wrap_clauses(best_line, columns, "  "))
    if final is not None:
        count = format_count(plan.data.facts.num_final_test or 0, "image")
        some = f"{count} that nothing was chosen on"
        print(wrap_clauses(f"final test, {some}: {format_metrics(final)}", columns, "  "))
    names = {
        folder.params: "params (the last)",
        folder.best: "best (the best test)",
        folder.checkpoints: "checkpoints",
        folder.log: "log.csv",
        folder.config: "config.json",
        folder.profile: "profile",
    }
    files = ", ".join(name for path, name in names.items() if path.exists())
    print(wrap_clauses(f"files in {folder.path}: {files}", columns, "  "))
    # Whole, however long: a command that is broken cannot be copied.
    path = escape(shlex.quote(str(folder.path)))
    if evaluate is not None:
        print(f"evaluate it:  penstock eval {path}")
    if plan.data.shape.preprocessing is not None:
        samples = escape(shlex.quote(str(folder.samples)))
        images = samples if folder.samples.is_dir() else "IMAGE..."
        print(f"use it:       penstock predict {path} {images}")
    print(f"look at it:   penstock report {path}")
    print(f"take it away: penstock export {path}")
    if plan.checkpoint is None:
        print("no checkpoints: CheckpointSaverHook is not among --hooks")


@contextlib.contextmanager
def announce_compilations() -> Iterator[None]:
    handler, before = logging.Handler(), (COMPILATIONS.level, COMPILATIONS.propagate)
    # To standard output, which may have been replaced since.
    handler.emit = lambda record: print(record.getMessage(), flush=True)
    COMPILATIONS.addHandler(handler)
    COMPILATIONS.setLevel(logging.INFO)
    # Else a user's own logging would print each line again.
    COMPILATIONS.propagate = False
    try:
        yield
    finally:
        COMPILATIONS.removeHandler(handler)
        COMPILATIONS.setLevel(before[0])
        COMPILATIONS.propagate = before[1]


def format_advice(plan: Plan, step: int) -> str:
    folder, stopped = plan.folder, f"stopped at step {step}"
    if plan.checkpoint is not None and (steps := list_steps(folder.checkpoints)):
        saved = "" if steps[-1] == step else f", saved at step {steps[-1]}"
        without = " without --overwrite=True" if plan.flags.logging.overwrite else ""
        kept = f"; the run before is in {folder.replaced} until then" * folder.replaced.is_dir()
        return f"{stopped}{saved}; the same command{without} goes on from there{kept}"
    if (weights := folder.find_weights()) is None:
        back = "; the run before, which it was to replace, is back" * folder.replaced.is_dir()
        return f"{stopped}, before anything was saved{back}"
    return f"{stopped}; its network is in {weights}, but it has no checkpoint to go on from"


def format_metrics(metrics: Mapping[str, float]) -> str:
    parts = [
        f"{name} {value:.2%}" if name in ("accuracy", "top_5") else f"{name} {value:.6g}"
        for name, value in metrics.items()
    ]
    return ", ".join(parts)
