"""The processes of a run, as one of them sees it; here one that is alone.

Agreement goes over the host, through the hub of process 0, and not through collectives on the
devices: a process that comes alone waits there for ever, here it is told who did not come. Nothing
is sent in a step; a thread listens, and the loop looks at one attribute.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

# What a group wants, says of itself and waits for where no call is under way.
_BETWEEN = (lambda: False, lambda: "is between two calls", lambda: None)


class Group:
    """The processes of a run. This one is a group of its own; a `Member` is one of several.

    All are to come to a stand at one position where `is_asked`. While `num_compiling` is above 0 it
    is in what may take minutes and is no hang. In a thread, `wants` says whether
    this process has something to agree on, `describe` what it does, and `finish` waits for what
    must not be lost by its end.
    """

    index, count = 0, 1
    is_asked = False
    num_compiling = 0

    def __init__(self) -> None:
        self.position = 0
        self.wants, self.describe, self.finish = _BETWEEN

    def exchange(self, name: str, value: object = None) -> list[Any]:
        """Return the values of all processes, in their order. Collective.

        A value that all have travels back to nobody. Where each has one of its own, every process
        gets all of them: between a thousand use `agree`, `gather` and `broadcast`, of which each
        costs a process the same whatever the number. Values are what JSON can hold; the name is
        what all are in, for people. PeerError says that another has failed, or does something else.
        """
        text = json.dumps(value)
        answer = self._enter(name, "all", text)
        # Without a text all have the same.
        values = [json.loads(answer.get("text", text))] * self.count
        for other, indices in answer["others"]:
            for index in indices:
                values[index] = json.loads(other)
        return values

    def agree(self, name: str, value: object) -> bool:
        """Return whether all processes have the same value, by a digest of it. Collective."""
        text = json.dumps(value, sort_keys=True)
        return self._enter(name, "same", hashlib.sha256(text.encode()).hexdigest())["is_same"]

    def gather(self, name: str, value: object) -> list[Any]:
        """Return the values of all on process 0, on the others nothing; as `exchange`. Collective.

        Nobody returns before all values are there.
        """
        answer = self._enter(name, "to_first", json.dumps(value))
        return [json.loads(text) for text in answer.get("texts", ())]

    def broadcast(self, name: str, value: object = None) -> Any:
        """Return the value that process 0 has; as `exchange`. Collective."""
        text = "null" if self.index else json.dumps(value)
        return json.loads(self._enter(name, "from_first", text)["text"])

    def _enter(self, name: str, way: str, text: str) -> dict[str, Any]:
        return {"text": text, "texts": [text], "others": [], "is_same": True}

    def advance(self, step: int | None = None) -> None:
        """Note a launch, or another place where all may meet, before it; a test has no step."""
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
            self.wants, self.describe, self.finish = _BETWEEN

    def note_failure(self, error: BaseException) -> BaseException:
        """Tell the others that this process cannot go on; return the error that came first."""
        return error

    def leave(self, index: int) -> None:
        """Note that an exception of a process is raised now that all have agreed on."""

    def end(self, error: BaseException | None) -> int | None:
        """Leave the group; return the exit code that this process should have."""
        return None


ALONE = Group()
"""The group of a process that has joined no others."""


class Joined:
    """The group that this process is in."""

    group = ALONE


def find_group() -> Group:
    """Return the group that this process has joined; alone, where it has joined none.

    It joins none itself: that is collective, and the others may not ask.
    """
    return Joined.group
