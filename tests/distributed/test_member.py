"""Processes that agree through the hub, here threads of one process."""

import socket
import threading
import time

import pytest

from penstock._errors import PeerError
from penstock.distributed.exit_codes import AGAIN
from tests.distributed.members import make_and_close, wait_until


@pytest.fixture
def make(monkeypatch):
    yield from make_and_close(monkeypatch)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_exchange_gives_every_process_the_values_of_all(make, count):
    members = make(count)
    expected = [{"n": index, "text": "é\n"} for index in range(count)]
    for _ in range(3):
        given = members.run(lambda each: each.exchange("a", {"n": each.index, "text": "é\n"}))
        assert given == [expected] * count


def test_other_ways_give_each_process_what_it_needs(make):
    members = make(3)
    assert members.run(lambda each: each.gather("a", each.index)) == [[0, 1, 2], [], []]
    assert members.run(lambda each: each.broadcast("b", each.index + 7)) == [7] * 3
    for text in ("x", "x" * 1000):
        same = members.run(lambda each, text=text: each.agree("c", {"a": text}))
        assert same == [True] * 3
        unlike = members.run(lambda each, text=text: each.agree("d", text * (each.index + 1)))
        assert unlike == [False] * 3


def test_exchange_of_megabytes_arrives_whole(make):
    members = make(3)
    given = members.run(lambda each: each.exchange("a", f"{each.index}" * 3_000_000))
    assert [[len(value) for value in values] for values in given] == [[3_000_000] * 3] * 3


def test_exception_in_a_call_ends_the_others_with_its_text(make):
    members = make(2)

    def work(each):
        with each.inside("trainer.train"):
            if each.index:
                raise ValueError("boom")
            return each.exchange("trainer.train")

    first, second = members.run(work)
    assert isinstance(second, ValueError)
    assert isinstance(first, PeerError)
    assert "process 1 failed with ValueError: boom" in str(first)


def test_exception_that_all_raise_alike_may_be_caught_by_all(make):
    members = make(3)

    def work(each):
        try:
            with each.inside("trainer.train"):
                raise ValueError("boom")
        except ValueError:
            pass
        with each.inside("trainer.train"):
            return each.exchange("again", each.index)

    assert members.run(work) == [[0, 1, 2]] * 3
    assert members.left == []


def test_process_that_waits_for_one_that_failed_is_ended(make):
    members, is_over = make(2), threading.Event()

    def work(each):
        with each.inside("trainer.train"):
            if each.index:
                raise ValueError("boom")
            is_over.wait()  # as in a launch, which no exception of Python ends

    thread = threading.Thread(target=members.run, args=(work,))
    thread.start()
    wait_until(lambda: members.left)
    is_over.set()
    thread.join()
    assert members.left == [1]
    assert "process 1 failed with ValueError: boom" in members.said[0]
    assert "Process 0 cannot go on without it" in members.said[0]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_loss_of_a_process_is_told_and_asks_for_another_try(make, lost):
    members = make(3)

    def work(each):
        if each.index == lost:
            each._link._peer.shutdown(socket.SHUT_RDWR)
            return None
        with each.inside("trainer.train"):
            each.exchange("trainer.train")

    results = members.run(work)
    others = [result for index, result in enumerate(results) if index != lost]
    assert all(f"process {lost} was lost" in str(result) for result in others)
    assert all(each.find_failure()["code"] == AGAIN for each in members.all if each.index != lost)


def test_loss_of_another_after_an_error_of_its_own_asks_for_no_other_try(make):
    members = make(2)
    failed = members.all[1]

    def use_a_handler():
        with failed.inside("trainer.train"):
            failed.note_failure(ValueError("boom"))
            members.all[0]._link._peer.shutdown(socket.SHUT_RDWR)
            # As a handler of EndTraining does that tests once more.
            with failed.inside("trainer.test"):
                failed.exchange("trainer.test")

    with pytest.raises(PeerError, match="process 0 was lost") as caught:
        use_a_handler()
    assert caught.value.exit_code == 1
    assert failed.end(caught.value) == 1


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            None,
            r"process 1 has ended its script \(.*\)\. Call trainer\.test on every process, or on",
        ),
        (
            ValueError("boom"),
            r"failed with ValueError: boom \(.*\)\. Process 0 cannot go on without",
        ),
    ],
)
def test_call_after_anothers_end_is_told_how_that_ended(make, error, text):
    members = make(2)
    ending = threading.Thread(target=members.all[1].end, args=(error,))
    ending.start()
    wait_until(lambda: members.all[0]._failures._all)
    with pytest.raises(PeerError, match=text), members.all[0].inside("trainer.test"):
        pass
    members.all[0].end(None)
    ending.join()


@pytest.mark.parametrize("error", [None, ValueError("boom")])
def test_no_stacks_are_written_of_a_process_that_goes_on_after_its_end(make, error):
    members = make(1)
    wait_until(lambda: members.timers)
    members.all[0].end(error)
    assert members.timers[-1] == "disarmed"
    assert not members.all[0]._link._thread.is_alive()


def test_ctrl_c_ends_all_with_the_code_of_a_shell(make):
    members = make(3)
    assert members.run(lambda each: each.end(KeyboardInterrupt())) == [130] * 3


def test_ctrl_c_on_one_is_no_error_of_the_others(make):
    members = make(2)
    assert (
        members.run(lambda each: each.end(KeyboardInterrupt() if each.index else None)) == [130] * 2
    )
    assert "process 1 was interrupted" in members.said[0]


def test_process_that_is_silent_is_named(make, monkeypatch):
    members = make(2, heartbeat_secs=0.5)
    silent = members.all[1]
    monkeypatch.setattr(silent, "_send", lambda said: None)
    wait_until(lambda: members.all[0].find_failure())
    failure = members.all[0].find_failure()
    assert "process 1 has not answered" in failure["what"]
    assert failure["code"] == AGAIN


def test_call_that_makes_no_progress_is_named_with_the_one_behind(make):
    members = make(2, heartbeat_secs=1.0, hang_secs=0.8)
    is_over = threading.Event()

    def work(each):
        with each.inside("trainer.train"):
            for step in range(3 + each.index):
                each.advance(step)
            is_over.wait()

    thread = threading.Thread(target=members.run, args=(work,))
    with members.all[0].watched(lambda: False, lambda: "waits for its reader", lambda: None):
        thread.start()
        wait_until(lambda: members.left)
        is_over.set()
        thread.join()
    text = "\n".join(members.said)
    assert "process 0 has not moved" in text
    assert "it waits for its reader" in text
    assert text.count("all stacks") == 2
    assert set(members.left) == {AGAIN}


def test_compiling_is_no_hang(make):
    members = make(2, heartbeat_secs=1.0, hang_secs=0.8)

    def work(each):
        with each.inside("trainer.train"):
            if each.index:
                with each.compiling():
                    time.sleep(1.6)
            return each.exchange("trainer.train", each.index)

    assert members.run(work) == [[0, 1]] * 2


def test_stop_of_one_process_is_carried_to_all_at_one_step(make):
    members = make(3)

    def work(each):
        for step in range(10_000):
            # As launches in flight do: nobody is further ahead than they allow.
            wait_until(lambda: each.position - min(m.position for m in members.all) < 5)
            each.advance(step)
            wants = each.index == 1 and step >= 20
            if (each.is_asked or wants) and each.meet():
                each.exchange("an agreement")
                return step
        return None

    steps = members.run(work)
    assert len(set(steps)) == 1
    assert 20 <= steps[0] < 9_999


def test_launch_of_a_test_leaves_the_global_step(make):
    members = make(2)
    with members.all[1].inside("trainer.train"):
        members.all[1].advance(7)
        members.all[1].advance()
        members.all[1].note_failure(ValueError("boom"))
    wait_until(lambda: members.all[0]._failures._all)
    with pytest.raises(PeerError, match=r"boom \(.*, global step 7\)"):
        members.all[0].exchange("trainer.train")


def test_process_is_eager_in_a_call_alone(make):
    each = make(1).all[0]
    each.is_asked = True
    with each.inside("trainer.train"):
        assert each._tick()
    assert not each._tick()
