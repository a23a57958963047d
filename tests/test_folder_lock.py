"""One run at a time in a folder: who holds it, and when it is taken over."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

import penstock as ps
from penstock import _folder_lock
from penstock._folder_lock import NAME, PATIENCE_SECS, FolderLock, Holder, is_in_use

HOLD = """
import sys, time
from penstock._folder_lock import FolderLock
FolderLock(sys.argv[1]).acquire()
print("held", flush=True)
time.sleep(600)
"""


def holder(**changes):
    return dataclasses.replace(Holder.this_process("another"), **changes)


def leave(folder, left, age=0.0):
    """Write the lock of a holder, renewed so many seconds ago."""
    path = folder / NAME
    path.write_text(json.dumps(dataclasses.asdict(left)))
    now = path.stat().st_mtime
    os.utime(path, (now - age, now - age))
    return path


@pytest.fixture
def other(tmp_path):
    """Return a process that holds the folder."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_folder_that_another_process_holds_is_refused_by_name(tmp_path, other):
    with pytest.raises(ps.FolderInUseError) as caught:
        FolderLock(tmp_path).acquire()
    since = json.loads((tmp_path / NAME).read_text())["since"]
    assert str(caught.value) == (
        f"the folder '{tmp_path}' got a second run, expected one at a time. It is held by process "
        f"{other.pid} on {os.uname().nodename} since {since}. Two runs would delete each other's "
        "files. Give this one a folder of its own, or end the other one first."
    )


def test_folder_of_a_killed_process_is_taken_at_once_waited_for_or_not(tmp_path, other):
    other.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # dead, its id still taken
    with FolderLock(tmp_path):
        pass
    assert os.listdir(tmp_path) == []


OUT_OF_SIGHT = {
    "machine": {"host": "node7", "boot": "another"},
    "container": {"namespace": "pid:[1]", "pid": 1},
}


@pytest.mark.parametrize(
    ("left", "age"),
    [
        ({"pid": 2**22 + 1}, 0.0),  # more than Linux gives
        ({"started": "1"}, 0.0),  # the id is another process's by now
        ({"pid": 1, "started": "1"}, 0.0),  # of a container that was started again
        (OUT_OF_SIGHT["machine"], PATIENCE_SECS),
        (OUT_OF_SIGHT["container"], PATIENCE_SECS),
    ],
    ids=["no such process", "used again", "first process", "machine", "container"],
)
def test_lock_that_is_not_renewed_of_who_is_gone_or_out_of_sight_is_taken_over(left, age, tmp_path):
    leave(tmp_path, holder(**left), age)
    with FolderLock(tmp_path) as lock:
        assert json.loads(lock.path.read_text())["pid"] == os.getpid()


def test_half_written_lock_is_taken_over_when_it_is_old(tmp_path):
    path = leave(tmp_path, holder(), age=PATIENCE_SECS)
    mtime = path.stat().st_mtime
    path.write_text('{"pid": 1')
    os.utime(path, (mtime, mtime))
    FolderLock(tmp_path).acquire()


def test_lock_out_of_sight_that_is_renewed_is_refused_saying_how_to_remove_it(tmp_path, caplog):
    path = leave(tmp_path, holder(**OUT_OF_SIGHT["machine"], pid=11), age=1.0)
    is_over = threading.Event()

    def renew():
        while not is_over.wait(0.05):
            os.utime(path)

    thread = threading.Thread(target=renew)
    try:
        # The time it is read at first is that above: it is renewed from the first look on.
        lock = FolderLock(tmp_path)
        thread.start()
        with pytest.raises(ps.FolderInUseError, match="process 11 on node7 since") as caught:
            lock.acquire()
    finally:
        is_over.set()
        thread.join()
    assert f"if that process is certainly gone, delete '{path}'" in str(caught.value)
    assert "waiting up to" in caplog.text
    assert path.exists()


def test_holder_renews_its_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(_folder_lock, "RENEW_EVERY_SECS", 0.01)
    with FolderLock(tmp_path) as lock:
        os.utime(lock.path, (0, 0))
        while not lock.path.stat().st_mtime:
            pass


def test_second_lock_of_the_same_process_is_refused_below_a_link_too(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    refused = pytest.raises(ps.FolderInUseError, match="by this very process")
    with FolderLock(tmp_path / "link"), refused:
        FolderLock(tmp_path / "folder").acquire()


def test_lock_that_was_taken_away_is_noticed_and_left_alone(tmp_path):
    with FolderLock(tmp_path) as lock:
        lock.path.unlink()
        lock.check()  # made again
        assert lock.path.exists()
        lock.path.unlink()
        with FolderLock(tmp_path) as second:
            with pytest.raises(ps.FolderInUseError):
                lock.check()
            lock.release()
            second.check()


def test_child_of_a_fork_neither_holds_the_folder_nor_frees_it(tmp_path):
    with FolderLock(tmp_path) as lock:
        script = f"""
import os
from penstock._errors import FolderInUseError
from penstock._folder_lock import FolderLock
lock = FolderLock({str(tmp_path / "run")!r})
lock.acquire()
child = os.fork()
if not child:
    lock.release()
    try:
        lock.acquire()
    except FolderInUseError:
        os._exit(7)
    os._exit(8)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert lock.path.exists()
lock.release()
"""
        subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)
        lock.check()


def test_one_of_many_that_find_a_stale_lock_gets_the_folder(tmp_path):
    leave(tmp_path, holder(started="1"))
    locks, held = [FolderLock(tmp_path) for _ in range(16)], []
    together = threading.Barrier(len(locks))

    def take(lock):
        together.wait()
        try:
            lock.acquire()
        except ps.FolderInUseError:
            return
        held.append(lock)

    threads = [threading.Thread(target=take, args=(lock,)) for lock in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(held) == 1
    held[0].check()
    held[0].release()


@pytest.mark.parametrize(
    ("left", "age", "expected"),
    [
        ({}, 2 * PATIENCE_SECS, True),
        ({"pid": 2**22 + 1}, 0.0, False),
        (OUT_OF_SIGHT["machine"], 0.0, True),
        (OUT_OF_SIGHT["machine"], 2 * PATIENCE_SECS, False),
    ],
    ids=["this process", "gone", "out of sight", "not renewed"],
)
def test_folder_is_in_use_while_its_holder_seems_to_run(left, age, expected, tmp_path):
    assert not is_in_use(tmp_path)
    leave(tmp_path, holder(**left), age)
    assert is_in_use(tmp_path) is expected


def test_folder_is_free_after_the_run_and_after_its_error(tmp_path):
    with pytest.raises(LookupError), FolderLock(tmp_path / "a" / "b"):
        raise LookupError
    before = threading.enumerate()
    lock = FolderLock(tmp_path / "a" / "b")
    for _ in range(2):
        with lock:
            lock.acquire()  # held already
            lock.check()
        lock.release()  # free already
    own = set(threading.enumerate()) - set(before)
    assert "penstock lock" not in {thread.name for thread in own}
