"""`launch`: processes of one group are started, watched, ended together and started again."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from penstock.distributed import local_launch
from penstock.distributed.exit_codes import AGAIN
from tests.source_tree import ROOT

# What the scripts begin with. `wait` ends after a minute: a failing test leaves nothing for long.
PRELUDE = """
import json, os, signal, socket, subprocess, sys, time
from pathlib import Path
rank = int(os.environ["JAX_PROCESS_ID"])
restarts = int(os.environ["PENSTOCK_RESTARTS"])
def wait():
    time.sleep(60)
    os._exit(99)
def say_ready():
    Path(__file__).with_name(f"{rank}.ready").write_text(str(os.getpid()))
def wait_for_ready(other):
    path = Path(__file__).with_name(f"{other}.ready")
    while not path.exists() or not path.read_text():
        time.sleep(0.01)
    return int(path.read_text())
"""


@pytest.fixture
def write(tmp_path):
    """Write a script; return the words that run it."""

    def write_script(body: str) -> list[str]:
        path = tmp_path / "a script.py"
        path.write_text(PRELUDE + body, encoding="utf-8")
        return [sys.executable, str(path)]

    return write_script


@pytest.fixture
def run(write, capfd):
    """Run a script as a group; return status, stdout and the lines of stderr."""

    def run_script(body: str, num_processes: int = 2, **options):
        capfd.readouterr()
        status = local_launch.launch(write(body), num_processes, **options)
        printed = capfd.readouterr()
        return status, printed.out, printed.err.splitlines()

    return run_script


@pytest.fixture
def launch_apart():
    """Run `penstock launch -n 2` in a process of its own, which ends with the test."""
    started = []

    def start(words: list[str], *options: str, **streams) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "penstock", "launch", "-n", "2", *options, "--", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, cwd=ROOT, **(pipes | streams)))
        return started[-1]

    yield start
    for launched in started:
        launched.kill()
        launched.wait()
        for stream in filter(None, (launched.stdout, launched.stderr)):
            stream.close()


def read_until(stream, *words: bytes) -> bytes:
    """Read until all words have come; fail at the end of the stream."""
    read = b""
    while not all(word in read for word in words):
        line = stream.readline()
        assert line, read
        read += line
    return read


def test_processes_find_each_other_by_their_environment(run, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    status, out, err = run(
        "print(json.dumps(dict(os.environ)), sys.argv[1:])", 3, hang_secs=300, heartbeat_secs=12.5
    )
    assert (status, err) == (0, [])
    found = {}
    for line in out.splitlines():
        number, _, text = line.partition(" ")
        found[number] = json.loads(text.removesuffix(" []"))
    assert sorted(found) == ["[0]", "[1]", "[2]"]
    addresses = {each["JAX_COORDINATOR_ADDRESS"] for each in found.values()}
    assert len(addresses) == 1
    assert addresses.pop().startswith("127.0.0.1:")
    for rank in range(3):
        each = found[f"[{rank}]"]
        assert each["JAX_PROCESS_ID"] == each["PENSTOCK_LOCAL_RANK"] == str(rank)
        assert (each["JAX_NUM_PROCESSES"], each["PENSTOCK_RESTARTS"]) == ("3", "0")
        assert float(each["PENSTOCK_HANG_SECS"]) == 300
        assert float(each["PENSTOCK_HEARTBEAT_SECS"]) == 12.5
        assert each["PYTHONUNBUFFERED"] == "1"
        assert each["JAX_PLATFORMS"] == os.environ["JAX_PLATFORMS"]
        assert 1 <= int(each["OMP_NUM_THREADS"]) <= max(1, (os.cpu_count() or 1) // 3)


@pytest.mark.slow
def test_settings_that_are_not_given_are_not_in_the_environment(run):
    _, out, _ = run("print('PENSTOCK_HANG_SECS' in os.environ)", 1)
    assert out == "[0] False\n"


def test_lines_of_processes_that_write_at_once_stay_whole(run):
    status, out, _ = run("for _ in range(500): print('abc' * 300, rank)", 3)
    assert status == 0
    counts = {rank: out.count(f"[{rank}] {'abc' * 300} {rank}\n") for rank in range(3)}
    assert counts == dict.fromkeys(range(3), 500)
    assert len(out.splitlines()) == 1500


def test_last_line_without_newline_and_bytes_that_are_no_text_come_through(write, launch_apart):
    body = "sys.stdout.buffer.write(b'\\xff\\x00\\n 1%\\r 2%\\nend')"
    launched = launch_apart(write(body))
    out, err = launched.communicate()
    assert sorted(out.splitlines()) == sorted(
        [b"[0] \xff\x00", b"[0]  2%", b"[0] end", b"[1] \xff\x00", b"[1]  2%", b"[1] end"]
    )
    assert (launched.returncode, err) == (0, b"")


def test_error_of_one_ends_all_and_is_named(run):
    body = """
if rank == 1:
    raise ValueError("7 is too much")
wait()
"""
    status, _, err = run(body, linger_secs=0)
    assert status == 1
    assert "[1] ValueError: 7 is too much" in err
    assert err[-1] == "penstock launch: process 1 ended with code 1 (ValueError: 7 is too much)"


def test_others_may_end_by_themselves_after_an_error(run):
    # Process 0 notices by a closed connection, as it would in a collective.
    body = """
if rank == 1:
    with socket.socket() as server:
        server.bind(("127.0.0.1", int(os.environ["JAX_COORDINATOR_ADDRESS"].split(":")[1])))
        server.listen()
        server.accept()
    sys.exit(7)
while True:
    try:
        address = os.environ["JAX_COORDINATOR_ADDRESS"].split(":")
        peer = socket.create_connection((address[0], int(address[1])))
        break
    except OSError:
        time.sleep(0.01)
peer.recv(1)
print("saved")
"""
    status, out, err = run(body, linger_secs=60)
    assert (status, out) == (7, "[0] saved\n")
    assert err == ["penstock launch: process 1 ended with code 7"]


def test_process_that_ends_well_is_no_reason_to_end_the_others(run):
    body = """
say_ready()
if rank == 1:
    other = wait_for_ready(0)
    while Path(f"/proc/{other}").exists():
        time.sleep(0.01)
    print("done")
"""
    assert run(body, linger_secs=0) == (0, "[1] done\n", [])


def test_process_that_ignores_sigterm_or_is_stopped_is_killed(run):
    body = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
say_ready()
if rank == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
elif rank == 1:
    wait()
wait_for_ready(1)
stat = Path(f"/proc/{wait_for_ready(0)}/stat")
while stat.exists() and stat.read_text().split()[2] != "T":
    time.sleep(0.01)
sys.exit(3)
"""
    status, _, err = run(body, 3, linger_secs=0)
    assert status == 3
    (line,) = err
    assert line == (
        "penstock launch: process 2 ended with code 3; "
        "killed, as it did not end in time: process 0 and 1"
    )


def test_killed_process_is_named_by_its_signal(run):
    body = "os.kill(os.getpid(), signal.SIGKILL) if rank == 0 else wait()"
    status, _, err = run(body, linger_secs=0)
    assert (status, err) == (137, ["penstock launch: process 0 was killed by SIGKILL"])


@pytest.mark.quick("kill")
@pytest.mark.parametrize("end", ["sys.exit(75)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_lost_process_has_all_started_again_with_another_port(run, end):
    body = f"""
print(os.environ["JAX_COORDINATOR_ADDRESS"], restarts)
if restarts == 0:
    {end} if rank == 1 else wait()
"""
    status, out, err = run(body, linger_secs=0, max_restarts=3)
    assert status == 0
    first, second = (
        {line.split()[1] for line in out.splitlines() if line.endswith(n)} for n in "01"
    )
    assert len(second) == 1
    assert first != second
    (line,) = err
    assert line.endswith("All start again in 0.5 s: restart 1 of 3.")


@pytest.mark.slow
def test_group_that_is_lost_at_once_is_started_three_times_at_most(run):
    status, out, err = run(f"print(restarts)\nsys.exit({AGAIN})", 1, max_restarts=50)
    assert (status, out) == (AGAIN, "[0] 0\n[0] 1\n[0] 2\n")
    assert err[-1] == (
        "penstock launch: process 0 ended with code 75, after 2 restarts. "
        "Lost within 5 s of its start 3 times in a row: not started again."
    )


def test_restarts_are_used_up(run):
    status, out, err = run(f"print(restarts)\nsys.exit({AGAIN})", 1, max_restarts=1)
    assert (status, out) == (AGAIN, "[0] 0\n[0] 1\n")
    assert err[-1] == "penstock launch: process 0 ended with code 75, after 1 restart"


@pytest.mark.quick("1")
@pytest.mark.parametrize("code", [1, 2, 130, 143])
def test_end_that_is_no_loss_is_final(run, code):
    status, out, _ = run(f"print(restarts)\nsys.exit({code})", 1, max_restarts=5)
    assert (status, out) == (code, "[0] 0\n")


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
    assert launched.stdout is not None
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
    assert launched.stdout is not None
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
    assert launched.stdout is not None
    read_until(launched.stdout, b"[0] ready", b"[1] ready")
    launched.send_signal(signal.SIGTERM)
    _, err = launched.communicate()
    assert launched.returncode == 143
    assert err.startswith(b"penstock launch: ended by SIGTERM; killed")


def test_signal_between_two_groups_ends_the_launcher(write, launch_apart):
    launched = launch_apart(write("sys.exit(75)"), "--max_restarts=9")
    assert launched.stderr is not None
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
    assert launched.stdout is not None
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
    assert launched.stdout is not None
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
    assert launched.stderr is not None
    read_until(launched.stderr, b"[0] ready", b"[1] ready")
    launched.send_signal(signal.SIGINT)
    assert launched.wait() == 130


def test_launch_outside_the_main_thread_runs_and_restores_nothing(write, capfd):
    before = signal.getsignal(signal.SIGINT)
    statuses = []
    words = write("sys.exit(3)")
    thread = threading.Thread(target=lambda: statuses.append(local_launch.launch(words, 2)))
    thread.start()
    thread.join()
    assert statuses == [3]
    assert local_launch.launch(write("pass"), 1) == 0
    assert signal.getsignal(signal.SIGINT) is before


def test_taken_port_is_not_chosen(monkeypatch):
    from penstock.distributed import _child_environment as environment

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(environment, "_PORTS", [port] * environment._NUM_TRIES)
        assert environment.choose_port() not in (0, port)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_processes": 0}, "num_processes got 0, expected an integer of 1 or more"),
        ({"max_restarts": -1}, "max_restarts got -1, expected an integer of 0 or more"),
        ({"hang_secs": 0}, "hang_secs got 0, expected seconds, more than 0"),
        ({"heartbeat_secs": float("nan")}, "heartbeat_secs got nan, expected seconds, more than 0"),
        ({"grace_secs": -1.0}, r"grace_secs got -1.0, expected seconds, 0 or more"),
        ({"linger_secs": float("inf")}, r"linger_secs got inf, expected seconds, 0 or more"),
    ],
)
def test_wrong_number_is_an_error_before_anything_starts(options, message):
    with pytest.raises(ValueError, match=message):
        local_launch.launch([sys.executable], **({"num_processes": 1} | options))


@pytest.mark.parametrize("words", [[], ["/no/such program"]])
def test_missing_program_is_an_error_before_anything_starts(words):
    with pytest.raises(FileNotFoundError, match="expected a program that can be run"):
        local_launch.launch(words, 2)


def test_launcher_needs_no_jax():
    code = "import sys, penstock.distributed.local_launch, penstock.commands.launch\n"
    command = [sys.executable, "-c", f"{code}print('jax' in sys.modules, 'numpy' in sys.modules)"]
    assert subprocess.check_output(command, cwd=ROOT) == b"False False\n"
