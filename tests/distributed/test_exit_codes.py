"""Exit codes: which ones ask for a restart, and what they are called."""

import signal
import subprocess
import sys

import pytest

from penstock.distributed.exit_codes import AGAIN, describe, is_again, to_status

DEATHS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)


@pytest.mark.parametrize("code", [AGAIN, *(-n for n in DEATHS), *(128 + n for n in DEATHS)])
def test_lost_process_asks_for_a_restart(code):
    assert is_again(code)


@pytest.mark.parametrize("code", [0, 1, 2, 3, 74, 76, 126, 127, 128, 129, 130, 143, -1, -2, -15])
def test_end_that_would_only_come_again_or_was_wanted_asks_for_none(code):
    assert not is_again(code)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_code_of_subprocess_becomes_that_of_a_shell(number):
    program = f"import os; os.kill(os.getpid(), {int(number)})"
    code = subprocess.run([sys.executable, "-c", program]).returncode
    assert to_status(code) == 128 + number
    assert describe(code) == f"was killed by {number.name}"


def test_unknown_signal_keeps_its_number():
    assert describe(-500) == "was killed by signal 500"
