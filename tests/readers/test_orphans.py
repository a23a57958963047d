"""Worker processes end with the process that started them, also where it is killed."""

import os
import select
import signal
import subprocess
import sys

import pytest

from tests.source_tree import ROOT

HANGS_AFTER_SECS = 60  # a bound on a test that fails, not a time that one that passes waits

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits by pidfd"),
    pytest.mark.slow,  # four processes that import JAX
]


def wait_for_end(processes: list[int]) -> list[int]:
    """Wait until processes, given by descriptors, have ended; return those that have not."""
    return [
        process
        for process in processes
        if not select.select([process], [], [], HANGS_AFTER_SECS)[0]
    ]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_of_every_kind_end_with_a_parent_that_is_killed(number):
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.readers.orphans"],
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},  # Python's tracker of what a kill leaves
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        numbers = [int(word) for word in parent.stdout.readline().split()]
        workers = [os.pidfd_open(number) for number in numbers]
        assert len(workers) == 3
        parent.send_signal(number)
        assert parent.wait() == -number
        left = wait_for_end(workers)
        for worker in left:
            signal.pidfd_send_signal(worker, signal.SIGKILL)
    for worker in workers:
        os.close(worker)
    assert not left
