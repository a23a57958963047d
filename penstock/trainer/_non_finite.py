"""What happens when a loss or a gradient is not finite: stop, skip or roll back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal, NoReturn

import jax
import numpy as np

from penstock import _metrics
from penstock._errors import NonFiniteError, listed
from penstock._tracing.evaluation import Runnable
from penstock.program_builder.engine import Engine
from penstock.trainer._status import Status

_LOGGER = logging.getLogger("penstock")

OnNonFinite = Literal["stop", "skip", "roll_back"]

MAX_ROLL_BACKS = 10
"""Roll-backs in one call of `train`; a run that needs more is not getting anywhere."""

MIN_STEPS_LOST = 10
"""Steps in a row of which everything was skipped, after which a run that skips is given up."""

_ADVICE = (
    "Look for an id or a label out of range (they give nan), the log of zero or a division by "
    "zero; else lower the learning rate, or clip gradients (optax.clip_by_global_norm). "
    "trainer.replay(reader) runs the step again and shows the line, the id or the label; "
    "Trainer(..., on_non_finite='skip') leaves such updates out."
)


class Guard:
    """Reacts to the flags of launches and to the losses that handlers read.

    Arguments:
      updates_per_step: how many updates a step makes, of all objectives together.
      roll_back: returns the engine to the newest good state up to a global step, and says of
        which step it is, None where there is none.

    Attributes:
      bad_steps: the range of global steps that the last bad loss lies in, first and last.
      forget: drops the flags of launches whose state was given up.
    """

    def __init__(
        self,
        engine: Engine,
        status: Status,
        action: OnNonFinite,
        roll_back: Callable[[int], int | None],
        updates_per_step: int,
    ) -> None:
        self.bad_steps: tuple[int, int] | None = None
        self.forget: Callable[[int], None] = _forget_nothing
        self._engine, self._status, self._action = engine, status, action
        self._roll_back = roll_back
        self._updates_per_step = updates_per_step
        self._num_roll_backs = self._num_skipped = 0
        self._lost_since: int | None = None
        self._first_kept_step = 0

    def begin(self, forget: Callable[[int], None]) -> None:
        """Start counting for a call of `train`."""
        self.forget, self._num_roll_backs, self._lost_since = forget, 0, None
        if self._action == "skip":
            self._num_skipped = int(jax.device_get(self._engine.state.num_skipped))

    def end(self) -> None:
        """Let go of the run, which holds this guard: they and the state would be a circle."""
        self.forget = _forget_nothing

    def add_health(self, flag: jax.Array) -> jax.Array:
        """Return what `check_flag` takes, of the flag of the last launch; does not wait."""
        if self._action == "skip":
            return flag
        # The parameters too: a bad gradient reaches the loss one step later, after a checkpoint of
        # it.
        return self._engine.health(flag)

    def check_flag(self, flag: np.ndarray, first: int, last: int) -> None:
        """Look at a flag that stands for the steps `first` to `last`."""
        where = f"at global step {first}" if first == last else f"in global steps {first} to {last}"
        if self._action == "skip":
            # The flag is `[loss sum, updates skipped]` here, `[loss sum, is healthy]` below.
            self._count_skipped(int(flag[1]), where, first, last)
        elif not np.isfinite(flag[0]):
            self._react(f"a loss that is not finite {where}", first, last)
        elif not flag[1]:  # a gradient of the last step, or of a parameter no loss has seen since
            self._react(f"an update that is not finite {where}", first, last)

    def check_read(self, launched: _metrics.LaunchValues, first_step: int) -> None:
        """Look at the losses of a launch that a handler has just read; costs no waiting.

        Not on several processes: where only some of them read, only those would react. The flags
        are looked at by all of them after the same launch.
        """
        if self._action == "skip" or self._engine.programs.group.count > 1:
            return
        if first_step < self._first_kept_step:  # its state was given up since
            return
        for k in range(launched.num_steps):
            for name, loss in launched.losses(k).items():
                if not np.isfinite(loss):
                    of = f" of {name!r}" if len(self._engine.programs.structures) > 1 else ""
                    step = first_step + k
                    self._react(f"a loss{of} of {loss} at global step {step}", step, step)
                    return

    def _count_skipped(self, num_skipped: int, where: str, first: int, last: int) -> None:
        # The device counts from the beginning of the run, this from the last flag.
        new, self._num_skipped = num_skipped - self._num_skipped, num_skipped
        if new:
            self.bad_steps = (first, last)
            _LOGGER.warning(
                "%d update%s skipped, a loss or gradient was not finite %s (%d in all)",
                new,
                " was" if new == 1 else "s were",
                where,
                num_skipped,
            )
        # Fewer than all of them: some update got through, and the run is alive.
        if new < (last - first + 1) * self._updates_per_step:
            self._lost_since = None
            return
        since = self._lost_since = first if self._lost_since is None else self._lost_since
        if last - since + 1 >= MIN_STEPS_LOST:
            self._raise(
                f"no finite loss and gradients in global steps {since} to {last}: every update was "
                "skipped"
            )

    def _react(self, what: str, first: int, last: int) -> None:
        self.bad_steps = (first, last)
        if self._action == "stop":
            self._raise(what)
        # Deterministic runs would fail at the same place for ever.
        if self._num_roll_backs == MAX_ROLL_BACKS:
            self._raise(f"{what}, after {MAX_ROLL_BACKS} roll-backs in this call of train")
        self._num_roll_backs += 1
        step = self._roll_back(last)
        if step is None:
            self._raise(f"{what}, with no checkpoint to roll back to")
        # Launches of the given-up state are still in flight, and handlers may read them.
        self._first_kept_step = self._status.global_step
        self.forget(self._first_kept_step)
        _LOGGER.warning(
            "%s: rolled back to the state of global step %d; training goes on with the next batch "
            "(roll-back %d of at most %d)",
            what,
            step,
            self._num_roll_backs,
            MAX_ROLL_BACKS,
        )

    def _raise(self, what: str) -> NoReturn:
        raise NonFiniteError(
            f"Trainer got {what}, expected a finite one. {self._describe_non_finite()}{_ADVICE}"
        )

    def _describe_non_finite(self) -> str:
        """Return which metrics and parameters are not finite; waits for the device."""
        # A launch that failed took the arrays: there is nothing to look at.
        if self._engine.is_lost:
            return ""
        metrics = [
            label
            for name, sums in self._engine.state.metrics.items()
            for label in _list_bad_metrics(
                jax.device_get(sums),
                self._engine.programs.network.train[name].program,
                f"{name}/" if len(self._engine.state.metrics) > 1 else "",
            )
        ]
        parameters = self._engine.find_non_finite()
        more = f" and {len(parameters) - 5} more" if len(parameters) > 5 else ""
        train = self._engine.programs.network.train
        tables = {table.layer: table for each in train.values() for table in each.lookups}
        lookups = "".join(
            f"{layer} looks up ids that the program computes, and gives nan for those outside its "
            f"{table.num_rows} rows. "
            for layer, table in tables.items()
        )
        said = f"Metrics of this epoch that are not finite: {listed(metrics)}. " if metrics else ""
        followed = f"followed in {listed(parameters[:5])}{more}" if parameters else "stayed finite"
        return f"{said}The parameters {followed}. {lookups}"


def _forget_nothing(next_step: int) -> None:
    """Do nothing: no launch is in flight."""


def _list_bad_metrics(sums: _metrics.Accumulator, program: Runnable, prefix: str) -> list[str]:
    """Return how the metrics are called whose sum is not finite, in the order of the program."""
    # The high halves of the pairs are enough: what is not finite is so in both.
    scalars, arrays = iter(sums.scalars[0]), iter(sums.arrays)
    keys, labels = program.structure.keys, []
    for number, shape in enumerate(program.shapes):
        values = [next(arrays)[0] if x.shape else next(scalars) for x in jax.tree.leaves(shape)]
        if not all(np.all(np.isfinite(value)) for value in values):
            labels.append(prefix + ("loss" if keys is None else str(keys[number])))
    return labels
