"""What several processes agree on during a run: to stop, to save, and to end on a signal."""

from __future__ import annotations

import logging
import math
import operator
import signal
from collections.abc import Sequence

from penstock._interrupts import Interrupts
from penstock.distributed.group import Group
from penstock.trainer._saver import Saver
from penstock.trainer._status import Status

_LOGGER = logging.getLogger("penstock")


class Agreement:
    """Brings the processes of a run to stop, save and end alike.

    A process that left the loop alone would leave the others waiting in a launch for ever.
    """

    def __init__(self, group: Group, status: Status, saver: Saver, interrupts: Interrupts) -> None:
        self._group, self._status = group, status
        self._saver, self._interrupts = saver, interrupts

    def meet_if_asked(self) -> None:
        """Meet the other processes between epochs, where one wants to; does nothing alone."""
        if self._interrupts.is_alone:
            return
        self._group.advance(self._status.global_step)
        if self._group.is_asked or self._status.is_stop_wanted:
            self.meet()

    def choose_interval(self, interval: int) -> int:
        """Return an interval of steps that has those of all processes in it. Collective.

        A process that ran a program alone would leave the others waiting in theirs.

        Arguments:
          interval: what handlers of this process want; 0 for nothing.
        """
        rows = self._group.exchange("BeginTraining.updates_every", operator.index(interval))
        return math.gcd(*rows)

    def meet(self) -> None:
        """Agree with the other processes, if all are at this place; else go on and do so later."""
        if self._group.meet():
            self.agree()

    def agree(self) -> None:
        """Stop, save and end as all processes do; does nothing alone. Collective.

        Raises:
          KeyboardInterrupt, SystemExit: for the first signal that some process got.
        """
        status, interrupts = self._status, self._interrupts
        if interrupts.is_alone:
            return
        # The clock that counts is the first process's.
        is_time = not self._group.index and self._saver.is_time()
        said = [interrupts.signal, is_time, status.is_stop_wanted]
        rows = self._group.exchange("an agreement to stop or save", said)
        status.is_stop_wanted = False
        status.is_stopping = status.is_stopping or any(stop for _, _, stop in rows)
        if rows[0][1]:
            self._saver.save(status)
        stops = [index for index, (_, _, stop) in enumerate(rows) if stop]
        # What all of them call, such as `EarlyStopping`, says so itself.
        if len(stops) < self._group.count:
            self._say_whose("trainer.stop()", stops)
        signals = [index for index, (number, _, _) in enumerate(rows) if number is not None]
        if signals:
            # Whoever got one ends all of them.
            number = rows[signals[0]][0]
            self._say_whose(signal.Signals(number).name, signals)
            self._group.leave(signals[0])
            interrupts.agree(number)

    def _say_whose(self, what: str, processes: Sequence[int]) -> None:
        """Have process 0 say why all end, and by whom."""
        if self._group.index or not processes:
            return
        more = f" and {len(processes) - 1} more" if len(processes) > 1 else ""
        whose = f" on process {processes[0]}{more}" if len(processes) < self._group.count else ""
        step = self._status.global_step
        _LOGGER.warning("%s%s: all processes end after global step %d", what, whose, step)
