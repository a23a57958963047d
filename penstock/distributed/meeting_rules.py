"""The rules by which processes meet: who waits for whom, and who waits in vain.

Nothing here knows of sockets or time: `Meetings` takes what members say and returns what to
tell them. The hub of process 0 has the only ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
"""What travels: JSON with a `kind`."""

Replies: TypeAlias = list[tuple[int, Message]]
"""Messages, each with the number of the process that gets it."""


@dataclasses.dataclass
class Member:
    """What is known of one process.

    Attributes:
      where: its host and process id, for people.
      position: launches and ends of epochs so far, the same on all processes at the same place.
      step: the global step it was last seen at.
      activity: what it does, for people.
      taken: batches that it has taken from its readers, as the loop counts them.
      exchange: name and value of the exchange that it waits in.
      share: what is left of its reader, where that is short.
      is_stopped: whether it stands still, for all to meet at one position.
      ended: how its script ended; None while it runs.
      num_calls: calls such as `train` or `test` that it has entered.
    """

    index: int
    where: str = ""
    position: int = 0
    taken: int = 0
    step: int = 0
    activity: str = "has not begun"
    exchange: tuple[str, object] | None = None
    share: object = None
    is_stopped: bool = False
    ended: str | None = None
    num_calls: int = 0

    @property
    def waits(self) -> bool:
        """Whether it goes on only when it is answered."""
        return bool(self.exchange or self.share or self.is_stopped or self.ended is not None)

    def describe(self) -> str:
        """Return where it is, in words."""
        if self.ended is not None:
            return self.ended or "has ended its script"
        if self.exchange:
            return f"is in {self.exchange[0]}"
        if self.share:
            return "waits for the others at the end of its reader"
        return self.activity


class Meetings:
    """Who has said what, and what follows from it.

    Arguments:
      count: how many processes there are.
    """

    def __init__(self, count: int) -> None:
        self.members = [Member(index) for index in range(count)]
        self._is_wanted = self._is_meeting = self._is_hurried = False
        self._handlers: dict[str, Callable[[Member, Message], None]] = {
            "hello": lambda member, said: None,
            "beat": lambda member, said: None,
            "exchange": self._take_exchange,
            "share": self._take_share,
            "stopped": self._take_stop,
            "ask": self._take_request,
            "ended": self._take_end,
        }

    def take(self, index: int, said: Message) -> Replies:
        """Return what follows from a member's message."""
        member = self.members[index]
        for name in ("where", "step", "activity"):
            if name in said:
                setattr(member, name, said[name])
        # These only grow. A beat is made up in another thread, and may come after what is newer.
        for name in ("position", "taken", "num_calls"):
            setattr(member, name, max(getattr(member, name), said.get(name, 0)))
        handler = self._handlers.get(said["kind"])
        if handler is not None:
            handler(member, said)
        return self._settle()

    def _take_exchange(self, member: Member, said: Message) -> None:
        member.exchange = said["name"], said["value"]

    def _take_share(self, member: Member, said: Message) -> None:
        member.share = said["value"]

    def _take_stop(self, member: Member, said: Message) -> None:
        member.is_stopped = True

    def _take_request(self, member: Member, said: Message) -> None:
        self._is_wanted = True

    def _take_end(self, member: Member, said: Message) -> None:
        member.ended = said["what"]

    def _settle(self) -> Replies:
        """Return what can be told now; the first rule that has something to say speaks."""
        for rule in (
            self._answer_exchange,
            self._answer_shares,
            self._gather_meeting,
            self._find_missed,
            self._find_stuck,
        ):
            replies = rule()
            if replies:
                return replies
        return []

    def _answer_exchange(self) -> Replies:
        """Give all the values of all, where all are in the same exchange."""
        exchanges = [member.exchange for member in self.members]
        if not all(exchanges) or len({each[0] for each in exchanges if each}) > 1:
            return []
        values = [each[1] for each in exchanges if each]
        for member in self.members:
            member.exchange = None
        return self._tell_all({"kind": "values", "values": values})

    def _answer_shares(self) -> Replies:
        """Tell those whose readers are short what the others have left at the same place.

        None stands for a process that is past the place: it had enough.
        """
        short = [member for member in self.members if member.share]
        if not short:
            return []
        for taken in {member.taken for member in short}:
            here = [m for m in short if m.taken == taken]
            beyond = [m for m in self.members if m.taken > taken]
            if len(here) + len(beyond) == len(self.members):
                values = [m.share if m in here else None for m in self.members]
                for member in here:
                    member.share = None
                self._is_hurried = False
                return [(m.index, {"kind": "shares", "values": values}) for m in here]
        if self._is_hurried:
            return []
        # Who has taken more says so with its next beat: let that be soon.
        self._is_hurried = True
        return self._tell_all({"kind": "hurry"})

    def _gather_meeting(self) -> Replies:
        """Bring all to a stand at one position.

        A member that stands behind another's position is told to go there: the other may be waiting
        in a launch for just that. So positions only grow until all are at the largest.
        """
        stopped = [member for member in self.members if member.is_stopped]
        if stopped and not self._is_meeting:
            self._is_wanted = True
        if self._is_wanted and not self._is_meeting:
            self._is_wanted, self._is_meeting = False, True
            return self._tell_all({"kind": "meet"})
        if not self._is_meeting or not stopped:
            return []
        furthest = max(member.position for member in self.members)
        behind = [member for member in stopped if member.position < furthest]
        for member in behind:
            member.is_stopped = False
        if behind:
            return [(m.index, {"kind": "run_to", "position": furthest}) for m in behind]
        if len(stopped) == len(self.members):
            return self._end_meeting("met")
        # Who waits in an exchange cannot come: the others go on to it, and meet after it.
        if all(member.waits for member in self.members):
            self._is_wanted = True
            return self._end_meeting("postponed")
        return []

    def _end_meeting(self, kind: str) -> Replies:
        self._is_meeting = False
        stopped = [member for member in self.members if member.is_stopped]
        for member in stopped:
            member.is_stopped = False
        # Those who were not stopped forget that a meeting was wanted.
        return self._tell_all({"kind": kind})

    def _find_missed(self) -> Replies:
        """Find an exchange that another process has gone past, or can no longer come to."""
        for member in self.members:
            if not member.exchange:
                continue
            for other in self.members:
                has_passed = not other.exchange and other.position > member.position
                if has_passed or other.ended is not None:
                    return self._fail(member, other)
        return []

    def _find_stuck(self) -> Replies:
        """Find that all wait and nobody can be answered."""
        if not all(m.waits for m in self.members) or all(m.ended is not None for m in self.members):
            return []
        waiting = [member for member in self.members if member.ended is None]
        first = waiting[0]
        ended = [member for member in self.members if member.ended is not None]
        others = ended or [m for m in waiting if m.describe() != first.describe()] or waiting[1:]
        return self._fail(first, (others or waiting)[0])

    def _fail(self, member: Member, other: Member) -> Replies:
        """Return the failure that one process waits for what another does not come to."""
        said: Message = {"kind": "failure", "code": 1, "is_final": True}
        if other.ended:
            said |= {"index": other.index, "what": f"process {other.index} {other.ended}"}
            return self._tell_all(said)
        # What a user's script calls is what has to change; the rest follows from it.
        if other.exchange and not (member.exchange and _is_users(member.exchange[0])):
            member, other = other, member
        place = member.exchange[0] if member.exchange else "the same things"
        its = other.describe() if other.waits else "went on without it"
        what = f"process {member.index} {member.describe()}, but process {other.index} {its}"
        advice = f"Call {place} on every process, in the same order, or on none"
        return self._tell_all({**said, "index": member.index, "what": what, "advice": advice})

    def _tell_all(self, said: Message) -> Replies:
        return [(member.index, said) for member in self.members]


def _is_users(name: str) -> bool:
    return name.startswith(("trainer.", "setting ")) and name != "trainer.train"
