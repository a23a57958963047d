"""XLA's alarm about slow compilations is kept out; everything else on standard error is not."""

import os
import subprocess
import sys

from penstock.commands._failures import leave_out_alarm

STARS = "*" * 32
WRITTEN = f"""before
E1122 08:06:05.604353   26793 slow_operation_alarm.cc:73]
{STARS}
[Compiling module jit_train for CPU] Very slow compile? If you want to file a bug, run with \
envvar XLA_FLAGS=--xla_dump_to=/tmp/foo and attach the results.
{STARS}
2026-01-01 00:02:00.000000: E external/xla/xla/service/rendezvous.cc:100] may be stuck
E1122 08:06:22.359257   25581 slow_operation_alarm.cc:140] The operation took 2m16.755041981s

{STARS}
[Compiling module jit_train for CPU] Very slow compile? If you want to file a bug, run with \
envvar XLA_FLAGS=--xla_dump_to=/tmp/foo and attach the results.
{STARS}

after
"""
LEFT = """before
2026-01-01 00:02:00.000000: E external/xla/xla/service/rendezvous.cc:100] may be stuck

after
python
outside
"""


def test_alarm_is_left_out_of_what_reaches_standard_error(capfd):
    with leave_out_alarm():
        os.write(2, WRITTEN.encode())
        os.write(2, b"python\n")
    print("outside", file=sys.stderr, flush=True)
    assert capfd.readouterr().err == LEFT


def test_last_words_of_a_process_that_is_killed_are_passed_on():

    code = (
        "import os\n"
        "from penstock.commands._failures import leave_out_alarm\n"
        "with leave_out_alarm():\n"
        "    os.write(2, b'F check failed')\n"
        "    os.abort()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -6
    assert "F check failed" in done.stderr
