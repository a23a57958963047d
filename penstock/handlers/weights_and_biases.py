"""`WandB`: the curves and hyperparameters of a run in Weights & Biases."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from penstock._errors import check_installed
from penstock._paths import expand_path
from penstock.events import Reason
from penstock.handlers._hyperparameters import Hyperparameters
from penstock.handlers._test_results import Test
from penstock.handlers._tracker import TrackedRun, Tracker

_EXIT_CODES: dict[Reason, int] = {"completed": 0, "stopped": 0, "interrupted": 255, "failed": 1}
"""What W&B shows as finished, killed (255) and failed."""


class WandB(Tracker):
    """Log to Weights & Biases: curves by the number of steps done, and what the run began with.

    - `train/loss` and the other metrics, with `train/learning_rate`, at the interval; `epoch/loss`,
      means over an epoch; `test/loss`, results of tests.
    - `speed/examples_per_sec`, without compiling and what is between epochs, and
      `speed/data_wait`, the share of its time that an epoch waited for the reader.
    - As its config: `hyperparameters`, and what `trainer.describe()` says.

    A run that resumes from a checkpoint goes on in the same run of W&B, as its id is in the
    checkpoint. Points of steps that are made again stay as they were: W&B takes steps only in their
    order. Metrics are read one launch late, and W&B sends in a process of its own, so the device
    always has something to go on with. With several processes the first logs.

    A run that `wandb.init` has opened before is used, and left open: entity, group, tags and
    notes go there. `WANDB_MODE=offline`, or `mode="offline"`, writes a folder that `wandb sync`
    sends later; a resumed run writes one more, to be sent after the first.

    Arguments:
      project: what the run belongs to; by default `WANDB_PROJECT`, or W&B's own choice.
      name: the run's name; W&B makes one up otherwise.
      directory: where W&B puts its folder `wandb`; by default where the program runs.
      mode: `"online"`, `"offline"` or `"disabled"`; by default `WANDB_MODE`.
      every_steps: how many steps lie between two points.
      names: names for the values of a program function that returns a single value, a tuple or a
        list; further values are called `metric_1`, `metric_2` by position. A dict has its own.
      test: called at the end of each epoch, returns metrics; or an `Evaluate` of the same run.
      hyperparameters: values by name, of any depth, such as `vars(arguments)` of argparse.

    Raises:
      ModuleNotFoundError: wandb is not installed; the extra `wandb` brings it.
      OSError: at the end of training, when points could not be written. It is warned of when it
        happens. What W&B raises when it opens a run goes to the caller.

    >>> log = WandB("digits", hyperparameters={"learning_rate": 0.1})  # doctest: +SKIP
    >>> trainer.train(reader, log, num_epochs=5)  # doctest: +SKIP
    """

    def __init__(
        self,
        project: str | None = None,
        *,
        name: str | None = None,
        directory: str | os.PathLike[str] | None = None,
        mode: Literal["online", "offline", "disabled"] | None = None,
        every_steps: int = 50,
        names: Sequence[str] = ("loss",),
        test: Test | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
    ) -> None:
        check_installed("wandb", "wandb", "WandB")
        super().__init__(every_steps, names, test, hyperparameters)
        self._options = {"project": project, "name": name, "mode": mode}
        self._directory = None if directory is None else expand_path(directory)
        self._wandb: Any = None

    def _load(self) -> None:
        self._wandb = importlib.import_module("wandb")

    def _open(self, run_id: str | None, hyperparameters: Hyperparameters) -> TrackedRun:
        run, is_ours = self._wandb.run, False
        if run is None:
            if self._directory is not None:
                # W&B falls back on a temporary folder where there is none.
                self._directory.mkdir(parents=True, exist_ok=True)
            is_ours = True
            run = self._wandb.init(
                **self._options,
                dir=self._directory,
                id=run_id,
                # A store that has lost the run makes it again, with the same id.
                resume=None if run_id is None else "allow",
            )
        # A resumed run may come with other versions or options.
        run.config.update(hyperparameters, allow_val_change=True)
        return _Run(run, is_ours=is_ours)


class _Run:
    """A run of W&B; one of the user's own is not ended."""

    def __init__(self, run: Any, *, is_ours: bool) -> None:
        self.id: str = run.id
        self._run, self._is_ours = run, is_ours
        # W&B would warn of each point before.
        self._first_step: int = run.step
        self._failure: Exception | None = None

    def log(self, num_steps: int, values: Mapping[str, float]) -> None:
        if num_steps < self._first_step:
            return
        try:
            self._run.log(dict(values), step=num_steps)
        except Exception as error:
            self._failure = self._failure or error
            raise

    def close(self, reason: Reason) -> None:
        if self._is_ours:
            self._run.finish(exit_code=_EXIT_CODES[reason])
        if self._failure is not None:
            raise self._failure
