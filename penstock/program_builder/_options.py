"""What holds for all programs of a builder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import Mesh

from penstock._errors import ProgramError, UnknownNameError, listed, nearest
from penstock._selection import Selection
from penstock.program_builder._precision import Precision


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramOptions:
    """The options of a builder; `ProgramBuilder` documents each.

    Attributes:
      num_parts: the micro-batches that a device's share of a batch is cut into.
    """

    precision: Precision
    skips_non_finite: bool
    freeze: tuple[str, ...]
    num_parts: int

    def __post_init__(self) -> None:
        if isinstance(self.num_parts, bool) or not isinstance(self.num_parts, int):
            raise ProgramError(_not_a_count(self.num_parts))
        if self.num_parts < 1:
            raise ProgramError(_not_a_count(self.num_parts))

    def on(self, mesh: Mesh) -> ProgramOptions:
        """Return the options with everything decided for the devices of a mesh."""
        return dataclasses.replace(self, precision=self.precision.on(mesh))

    def is_frozen(self, path: Sequence[str]) -> bool:
        """Return whether a parameter or running statistic stays as it is."""
        return bool(self.freeze) and Selection(include=self.freeze).takes("/".join(path))

    def check(self, table: Mapping[tuple[str, tuple[str, ...]], Any]) -> None:
        """Raise unless each pattern of `freeze` matches an entry of the parameter tree.

        Raises:
          UnknownNameError: naming the pattern, and the entry that is nearest.
        """
        names = ["/".join(path) for _, path in table]
        for pattern in self.freeze:
            if not any(Selection(include=pattern).takes(name) for name in names):
                raise UnknownNameError(
                    f"freeze got {pattern!r}, expected what matches a parameter: {listed(names)}."
                    + nearest(pattern, names)
                )


def _not_a_count(value: Any) -> str:
    return f"gradient_accumulation_steps got {value!r}, expected a whole number of 1 or more."
