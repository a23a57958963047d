"""How far a trainer has come."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from penstock._checkpoint import Position


@dataclasses.dataclass
class Status:
    """Where training is; owned by the trainer, advanced by its runs.

    Attributes:
      epoch: the epoch that runs, or runs next.
      global_step: steps done, over all calls of `train`.
      step, num_examples: those of the epoch that runs.
      reader_state: the reader's position after them; between epochs that of the last one.
      call: calls of `train` before this one.
      first_epoch: the epoch in which this call began.
      is_in_epoch: whether an epoch has begun and not ended.
      resumed: where the checkpoint was written that this process began with.
    """

    epoch: int = 0
    global_step: int = 0
    step: int = 0
    num_examples: int = 0
    reader_state: object = None
    call: int = 0
    first_epoch: int = 0
    is_in_epoch: bool = False
    is_running: bool = False
    is_stopping: bool = False
    resumed: Position | None = None

    def position(self, batch_sizes: dict[str, int], reader_state: list[object]) -> Position:
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

    def resume(self, position: Position, reader_state: object) -> None:
        """Stand where a checkpoint was written."""
        self.global_step, self.epoch = position.global_step, position.epoch
        self.step, self.num_examples = position.step, position.num_examples
        self.first_epoch, self.reader_state = position.first_epoch, reader_state
        # A checkpoint between epochs has step 0, and the next one has not begun.
        self.is_in_epoch = position.step > 0
        self.resumed = position

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Be the one run of the trainer inside the `with` block.

        Raises:
          RuntimeError: another one is going on.
        """
        if self.is_running:
            raise RuntimeError(
                "train got called while it runs, in a handler or another thread, expected one run "
                "at a time: a trainer has one state. Make a second Trainer, or call train again "
                "when this run has ended."
            )
        self.is_running, self.is_stopping = True, False
        try:
            yield
        finally:
            self.is_running = False

    @property
    def is_over(self) -> bool:
        """Whether this call of `train` had ended before the checkpoint was written."""
        return self.resumed is not None and self.call < self.resumed.call

    def begin_call(self) -> int:
        """Return the epoch in which this call began, in this process or in the resumed run."""
        self.first_epoch = self.epoch
        # A resumed call ends where it would have, not its number of epochs later.
        if self.resumed is not None and self.call == self.resumed.call:
            self.first_epoch = self.resumed.first_epoch
        return self.first_epoch

    def leave_epoch(self) -> None:
        """Count an epoch that was left in the middle as over: a further call begins the next."""
        # An epoch that ended by itself was counted at its end.
        if self.is_in_epoch:
            self.epoch += 1
        self.step = self.num_examples = 0
        self.is_in_epoch = False
