"""The rules by which processes meet, without processes."""

import itertools
import random

import pytest

from penstock.distributed.meeting_rules import Meetings


def tell(meetings, index, kind, **said):
    """Return what follows, as `{process: kind or values}`."""
    replies = meetings.take(index, {"kind": kind, **said})
    return {to: reply.get("values", reply["kind"]) for to, reply in replies}


def to_all(count, value):
    return {index: value for index in range(count)}  # noqa: C420


def exchange(meetings, index, name="a", value=None, position=0):
    return tell(meetings, index, "exchange", name=name, value=value, position=position)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_exchange_gives_all_values_to_all_in_the_order_of_the_processes(order):
    meetings = Meetings(3)
    answers = [exchange(meetings, index, value=10 * index) for index in order]
    assert answers == [{}, {}, to_all(3, [0, 10, 20])]


def test_second_exchange_is_answered_like_the_first():
    meetings = Meetings(2)
    for value in (1, 2):
        exchange(meetings, 0, value=value)
        assert exchange(meetings, 1, value=-value) == to_all(2, [value, -value])


def test_none_and_zero_are_values():
    meetings = Meetings(2)
    exchange(meetings, 0, value=None)
    assert exchange(meetings, 1, value=0) == to_all(2, [None, 0])


def test_late_beat_takes_no_process_back_to_where_it_was():
    meetings = Meetings(2)
    tell(meetings, 0, "beat", taken=5, position=5)
    tell(meetings, 1, "share", value=[3], taken=5, position=5)
    # Made up before, in the thread that beats: the other would be past it, with a full batch.
    assert tell(meetings, 1, "beat", taken=4, position=4) == {}
    assert tell(meetings, 0, "share", value=[4], taken=5, position=5) == to_all(2, [[4], [3]])


def find_failure(meetings, index, kind, **said):
    [reply] = {
        repr(reply): reply for _, reply in meetings.take(index, {"kind": kind, **said})
    }.values()
    assert reply["kind"] == "failure"
    return f"{reply['what']}. {reply.get('advice', '')}"


def test_processes_in_different_calls_are_told_both():
    meetings = Meetings(2)
    exchange(meetings, 0, "trainer.test")
    said = find_failure(meetings, 1, "exchange", name="trainer.train", value=None)
    assert "process 0 is in trainer.test, but process 1 is in trainer.train" in said
    assert "Call trainer.test on every process" in said


def test_call_that_another_went_past_fails_as_soon_as_that_is_known():
    meetings = Meetings(2)
    assert exchange(meetings, 0, "trainer.test", position=7) == {}
    assert tell(meetings, 1, "beat", position=7) == {}
    said = find_failure(meetings, 1, "beat", position=8)
    assert "process 0 is in trainer.test, but process 1 went on without it" in said


def test_call_that_another_will_not_make_any_more_fails():
    meetings = Meetings(3)
    assert exchange(meetings, 0, "trainer.test") == {}
    said = find_failure(meetings, 2, "ended", what="")
    assert "process 2 has ended its script" in said
    meetings = Meetings(3)
    exchange(meetings, 0, "trainer.test")
    assert "failed with OSError: x" in find_failure(
        meetings, 1, "ended", what="failed with OSError: x"
    )


def test_scripts_that_all_end_are_no_failure():
    meetings = Meetings(2)
    assert tell(meetings, 0, "ended", what="") == {}
    assert tell(meetings, 1, "ended", what="") == {}


def test_readers_that_end_together_need_one_question_each():
    meetings = Meetings(2)
    assert tell(meetings, 0, "share", value={"n": 0}, taken=5) == to_all(2, "hurry")
    assert tell(meetings, 1, "share", value={"n": 1}, taken=5) == to_all(2, [{"n": 0}, {"n": 1}])


def test_reader_that_ends_first_learns_that_the_other_had_enough():
    meetings = Meetings(2)
    tell(meetings, 0, "share", value={"n": 0}, taken=5)
    assert tell(meetings, 1, "beat", taken=5) == {}
    assert tell(meetings, 1, "beat", taken=6) == {0: [{"n": 0}, None]}


def test_end_of_a_reader_and_a_test_of_another_process_do_not_wait_for_each_other():
    meetings = Meetings(2)
    tell(meetings, 0, "share", value={"n": 0}, taken=5)
    said = find_failure(meetings, 1, "exchange", name="trainer.test", value=None, taken=5)
    assert "trainer.test" in said
    assert "waits for the others at the end of its reader" in said


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
            inbox += meetings.take(chosen.randrange(count), {"kind": "ask"})
        # Messages arrive late and in any order between processes, in order for each.
        while inbox and chosen.random() < 0.5:
            to, reply = inbox.pop(0)
            loops[to].hear(reply["kind"], reply.get("position"))
        loop = chosen.choice(loops)
        least = min(each.position for each in loops)
        # Nobody runs further ahead than launches that are in flight.
        if loop.is_waiting or loop.met_at is not None or loop.position - least >= most_ahead:
            continue
        inbox += meetings.take(loop.index, loop.move())
        if all(each.met_at is not None for each in loops):
            break
    assert len({each.met_at for each in loops}) == 1
    assert loops[0].met_at is not None


def test_meeting_waits_until_an_exchange_is_over():
    meetings = Meetings(2)
    exchange(meetings, 0, position=4)
    assert tell(meetings, 1, "ask", position=3) == to_all(2, "meet")
    # It cannot come: process 1 goes on to the exchange first.
    assert tell(meetings, 1, "stopped", position=3) == {1: "run_to"}
    assert tell(meetings, 1, "stopped", position=4) == to_all(2, "postponed")
    assert exchange(meetings, 1, position=4) == to_all(2, [None, None])
    assert tell(meetings, 0, "beat", position=4) == to_all(2, "meet")
