"""What holds for all programs of a builder."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from penstock._errors import ProgramError
from penstock._parameter_names import spell
from penstock._program.precision import Precision
from penstock._selection import Selection


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramOptions:
    """The options of a builder; `ProgramBuilder` documents each.

    Attributes:
      precision: with everything decided for the devices of the mesh.
      num_micro_batches: the micro-batches that a device's share of a batch is cut into.
    """

    precision: Precision
    skips_non_finite: bool
    freeze: tuple[str, ...]
    num_micro_batches: int

    def __post_init__(self) -> None:
        number = self.num_micro_batches
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ProgramError(
                f"gradient_accumulation_steps got {number!r}, expected a whole number of 1 or more."
            )

    def is_frozen(self, path: Sequence[str]) -> bool:
        """Return whether a parameter or running statistic stays as it is."""
        return bool(self.freeze) and Selection(include=self.freeze).takes(spell(path))
