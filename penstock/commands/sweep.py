"""`penstock sweep`: runs of `penstock train` with many values of flags, which Optuna chooses."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import jax

from penstock._errors import check_installed
from penstock._text_tables import escape, find_columns, print_table, wrap_words
from penstock.commands._argument_parser import FlagValue, option, parse, positional
from penstock.commands._failures import UsageError, check_at_least, command, leave_out_alarm
from penstock.commands._flags import TRAIN_FLAGS, make_train_flags, write_value
from penstock.commands._image_folders import describe_folder
from penstock.commands._run.announce import format_count, leave_out_resuming
from penstock.commands._run.plan import Plan, make_plan
from penstock.commands._run.processes import join_processes
from penstock.commands._run_folder import runs
from penstock.commands.report import make_command
from penstock.commands.train import read_flags

if TYPE_CHECKING:
    from penstock.commands._study import Space, Sweep

PROG = "penstock sweep"
_EXAMPLES = """examples:
  penstock sweep photos/ --search learning_rate=1e-4..1e-1:log
  penstock sweep --model_name=lenet --num_epochs=20 --num_trials=30 \\
      --search learning_rate=1e-4..1e-1:log --search optimizer=adam,sgd \\
      --search batch_size=16,32,64

If it was interrupted, repeat the command to resume it. Several processes may
run the same command at once, each on a GPU of its own. `penstock train
--help_all` lists what the flags of training mean."""
# Flags that may differ between the calls of one sweep.
_ALIKE = {*runs.SILENT, *runs.DISPLAY} - {"eval_every_n_epochs"}
_TRAINING = {
    name: dataclasses.replace(flag, section="training") for name, flag in TRAIN_FLAGS.items()
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepFlags:
    """Train with many values of some flags, and tell which are best.

    Each trial is a run of `penstock train` in a folder of its own. Optuna chooses its values by the
    results of those before, and ends it early where it does worse than most.

    Arguments:
      folder: train on the images in this folder, as penstock train does.
      search: a flag to search and its values: NAME=A,B,C for these; NAME=LOW..HIGH for a range of
        numbers; NAME=LOW..HIGH:log where their order of magnitude counts. Give it once for each
        flag.
      num_trials: how many trials there are in all.
      prune: end a trial after an epoch if its best test is worse than the median of the others
        after as many; the first five are never ended.
      sweep_dir: the folder of the sweep; by default OUTPUT_DIR/runs/<data>_sweep.
    """

    folder: str | None = positional("FOLDER", "?")
    search: tuple[str, ...] = option("NAME=VALUES", is_repeated=True)
    num_trials: int = 20
    prune: bool = True
    sweep_dir: str | None = option("FOLDER", None)

    def __post_init__(self) -> None:
        check_at_least(self, 1, "num_trials")


@command("sweep")
def run(argv: list[str]) -> None:
    """Run `penstock sweep` with the arguments after the command's name."""
    flags, overrides = parse(
        SweepFlags, argv, prog=PROG, epilog=_EXAMPLES, extra=_TRAINING, unused="training"
    )
    check_installed("optuna", "sweep", PROG)
    space = _read_space(flags, overrides)
    given = {name: write_value(value) for name, value in overrides.items()}
    words = [*filter(None, [flags.folder]), *(f"--{name}={text}" for name, text in given.items())]
    train_flags = read_flags(words)
    join_processes()
    if train_flags.performance.worker_hosts or jax.process_count() > 1:
        raise UsageError(
            "got several processes that train as one, expected one. Start the same command several "
            "times instead: each takes the next trial."
        )
    with leave_out_alarm(), leave_out_resuming():
        # What is wrong with the data is found now, and not by each trial.
        plan = make_plan(train_flags)
        default = (
            Path(train_flags.logging.output_dir) / "runs" / f"{train_flags.dataset.title}_sweep"
        )
        path = Path(flags.sweep_dir) if flags.sweep_dir else default
        sweep = _open(path, words, space, given, flags, plan)
        best = "lowest loss of training, as nothing is tested"
        if plan.evaluate is not None:
            part = f" ({plan.data.test_part})" if plan.data.test_part else ""
            best = f"highest accuracy on {format_count(plan.data.num_test or 0, 'image')}{part}"
        line = f"{format_count(flags.num_trials, 'trial')} in {path}, for the {best}"
        print(wrap_words(line, find_columns(), "  "), flush=True)
        while sweep.run_trial(flags.num_trials):
            pass
    _conclude(sweep, path)


def _read_space(flags: SweepFlags, overrides: Mapping[str, FlagValue]) -> Space:
    """Return the values of each flag that is searched, all of which `penstock train` takes."""
    from penstock.commands._study import Range, read_space

    space = read_space(flags.search)
    if own := [f"--{name}" for name in ("checkpointDir", "overwrite") if name in overrides]:
        raise UsageError(
            f"got {' and '.join(own)}, expected none. Each trial has a folder in --sweep_dir."
        )
    data: dict[str, str] = {}
    if flags.folder is not None:
        data = describe_folder(flags.folder, overrides)
    for name, values in space.items():
        if name in overrides:
            raise UsageError(f"got --{name} and --search {name}=..., expected one of the two.")
        # All between two that it takes it takes too.
        for value in values[:2] if isinstance(values, Range) else values:
            make_train_flags({**overrides, **data, name: value})
    return space


def _open(
    path: Path, words: list[str], space: Space, given: dict[str, str], flags: SweepFlags, plan: Plan
) -> Sweep:
    """Return the sweep in a folder, new or begun before with the same settings."""
    from penstock.commands._study import Sweep

    settings = {name: given[name] for name in given if name not in _ALIKE}
    if flags.folder is not None:
        settings["dataset_dir"] = os.path.normpath(flags.folder)
    settings["search"] = " ".join(sorted(flags.search))
    metric = "loss" if plan.evaluate is None else "accuracy"
    return Sweep(path, words, space, metric, plan.flags.performance.seed, flags.prune, settings)


def _conclude(sweep: Sweep, path: Path) -> None:
    """Print the table of trials, and what to do with the best one."""
    head, *rows = runs.format_table(sweep.write())
    print()
    print_table(head, rows, right=range(2, len(head)))
    # Whole, however long: a command that is broken cannot be copied.
    folder = escape(shlex.quote(str(path)))
    print()
    # Its folder may have been removed since.
    with contextlib.suppress(UsageError):
        flags, _ = runs.read_flags(path / rows[0][0])
        print(f"repeat {rows[0][0]}:  {escape(make_command(flags))}")
        print(f"evaluate it:       penstock eval {folder}/{rows[0][0]}")
    print(f"look at all:       penstock report {folder}")
    print("more trials:       the same command with a larger --num_trials")
