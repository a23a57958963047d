"""The processes of a run, as one of them sees it; here one that is alone.

Agreement goes over the host, through the hub of process 0, and not through collectives on the
devices: a process that comes alone waits there for ever, here it is told who did not come. Nothing
is sent in a step; a thread listens, and the loop looks at one attribute.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any


class Group:
    """The processes of a run. This one is a group of its own; a `Member` is one of several.

    Attributes:
      index, count: this process, from 0, and how many there are.
      is_asked: whether all are to come to a stand at one position.
      wants: asked often, in a thread: whether this process has something to agree on.
      describe: what this process does, in words.
      finish: waits for what must not be lost by an end of this process.
    """

    index, count = 0, 1
    is_asked = False
    finish: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self) -> None:
        self.position = self.taken = 0
        self.wants, self.describe = _want_nothing, _be_between

    def exchange(self, name: str, value: object = None) -> list[Any]:
        """Return the values of all processes, in their order. Collective.

        Arguments:
          name: what all of them are in, for people: "trainer.test".
          value: what JSON can hold.

        Raises:
          PeerError: another process has failed, or does something else.
        """
        return [value]

    def share(self, value: Mapping[str, object]) -> list[Any]:
        """Return what every process has left whose reader is short; None where it had enough."""
        return [value]

    def take(self) -> None:
        """Note that the batches of a launch were taken from the reader."""
        self.taken += 1

    def advance(self, step: int | None = None) -> None:
        """Note a launch, or another place where all may meet, before it.

        Arguments:
          step: the global step; None where it stays as it was, as in a test.
        """
        self.position += 1

    def meet(self) -> bool:
        """Stand until all processes stand at this position; return False to go on and meet later.

        Collective, but no process needs to know that another calls it: it is asked.
        """
        return True

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Be in a call that all processes make; an exception inside ends it on all of them."""
        yield

    @contextlib.contextmanager
    def watched(
        self, wants: Callable[[], bool], describe: Callable[[], str], finish: Callable[[], None]
    ) -> Iterator[None]:
        """Have these called, in a thread, as `wants`, `describe` and `finish`."""
        self.wants, self.describe, self.finish = wants, describe, finish
        try:
            yield
        finally:
            self.wants, self.describe, self.finish = _want_nothing, _be_between, Group.finish

    def note_failure(self, error: BaseException) -> BaseException:
        """Tell the others that this process cannot go on; return the error that came first."""
        return error

    def leave(self, index: int) -> None:
        """Note that an exception is raised now that all processes have agreed on.

        Arguments:
          index: the process that it comes from.
        """

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Be in what may take minutes and is no hang."""
        yield


def _want_nothing() -> bool:
    return False


def _be_between() -> str:
    return "is between two calls"
