"""The rendezvous, in threads: who comes, who does not, and who is none of the run."""

import errno
import json
import os
import re
import socket
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.distributed import listening as listening_module
from penstock.distributed import rendezvous
from penstock.distributed.environments import Membership
from penstock.distributed.secret import prove
from tests.distributed.processes import free_port


def member(port, process_id, num_processes=2, **changes):
    place = {"process_id": process_id, "num_processes": num_processes}
    return Membership(
        **{"launcher": "torchrun", "host": "127.0.0.1", "port": port} | place | changes
    )


def meet(one, timeout_secs=60.0, secret=""):
    rendezvous.meet(one, ("127.0.0.1", one.port), timeout_secs, secret)


@pytest.fixture
def threads(monkeypatch):
    """Threads that stand for processes; what JAX listens with afterwards is left out."""
    monkeypatch.setattr(rendezvous, "_wait_for_service", lambda one: None)
    with ThreadPoolExecutor() as pool:
        yield pool


@pytest.fixture
def listening(monkeypatch):
    """Return an event that is set when process 0 listens."""
    event, listen = threading.Event(), rendezvous._listen

    def listen_and_tell(*args):
        listener = listen(*args)
        event.set()
        return listener

    monkeypatch.setattr(rendezvous, "_listen", listen_and_tell)
    return event


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that goes on while a process waits to ask again, or when a test turns it."""
    clock = types.SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    clock.sleep = lambda secs: setattr(clock, "now", clock.now + secs)
    monkeypatch.setattr(rendezvous, "time", clock)
    return clock


@pytest.fixture
def over_when_one_is_heard(clock, monkeypatch):
    """Have the second that process 0 waits be over when it has heard another, and not before."""
    hear = rendezvous._Gathering._hear

    def hear_and_end(*args):
        hear(*args)
        clock.now += 1.0

    clock.sleep = time.sleep
    monkeypatch.setattr(rendezvous._Gathering, "_hear", hear_and_end)


def call(port, text):
    """Say something to process 0; return what it answers before it ends the call."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as line:
        line.sendall(text)
        answer = b""
        try:
            while heard := line.recv(4096):
                answer += heard
        except ConnectionResetError:  # it has not read all of it
            pass
        return answer


def hello(secret="", **changes):
    message = {"protocol": "penstock 1", "process_id": 1, "num_processes": 2, "run": ""} | changes
    message = {"proof": prove(secret, rendezvous._describe_place(message))} | message
    return json.dumps(message).encode() + b"\n"


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_processes_meet_in_whatever_order_they_come(threads, order):
    port = free_port()
    done = [threads.submit(meet, member(port, number, 3)) for number in order]
    assert [one.result() for one in done] == [None] * 3
    # The port is free again, for JAX.
    socket.create_server(("127.0.0.1", port)).close()


def test_process_that_does_not_come_is_named_to_all_that_did(threads, over_when_one_is_heard):
    port = free_port()
    waiting = [
        threads.submit(meet, member(port, 0, 4), 1.0),
        threads.submit(meet, member(port, 2, 4)),
    ]
    text = (
        f"process 0 on {socket.gethostname()} at 127.0.0.1:{port} got 2 of 4 processes within 1 s, "
        "expected all of them. Processes 1, 3 have not come yet. See in their logs why, and "
        f"whether they look for 127.0.0.1:{port}. Give more time by initialization_secs or "
        "PENSTOCK_INITIALIZATION_SECS."
    )
    for one in waiting:
        with pytest.raises(TimeoutError, match=re.escape(text)):
            one.result()


def test_process_0_that_does_not_come_is_named(clock):
    port = free_port()
    text = (
        f"process 1 of 2 got no answer from process 0 at 127.0.0.1:{port} within 0.3 s "
        f"({os.strerror(errno.ECONNREFUSED)}), expected it to listen there. torchrun leads to this "
        "address."
    )
    with pytest.raises(TimeoutError, match=re.escape(text)):
        meet(member(port, 1), 0.3)


def test_port_that_is_taken_is_named_with_what_would_free_it():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = (
            f"process 0 got no port {port} to listen at ({os.strerror(errno.EADDRINUSE)}), "
            f"expected a free one on 127.0.0.1. torchrun leads to 127.0.0.1:{port}, where the "
            "others look for it. End what listens there, perhaps an earlier run, or set another "
            "port for all: JAX_COORDINATOR_PORT where a launcher chose it, else "
            "JAX_COORDINATOR_ADDRESS."
        )
        with pytest.raises(OSError, match=re.escape(text)):
            meet(member(port, 0))
        # At every address too: what listens at one of them is in the way.
        with pytest.raises(OSError, match=f"got no port {port} to listen at"):
            rendezvous.meet(member(port, 0), ("", port), 20)


_NO_SECRET = "its secret (PENSTOCK_SECRET, PENSTOCK_SECRET_FILE) is not that of process 0"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_processes": 3}, "it is one of 3 processes, process 0 one of 2"),
        ({"process_id": 2}, "there is no place for a process 2 among 2"),
        ({"process_id": 0}, "there is no place for a process 0 among 2"),
        ({"process_id": "1"}, "there is no place for a process 1 among 2"),
        ({"process_id": True}, "there is no place for a process True among 2"),
        ({"run": "abc"}, "it is of the run 'abc', process 0 of ''"),
        ({"protocol": None}, "it speaks None, process 0 speaks penstock 1"),
        ({"proof": None}, _NO_SECRET),
        ({"proof": "é"}, _NO_SECRET),
        ({"secret": "guess"}, _NO_SECRET),
        ({"proof": prove("s3cret", "process 2 of 2 of ")}, _NO_SECRET),
    ],
)
def test_process_of_another_run_is_sent_away_and_the_right_one_still_comes(
    threads, listening, changes, reason
):
    port = free_port()
    first = threads.submit(meet, member(port, 0), secret="s3cret")
    assert listening.wait(60)
    assert json.loads(call(port, hello(**{"secret": "s3cret"} | changes)))["error"] == reason
    assert threads.submit(meet, member(port, 1), secret="s3cret").result() is None
    assert first.result() is None


def test_words_of_a_stranger_are_shown_as_they_are_and_cut(threads, listening, caplog):
    port = free_port()
    first = threads.submit(meet, member(port, 0))
    assert listening.wait(60)
    call(port, hello(run="x", host="\x1b[2J\nERROR" + "y" * 1000))
    call(port, hello(process_id="\n\n"))
    meet(member(port, 1))
    first.result()
    text = "".join(caplog.messages)
    assert text.isprintable()
    assert r"on \x1b[2J\nERRORyyy" in text
    assert len(text) < 700


def test_refusal_names_both_sides(threads, listening, over_when_one_is_heard):
    port = free_port()
    first = threads.submit(meet, member(port, 0, 3), 1.0)
    assert listening.wait(60)
    text = (
        f"process 1 of 2 got no place at 127.0.0.1:{port} (process 0 on {socket.gethostname()} "
        "says: it is one of 2 processes, process 0 one of 3), expected one among the others."
    )
    with pytest.raises(rendezvous.RefusedError, match=re.escape(text)):
        meet(member(port, 1))
    with pytest.raises(TimeoutError, match=r"process 1 on .* was sent away: it is one of 2"):
        first.result()


def test_second_of_a_number_is_refused_and_one_that_was_started_again_is_not(threads, listening):
    port = free_port()
    first = threads.submit(meet, member(port, 0, 3))
    assert listening.wait(60)
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(hello(num_processes=3))
        answer = json.loads(call(port, hello(num_processes=3)))
        assert answer["error"] == "there is a process 1 already"
    # That call has ended, as if its process had been killed.
    again = threads.submit(meet, member(port, 1, 3))
    last = threads.submit(meet, member(port, 2, 3))
    assert [one.result() for one in (first, again, last)] == [None] * 3


@pytest.mark.parametrize(
    "text", [b"GET / HTTP/1.0\r\n\r\n", b"[1]\n", b"\0" * 20_000, b"[" * 4000 + b"\n", b"\xff\n"]
)
def test_others_that_look_in_hold_nobody_up(threads, listening, text):
    port = free_port()
    first = threads.submit(meet, member(port, 0))
    assert listening.wait(60)
    # One that says nothing, to the end.
    with socket.create_connection(("127.0.0.1", port)):
        assert call(port, text) == b""
        meet(member(port, 1))
    assert first.result() is None


class Gone(socket.socket):
    """A connection whose other side has gone, as macOS has it."""

    def setsockopt(self, *args):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


class Listener(socket.socket):
    def accept(self):
        peer, address = super().accept()
        return Gone(fileno=peer.detach()), address


def test_caller_that_has_gone_before_it_is_heard_ends_nothing():
    listener = Listener(fileno=listening_module.listen("127.0.0.1", 0, 8).detach())
    callers = listening_module.Callers(listener, 1, lambda *_: None, lambda _: None)
    socket.create_connection(listener.getsockname()).close()
    try:
        callers.work(20.0)
        assert len(callers._strangers) == 1
        callers.work(20.0)
        assert not callers._strangers
    finally:
        callers.close()


@pytest.mark.parametrize("data", [b"\0\0\x12\x04", b"{" + bytes(1 << 17)], ids=["short", "long"])
def test_something_else_at_the_address_is_said(data, threads, clock, monkeypatch):
    monkeypatch.setattr(rendezvous, "_STRANGER_SECS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        waiting = threads.submit(meet, member(port, 1))
        # As JAX's service does: it speaks first, and not as we do.
        with other.accept()[0] as line:
            line.sendall(data)
            expected = r"within 0\.\d s \(something else answers there, perhaps a run"
            with pytest.raises(TimeoutError, match=expected):
                waiting.result()


def test_something_else_is_waited_for_from_its_first_answer(threads, clock, monkeypatch):
    has_asked = threading.Event()
    clock.sleep = lambda secs: has_asked.set() or time.sleep(secs)
    monkeypatch.setattr(rendezvous, "_STRANGER_SECS", 0.5)
    port = free_port()
    waiting = threads.submit(meet, member(port, 1))
    assert has_asked.wait(60)  # nothing listens there yet
    clock.now = 0.7
    with socket.create_server(("127.0.0.1", port)) as other, other.accept()[0] as line:
        line.sendall(b"\0\0\x12\x04")
        line.recv(1 << 16)
        line.recv(1)  # it ends the call, and so the port is free
    meet(member(port, 0))
    waiting.result()


def test_process_0_that_is_interrupted_tells_the_others(threads, monkeypatch):
    port, hear = free_port(), rendezvous._Gathering._hear

    def interrupt(self, caller, call):
        hear(self, caller, call)
        raise KeyboardInterrupt

    monkeypatch.setattr(rendezvous._Gathering, "_hear", interrupt)
    other = threads.submit(meet, member(port, 1, 3))
    with pytest.raises(KeyboardInterrupt):
        meet(member(port, 0, 3))
    text = f"process 0 on {socket.gethostname()} ended: KeyboardInterrupt"
    with pytest.raises(ConnectionError, match=re.escape(text)):
        other.result()


def test_waiting_is_reported(threads, clock, monkeypatch, caplog):
    monkeypatch.setattr(listening_module.Callers, "work", lambda self, secs: clock.sleep(secs))
    monkeypatch.setattr(rendezvous, "_REPORT_SECS", 0.1)
    port = free_port()
    with pytest.raises(TimeoutError):
        meet(member(port, 0, 12), 0.5)
    assert (
        f"at 127.0.0.1:{port}, processes 1, 2, 3, 4, 5, 6, 7, 8 and 3 more have not come yet"
    ) in caplog.messages
    with pytest.raises(TimeoutError):
        meet(member(port, 1), 0.5)
    assert f"waiting for process 0 at 127.0.0.1:{port}: " in caplog.text


def test_addresses_of_this_machine_are_told_from_others():
    assert listening_module.is_own_address("localhost")
    assert not listening_module.is_own_address("198.51.100.7")
    assert not listening_module.is_own_address("no-such-host.invalid")
    assert not listening_module.is_own_address("no..host")


def test_name_that_can_be_none_is_named(clock):
    text = r"no answer from process 0 at no\.\.host:80 within 0\.1 s \(.*label empty"
    with pytest.raises(TimeoutError, match=text):
        meet(member(80, 1, host="no..host"), 0.1)
