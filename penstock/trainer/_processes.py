"""What a trainer's processes do together: calls, a comparison before the first step, the end."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Callable, Iterator, Mapping

from penstock._interrupts import Interrupts
from penstock.distributed.group import Group
from penstock.program_builder.engine import Engine
from penstock.trainer._comparison import compare_processes
from penstock.trainer._saver import Saver
from penstock.trainer._status import Status

_LOGGER = logging.getLogger("penstock")


class Processes:
    """The processes of a trainer; one that is alone does nothing here.

    Arguments:
      arguments: what the trainer was made with, as JSON.
    """

    def __init__(
        self,
        engine: Engine,
        status: Status,
        saver: Saver,
        arguments: Callable[[], Mapping[str, object]],
    ) -> None:
        self.group: Group = engine.programs.group
        self._engine, self._status, self._saver = engine, status, saver
        self._arguments, self._is_compared = arguments, False

    @property
    def is_alone(self) -> bool:
        """Whether there is one process."""
        return self.group.count == 1

    @contextlib.contextmanager
    def call(self, name: str) -> Iterator[None]:
        """Be in a call that all processes make: one that is alone in it is told so."""
        with self.group.inside(name):
            if not self.is_alone:
                self.group.exchange(name)
            yield

    @contextlib.contextmanager
    def run(self, interrupts: Interrupts, seed: int) -> Iterator[None]:
        """Be in a run, whose wishes and whereabouts the group is told.

        Raises:
          ProgramError: another process runs something else.
        """
        if self.is_alone:
            yield
            return
        group, status, saver = self.group, self._status, self._saver

        def wants() -> bool:
            is_due = not group.index and saver.is_time()
            return interrupts.signal is not None or status.is_stop_wanted or is_due

        def describe() -> str:
            return "waits for its reader" if interrupts.is_open else "is in a step or a handler"

        with group.watched(wants, describe):
            if not self._is_compared:
                compare_processes(group, self._engine, self._arguments(), seed)
                self._is_compared = True
            yield

    def stop(self) -> None:
        """End training after the current step, or after one that all processes agree on."""
        if self.is_alone:
            self._status.is_stopping = True
        else:
            self._status.is_stop_wanted = True


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
        said = [interrupts.signal, self._saver.is_time(), status.is_stop_wanted]
        rows = self._group.exchange("an agreement to stop or save", said)
        status.is_stop_wanted = False
        status.is_stopping = status.is_stopping or any(stop for _, _, stop in rows)
        # The clock that counts is the first process's.
        if rows[0][1]:
            self._saver.save(status)
        signals = [number for number, _, _ in rows if number is not None]
        if signals:
            if not self._group.index:
                name = signal.Signals(signals[0]).name
                _LOGGER.warning(
                    "%s: all processes end after global step %d", name, status.global_step
                )
            # Whoever got one ends all of them.
            interrupts.agree(signals[0])
