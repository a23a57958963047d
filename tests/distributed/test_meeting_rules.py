"""The rules by which processes meet, without processes."""

import random

import pytest

from penstock.distributed.meeting_rules import Meetings


def take(meetings, index, message):
    """Return what follows, as `[(process, message)]`."""
    return [(to, reply) for tos, reply in meetings.take(index, message) for to in tos]


def tell(meetings, index, kind, **fields):
    """Return what follows, as `{process: kind, or what an answer says}`."""
    replies = take(meetings, index, {"kind": kind, **fields})
    return {to: read(reply) for to, reply in replies}


def read(reply):
    answer = {key: value for key, value in reply.items() if key not in ("kind", "others")}
    if reply.get("others"):
        answer["others"] = reply["others"]
    return answer if reply["kind"] == "answer" else reply["kind"]


def to_all(count, value):
    return {index: value for index in range(count)}  # noqa: C420


def exchange(meetings, index, name="a", text="null", position=0, way="all"):
    fields = {"name": name, "way": way, "text": text, "position": position}
    return tell(meetings, index, "exchange", **fields)


def test_process_that_leaves_an_exchange_is_waited_for_in_the_next():
    meetings = Meetings(2)
    exchange(meetings, 0, "a")
    assert tell(meetings, 0, "left") == {}
    assert exchange(meetings, 1, "b") == {}
    assert exchange(meetings, 0, "b") == to_all(2, {})


def find_failure(meetings, index, kind, **fields):
    [reply] = {
        repr(reply): reply for _, reply in take(meetings, index, {"kind": kind, **fields})
    }.values()
    assert reply["kind"] == "failure"
    return f"{reply['what']}. {reply.get('advice', '')}"


def test_processes_in_different_calls_are_told_both():
    meetings = Meetings(2)
    exchange(meetings, 0, "trainer.test")
    failure = find_failure(meetings, 1, "exchange", name="trainer.train", way="all", text="1")
    assert "process 0 is in trainer.test, but process 1 is in trainer.train" in failure
    assert "Call trainer.test on every process" in failure


def test_call_that_another_went_past_fails_as_soon_as_that_is_known():
    meetings = Meetings(2)
    assert exchange(meetings, 0, "trainer.test", position=7) == {}
    assert tell(meetings, 1, "beat", position=7) == {}
    failure = find_failure(meetings, 1, "beat", position=8)
    assert "process 0 is in trainer.test, but process 1 went on without it" in failure


def test_call_that_another_will_not_make_any_more_fails():
    meetings = Meetings(3)
    assert exchange(meetings, 0, "trainer.test") == {}
    failure = find_failure(meetings, 2, "ended", what="")
    assert "process 2 has ended its script" in failure
    meetings = Meetings(3)
    exchange(meetings, 0, "trainer.test")
    assert "failed with OSError: x" in find_failure(
        meetings, 1, "ended", what="failed with OSError: x"
    )


class Loop:
    """A process that launches steps and stops where it is asked to, as the trainer's loop does."""

    def __init__(self, index):
        self.index, self.position, self.target = index, 0, 0
        self.is_asked = self.is_waiting = False
        self.met_at = None

    def hear(self, kind, position=None):
        if kind == "meet":
            self.is_asked = True
        elif kind == "run_to":
            self.target, self.is_waiting = position, False
        elif kind in ("met", "postponed") and self.is_waiting:
            self.is_waiting = self.is_asked = False
            self.met_at = self.position if kind == "met" else None

    def move(self):
        """Launch a step or stop; returns what it says."""
        if self.is_asked and self.position >= self.target and not self.is_waiting:
            self.is_waiting = True
            return {"kind": "stopped", "position": self.position}
        self.position += 1
        return {"kind": "beat", "position": self.position}


@pytest.mark.parametrize("seed", range(50))
def test_all_come_to_a_stand_at_one_position_however_they_run(seed):
    chosen, count = random.Random(seed), 1 + seed % 5
    meetings, loops, inbox = Meetings(count), [Loop(n) for n in range(count)], []
    most_ahead = chosen.randrange(1, 20)
    asked_at = chosen.randrange(30)
    for turn in range(3000):
        if turn == asked_at:
            inbox += take(meetings, chosen.randrange(count), {"kind": "ask"})
        # Messages arrive late and in any order between processes, in order for each.
        while inbox and chosen.random() < 0.5:
            to, reply = inbox.pop(0)
            loops[to].hear(reply["kind"], reply.get("position"))
        loop = chosen.choice(loops)
        least = min(process.position for process in loops)
        # Nobody runs further ahead than launches that are in flight.
        if loop.is_waiting or loop.met_at is not None or loop.position - least >= most_ahead:
            continue
        inbox += take(meetings, loop.index, loop.move())
        if all(process.met_at is not None for process in loops):
            break
    assert len({process.met_at for process in loops}) == 1
    assert loops[0].met_at is not None


def test_meeting_waits_until_an_exchange_is_over():
    meetings = Meetings(2)
    exchange(meetings, 0, position=4)
    assert tell(meetings, 1, "ask", position=3) == to_all(2, "meet")
    # It cannot come: process 1 goes on to the exchange first.
    assert tell(meetings, 1, "stopped", position=3) == {1: "run_to"}
    assert tell(meetings, 1, "stopped", position=4) == to_all(2, "postponed")
    assert exchange(meetings, 1, position=4) == to_all(2, {})
    assert tell(meetings, 0, "beat", position=4) == to_all(2, "meet")
