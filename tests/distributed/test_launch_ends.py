"""How a launched group ends by signals, by a closed stdout, and with a launcher that is killed."""

import os
import signal
import subprocess
import sys

import pytest

from tests.distributed.processes import read_until
from tests.source_tree import ROOT


@pytest.mark.quick("SIGTERM")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=repr)
def test_signal_is_passed_on_once_and_the_processes_end_by_themselves(write, number, launch_apart):
    body = """
def save(number, frame):
    print("saved after", number)
    sys.exit(128 + number)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, save)
print("ready")
wait()
"""
    launched = launch_apart(write(body), "--max_restarts=3")
    read_until(launched.stdout, b"[0] ready", b"[1] ready")
    launched.send_signal(number)
    out, err = launched.communicate()
    assert sorted(out.splitlines()) == [b"[%d] saved after %d" % (n, number) for n in range(2)]
    assert err.decode().splitlines() == [f"penstock launch: ended by {number.name}"]
    assert launched.returncode == 128 + number


STUBBORN = """
signal.signal(signal.SIGINT, lambda *_: print("asked"))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready")
while True:
    wait()
"""


def test_second_ctrl_c_kills(write, launch_apart):
    launched = launch_apart(write(STUBBORN), "--grace=60")
    read_until(launched.stdout, b"[0] ready", b"[1] ready")
    launched.send_signal(signal.SIGINT)
    read_until(launched.stdout, b"[0] asked", b"[1] asked")
    # A second signal of another kind is no wish to lose what is being saved.
    launched.send_signal(signal.SIGTERM)
    launched.send_signal(signal.SIGINT)
    _, err = launched.communicate()
    assert launched.returncode == 130
    assert err == (
        b"penstock launch: ended by SIGINT; killed, as it did not end in time: process 0 and 1\n"
    )


@pytest.mark.slow
def test_process_that_takes_longer_than_its_grace_is_killed(write, launch_apart):
    launched = launch_apart(write(STUBBORN), "--grace=0.2")
    read_until(launched.stdout, b"[0] ready", b"[1] ready")
    launched.send_signal(signal.SIGTERM)
    _, err = launched.communicate()
    assert launched.returncode == 143
    assert err.startswith(b"penstock launch: ended by SIGTERM; killed")


def test_signal_between_two_groups_ends_the_launcher(write, launch_apart):
    launched = launch_apart(write("sys.exit(75)"), "--max_restarts=9")
    read_until(launched.stderr, b"start again")
    launched.send_signal(signal.SIGTERM)
    _, err = launched.communicate()
    assert launched.returncode == 143
    assert err.endswith(b"penstock launch: ended by SIGTERM\n")


@pytest.mark.slow
def test_ignored_signal_stays_ignored(write, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    words = write(f"print('ready')\nopen({str(fifo)!r}).read()\nprint('done')")
    code = (
        "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from penstock.commands import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "launch", "-n", "1", "--", *words]
    launched = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    read_until(launched.stdout, b"ready")
    launched.send_signal(signal.SIGHUP)
    with open(fifo, "w"):
        pass
    out, _ = launched.communicate()
    assert (launched.returncode, out) == (0, b"[0] done\n")


def test_shell_script_and_what_it_runs_get_the_signal(tmp_path, launch_apart):
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\nsleep 60\necho not reached\n")
    script.chmod(0o755)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    launched = launch_apart(["sh", "-c", f"exec 3>'{fifo}'; sleep 60; echo not reached"])
    with open(fifo, "rb") as held:
        launched.send_signal(signal.SIGTERM)
        # Its end comes when nobody holds the other end: neither the shells nor the sleeps.
        assert held.read() == b""
    out, _ = launched.communicate()
    assert (launched.returncode, out) == (143, b"")


HOLDING = """
# Both hold the fifo: its reader sees an end when both are gone.
held = os.open(sys.argv[1], os.O_WRONLY)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=[held])
print("ready")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux to kill the processes")
@pytest.mark.quick("SIGKILL")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP], ids=repr)
def test_nothing_outlives_a_launcher_that_is_killed(write, tmp_path, number, launch_apart):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    stop = "if rank == 0: os.kill(os.getpid(), signal.SIGSTOP)\n"
    words = write(HOLDING + stop * (number == signal.SIGSTOP) + "wait()")
    launched = launch_apart([*words, str(fifo)], "--grace=0.5")
    with open(fifo, "rb") as held:
        read_until(launched.stdout, b"[0] ready", b"[1] ready")
        launched.send_signal(signal.SIGKILL if number == signal.SIGSTOP else number)
        assert held.read() == b""
    launched.communicate()


@pytest.mark.slow
def test_what_a_process_leaves_running_ends_with_it(write, tmp_path, launch_apart):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    launched = launch_apart([*write(HOLDING), str(fifo)])
    with open(fifo, "rb") as held:
        assert held.read() == b""
    launched.communicate()
    assert launched.returncode == 0


def test_last_words_that_another_process_passes_on_are_not_lost(run):
    # As the filter of `penstock train`: the process is gone before its words are written.
    body = """
code = "import sys, time; text = sys.stdin.read(); time.sleep(0.2); print(text, flush=True)"
child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
child.stdin.write(b"last words")
child.stdin.close()
os._exit(4)
"""
    status, out, _ = run(body, 1)
    assert status == 4
    assert "[0] last words\n" in out


def test_closed_stdout_ends_everything(write, launch_apart):
    reading, writing = os.pipe()
    body = "print('ready')\nwhile True: print('x' * 1000)"
    launched = launch_apart(write(body), "--max_restarts=3", stdout=writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        read_until(stream, b"ready")
    _, err = launched.communicate()
    assert (launched.returncode, err) == (1, b"")


def test_full_disk_under_stdout_is_one_line(write, launch_apart):
    with open("/dev/full", "wb") as full:
        launched = launch_apart(write("print('x')\nwait()"), stdout=full)
        _, err = launched.communicate()
    expected = b"penstock launch: standard output cannot be written: No space left on device\n"
    assert (launched.returncode, err) == (1, expected)


@pytest.mark.slow
def test_reader_that_has_stopped_keeps_no_signal_from_the_processes(write, launch_apart):
    # The pipe is full, and nobody reads.
    body = """
print("ready", file=sys.stderr)
while True:
    print("x" * 1000)
"""
    launched = launch_apart(write(body))
    read_until(launched.stderr, b"[0] ready", b"[1] ready")
    launched.send_signal(signal.SIGINT)
    assert launched.wait() == 130


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


# Who waits for the others at its end does not go on to wait in what was registered before, as JAX's
# barrier is.
INTERRUPTED = """
import atexit, os, signal, time
from penstock.distributed import exits
atexit.register(print, "the barrier")
def end(error):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
exits.install(end)
"""


def test_ctrl_c_while_a_process_waits_at_its_end_ends_it():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True)
    assert (done.returncode, done.stdout) == (130, b""), done.stderr


@pytest.mark.parametrize(
    ("last", "code", "output"),
    [
        ("sys.exit(3)", 3, b"called sys.exit(3)"),
        ("sys.exit()", 0, b""),
        ("raise ValueError('x')", 1, b"failed with ValueError: x"),
        ("thread = threading.Thread(target=sys.exit, args=(3,)); thread.start()", 0, b""),
        ("os.fork() or sys.exit(3)", 0, b""),
        ("print(os.waitstatus_to_exitcode(os.wait()[1]) if os.fork() else sys.exit(3))", 0, b"3"),
    ],
)
def test_what_ends_a_script_is_known_at_its_exit(last, code, output):
    script = f"""
import os, sys, threading
from penstock.distributed import exits
exits.install(lambda error: error and print(exits.describe_error(error)))
{last}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True)
    assert (done.returncode, done.stdout.strip()) == (code, output)
