"""A sweep and its trials: what Optuna is asked and told. Imports Optuna, which is optional."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import time
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from penstock._errors import FolderInUseError, NonFiniteError
from penstock._folder_lock import FolderLock, is_in_use
from penstock._text_tables import escape, find_columns, print_table, wrap_words
from penstock.commands._argument_parser import Flag, FlagValue
from penstock.commands._failures import UsageError, one_line, split_words, suggest_flag
from penstock.commands._flags import TRAIN_FLAGS, make_train_flags, read_config, write_value
from penstock.commands._image_folders import describe_folder
from penstock.commands._run.announce import format_count
from penstock.commands._run.plan import make_plan
from penstock.commands._run.processes import join_processes
from penstock.commands._run.training import Run, begin, fit
from penstock.commands._run_folder import runs
from penstock.commands.report import make_command
from penstock.commands.train import read_flags
from penstock.events import EndEpoch, Event

_NAME = "sweep"
# In the order of the table.
_STATES = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "unfinished"}
_STATES |= {"WAITING": "unfinished"}
_POLL_SECS = 0.2
# Flags that may differ between the calls of one sweep.
_ALIKE = {*runs.SILENT, *runs.DISPLAY} - {"eval_every_n_epochs"}


def run_trials(
    overrides: Mapping[str, FlagValue],
    *,
    folder: str | None,
    search: Sequence[str],
    num_trials: int,
    prune: bool,
    sweep_dir: str | None,
) -> None:
    """Run the trials of a sweep that are left, and print what came of all; as `SweepFlags`."""
    space = read_space(search)
    _check_space(space, folder, overrides)
    values = {name: write_value(value) for name, value in overrides.items()}
    words = [*filter(None, [folder]), *(f"--{name}={text}" for name, text in values.items())]
    train_flags = read_flags(words)
    join_processes()
    if train_flags.performance.worker_hosts or jax.process_count() > 1:
        raise UsageError(
            "got several processes that train as one, expected one. Start the same command several "
            "times instead: each takes the next trial."
        )
    config = read_config(str(overrides["config"])) if overrides.get("config") else {}
    settings = {
        name: write_value(value)
        for name, value in {**config, **overrides}.items()
        if name not in _ALIKE and name not in space
    }
    if folder is not None:
        settings["dataset_dir"] = os.path.normpath(folder)
    settings["search"] = " ".join(sorted(search))
    # What is wrong with the data is found now, and not by each trial.
    plan = make_plan(train_flags)
    # Not joined as text: without a word it is the current folder.
    default = Path(train_flags.logging.output_dir, "runs", f"{train_flags.dataset.title}_sweep")
    path, seed = Path(sweep_dir or default), train_flags.performance.seed
    metric, best = "loss", "lowest loss of training, as nothing is tested"
    if plan.evaluate is not None:
        part = f" ({plan.data.test_part})" if plan.data.test_part else ""
        images = format_count(plan.data.facts.num_test or 0, "image")
        metric, best = "accuracy", f"highest accuracy on {images}{part}"
    sweep = Sweep(path, words, space, metric, seed, prune, settings)
    line = f"{format_count(num_trials, 'trial')} in {path}, for the {best}"
    print(wrap_words(line, find_columns(), "  "), flush=True)
    while sweep.run_trial(num_trials):
        pass
    _conclude(sweep, path)


def _check_space(space: Space, folder: str | None, overrides: Mapping[str, FlagValue]) -> None:
    """Raise unless `penstock train` takes all values that are searched, and the flags beside."""
    if own := [f"--{name}" for name in ("checkpointDir", "overwrite") if name in overrides]:
        raise UsageError(
            f"got {' and '.join(own)}, expected none. Each trial has a folder in --sweep_dir."
        )
    data = {} if folder is None else describe_folder(folder, overrides)
    for name, values in space.items():
        if name in overrides:
            raise UsageError(f"got --{name} and --search {name}=..., expected one of the two.")
        # All between two that it takes it takes too.
        for value in values[:2] if isinstance(values, Range) else values:
            read = TRAIN_FLAGS[name].read(write_value(value))
            make_train_flags({**overrides, **data, name: read})


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


def read_space(words: Sequence[str]) -> Space:
    """Return what the words of `--search` say, by the names of flags."""
    space: dict[str, Range | list[Any]] = {}
    for word in words:
        name, _, text = word.partition("=")
        name = name.strip("-").replace("-", "_")
        if not text:
            forms = "NAME=A,B,C, NAME=LOW..HIGH or NAME=LOW..HIGH:log"
            raise UsageError(f"--search got {word!r}, expected {forms}.")
        flag = TRAIN_FLAGS.get(name)
        if flag is None:
            raise UsageError(
                f"--search got the flag {name!r}, expected one that `penstock train --help_all` "
                f"lists.{suggest_flag(name, list(TRAIN_FLAGS))}"
            )
        if name in (*runs.SILENT, *runs.DISPLAY) or flag.section in ("dataset", "unused"):
            raise UsageError(
                f"--search got the flag {name!r}, expected one that changes how a network is "
                "trained. Trials are compared by tests on the same data."
            )
        if name in space:
            raise UsageError(f"--search got {name!r} twice, expected it once, with all its values.")
        space[name] = _read_values(flag, word, text)
    return space


class Range(NamedTuple):
    """Numbers from `low` to `high`, these too; with `is_log` as many in each order of magnitude."""

    low: Any
    high: Any
    is_log: bool


Space = Mapping[str, Range | list[Any]]
"""The values of each flag that is searched, by its name."""


def _read_values(flag: Flag, word: str, text: str) -> Range | list[Any]:
    kind = next((kind for kind in (float, int) if kind in flag.kinds), None)
    if ".." in text and kind is not None:
        return _read_range(kind, word, text)
    words = list(dict.fromkeys(split_words(text)))
    try:
        values = [flag.read(part) for part in words]
    except ArgumentTypeError as error:
        raise UsageError(f"--search got {word!r}: --{flag.name} {error}") from error
    if len(values) < 2:
        why = "Only a number has a range" if ".." in text else "One for all trials is a flag"
        raise UsageError(
            f"--search got {word!r}, expected several: {flag.name}=A,B. {why}: --{flag.name}=VALUE."
        )
    # Optuna holds no lists: they stay text.
    is_plain = all(value is None or isinstance(value, bool | float | int) for value in values)
    return values if is_plain else words


def _read_range(kind: type[int | float], word: str, text: str) -> Range:
    try:
        low, high = map(kind, text.removesuffix(":log").split(".."))
    except ValueError as error:
        what = "whole numbers" if kind is int else "numbers"
        forms = "LOW..HIGH or LOW..HIGH:log"
        raise UsageError(f"--search got {word!r}, expected {what}: {forms}.") from error
    if not -math.inf < low < high < math.inf:
        raise UsageError(f"--search got {word!r}, expected the lower number first: LOW..HIGH.")
    if text.endswith(":log") and low <= 0:
        raise UsageError(f"--search got {word!r}, expected numbers above 0, as :log is there.")
    return Range(low, high, text.endswith(":log"))


class Sweep:
    """A sweep, whose trials several processes may run.

    Arguments:
      words: of `penstock train`, which all trials have in common.
      metric: `accuracy` of tests; `loss` of training where nothing is tested.
      settings: what a sweep with other trials has in another way.
    """

    def __init__(
        self,
        folder: Path,
        words: Sequence[str],
        space: Space,
        metric: str,
        seed: int,
        prunes: bool,
        settings: Mapping[str, str],
    ) -> None:
        self._folder, self._words, self._space = folder, words, space
        self._metric, self._seed = metric, seed
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        folder.mkdir(parents=True, exist_ok=True)
        self._storage = JournalStorage(JournalFileBackend(str(folder / "study.log")))
        self._study = optuna.create_study(
            storage=self._storage,
            study_name=_NAME,
            direction="maximize" if metric == "accuracy" else "minimize",
            pruner=optuna.pruners.MedianPruner() if prunes else optuna.pruners.NopPruner(),
            load_if_exists=True,
        )
        before = self._study.user_attrs.get("settings", settings)
        if before != settings:
            names = {name for name, _ in before.items() ^ settings.items()}
            raise UsageError(
                f"--sweep_dir got {str(folder)!r}, the folder of another sweep, whose "
                f"{', '.join(f'--{name}' for name in sorted(names))} differ, expected one of this "
                "sweep. Their trials cannot be compared. Name another."
            )
        self._study.set_user_attr("settings", dict(settings))

    def run_trial(self, num_trials: int) -> bool:
        """Run the next trial of so many and print its line; return whether there was one."""
        start = time.monotonic()
        with contextlib.ExitStack() as held:
            # Until the folder of the trial is locked too, no other process may take a trial.
            with _wait_for(FolderLock(self._folder)):
                trial = self._ask(num_trials)
                if trial is None:
                    return False
                begun = self._begin(trial, held)
            result = begun if isinstance(begun, Exception) else self._train(trial, begun)
            if isinstance(result, Exception):
                self._study.tell(trial, state=TrialState.FAIL)
        name = _name(trial)
        (row,) = (row for row in runs.format_table(self.write()) if row[0] == name)
        _, state, metric, epochs, *values = row
        told = f"{self._metric} {metric}, epochs {epochs}, {time.monotonic() - start:.1f} s"
        told = one_line(result) if isinstance(result, Exception) else told
        shown = ", ".join(map("=".join, zip(self._space, values, strict=True)))
        print(wrap_words(f"{name}  {state}: {told}; {shown}", find_columns(), "  "), flush=True)
        return True

    def _ask(self, num_trials: int) -> optuna.Trial | None:
        """Return a trial that was cut, else a new one; None where all have been begun."""
        trials = self._study.get_trials(deepcopy=False)
        running = (trial for trial in trials if trial.state == TrialState.RUNNING)
        cut = [trial for trial in running if not is_in_use(self._folder / _name(trial))]
        number = cut[0].number if cut else len(trials)
        if not cut and number >= num_trials:
            return None
        # Of its own for each trial: a generator that is made again repeats its first numbers.
        seed = np.random.SeedSequence([self._seed, number]).generate_state(1)
        self._study.sampler = optuna.samplers.TPESampler(seed=int(seed[0]))
        if cut:
            study_id = self._storage.get_study_id_from_name(_NAME)
            trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, number)
            trial = optuna.Trial(self._study, trial_id)
        else:
            trial = self._study.ask()
        # Values that a trial has are kept: one that was killed may lack some.
        for name, values in self._space.items():
            if isinstance(values, Range):
                suggest = trial.suggest_int if isinstance(values.low, int) else trial.suggest_float
                suggest(name, *values[:2], log=values.is_log)
            else:
                trial.suggest_categorical(name, values)
        return trial

    def _begin(self, trial: optuna.Trial, held: contextlib.ExitStack) -> Run | Exception:
        """Take the folder of a trial; return why not, where its values do not go together."""
        path = self._folder / _name(trial)
        is_new = not path.exists()
        try:
            values = {**trial.params, "checkpointDir": path}.items()
            words = [*self._words, *(f"--{name}={write_value(value)}" for name, value in values)]
            return begin(make_plan(read_flags(words)), held)
        except ValueError as error:
            # What has been trained is not given up.
            if not is_new:
                raise
            return error

    def _train(self, trial: optuna.Trial, run: Run) -> Exception | None:
        """Train a trial and tell the study; return its failure, where its values are the cause."""
        plan, trainer = run.plan, run.trainer
        prune = _Prune(trial, run, self._metric)
        try:
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
                fit(run, prune, title=f"{_name(trial)} ")
        except (NonFiniteError, MemoryError) as error:
            return error
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return MemoryError("the device has too little memory")
        trial.set_user_attr("epochs", round(trainer.global_step / plan.data.steps_per_epoch, 2))
        if plan.evaluate is None:
            value = trainer.test(plan.data.train, averaged=plan.is_averaged)[self._metric]
        else:
            value = (plan.evaluate.best or (0, {}))[1].get(self._metric, math.nan)
        if prune.is_pruned:
            self._study.tell(trial, state=TrialState.PRUNED)
        elif math.isnan(value):
            return NonFiniteError(f"{self._metric} is nan")
        else:
            self._study.tell(trial, value)
        return None

    def write(self) -> list[tuple[str, ...]]:
        """Write the table of trials into the sweep's folder, the best first, and return it."""
        sign = -1 if self._metric == "accuracy" else 1
        trials = sorted(
            self._study.get_trials(deepcopy=False),
            key=lambda t: (list(_STATES).index(t.state.name), sign * (t.value or 0.0)),
        )
        rows = [
            (
                _name(trial),
                _STATES[trial.state.name],
                "" if trial.value is None else repr(trial.value),
                str(trial.user_attrs.get("epochs", "")),
                *(write_value(trial.params.get(name, "")) for name in self._space),
            )
            for trial in trials
        ]
        table = [("trial", "state", self._metric, "epochs", *self._space), *rows]
        runs.write_rows(self._folder / runs.TRIALS, table)
        return table


def _name(trial: optuna.Trial | optuna.trial.FrozenTrial) -> str:
    return f"trial_{trial.number:03}"


def _wait_for(lock: FolderLock) -> FolderLock:
    """Acquire a lock that other processes hold for moments, and return it."""
    while True:
        with contextlib.suppress(FolderInUseError):
            lock.acquire()
            return lock
        time.sleep(_POLL_SECS)


class _Prune:
    """Report each epoch's metric to the study, and stop a trial that is worse than most."""

    def __init__(self, trial: optuna.Trial, run: Run, metric: str) -> None:
        self._trial, self._run, self._metric = trial, run, metric
        self.is_pruned = False
        frozen = trial.study.get_trials(deepcopy=False)[trial.number]
        self._reported = {*frozen.intermediate_values}

    def __call__(self, event: Event) -> None:
        plan = self._run.plan
        # The last epoch cannot be spared.
        if not isinstance(event, EndEpoch) or event.global_step >= plan.length.num_steps:
            return
        values: Any = event.metrics
        if plan.evaluate is not None:
            step, values = (plan.evaluate.results or [(0, {})])[-1]
            if step != event.global_step:
                return
        # One that is trained again after a kill has been reported.
        if event.epoch not in self._reported:
            self._trial.report(float(values[self._metric]), event.epoch)
        if self._trial.should_prune():
            self.is_pruned = True
            self._run.trainer.stop()
