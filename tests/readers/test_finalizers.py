"""An iterator that is dropped tells its threads to end, and nothing waits for them."""

import gc
import subprocess
import sys
import threading
import time

import pytest

from penstock import readers
from tests.readers.finalizers import AHEAD, MAKERS
from tests.source_tree import ROOT

QUICK = ("buffered", "xmap")


def ended(threads, secs=60):
    """Wait for threads to end; return those that have not."""
    deadline = time.monotonic() + secs
    while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
        time.sleep(0.01)
    return [thread for thread in threads if thread.is_alive()]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=[] if name in QUICK else [pytest.mark.slow])
        for name, make in MAKERS.items()
    ],
)
def test_iterator_dropped_in_a_cycle_is_collected_while_its_threads_are_stuck(make):
    is_stuck, go_on = threading.Event(), threading.Event()

    def step(number):
        if number >= AHEAD:
            is_stuck.set()
            go_on.wait()
        return number

    before = set(threading.enumerate())
    iterator = make(step)()
    next(iterator)
    assert is_stuck.wait(10)
    threads = set(threading.enumerate()) - before
    assert threads
    iterator.itself = iterator
    del iterator
    collector = threading.Thread(target=gc.collect)
    collector.start()
    try:
        assert not ended([collector])
    finally:
        go_on.set()
    assert not ended(threads)


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
    assert is_stuck.wait(10)
    del iterator
    go_on.set()
    assert not ended(set(threading.enumerate()) - before)
    assert begun == [0, 1]


def test_process_that_ends_with_unfinished_iterators_says_nothing():
    script = "from tests.readers.finalizers import unfinished; held = unfinished()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", ["buffered", "xmap", "xmap in order", "batches of buffered"])
def test_source_that_cannot_be_opened_is_what_is_reported(name):
    def refuse():
        raise OSError("no such luck")

    readers_of_it = {
        "buffered": lambda: readers.buffered(refuse, 2),
        "xmap": lambda: readers.xmap_readers(abs, refuse, 2, 2),
        "xmap in order": lambda: readers.xmap_readers(abs, refuse, 2, 2, order=True),
        "batches of buffered": lambda: readers.batch(readers.buffered(refuse, 2), 2),
    }
    with pytest.raises(OSError, match="no such luck"):
        readers_of_it[name]()()
