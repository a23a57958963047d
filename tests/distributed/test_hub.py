"""The hub and who connects to it: processes that are late, strangers, and a lack of descriptors."""

import contextlib
import fcntl
import functools
import os
import resource
import socket

import pytest

from penstock._errors import PeerError
from penstock.distributed.exit_codes import AGAIN
from tests.distributed.members import make_and_close, wait_until


@pytest.fixture
def make(monkeypatch):
    yield from make_and_close(monkeypatch)


def test_process_that_never_connects_is_named(make):
    members = make(3, num_missing=1)
    wait_until(lambda: len(members.hub._by_index) == 2)
    members.hub._connect_secs = 0.0
    with pytest.raises(PeerError) as caught:
        members.all[0].exchange("trainer.train")
    text = f"process 2 has not connected to port {members.hub.port} of process 0 within 0 s: its"
    assert str(caught.value).startswith(text)
    assert caught.value.exit_code == AGAIN


def test_process_with_a_thousand_files_open_is_heard(make, monkeypatch):
    connect = socket.create_connection

    def connect_high(*args, **options):
        with connect(*args, **options) as low:
            return socket.socket(fileno=fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1100))

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2000), limits[1]))
    monkeypatch.setattr(socket, "create_connection", connect_high)
    try:
        assert make(2).run(lambda each: each.exchange("a", each.index)) == [[0, 1]] * 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextlib.contextmanager
def no_descriptor_left():
    limits, taken = resource.getrlimit(resource.RLIMIT_NOFILE), []
    most = len(os.listdir("/dev/fd")) + 16
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for each in taken:
            os.close(each)


def test_connection_that_finds_no_descriptor_is_asked_for_again_at_every_look(make, monkeypatch):
    members = make(2)
    hub, calls = members.hub, []
    assert members.run(lambda each: each.exchange("a", each.index)) == [[0, 1]] * 2

    def count(name, function, *args):
        calls.append(name)
        function(*args)

    for name in ("_accept", "_look_around"):
        counted = functools.partial(count, name, getattr(hub, name))
        monkeypatch.setattr(hub, name, counted)
    with socket.socket() as late:
        late.settimeout(60)
        with no_descriptor_left():
            late.connect(("127.0.0.1", hub.port))
            wait_until(lambda: calls.count("_accept") >= 3)
            assert calls.count("_accept") <= calls.count("_look_around") + 1
            assert members.run(lambda each: each.exchange("b", each.index)) == [[0, 1]] * 2
        late.sendall(b"[1]\n")
        assert late.recv(1) == b""  # it was let in, and is a stranger
    assert members.run(lambda each: each.exchange("c", each.index)) == [[0, 1]] * 2


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        b"\xff\n",
        b"[1]\n",
        b"[" * 60_000 + b"\n",
        b'{"kind":"hello","token":"x","index":1}\n',
        b'{"kind":"hello","token":"token","index":2}\n',
        b'{"kind":"hello","token":"token","index":1}\n',  # it is there already
        b'{"kind":"hello","token":"token","index":[]}\n',
        b"\0" * 70_000,
    ],
)
def test_stranger_at_the_hubs_port_disturbs_nobody(make, said):
    members = make(2)
    assert members.run(lambda each: each.exchange("a", each.index)) == [[0, 1]] * 2
    with socket.create_connection(("127.0.0.1", members.hub.port), timeout=60) as stranger:
        stranger.sendall(said)
        assert stranger.recv(1) == b""
    assert members.run(lambda each: each.exchange("a", each.index)) == [[0, 1]] * 2


def test_stranger_that_says_nothing_is_let_go(make):
    members = make(2)
    assert members.run(lambda each: each.exchange("a", each.index)) == [[0, 1]] * 2
    with socket.create_connection(("127.0.0.1", members.hub.port), timeout=60) as stranger:
        members.hub._connect_secs = 0.0
        assert stranger.recv(1) == b""
    assert members.run(lambda each: each.exchange("a", each.index)) == [[0, 1]] * 2
