"""Processes that agree through the hub: threads of one process, and strangers that look in."""

import contextlib
import fcntl
import functools
import os
import resource
import socket
import sys
import threading
import time

import pytest

from penstock._errors import PeerError
from penstock.distributed import exits, listening, member
from penstock.distributed.exit_codes import AGAIN
from penstock.distributed.hub import Hub
from penstock.distributed.listening import encode
from penstock.distributed.secret import prove


class Members:
    """A hub and its members; what ends a process is noted in place of being done."""

    def __init__(self, count, monkeypatch, *, heartbeat_secs=30.0, num_missing=0, **options):
        self.left, self.said = [], []
        monkeypatch.setattr(exits, "leave", self.left.append)
        monkeypatch.setattr(exits, "say", self.said.append)
        monkeypatch.setattr(exits, "ignore_sigterm", lambda: None)
        monkeypatch.setattr(exits, "dump_stacks", self.said.append)
        for name in ("GRACE_SECS", "GRACE_OF_A_LOSS_SECS", "LINGER_SECS"):
            monkeypatch.setattr(member, name, 0.05)
        options = {"host": "", "hang_secs": None} | options
        self.hub = Hub(count, "token", heartbeat_secs=heartbeat_secs, **options)
        self._count, self._heartbeat_secs, self.all = count, heartbeat_secs, []
        for _ in range(count - num_missing):
            self.add()

    def add(self):
        """Have one more process come."""
        address, secs = ("127.0.0.1", self.hub.port), self._heartbeat_secs
        args = (len(self.all), self._count, address, "token")
        self.all.append(member.Member(*args, heartbeat_secs=secs))

    def run(self, function):
        """Return what the function returned or raised on each member, at the same time."""
        results = [None] * len(self.all)

        def work(index):
            try:
                results[index] = function(self.all[index])
            except BaseException as error:
                results[index] = error

        threads = [threading.Thread(target=work, args=(n,)) for n in range(len(self.all))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def close(self):
        for group in self.all:
            group._over = {"code": 0}
            group.hang_up()
        self.hub.close()


@pytest.fixture
def make(monkeypatch):
    """Give a function that makes a hub and so many members; close all of them at the end."""
    made = []

    def make_members(count, **options):
        made.append(Members(count, monkeypatch, **options))
        return made[-1]

    yield make_members
    for members in made:
        members.close()


def wait_until(is_so):
    """Wait until something is so."""
    while not is_so():
        time.sleep(0.005)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_exchange_gives_every_process_the_values_of_all(make, count):
    members = make(count)
    expected = [{"n": index, "text": "é\n"} for index in range(count)]
    for _ in range(3):
        values = members.run(lambda group: group.exchange("a", {"n": group.index, "text": "é\n"}))
        assert values == [expected] * count


def test_other_ways_give_each_process_what_it_needs(make):
    members = make(3)
    assert members.run(lambda group: group.gather("a", group.index)) == [[0, 1, 2], [], []]
    assert members.run(lambda group: group.broadcast("b", group.index + 7)) == [7] * 3
    for text in ("x", "x" * 1000):
        same = members.run(lambda group, text=text: group.agree("c", {"a": text}))
        assert same == [True] * 3
        unlike = members.run(lambda group, text=text: group.agree("d", text * (group.index + 1)))
        assert unlike == [False] * 3


def test_exchange_of_megabytes_arrives_whole(make):
    members = make(3)
    results = members.run(lambda group: group.exchange("a", f"{group.index}" * 3_000_000))
    assert [[len(value) for value in values] for values in results] == [[3_000_000] * 3] * 3


def test_exception_in_a_call_ends_the_others_with_its_text(make):
    members = make(2)

    def work(group):
        with group.inside("trainer.train"):
            if group.index:
                raise ValueError("boom")
            return group.exchange("trainer.train")

    first, second = members.run(work)
    assert isinstance(second, ValueError)
    assert isinstance(first, PeerError)
    assert "process 1 failed with ValueError: boom" in str(first)


def test_exception_that_all_raise_alike_may_be_caught_by_all(make, monkeypatch):
    members = make(3)
    monkeypatch.setattr(member, "GRACE_SECS", 60.0)  # that one of them comes late is no matter

    def work(group):
        try:
            with group.inside("trainer.train"):
                raise ValueError("boom")
        except ValueError:
            pass
        with group.inside("trainer.train"):
            return group.exchange("again", group.index)

    assert members.run(work) == [[0, 1, 2]] * 3
    assert members.left == []


def test_process_whose_last_call_failed_and_was_caught_waits_for_the_others_and_ends_well(
    make, monkeypatch
):
    members, reported = make(2), []
    monkeypatch.setattr(member, "GRACE_SECS", 60.0)
    monkeypatch.setattr(exits, "report_first", reported.append)

    def work(group):
        with contextlib.suppress(ValueError), group.inside("trainer.train"):
            raise ValueError("boom")
        time.sleep(0.3 * group.index)  # longer than a process that fails waits
        return group.end(None)

    assert members.run(work) == reported == [None, None]


def test_process_that_ends_by_the_signal_of_all_waits_for_the_others(make):
    members = make(2)

    def work(group):
        with contextlib.suppress(SystemExit), group.inside("trainer.train"):
            group.leave(1)
            raise SystemExit(143)
        time.sleep(0.3 * group.index)
        return group.end(SystemExit(143))

    assert members.run(work) == [None, None]


def test_exit_in_a_call_counts_until_the_next_call(make, monkeypatch):
    noted, (one,) = [], make(1).all
    monkeypatch.setattr(exits, "note_last", noted.append)
    for _ in range(2):
        with contextlib.suppress(SystemExit), one.inside("trainer.train"):
            raise SystemExit(3)
    assert list(map(repr, noted)) == ["None", "SystemExit(3)"] * 2


def test_process_that_waits_for_one_that_failed_is_ended(make):
    members, is_over = make(2), threading.Event()

    def work(group):
        with group.inside("trainer.train"):
            if group.index:
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

    def work(group):
        if group.index == lost:
            group._peer.shutdown(socket.SHUT_RDWR)
            return None
        with group.inside("trainer.train"):
            group.exchange("trainer.train")

    results = members.run(work)
    errors = [result for index, result in enumerate(results) if index != lost]
    assert all(f"process {lost} was lost" in str(result) for result in errors)
    assert all(m.find_failure()["code"] == AGAIN for m in members.all if m.index != lost)


def test_loss_of_another_after_an_error_of_its_own_asks_for_no_other_try(make):
    members = make(2)
    failed = members.all[1]

    def use_a_handler():
        with failed.inside("trainer.train"):
            failed.note_failure(ValueError("boom"))
            members.all[0]._peer.shutdown(socket.SHUT_RDWR)
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
    wait_until(lambda: members.all[0]._failures)
    with pytest.raises(PeerError, match=text), members.all[0].inside("trainer.test"):
        pass
    members.all[0].end(None)
    ending.join()


def test_ctrl_c_ends_all_with_the_code_of_a_shell_and_is_no_error_of_the_others(make):
    assert make(3).run(lambda group: group.end(KeyboardInterrupt())) == [130] * 3
    members = make(2)
    codes = members.run(lambda group: group.end(KeyboardInterrupt() if group.index else None))
    assert codes == [130] * 2
    assert "process 1 was interrupted" in members.said[0]


def test_processes_may_be_silent_for_a_year(make):
    members = make(2, heartbeat_secs=366 * 86400.0)
    assert members.run(lambda group: group.exchange("a", group.index)) == [[0, 1]] * 2


def test_process_that_is_silent_is_named(make, monkeypatch):
    members = make(2, heartbeat_secs=0.5)
    silent = members.all[1]
    monkeypatch.setattr(silent, "_send", lambda message: None)
    wait_until(lambda: members.all[0].find_failure())
    failure = members.all[0].find_failure()
    assert "process 1 has not answered" in failure["what"]
    assert failure["code"] == AGAIN


def test_call_that_makes_no_progress_is_named_with_the_one_behind(make):
    members = make(2, heartbeat_secs=1.0, hang_secs=0.8)
    is_over = threading.Event()

    def work(group):
        with group.inside("trainer.train"):
            for step in range(3 + group.index):
                group.advance(step)
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

    def work(group):
        with group.inside("trainer.train"):
            if group.index:
                group.num_compiling += 1
                time.sleep(1.6)
                group.num_compiling -= 1
            return group.exchange("trainer.train", group.index)

    assert members.run(work) == [[0, 1]] * 2


def test_stop_of_one_process_is_carried_to_all_at_one_step(make):
    members = make(3)

    def work(group):
        for step in range(10_000):
            # As launches in flight do: nobody is further ahead than they allow.
            wait_until(lambda: group.position - min(m.position for m in members.all) < 5)
            group.advance(step)
            wants = group.index == 1 and step >= 20
            if (group.is_asked or wants) and group.meet():
                group.exchange("an agreement")
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
    wait_until(lambda: members.all[0]._failures)
    with pytest.raises(PeerError, match=r"boom \(.*, global step 7\)"):
        members.all[0].exchange("trainer.train")


def test_process_is_eager_in_a_call_alone(make):
    group = make(1).all[0]
    group.is_asked = True
    with group.inside("trainer.train"):
        assert group._tick()
    assert not group._tick()


def test_process_that_never_connects_is_named(make):
    members = make(3, num_missing=1)
    wait_until(lambda: len(members.hub._callers.by_index) == 2)
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
        assert make(2).run(lambda group: group.exchange("a", group.index)) == [[0, 1]] * 2
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
        for descriptor in taken:
            os.close(descriptor)


def test_connection_that_finds_no_descriptor_is_asked_for_again_at_every_look(make, monkeypatch):
    members = make(2)
    callers, calls = members.hub._callers, []
    assert members.run(lambda group: group.exchange("a", group.index)) == [[0, 1]] * 2

    def count(name, function, *args):
        calls.append(name)
        function(*args)

    for name in ("_accept", "_look_around"):
        counted = functools.partial(count, name, getattr(callers, name))
        monkeypatch.setattr(callers, name, counted)
    with socket.socket() as late:
        late.settimeout(60)
        with no_descriptor_left():
            late.connect(("127.0.0.1", members.hub.port))
            wait_until(lambda: calls.count("_accept") >= 3)
            assert calls.count("_accept") <= calls.count("_look_around") + 1
            assert members.run(lambda group: group.exchange("b", group.index)) == [[0, 1]] * 2
        late.sendall(b"[1]\n")
        assert late.recv(1) == b""  # it was let in, and is a stranger
    assert members.run(lambda group: group.exchange("c", group.index)) == [[0, 1]] * 2


def make_hello(index, token="token"):
    proof = prove(token, f"process {index}")
    return encode({"kind": "hello", "proof": proof, "index": index})


@pytest.mark.parametrize(
    "data",
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
def test_stranger_at_the_hubs_port_disturbs_nobody(make, data):
    members = make(2)
    assert members.run(lambda group: group.exchange("a", group.index)) == [[0, 1]] * 2
    with socket.create_connection(("127.0.0.1", members.hub.port), timeout=60) as stranger:
        stranger.sendall(data)
        with contextlib.suppress(ConnectionResetError):  # not all of it was read
            assert stranger.recv(1) == b""
    assert members.run(lambda group: group.exchange("a", group.index)) == [[0, 1]] * 2


def test_stranger_that_says_nothing_is_let_go(make, monkeypatch):
    members = make(2)
    assert members.run(lambda group: group.exchange("a", group.index)) == [[0, 1]] * 2
    with socket.create_connection(("127.0.0.1", members.hub.port), timeout=60) as stranger:
        monkeypatch.setattr(listening, "_HELLO_SECS", 0.0)
        assert stranger.recv(1) == b""
    assert members.run(lambda group: group.exchange("a", group.index)) == [[0, 1]] * 2


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
        assert len(members.hub._callers._strangers) == 1 + listening._NUM_SPARE
        members.add()
        results = members.run(lambda group: group.exchange("a", group.index))
        assert results == [[0, 1, 2]] * 3


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux alone gives up sending")
def test_hub_that_takes_nothing_is_lost_while_a_message_is_sent(server):
    one = member.Member(1, 2, server.getsockname(), "token", heartbeat_secs=0.5)
    with server.accept()[0], pytest.raises(PeerError, match="process 0 "):
        one.gather("a", "x" * 50_000_000)
    one.hang_up()


@pytest.mark.skipif(sys.platform != "linux", reason="calls another loopback address")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", ""])
def test_hub_listens_at_its_host_and_at_no_other_address(host):
    if host == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    hub = Hub(2, "token", host=host, heartbeat_secs=30.0, hang_secs=None)
    socket.create_connection((host or "localhost", hub.port), timeout=60).close()
    # All of 127.0.0.0/8 is this machine.
    refusal = contextlib.nullcontext() if not host else pytest.raises(ConnectionRefusedError)
    with refusal:
        socket.create_connection(("127.0.0.2", hub.port), timeout=60).close()
    hub.close()


@pytest.mark.parametrize(
    ("limits", "num_processes", "expected"),
    [
        ((1024, 4096), 2, None),
        ((1024, 20_000), 1000, (4512, 20_000)),
        ((1024, 4096), 1000, (4096, 4096)),
        ((-1, -1), 1000, None),
    ],
)
def test_process_0_of_many_may_open_as_many_descriptors(
    monkeypatch, limits, num_processes, expected
):
    limit = []
    monkeypatch.setattr(listening.resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(listening.resource, "setrlimit", lambda which, both: limit.append(both))
    listening.raise_descriptor_limit(num_processes)
    assert limit == ([] if expected is None else [expected])
