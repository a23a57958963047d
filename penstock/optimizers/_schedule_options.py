"""The options of learning rate schedules, under FastNN's flag names."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

from penstock._errors import UnknownNameError, listed, nearest

DecayType = Literal["fixed", "exponential", "polynomial", "cosine", "one_cycle"]
DecayScheme = Literal["", "luong234", "luong5", "luong10"]
WarmupScheme = Literal["t2t", "linear"]

DECAY_TYPES = ("fixed", "exponential", "polynomial", "cosine", "one_cycle")
DECAY_SCHEMES = ("", "luong234", "luong5", "luong10")
WARMUP_SCHEMES = ("t2t", "linear")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    """Describe how the learning rate changes in a run; `optimizers.schedule` makes the schedule.

    Names and defaults are those of FastNN's flags. `num_epochs_per_decay` is TF-Slim's. `linear`,
    `cosine` and `one_cycle` are new.

    Arguments:
      learning_rate: the highest learning rate of the run.
      end_learning_rate: the final learning rate of polynomial, cosine and one_cycle; the others
        ignore it.
      learning_rate_decay_type: how the learning rate changes. "fixed" is constant, without warmup;
        "exponential" multiplies it by learning_rate_decay_factor again and again; "polynomial"
        falls linearly; "cosine" falls on half a cosine; "one_cycle" rises on half a cosine from a
        25th and falls on another.
      learning_rate_decay_factor: the factor by which exponential multiplies the learning rate each
        time.
      warmup_steps: the length of the warmup in steps; one_cycle rises for as many, and with 0 for
        30 % of the run.
      warmup_scheme: how the learning rate grows in the warmup: "t2t" by an equal factor per step
        from a 100th, "linear" by an equal amount per step from 0.
      decay_scheme: when exponential and polynomial decay, as parts of the run. `"luong234"` from
        2/3 on four times, `"luong5"` and `"luong10"` from 1/2 on five and ten times. Luong's
        halving needs a factor of 0.5. Polynomial is at its end after the first of these times, as
        FastNN has it. `""`: from the end of the warmup on, exponential every
        `num_epochs_per_decay` epochs, polynomial until the end of the run.
      num_epochs_per_decay: the number of epochs between two decays of exponential.

    Raises:
      UnknownNameError: a name is not among those above.
      ValueError: a number is outside its range, or two options contradict each other.

    >>> ScheduleOptions(learning_rate_decay_type="cosine", warmup_scheme="linear").learning_rate
    0.01
    """

    learning_rate: float = 0.01
    end_learning_rate: float = 0.0001
    learning_rate_decay_type: DecayType = "exponential"
    learning_rate_decay_factor: float = 0.94
    warmup_steps: int = 0
    warmup_scheme: WarmupScheme = "t2t"
    decay_scheme: DecayScheme = ""
    num_epochs_per_decay: float = 2.0

    def __post_init__(self) -> None:
        _check_name("learning_rate_decay_type", self.learning_rate_decay_type, DECAY_TYPES)
        _check_name("warmup_scheme", self.warmup_scheme, WARMUP_SCHEMES)
        _check_name("decay_scheme", self.decay_scheme, DECAY_SCHEMES)
        positive = ("learning_rate", "learning_rate_decay_factor", "num_epochs_per_decay")
        ranges = {name: (0 < getattr(self, name) < math.inf, "above 0") for name in positive}
        ranges["end_learning_rate"] = (0 <= self.end_learning_rate < math.inf, "of 0 or more")
        ranges["warmup_steps"] = (self.warmup_steps >= 0, "of 0 or more")
        problems = [
            f"{name}={getattr(self, name)!r}, expected a number {wanted}"
            for name, (is_right, wanted) in ranges.items()
            if not is_right
        ]
        if problems:
            raise ValueError(f"ScheduleOptions got {'; '.join(problems)}.")
        # Only of options that are right by themselves.
        self._check_together()

    def _check_together(self) -> None:
        decay_type = self.learning_rate_decay_type
        has_end = decay_type in ("polynomial", "cosine", "one_cycle")
        if has_end and self.end_learning_rate > self.learning_rate:
            raise ValueError(
                f"ScheduleOptions got end_learning_rate={self.end_learning_rate!r} above "
                f"learning_rate={self.learning_rate!r}, expected at most that: {decay_type} would "
                "rise instead of decay. Lower end_learning_rate, to 0 for example."
            )
        if self.decay_scheme and decay_type in ("cosine", "one_cycle"):
            raise ValueError(
                f"ScheduleOptions got decay_scheme={self.decay_scheme!r} with "
                f"learning_rate_decay_type={decay_type!r}, expected it empty. It says when "
                f"exponential and polynomial decay; {decay_type} lasts the whole run."
            )


def _check_name(option: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise UnknownNameError(
            f"{option} got {value!r}, expected one of {listed(known)}." + nearest(str(value), known)
        )
