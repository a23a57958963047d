"""Where a training run is: in its calls, its epochs and its data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Position:
    """Where a training run is after a launch, or at the end of an epoch.

    Attributes:
      global_step: steps done, over all calls of `train`.
      epoch: the epoch that runs, or that runs next.
      step: steps done of that epoch; 0 between epochs.
      num_examples: examples of those steps.
      call: which call of `train` it is, from 0.
      first_epoch: the epoch in which that call began.
      reader_state: what the reader's iterator returned from `get_state`, one for each process, or
        None where it has none; between epochs that of the epoch before.
      batch_sizes: the sizes that batches are padded to, by mode.
    """

    global_step: int = 0
    epoch: int = 0
    step: int = 0
    num_examples: int = 0
    call: int = 0
    first_epoch: int = 0
    reader_state: Any = None
    batch_sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return it as a dict that JSON can hold."""
        return {**dataclasses.asdict(self), "batch_sizes": dict(self.batch_sizes)}
