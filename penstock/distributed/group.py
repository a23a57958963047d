"""The processes of a run, as one of them sees it: what they agree on, and what ends them.

Agreement goes over the host, through the hub of process 0, and not through collectives on the
devices: a process that comes alone waits there for ever, here it is told who did not come. Nothing
is sent in a step; a thread listens, and the loop looks at one attribute.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from penstock._errors import PeerError
from penstock.distributed import exits
from penstock.distributed.exit_codes import AGAIN
from penstock.distributed.hub import Hub
from penstock.distributed.lines import LineBuffer, encode, receive
from penstock.distributed.meeting_rules import Message

_ADDRESS_KEY = "penstock/hub"
_TICK_SECS = 0.1
_EAGER_SECS = 0.02
"""While all come to a stand: who stands behind another must soon know."""

HEARTBEAT_SECS = 30.0
HEARTBEAT_VARIABLE, HANG_VARIABLE = "PENSTOCK_HEARTBEAT_SECS", "PENSTOCK_HANG_SECS"

LINGER_SECS = 8.0
"""How long a process that has failed waits for the others to end, or to fail alike."""

GRACE_SECS, GRACE_OF_A_LOSS_SECS = 3.0, 1.0
"""How long a process may take to end by itself when another has failed."""

_CONNECT_SECS = 60.0


class Group:
    """The processes of a run. This one is a group of its own; `Joined` has several.

    Attributes:
      index, count: this process, from 0, and how many there are.
      is_asked: whether all are to come to a stand at one position.
      wants: asked often, in a thread: whether this process has something to agree on.
      describe: what this process does, in words.
    """

    index, count = 0, 1
    is_asked = False

    def __init__(self) -> None:
        self.position = self.taken = 0
        self.wants, self.describe = _want_nothing, _be_between

    def exchange(self, name: str, value: object = None) -> list[Any]:
        """Return the values of all processes, in their order. Collective.

        Arguments:
          name: what all of them are in, for people: "trainer.test".
          value: what JSON can hold.

        Raises:
          PeerError: another process has failed, or does something else.
        """
        return [value]

    def share(self, value: Mapping[str, object]) -> list[Any]:
        """Return what every process has left whose reader is short; None where it had enough."""
        return [value]

    def take(self) -> None:
        """Note that the batches of a launch were taken from the reader."""
        self.taken += 1

    def advance(self, step: int) -> None:
        """Note a launch, or another place where all may meet, before it."""
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
    def watched(self, wants: Callable[[], bool], describe: Callable[[], str]) -> Iterator[None]:
        """Have these asked, in a thread, for `wants` and `describe`."""
        self.wants, self.describe = wants, describe
        try:
            yield
        finally:
            self.wants, self.describe = _want_nothing, _be_between

    def note_failure(self, error: BaseException) -> BaseException:
        """Tell the others that this process cannot go on; return the error that came first."""
        return error

    def leave(self) -> None:
        """Note that an exception is raised now that all processes have agreed on."""

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Be in what may take minutes and is no hang."""
        yield

    def end(self, error: BaseException | None) -> int | None:
        """Return the exit code of a script that is over; None for an end as Python has it."""
        return None if error is None else exits.code_of(error)


class Joined(Group):
    """Several processes, each with a thread that listens to the hub.

    Arguments:
      address: host and port of the hub.
      hub: on process 0, to be closed at the end.
    """

    def __init__(
        self,
        index: int,
        count: int,
        address: tuple[str, int],
        token: str,
        *,
        heartbeat_secs: float,
        hub: Hub | None = None,
    ) -> None:
        super().__init__()
        self.index, self.count, self._hub = index, count, hub
        self._failures: list[Message] = []
        self._heartbeat_secs, self._beat_secs = heartbeat_secs, min(1.0, heartbeat_secs / 4)
        self._step, self._progress, self._num_compiling = 0, 0, 0
        self._regions: list[str] = []
        self._num_regions, self._is_leaving = 0, False
        self._asked, self._target = "", 0
        self._answer: Message | None = None
        self._over: Message | None = None
        self._own_code, self._is_hurried = 0, False
        self._condition = threading.Condition()
        self._sending = threading.Lock()
        self._peer = socket.create_connection(address, timeout=_CONNECT_SECS)
        self._peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peer.settimeout(_TICK_SECS)
        where = f"{socket.gethostname()}, pid {os.getpid()}"
        self._send({"kind": "hello", "index": index, "token": token, "where": where})
        self._thread = threading.Thread(target=self._listen, name="penstock group", daemon=True)
        self._thread.start()

    # What the main thread calls.

    def exchange(self, name: str, value: object = None) -> list[Any]:
        """Return the values of all processes, in their order; see `Group.exchange`."""
        said = self._ask({"kind": "exchange", "name": name, "value": value})
        return said["values"]

    def share(self, value: Mapping[str, object]) -> list[Any]:
        """Return what every process has left whose reader is short; see `Group.share`."""
        values = self._ask({"kind": "share", "value": value})["values"]
        self._is_hurried = any(each is None for each in values)
        return values

    def advance(self, step: int) -> None:
        """Note a launch, or another place where all may meet, before it."""
        self.position += 1
        self._step = step

    def meet(self) -> bool:
        """Stand until all processes stand at this position; see `Group.meet`."""
        # Another is further on, and may be in a launch that waits for this process.
        if self.position < self._target:
            return False
        said = self._ask({"kind": "stopped"})
        if said["kind"] == "run_to":
            self._target = said["position"]
            return False
        self.is_asked = False
        return said["kind"] == "met"

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Be in a call that all processes make; see `Group.inside`."""
        if not self._regions:
            self._num_regions += 1
            self._is_leaving, self._own_code = False, 0
        self._regions.append(name)
        try:
            # Not of what failed in this same call: it may fail here in the same way.
            if self._find_failure(is_entering=True) is not None:
                raise self._peer_error()
            yield
        except BaseException as error:
            first = self.note_failure(error)
            if first is error:
                raise
            raise first from error
        finally:
            self._regions.pop()

    def note_failure(self, error: BaseException) -> BaseException:
        """Tell the others that this process cannot go on; see `Group.note_failure`."""
        if self._is_leaving:
            return error
        if exits.may_follow_from_a_loss(error):
            # The connection of the devices broke: the hub knows whose end that was.
            with self._condition:
                self._condition.wait_for(lambda: self._find_failure() is not None, GRACE_SECS)
            if self._find_failure() is not None:
                error = self._peer_error()
        self._is_leaving = True
        if isinstance(error, PeerError):
            return error
        self._own_code = exits.code_of(error)
        what = f"process {self.index} {exits.describe_error(error)}"
        # Whoever leaves this call with an exception too may catch it, and go on as this one may.
        self._send({"kind": "failed", "what": what, "code": self._own_code, **self._until_now()})
        return error

    def leave(self) -> None:
        """Note that an exception is raised now that all processes have agreed on."""
        self._is_leaving = True

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Be in what may take minutes and is no hang."""
        self._num_compiling += 1
        try:
            yield
        finally:
            self._num_compiling -= 1

    def end(self, error: BaseException | None) -> int | None:
        """Wait until the scripts of all processes are over; return the exit code to end with.

        None is for an end as Python has it. Called at exit, before JAX's own barrier, where a
        process would wait five minutes for one that has failed.
        """
        what = "" if error is None else exits.describe_error(error)
        code = self._own_code if error is None else exits.code_of(error)
        self._send({"kind": "ended", "what": what, "code": 0 if error is None else code})
        with self._condition:
            # One that has failed waits a little, for those that may have failed alike.
            secs = None if not code else LINGER_SECS
            self._condition.wait_for(lambda: self._over is not None or self._find_failure(), secs)
        if self._over is not None and not self._over["code"]:
            self._close()
            return None
        failure = self._find_failure() or self._over
        if failure is not None and error is None and not code:
            exits.say(self._sentence(failure))
        if failure is not None and (not code or isinstance(error, PeerError)):
            code = failure["code"]
        if self._hub is not None:
            self._hub.linger(LINGER_SECS, (failure or {}).get("index", 0))
        return code or 1

    def _close(self) -> None:
        # Process 0 last: the others' connections end with it.
        if self._hub is not None:
            self._hub.linger(GRACE_SECS)
        self.hang_up()
        if self._hub is not None:
            self._hub.close()

    def hang_up(self) -> None:
        """Leave the hub, which takes this process for lost unless its script was over."""
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._peer.close()

    def _ask(self, said: Message) -> Message:
        """Send what is answered, and wait for the answer."""
        with self._condition:
            if self._find_failure() is not None:
                raise self._peer_error()
            self._answer, self._asked = None, said["kind"]
        self._send(said)
        with self._condition:
            self._condition.wait_for(lambda: self._answer is not None or self._find_failure())
            if self._answer is None:
                raise self._peer_error()
            self._progress += 1
            return self._answer

    def _find_failure(self, *, is_entering: bool = False) -> Message | None:
        """Return the first failure elsewhere that leaves this process without partners.

        Arguments:
          is_entering: whether those count less that failed in the call that this one enters.
        """
        # Between two calls: past the one, and not yet in the other.
        number = self._num_regions + (0.0 if self._regions else 0.5)
        for said in self._failures:
            # What failed in a call that this process has left too was seen by both.
            is_stuck = number <= said.get("until", -1) - is_entering or number >= said.get(
                "since", number + 1
            )
            if is_stuck or said.get("is_final"):
                return said
        return None

    def _peer_error(self) -> PeerError:
        return PeerError(self._sentence(self._find_failure() or {}))

    def _sentence(self, said: Message) -> str:
        step = f"global step {said['step']}" if said.get("step") else ""
        facts = ", ".join(each for each in (said.get("where"), step) if each)
        advice = said.get("advice", f"Process {self.index} cannot go on without it")
        if "since" in said and self._regions:
            advice = f"Call {self._regions[-1]} on every process, or on none"
        return f"{said.get('what')}{f' ({facts})' if facts else ''}. {advice}."

    def _until_now(self) -> Message:
        return {"until": self._num_regions}

    def _send(self, said: Message) -> None:
        said = {
            **said,
            "position": self.position,
            "taken": self.taken,
            "step": self._step,
            "activity": self.describe(),
            "num_regions": self._num_regions,
            "progress": self.position + self._progress,
            "is_at_work": bool(self._regions),
            "is_compiling": self._num_compiling > 0,
        }
        line = encode(said)
        try:
            with self._sending:
                self._peer.settimeout(None)
                self._peer.sendall(line)
        # The listening thread finds out, and says what it means.
        except OSError:
            pass

    # What the listening thread does.

    def _listen(self) -> None:
        lines, heard_at, beat_at = LineBuffer(), time.monotonic(), 0.0
        while True:
            now = time.monotonic()
            if now - beat_at >= (_EAGER_SECS if self._is_eager else self._beat_secs):
                beat_at = now
                self._send({"kind": "beat"})
                exits.arm_stack_dump(4 * self._heartbeat_secs)
            if not self.is_asked and self.wants():
                self.is_asked = True
                self._send({"kind": "ask"})
            if self._wait_readable():
                piece = receive(self._peer)
                if not piece:
                    self._lose_hub("was lost: it was killed, or its machine is gone")
                    return
                heard_at = time.monotonic()
                for said in lines.take(piece):
                    self._take(said)
            elif time.monotonic() - now > self._heartbeat_secs / 2:
                heard_at = time.monotonic()  # this process itself stood still
            elif time.monotonic() - heard_at > self._heartbeat_secs:
                self._lose_hub(f"has not answered for {self._heartbeat_secs:.0f} s")
                return

    @property
    def _is_eager(self) -> bool:
        return self.is_asked or self._is_hurried

    def _wait_readable(self) -> bool:
        tick = _EAGER_SECS if self._is_eager else _TICK_SECS
        try:
            return bool(select.select([self._peer], [], [], tick)[0])
        except (OSError, ValueError):
            return True

    def _take(self, said: Message) -> None:
        match said["kind"]:
            case "beat":
                return
            case "meet":
                self.is_asked = True
                self._send({"kind": "beat"})
                return
            case "hurry":
                self._is_hurried = True
                return
            case "dump":
                exits.dump_stacks(f"process {self.index}: no process has moved; all stacks:")
                return
            case "over":
                with self._condition:
                    self._over = said
                    self._condition.notify_all()
                return
            case "failure":
                if said["index"] != self.index or said.get("is_final"):
                    self._fail(said)
                return
            case "postponed":
                self.is_asked = False
            case _:
                pass
        with self._condition:
            # Who waits in an exchange hears of a meeting put off too, and waits on.
            if said["kind"] != "postponed" or self._asked == "stopped":
                self._answer = said
                self._condition.notify_all()

    def _lose_hub(self, what: str) -> None:
        if self._over is not None:
            return
        said = {"index": 0, "what": f"process 0 {what}", "code": AGAIN, "is_final": True}
        # JAX aborts this process in less than half a second, without a word of Python.
        self._fail({"kind": "failure", "step": self._step, **said}, grace_secs=0.0)

    def _fail(self, said: Message, grace_secs: float = GRACE_SECS) -> None:
        with self._condition:
            self._failures.append(said)
            self._condition.notify_all()
        if said["code"] == AGAIN:
            # Whoever is lost did not fail as others may have: nobody ends by itself.
            grace_secs = min(grace_secs, GRACE_OF_A_LOSS_SECS)
        threading.Thread(target=self._end_if_stuck, args=(grace_secs,), daemon=True).start()

    def _end_if_stuck(self, grace_secs: float) -> None:
        """End this process where its main thread waits for one that will not come."""
        time.sleep(grace_secs)
        failure = self._find_failure()
        if failure is None or not self._regions or self._is_leaving:
            return
        exits.say(self._sentence(failure))
        if self._hub is not None:
            self._hub.linger(GRACE_SECS, failure["index"])
        exits.leave(failure["code"])


def _want_nothing() -> bool:
    return False


def _be_between() -> str:
    return "is between two calls"


_ALONE = Group()


class _Process:
    """What this process has joined."""

    joined: Joined | None = None


def current() -> Group:
    """Return the group of this process; alone, where it has joined none."""
    if _Process.joined is None and jax.distributed.is_initialized() and _count() > 1:
        start()
    return _Process.joined or _ALONE


def of_mesh(mesh: jax.sharding.Mesh) -> Group:
    """Return the group that runs programs on a mesh: this process alone, or all that have joined.

    Raises:
      ValueError: the mesh has devices of some processes, and not of all.
    """
    processes = {device.process_index for device in mesh.devices.flat}
    if len(processes) == 1:
        return _ALONE
    group = current()
    if len(processes) != group.count:
        raise ValueError(
            f"place got devices of {len(processes)} of {group.count} processes, expected those of "
            "all of them, or of this one alone. Leave place out, or pass jax.local_devices()."
        )
    return group


def start(*, heartbeat_secs: float | None = None, hang_secs: float | None = None) -> None:
    """Join the other processes of this run, which JAX has joined. Collective.

    Arguments:
      heartbeat_secs: how long a process may be silent; `PENSTOCK_HEARTBEAT_SECS`, or 30.
      hang_secs: how long all of them may stand still in a call; `PENSTOCK_HANG_SECS`, or for ever.
    """
    heartbeat_secs = heartbeat_secs or float(os.environ.get(HEARTBEAT_VARIABLE) or HEARTBEAT_SECS)
    hang_secs = hang_secs or float(os.environ.get(HANG_VARIABLE) or 0) or None
    if _Process.joined is not None or _count() == 1:
        return
    from jax._src import distributed

    state = distributed.global_state
    hub, client = None, state.client
    assert client is not None
    assert state.coordinator_address is not None
    host = state.coordinator_address.rsplit(":", 1)[0].strip("[]")
    wait_ms = int(1000 * _CONNECT_SECS)
    if not state.process_id:
        token = secrets.token_hex(16)
        hub = Hub(_count(), token, heartbeat_secs=heartbeat_secs, hang_secs=hang_secs)
        hub.start()
        client.key_value_set(_ADDRESS_KEY, f"{hub.port} {token}")
        host = "localhost"
    port, token = client.blocking_key_value_get(_ADDRESS_KEY, wait_ms).split()
    address = (host, int(port))
    joined = _Process.joined = Joined(
        state.process_id, _count(), address, token, heartbeat_secs=heartbeat_secs, hub=hub
    )
    exits.install(joined.end)


def _count() -> int:
    """Return how many processes JAX has joined; starts no backend."""
    from jax._src import distributed

    return distributed.global_state.num_processes
