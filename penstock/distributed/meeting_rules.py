"""The rules by which processes meet: who waits for whom, and who waits in vain.

Nothing here knows of sockets or time: `Meetings` takes what members say and returns what to
tell them. The hub of process 0 has the only ones.

A message costs the same however many members there are: what the rules ask of all members is
counted as it changes. Only an answer to all, and a failure, look at each of them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
"""What travels: JSON with a `kind`."""

Replies: TypeAlias = list[tuple[Sequence[int], Message]]
"""Messages, each with the numbers of the processes that get it."""


@dataclasses.dataclass
class Member:
    """What is known of one process.

    It waits for an "exchange", a "meeting", the "end", or for nothing and runs. In an exchange it
    has a name, a way (see `Group`), and its value as JSON. `ended` says how its script ended.
    `position` counts launches and ends of epochs, and is the same on all at the same place.
    """

    index: int
    where: str = ""
    position: int = 0
    step: int = 0
    activity: str = "has not begun"
    waits: str = ""
    name: str = ""
    way: str = "all"
    text: str = ""
    entered_at: int = 0
    ended: str | None = None
    num_calls: int = 0

    def describe(self) -> str:
        """Return where it is, in words."""
        if self.ended is not None:
            return self.ended or "has ended its script"
        return f"is in {self.name}" if self.waits == "exchange" else self.activity


class Meetings:
    """Who has said what, and what follows from it."""

    def __init__(self, count: int) -> None:
        self.members = [Member(index) for index in range(count)]
        self._everybody = range(count)
        self._is_wanted = self._is_meeting = self._has_failed = False
        self._num_waiting = Counter({"": count})
        # Of the exchanges that members wait in: their names, and where they were entered.
        self._names, self._entered = Counter[str](), Counter[int]()
        # Who stands at the furthest position, and who stood where that is not any more.
        self._furthest, self._standing, self._behind = 0, set[int](), set[int]()

    @property
    def num_ended(self) -> int:
        """How many scripts are over."""
        return self._num_waiting["end"]

    def take(self, index: int, message: Message) -> Replies:
        """Return what follows from a member's message."""
        member = self.members[index]
        member.where = message.get("where", member.where)
        member.step = message.get("step", member.step)
        member.activity = message.get("activity", member.activity)
        # These only grow. A beat is made up in another thread, and may come after what is newer.
        member.position = max(member.position, message.get("position", 0))
        member.num_calls = max(member.num_calls, message.get("num_calls", 0))
        if member.position > self._furthest:
            self._furthest = member.position
            self._behind |= self._standing
            self._standing.clear()
        match message["kind"]:
            case "exchange":
                self._move(member, "exchange")
                member.name, member.way = message["name"], message["way"]
                member.text, member.entered_at = message["text"], member.position
                self._names[member.name] += 1
                self._entered[member.entered_at] += 1
            case "stopped":
                self._move(member, "meeting")
                is_behind = member.position < self._furthest
                (self._behind if is_behind else self._standing).add(index)
            case "ask":
                self._is_wanted = True
            case "left":
                self._move(member, "")
            case "ended":
                self._move(member, "end")
                member.ended = message["what"]
        return [] if self._has_failed else self._settle(member)

    def _move(self, member: Member, waits: str) -> None:
        if member.waits == "exchange":
            # Which leaves out what is counted no more.
            self._names -= Counter([member.name])
            self._entered -= Counter([member.entered_at])
        elif member.waits == "meeting":
            self._standing.discard(member.index)
            self._behind.discard(member.index)
        self._num_waiting[member.waits] -= 1
        self._num_waiting[waits] += 1
        member.waits = waits

    def _settle(self, member: Member) -> Replies:
        """Return what can be told now; the first rule that has something to say speaks."""
        return (
            self._answer_exchange()
            or self._gather_meeting()
            or self._find_missed(member)
            or self._find_stuck()
        )

    def _are_in_one_exchange(self) -> bool:
        return self._num_waiting["exchange"] == len(self.members) and len(self._names) == 1

    def _answer_exchange(self) -> Replies:
        if not self._are_in_one_exchange():
            return []
        way, texts = self.members[0].way, [member.text for member in self.members]
        for member in self.members:
            self._move(member, "")
        if way == "to_first":
            answer = {"kind": "answer", "texts": texts}
            return [([0], answer), (self._everybody[1:], {"kind": "answer"})]
        answer = {
            "all": lambda: _list_differing(texts),
            "from_first": lambda: {"text": texts[0]},
            "same": lambda: {"is_same": len(set(texts)) == 1},
        }[way]()
        return [(self._everybody, {"kind": "answer", **answer})]

    def _gather_meeting(self) -> Replies:
        """Bring all to a stand at one position.

        A member that stands behind another's position is told to go there: the other may be waiting
        in a launch for just that. So positions only grow until all are at the largest.
        """
        num_stopped = self._num_waiting["meeting"]
        if not self._is_meeting and (num_stopped or self._is_wanted):
            self._is_wanted, self._is_meeting = False, True
            return [(self._everybody, {"kind": "meet"})]
        if not self._is_meeting or not num_stopped:
            return []
        if behind := sorted(self._behind):
            for index in behind:
                self._move(self.members[index], "")
            return [(behind, {"kind": "run_to", "position": self._furthest})]
        if num_stopped == len(self.members):
            return self._end_meeting("met")
        # Who waits in an exchange cannot come: the others go on to it, and meet after it.
        if not self._num_waiting[""]:
            self._is_wanted = True
            return self._end_meeting("postponed")
        return []

    def _end_meeting(self, kind: str) -> Replies:
        self._is_meeting = False
        for index in list(self._standing):
            self._move(self.members[index], "")
        # Those who were not stopped forget that a meeting was wanted.
        return [(self._everybody, {"kind": kind})]

    def _find_missed(self, member: Member) -> Replies:
        """Find an exchange that another process can no longer come to, or that this one went past.

        Who went past one says so with its next beat, if not before.
        """
        if not self._num_waiting["exchange"]:
            return []
        has_passed = member.waits != "exchange" and member.position > min(self._entered)
        if not has_passed and not self.num_ended:
            return []
        waiting = [candidate for candidate in self.members if candidate.waits == "exchange"]
        ended = [candidate for candidate in self.members if candidate.ended is not None]
        first = min(waiting, key=lambda candidate: candidate.entered_at)
        return self._fail(first, ended[0] if ended else member)

    def _find_stuck(self) -> Replies:
        """Find that all wait and nobody can be answered."""
        num_members = len(self.members)
        if self._num_waiting[""] or self._are_in_one_exchange() or self.num_ended == num_members:
            return []
        waiting = [member for member in self.members if member.ended is None]
        first = waiting[0]
        ended = [member for member in self.members if member.ended is not None]
        partners = ended or [m for m in waiting if m.describe() != first.describe()] or waiting[1:]
        return self._fail(first, (partners or waiting)[0])

    def _fail(self, member: Member, other: Member) -> Replies:
        """Return the failure that one process waits for what another does not come to."""
        self._has_failed = True
        failure: Message = {"kind": "failure", "code": 1, "is_final": True}
        if other.ended:
            failure |= {"index": other.index, "what": f"process {other.index} {other.ended}"}
            return [(self._everybody, failure)]
        # What a user's script calls is what has to change; the rest follows from it.
        is_called = (
            member.name.startswith(("trainer.", "setting ")) and member.name != "trainer.train"
        )
        is_users = member.waits == "exchange" and is_called
        if other.waits == "exchange" and not is_users:
            member, other = other, member
        place = member.name if member.waits == "exchange" else "the same things"
        its = other.describe() if other.waits else "went on without it"
        what = f"process {member.index} {member.describe()}, but process {other.index} {its}"
        advice = f"Call {place} on every process, in the same order, or on none"
        failure |= {"index": member.index, "what": what, "advice": advice}
        return [(self._everybody, failure)]


def _list_differing(texts: Sequence[str]) -> Message:
    """Return the value that most have, and once each other one with who has it."""
    holders: dict[str, list[int]] = {}
    for index, text in enumerate(texts):
        holders.setdefault(text, []).append(index)
    common = max(holders, key=lambda text: len(holders[text]))
    differing = [[text, indices] for text, indices in holders.items() if text != common]
    # What all have, none needs to hear.
    return {"text": common, "others": differing} if differing else {"others": []}
