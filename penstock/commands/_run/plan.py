"""How long a run is."""

from __future__ import annotations

import dataclasses

from penstock.commands._flags import TrainFlags

_DEFAULT_STEPS = 100
_DEFAULT_EPOCHS = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """How long a run is.

    Arguments:
      num_epochs: it has, if no step ends it.
      steps_per_epoch: that its data has.
      stop_at: the step it stops at; None where nothing stops it before the epochs are over.
      is_asked: whether a flag says how long.
    """

    num_epochs: int
    steps_per_epoch: int
    stop_at: int | None
    is_asked: bool = True

    @property
    def by_epochs(self) -> int:
        """Steps that its epochs would have."""
        return self.num_epochs * self.steps_per_epoch

    @property
    def num_steps(self) -> int:
        """Steps that it has, all parts of it together."""
        return self.by_epochs if self.stop_at is None else min(self.by_epochs, self.stop_at)

    def __str__(self) -> str:
        """Say what ends the run."""
        epochs = f"--num_epochs ({self.by_epochs:,} steps)"
        if self.stop_at is None:
            return f"after {epochs}"
        if not self.is_asked:
            return f"at step {self.num_steps:,}; --num_epochs or --stop_at_step make it longer"
        if self.stop_at <= self.by_epochs:
            passes = self.stop_at / self.steps_per_epoch
            return f"at step {self.stop_at:,} by --stop_at_step, after {passes:.3g} epochs"
        return f"after {epochs}, before --stop_at_step={self.stop_at}"


def plan_of(flags: TrainFlags, steps_per_epoch: int) -> Plan:
    """Return how long a run is: until a step or for some epochs, whichever comes first.

    A limit that is not given does not cut one that is; without either it is FastNN's 100 steps.
    """
    epochs, stop_at = flags.model.num_epochs, flags.logging.stop_at_step
    is_asked = epochs is not None or stop_at is not None
    if not is_asked:
        stop_at = _DEFAULT_STEPS
    if not stop_at or not flags.logging.has_hook("StopAtStepHook"):
        stop_at = None
    if epochs is None:
        least = 0 if stop_at is None else -(-stop_at // steps_per_epoch)
        epochs = max(least, _DEFAULT_EPOCHS)
    return Plan(
        num_epochs=epochs, steps_per_epoch=steps_per_epoch, stop_at=stop_at, is_asked=is_asked
    )
