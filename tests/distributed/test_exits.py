"""How a process ends that others wait for."""

import subprocess
import sys

import pytest

# srun sends SIGTERM to the others as soon as one process has failed, here while it ends.
SCRIPT = """
import os, signal, sys
from penstock.distributed import exits
def end(error):
    os.kill(os.getpid(), signal.SIGTERM)
    return None if error is None else 1
exits.install(end)
{last}
"""


@pytest.mark.parametrize(("last", "code"), [("raise ValueError('x')", 1), ("", -15)])
def test_sigterm_to_a_process_that_ends_by_an_error_leaves_its_code(last, code):
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(last=last)], capture_output=True)
    assert done.returncode == code, done.stderr
