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
      num_epochs: passes over the data, where no step ends the run.
      steps_per_epoch: steps that a pass has.
      stop_at: the step that ends the run; None where the epochs do.
      is_explicit: whether a flag says how long it is.
    """

    num_epochs: int
    steps_per_epoch: int
    stop_at: int | None
    is_explicit: bool = True

    @property
    def num_epoch_steps(self) -> int:
        """Steps of all its epochs."""
        return self.num_epochs * self.steps_per_epoch

    @property
    def num_steps(self) -> int:
        """Steps from the first to the last, however often it is interrupted."""
        return (
            self.num_epoch_steps
            if self.stop_at is None
            else min(self.num_epoch_steps, self.stop_at)
        )

    def __str__(self) -> str:
        """Say what ends the run."""
        epochs = f"--num_epochs ({self.num_epoch_steps:,} steps)"
        if self.stop_at is None:
            return f"after {epochs}"
        if not self.is_explicit:
            return f"at step {self.num_steps:,}; --num_epochs or --stop_at_step make it longer"
        if self.stop_at <= self.num_epoch_steps:
            passes = self.stop_at / self.steps_per_epoch
            return f"at step {self.stop_at:,} by --stop_at_step, after {passes:.3g} epochs"
        return f"after {epochs}, before --stop_at_step={self.stop_at}"


def make_plan(flags: TrainFlags, steps_per_epoch: int) -> Plan:
    """Return how long a run is: until a step or for some epochs, whichever comes first.

    The default of one limit does not cut the other; without either it is FastNN's 100 steps.
    """
    epochs, stop_at = flags.model.num_epochs, flags.logging.stop_at_step
    is_explicit = epochs is not None or stop_at is not None
    # FastNN's default. It cuts nothing that was asked for: either flag alone has no other limit.
    if not is_explicit:
        stop_at = _DEFAULT_STEPS
    if not stop_at or not flags.logging.has_hook("StopAtStepHook"):
        stop_at = None
    if epochs is None:
        least = 0 if stop_at is None else -(-stop_at // steps_per_epoch)
        epochs = max(least, _DEFAULT_EPOCHS)
    return Plan(
        num_epochs=epochs, steps_per_epoch=steps_per_epoch, stop_at=stop_at, is_explicit=is_explicit
    )
