"""What several processes must do alike: end on a signal, save on a clock, read one checkpoint."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from penstock._checkpoint import Contents, Store
from penstock._errors import CheckpointError
from penstock._interrupts import Interrupts
from penstock.distributed.group import Group
from penstock.trainer._status import Status

if TYPE_CHECKING:
    from penstock.trainer._saver import Saver

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


@contextlib.contextmanager
def together(group: Group, name: str) -> Iterator[None]:
    """Be in a call that all processes make: one that is alone in it is told so."""
    with group.inside(name):
        if group.count > 1:
            group.exchange(name)
        yield


@contextlib.contextmanager
def watch_run(group: Group, status: Status, saver: Saver, interrupts: Interrupts) -> Iterator[None]:
    """Have the group know, while a run goes on, what this process wants and does."""

    def wants() -> bool:
        is_due = not group.index and saver.is_time()
        return interrupts.signal is not None or status.is_stop_wanted or is_due

    def describe() -> str:
        return "waits for its reader" if interrupts.is_open else "is in a step or a handler"

    with group.watched(wants, describe):
        yield


def run_on_first(group: Group, do: Callable[[], None], what: str) -> None:
    """Call a function on the first process. Collective.

    Raises: what it raises there; on the others a `CheckpointError` that says so.
    """
    error = None
    if not group.index:
        try:
            do()
        except Exception as raised:  # kept until the others know of it
            error = raised
    # All of them raise, or none: one that went on alone would wait in the next launch.
    said = group.exchange(f"the attempt to {what}", error and f"{type(error).__name__}: {error}")
    if said[0]:
        raise error or CheckpointError(
            f"process 0 could not {what}, which it does for all, expected it to: {said[0]}"
        )


def read_newest(group: Group, store: Store, *, before: int | None = None) -> Contents | None:
    """Return the newest checkpoint that can be read, None where there is none. Collective.

    Only the first process writes and deletes, so only it knows what is there to stay: it looks, and
    the others read what it has found. This run may not be writing.

    Arguments:
      before: a global step; only checkpoints up to it count.

    Raises:
      CheckpointError: there are checkpoints, and none can be read; or a process cannot read the one
        that the first has read. Then it is raised on all of them.
    """
    contents, error = None, None
    if not group.index:
        try:
            contents = store.read_newest(before=before)
        except Exception as raised:  # kept until the others know of it: they wait for the step
            error = raised
    # The step alone travels: the files are on a disk that all of them see.
    name = "the search for the newest checkpoint"
    step = group.exchange(name, contents and contents.position.global_step)[0]
    if group.index and step is not None:
        try:
            contents = store.read(step)
        except CheckpointError as raised:
            error = raised
    said = group.exchange("reading the newest checkpoint", error and str(error))
    if not any(said):
        return contents
    index = next(number for number, each in enumerate(said) if each)
    raise error or CheckpointError(
        f"{store.directory} got a checkpoint that process {index} cannot read, expected one that "
        f"all of them can. They must restore the same one. See that every process sees the same "
        f"folder. It says: {said[index]}"
    )
