"""One run at a time in a folder: a file there says which process is at work.

Not `flock` alone: forked workers inherit a kernel's lock and outlive a killed parent; on some
shared file systems it holds for one machine only; and it says neither who has it nor since when.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import json
import logging
import os
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock._errors import FolderInUseError

_LOGGER = logging.getLogger("penstock")

NAME = ".lock"
"""The name of the file in the folder."""

RENEW_EVERY_SECS = 10.0
PATIENCE_SECS = 60.0
"""A holder that this process cannot see, on another machine or in another container, is taken for
gone when it has not renewed its lock for so long."""

_POLL_SECS = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holder:
    """The process that holds a folder.

    A process id alone says little: ids are used again, each container counts its own, and another
    machine has the same ones. So the kernel's boot, the namespace of the ids and the start of the
    process (in ticks since the boot) stand beside it, each empty where the system does not tell.
    The token tells one lock from another of the same process.
    """

    token: str
    pid: int
    host: str
    boot: str
    namespace: str
    started: str
    since: str

    @staticmethod
    def this_process(token: str) -> Holder:
        return Holder(
            token=token,
            pid=os.getpid(),
            host=socket.gethostname(),
            boot=_read_boot(),
            namespace=_read_namespace(),
            started=_read_start(os.getpid()) or "",
            since=datetime.datetime.now().astimezone().isoformat(" ", "seconds"),
        )

    def is_alive(self) -> bool | None:
        """Return whether the process runs; None where it cannot be seen from here."""
        if self.boot != _read_boot() or self.namespace != _read_namespace():
            return None
        if not self.boot and self.host != socket.gethostname():
            return None
        started = _read_start(self.pid)
        if started is not None:
            return started == self.started
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            pass  # another user's
        return None if self.boot else True

    def __str__(self) -> str:
        is_this = self.pid == os.getpid() and self.is_alive() is True
        who = f"{'this very process' if is_this else 'process'} {self.pid}"
        return f"{who} on {self.host} since {self.since}"


class _Record(NamedTuple):
    """A lock file that was read: its holder, None where it is half written, and its time."""

    holder: Holder | None
    mtime: float

    @property
    def is_alive(self) -> bool | None:
        return self.holder and self.holder.is_alive()


class FolderLock:
    """Holds a folder, made where it is missing, for one run; a second that asks is refused.

    The file disappears with `release`. Where the holder was killed, the next process finds that it
    is gone and takes the folder over. A holder on another machine, or in another container, cannot
    be seen: it renews the time of its file every few seconds, and one that has not done so for a
    minute is gone; who asks earlier waits for that minute. Children of a fork do not hold it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()
        self._token = uuid.uuid4().hex
        self._pid: int | None = None  # of the process that holds it
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def path(self) -> Path:
        return self.folder / NAME

    @property
    def is_held(self) -> bool:
        """Whether this lock holds the folder, as far as it knows."""
        return self._pid == os.getpid()

    def __enter__(self) -> FolderLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self) -> None:
        """Take the folder, unless this lock holds it already; FolderInUseError if another does."""
        if self.is_held:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        # Again after a file was cleared: another process may have been quicker.
        while not self._create():
            if record := _read(self.path):
                self._clear(record)
        self._pid, self._stop = os.getpid(), threading.Event()
        self._thread = threading.Thread(
            target=self._renew, args=(self._stop,), name="penstock lock", daemon=True
        )
        self._thread.start()

    def release(self) -> None:
        """Give the folder back; does nothing where it is not held, as in the child of a fork."""
        if not self.is_held:
            return
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._pid = self._thread = None
        with contextlib.suppress(OSError):  # it may have been deleted with its folder
            if self._is_ours():
                self.path.unlink()

    def check(self) -> None:
        """Raise FolderInUseError if another run has taken it; a file that is gone is made again."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._create() and (record := _read(self.path)):
            raise self._make_refusal(record.holder)

    def _create(self) -> bool:
        """Make the file; return whether it is ours."""
        try:
            # Made or refused in one step by the file system, network ones too.
            descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:
            return self._is_ours()
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(dataclasses.asdict(Holder.this_process(self._token)), file)
        except BaseException:  # a full disk, an interrupt
            self.path.unlink(missing_ok=True)
            raise
        return True

    def _is_ours(self) -> bool:
        """Return whether the file is of this lock; the child of a fork has none."""
        record = _read(self.path)
        holder = record and record.holder
        # The number too: a fork has the token of its parent.
        return bool(holder) and (holder.token, holder.pid) == (self._token, os.getpid())

    def _clear(self, record: _Record) -> None:
        """Remove the file of a holder that is gone; FolderInUseError where it is there."""
        is_alive = record.is_alive
        # On another machine, or in another container: only time tells.
        if self._is_renewed(record) if is_alive is None else is_alive:
            raise self._make_refusal(record.holder)
        # Of two processes that got here, one must not remove the new file of the other.
        with _exclude_others(self.folder):
            now = _read(self.path)
            if now is not None and now.holder == record.holder:
                self.path.unlink(missing_ok=True)

    def _is_renewed(self, record: _Record) -> bool:
        """Return whether a holder out of sight renews its file; waits until that is certain."""
        with tempfile.TemporaryFile(dir=self.folder) as file:  # the time by the server's clock
            age = max(os.fstat(file.fileno()).st_mtime - record.mtime, 0.0)
        end = time.monotonic() + PATIENCE_SECS - age
        if time.monotonic() < end:
            _LOGGER.warning(
                "the folder %s was held by %s %.0f s ago: waiting up to %.0f s to see whether it "
                "still runs",
                self.folder,
                record.holder or "another process",
                age,
                PATIENCE_SECS - age,
            )
        while time.monotonic() < end:
            time.sleep(_POLL_SECS)
            now = _read(self.path)
            if now is None or now.holder != record.holder:
                return False  # released, or taken by another: `acquire` looks again
            # Its thread renews it: the holder lives.
            if now.mtime != record.mtime:
                return True
        return False

    def _make_refusal(self, holder: Holder | None) -> FolderInUseError:
        end = "end the other one first"
        if holder is not None and holder.is_alive() is None:
            end += f"; if that process is certainly gone, delete {str(self.path)!r}"
        return FolderInUseError(
            f"the folder {str(self.folder)!r} got a second run, expected one at a time. It is held "
            f"by {holder or 'another process'}. Two runs would delete each other's files. Give "
            f"this one a folder of its own, or {end}."
        )

    def _renew(self, stop: threading.Event) -> None:
        while not stop.wait(RENEW_EVERY_SECS):
            with contextlib.suppress(OSError):
                if self._is_ours():
                    os.utime(self.path)


def is_in_use(folder: str | os.PathLike[str]) -> bool:
    """Return whether a run seems to be at work in a folder; does not wait to be certain."""
    record = _read(Path(folder) / NAME)
    if record is None:
        return False
    # Out of sight: as long as its file may still be renewed.
    is_fresh = time.time() - record.mtime < PATIENCE_SECS
    return is_fresh if record.is_alive is None else record.is_alive


@contextlib.contextmanager
def _exclude_others(folder: Path) -> Iterator[None]:
    """Let one process at a time inside, where the file system can; it takes a millisecond."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read(path: Path) -> _Record | None:
    """Return a lock file as it is now; None where there is none."""
    try:
        # Opened each time: a network file system then asks its server how old the file is.
        with open(path, encoding="utf-8", errors="replace") as file:
            mtime, text = os.fstat(file.fileno()).st_mtime, file.read()
    except FileNotFoundError:
        return None
    try:
        return _Record(Holder(**json.loads(text)), mtime)
    except (ValueError, TypeError):
        return _Record(None, mtime)


def _read_boot() -> str:
    return _read_text("/proc/sys/kernel/random/boot_id").strip()


def _read_namespace() -> str:
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _read_start(pid: int) -> str | None:
    """Return when a process started, in ticks since the boot; None where that cannot be read."""
    # The program's name, in brackets before these fields, may hold anything.
    fields = _read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(fields) <= 19:
        return None
    return "dead" if fields[0] in ("Z", "X") else fields[19]  # ended, and not waited for yet


def _read_text(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace")
    return ""
