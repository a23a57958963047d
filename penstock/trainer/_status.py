"""What changes while a trainer trains."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from penstock._checkpoint import Position


@dataclasses.dataclass
class Status:
    """The state, and where training is; owned by the trainer, advanced by the loop.

    Attributes:
      packed: the state as `ProgramBuilder.launch` takes it.
      epoch: the epoch that runs, or runs next.
      global_step: steps done, over all calls of `train`.
      step, num_examples: those of the epoch that runs.
      reader_state: the reader's position after them; between epochs that of the last one.
      call: calls of `train` before this one.
      first_epoch: the epoch in which this call began.
      is_in_epoch: whether an epoch has begun and not ended.
    """

    packed: list[jax.Array]
    epoch: int = 0
    global_step: int = 0
    step: int = 0
    num_examples: int = 0
    reader_state: Any = None
    call: int = 0
    first_epoch: int = 0
    is_in_epoch: bool = False
    is_running: bool = False
    is_stopping: bool = False

    def position(self, batch_sizes: dict[str, int], reader_state: Any) -> Position:
        """Return where training is, for a checkpoint."""
        return Position(
            global_step=self.global_step,
            epoch=self.epoch,
            step=self.step,
            num_examples=self.num_examples,
            call=self.call,
            first_epoch=self.first_epoch,
            reader_state=reader_state,
            batch_sizes=batch_sizes,
        )

    def go_to(self, position: Position, reader_state: Any) -> None:
        """Stand where a checkpoint was written."""
        self.global_step, self.epoch = position.global_step, position.epoch
        self.step, self.num_examples = position.step, position.num_examples
        self.first_epoch, self.reader_state = position.first_epoch, reader_state
        self.is_in_epoch = position.step > 0

    def leave_epoch(self) -> None:
        """Count an epoch that was left in the middle as over: a further call begins the next."""
        if self.is_in_epoch:
            self.epoch += 1
        self.step = self.num_examples = 0
        self.is_in_epoch = False
