"""Threads and worker processes of readers end with their iterator, reader and parent."""

import gc
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import _parent_watch, readers
from penstock.readers import Shard
from tests.readers.cases import grain_loader
from tests.readers.published import write_examples
from tests.readers.samples import Records
from tests.source_tree import ROOT

NUM_ITEMS = 100
AHEAD = 4  # items that every reader below takes from its source once the first is asked for
HANGS_AFTER_SECS = 60  # a bound on a test that fails, not a time that one that passes waits


def start(function: str, *words: object, **streams: Any) -> subprocess.Popen[str]:
    """Start a function of this module in a process of its own."""
    code = f"from tests.readers import test_ends; test_ends.{function}"
    command = [sys.executable, "-c", code, *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return subprocess.Popen(command, cwd=ROOT, text=True, **pipes)


def wait_until(is_so: Callable[[], bool]) -> bool:
    """Wait until something is so, and say whether it has become so."""
    deadline = time.monotonic() + HANGS_AFTER_SECS
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_so()


def have_ended(threads: set[threading.Thread]) -> bool:
    return wait_until(lambda: not any(thread.is_alive() for thread in threads))


class Source:
    """A random-access source that calls a function for each item."""

    def __init__(self, step: Callable[[int], int]) -> None:
        self._step = step

    def __len__(self) -> int:
        return NUM_ITEMS

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"x": self._step(index)}


def items(step: Callable[[int], int]) -> Callable[[], Iterator[int]]:
    return lambda: map(step, range(NUM_ITEMS))


# Readers whose threads call a function for each item.
MAKERS: dict[str, Callable[[Any], Any]] = {
    "buffered": lambda step: readers.buffered(items(step), AHEAD),
    "batches of buffered": lambda step: readers.batch(readers.buffered(items(step), AHEAD), 4),
    "xmap": lambda step: readers.xmap_readers(step, lambda: range(NUM_ITEMS), 2, AHEAD),
    "xmap in order": lambda step: readers.xmap_readers(
        step, lambda: range(NUM_ITEMS), 2, AHEAD, order=True
    ),
    "indexed": lambda step: readers.indexed(Source(step), 4, num_workers=2),
}


@pytest.mark.quick("xmap in order")
@pytest.mark.parametrize("name", MAKERS)
def test_iterator_dropped_in_a_cycle_is_collected_while_its_threads_are_stuck(name):
    is_stuck, go_on = threading.Event(), threading.Event()
    gc.freeze()  # what earlier tests have left takes the collector seconds

    def step(number):
        if number >= AHEAD:
            is_stuck.set()
            go_on.wait()
        return number

    before = set(threading.enumerate())
    iterator = MAKERS[name](step)()
    next(iterator)
    assert is_stuck.wait(60)
    threads = set(threading.enumerate()) - before
    assert threads
    iterator.itself = iterator
    del iterator
    collector = threading.Thread(target=gc.collect)
    collector.start()
    try:
        assert have_ended({collector})
    finally:
        gc.unfreeze()
        go_on.set()
    assert have_ended(threads)


def test_dropped_iterator_leaves_out_what_its_threads_have_not_begun():
    is_stuck, go_on, begun = threading.Event(), threading.Event(), []

    def step(number):
        begun.append(number)
        if number == 1:
            is_stuck.set()
            go_on.wait()
        return number

    before = set(threading.enumerate())
    iterator = readers.xmap_readers(step, lambda: range(100), 1, 50, order=True)()
    next(iterator)
    assert is_stuck.wait(60)
    del iterator
    go_on.set()
    assert have_ended(set(threading.enumerate()) - before)
    assert begun == [0, 1]


def leave_unfinished() -> list[Any]:
    """Return an unfinished pass over each reader, and leave one more behind in a cycle."""
    held = []
    for make in MAKERS.values():
        reader = make(abs)
        in_cycle = reader()
        next(in_cycle)
        in_cycle.itself = in_cycle
        held.append(reader())
        next(held[-1])
    return held


def add_process(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "process": os.getpid()}


def find_process(sample: int) -> int:
    return os.getpid()


def read_records(folder: Path) -> tuple[Any, Callable[[Any], int]]:
    """Return a reader of files in processes, and what tells a batch's process."""
    write_examples(folder / "0.tfrecord", [{"label": number} for number in range(NUM_ITEMS)])
    spec = {"label": readers.FixedLenFeature((), "int32")}
    workers: Any = {"num_workers": 1, "workers": "process", "look_ahead": 8}
    reader = readers.tfrecord(
        folder / "*.tfrecord", spec, batch_size=4, decode=add_process, **workers
    )
    return reader, lambda batch: int(batch["process"][0])


def map_samples(folder: Path) -> tuple[Any, Callable[[Any], int]]:
    """Return a map over processes with decorators around it, and what tells a sample's process."""
    mapped = readers.xmap_readers(find_process, lambda: range(NUM_ITEMS), 1, 16, workers="process")
    whole = readers.cache(lambda: range(NUM_ITEMS))
    reader = readers.compose(whole, readers.firstn(mapped, NUM_ITEMS))
    return reader, lambda sample: int(sample[1])


def keep_processes(make: Callable[[Path], tuple[Any, Callable[[Any], int]]]) -> None:
    """Read three times, close in mid-pass, read once more, drop the reader: without the collector.

    Alone in a process: what other tests leave to be collected has processes too.
    """
    gc.disable()
    reader, find = make(Path(sys.argv[1]))
    children = lambda: set(multiprocessing.active_children())  # noqa: E731
    kept = [{find(item) for item in reader} for _ in range(3)]
    (child,) = children()
    assert kept == [{child.pid}] * 3
    with reader() as iterator:
        next(iterator)
    assert children() == {child}
    reader.close()
    reader.close()
    assert not children()
    assert {find(item) for item in reader}.isdisjoint(kept[0])
    assert len(children()) == 1
    del reader, iterator  # nobody waits for them then, but they end
    assert wait_until(lambda: not children())


@pytest.mark.quick("read_records")
@pytest.mark.parametrize("make", ["read_records", "map_samples"])
def test_processes_are_kept_until_the_reader_ends_and_unfinished_iterators_end_in_silence(
    make, tmp_path
):
    code = f"keep_processes(test_ends.{make}); held = test_ends.leave_unfinished()"
    with start(code, tmp_path) as ended:
        assert (*ended.communicate(timeout=120), ended.returncode) == ("", "", 0)


def stay_at_the_last(sample: Any) -> Any:
    """Map a sample; the last of the data is never done with."""
    while sample["id"] == len(Records()) - 1:
        time.sleep(0.01)
    return sample


def wait_to_be_killed() -> None:
    """Start workers of every kind, print the numbers of their processes, and wait."""
    rows = [Records()[number] for number in range(len(Records()))]
    read = [
        readers.indexed(Records(), 1, decode=stay_at_the_last, num_workers=1, workers="process"),
        readers.xmap_readers(stay_at_the_last, rows, 1, len(rows), workers="process"),
        grain_loader(Shard(), 1),
    ]
    iterators = [reader() for reader in read]
    for iterator in iterators:
        next(iterator)
    for _ in range(len(rows) - 3):  # the first reader's worker is at the last record now
        next(iterators[0])
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    sys.stdin.read()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits by pidfd")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_of_every_kind_end_with_a_parent_that_is_killed(number):
    quiet = {**os.environ, "PYTHONWARNINGS": "ignore"}  # Python's tracker of what a kill leaves
    with start("wait_to_be_killed()", env=quiet, stdin=subprocess.PIPE, stderr=None) as parent:
        assert parent.stdout is not None
        workers = [os.pidfd_open(int(word)) for word in parent.stdout.readline().split()]
        assert len(workers) == 3
        parent.send_signal(number)
        assert parent.wait() == -number
        left = [fd for fd in workers if not select.select([fd], [], [], HANGS_AFTER_SECS)[0]]
        for worker in left:
            signal.pidfd_send_signal(worker, signal.SIGKILL)
    for worker in workers:
        os.close(worker)
    assert not left


@pytest.mark.skipif(os.name != "posix", reason="has no guardian")
def test_worker_that_a_thread_starts_meanwhile_stays_watched(monkeypatch):
    running: list[Any] = []
    watched: list[list[int]] = []
    guardian = SimpleNamespace(is_own=True, watch=lambda numbers: watched.append([*numbers]))

    class Lock:
        def __enter__(self) -> None:
            if len(running) == 1:
                running.append(SimpleNamespace(pid=2, daemon=True))
                other.watch_new()

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(_parent_watch, "_children", lambda: [*running])
    monkeypatch.setattr(_parent_watch._Workers, "guardian", guardian)
    monkeypatch.setattr(_parent_watch._Workers, "watched", frozenset())
    monkeypatch.setattr(_parent_watch._Workers, "lock", Lock())
    one, other = _parent_watch.WatchedChildren(), _parent_watch.WatchedChildren()
    running.append(SimpleNamespace(pid=1, daemon=True))
    one.watch_new()
    assert watched[-1] == [1, 2]
