"""What a trainer's processes do together: their calls, and the comparison before the first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from penstock._interrupts import Interrupts
from penstock.distributed.group import Group
from penstock.program_builder.engine import Engine
from penstock.trainer._comparison import compare_processes
from penstock.trainer._saver import Saver
from penstock.trainer._status import Status


class Processes:
    """The processes of a trainer; one that is alone does nothing here."""

    def __init__(self, engine: Engine, status: Status, saver: Saver) -> None:
        self.group: Group = engine.programs.group
        self._engine, self._status, self._saver = engine, status, saver
        self._is_compared = False

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
    def run(
        self, interrupts: Interrupts, seed: int, arguments: Callable[[], Mapping[str, object]]
    ) -> Iterator[None]:
        """Be in a run, whose wishes and whereabouts the group is told.

        Arguments:
          arguments: what the trainer was made with, as JSON.

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

        with group.watched(wants, describe, saver.finish):
            if not self._is_compared:
                compare_processes(group, self._engine, arguments(), seed)
                self._is_compared = True
            yield

    def stop(self) -> None:
        """End training after the current step, or after one that all processes agree on."""
        if self.is_alone:
            self._status.is_stopping = True
        else:
            self._status.is_stop_wanted = True
