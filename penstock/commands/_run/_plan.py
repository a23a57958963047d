"""How long a run is."""

from __future__ import annotations

import dataclasses

from penstock.commands._flags import TrainFlags


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


def plan_of(flags: TrainFlags, steps_per_epoch: int) -> Plan:
    """Return how long a run is: until a step or for some epochs, whichever comes first."""
    by_epochs = flags.model.num_epochs * steps_per_epoch
    is_stopped = flags.logging.has_hook("StopAtStepHook") and flags.logging.stop_at_step > 0
    stop_at = flags.logging.stop_at_step if is_stopped else None
    return Plan(
        num_steps=by_epochs if stop_at is None else min(by_epochs, stop_at),
        by_epochs=by_epochs,
        stop_at=stop_at,
    )
