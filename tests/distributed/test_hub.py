"""The hub and who connects to it: processes that are late, strangers, and a lack of descriptors."""

import contextlib
import fcntl
import functools
import os
import resource
import socket

import pytest

from penstock._errors import PeerError
from penstock.distributed import hub as hub_module
from penstock.distributed import listening
from penstock.distributed.exit_codes import AGAIN
from penstock.distributed.lines import encode
from penstock.distributed.secret import prove
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


def make_hello(index, token="token"):
    proof = prove(token, f"process {index}")
    return encode({"kind": "hello", "proof": proof, "index": index})


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        b"\xff\n",
        b"[1]\n",
        b"[" * 60_000 + b"\n",
        make_hello(1, token="x"),
        make_hello(2),
        make_hello(1),  # it is there already
        make_hello([]),
        b'{"kind":"hello","proof":"\\u00e9","index":1}\n',
        b'{"kind":"hello","index":1}\n',
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


def test_stranger_that_says_nothing_is_let_go(make, monkeypatch):
    members = make(2)
    assert members.run(lambda each: each.exchange("a", each.index)) == [[0, 1]] * 2
    with socket.create_connection(("127.0.0.1", members.hub.port), timeout=60) as stranger:
        monkeypatch.setattr(listening, "_HELLO_SECS", 0.0)
        assert stranger.recv(1) == b""
    assert members.run(lambda each: each.exchange("a", each.index)) == [[0, 1]] * 2


def test_connections_that_say_nothing_are_few_and_keep_no_process_out(make):
    members = make(3, num_missing=1)
    address = ("127.0.0.1", members.hub.port)
    with contextlib.ExitStack() as stack:
        strangers = [
            stack.enter_context(socket.create_connection(address, timeout=60)) for _ in range(50)
        ]
        # One place for the process that is missing, and a few.
        for stranger in strangers[: 50 - 1 - listening._NUM_SPARE]:
            assert stranger.recv(1) == b""
        assert len(members.hub._strangers._opened_at) == 1 + listening._NUM_SPARE
        members.add()
        results = members.run(lambda each: each.exchange("a", each.index))
        assert results == [[0, 1, 2]] * 3


def count_encoded(monkeypatch):
    sizes = []

    def encode_and_count(said):
        sizes.append(len(encode(said)))
        return encode(said)

    monkeypatch.setattr(hub_module, "encode", encode_and_count)
    return sizes


def test_what_all_are_told_is_encoded_once(make, monkeypatch):
    members, sizes = make(5), count_encoded(monkeypatch)
    members.run(lambda each: each.exchange("a", f"{each.index}" * 1000))
    assert sum(size > 1000 for size in sizes) == 1


def test_value_that_all_have_travels_to_nobody(make, monkeypatch):
    members, sizes = make(5), count_encoded(monkeypatch)
    members.run(lambda each: each.exchange("a", "x" * 1000))
    assert max(sizes) < 100


def test_values_for_process_0_go_to_no_other(make, monkeypatch):
    members = make(5)
    heard = [0] * 5
    for each in members.all:
        hear = functools.partial(note_size, heard, each.index, each._link._hear)
        monkeypatch.setattr(each._link, "_hear", hear)
    members.run(lambda each: each.gather("a", "x" * 1000))
    assert heard[0] > 5000
    assert max(heard[1:]) < 100


def note_size(heard, index, hear, said):
    heard[index] = max(heard[index], len(encode(said)))
    hear(said)


def test_processes_that_all_fail_or_end_alike_do_not_each_tell_all(make, monkeypatch):
    members, sizes = make(12), count_encoded(monkeypatch)

    def work(each):
        with contextlib.suppress(ValueError), each.inside("trainer.train"):
            raise ValueError("boom")
        each.exchange("a")
        return each.end(None)

    assert members.run(work) == [None] * 12
    # Two failures, two ends, the answer, that it is over, and beats.
    assert len(sizes) < 12
