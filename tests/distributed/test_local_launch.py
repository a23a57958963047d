"""`launch`: a group is started, named when it fails, and started again where that may help."""

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from penstock.distributed import _child_process, local_launch
from penstock.distributed.exit_codes import AGAIN
from tests.source_tree import ROOT


def test_processes_find_each_other_by_their_environment(run, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    status, out, err = run(
        "print(json.dumps(dict(os.environ)), sys.argv[1:])", 3, hang_secs=300, heartbeat_secs=12.5
    )
    assert (status, err) == (0, [])
    environs = {}
    for line in out.splitlines():
        number, _, text = line.partition(" ")
        environs[number] = json.loads(text.removesuffix(" []"))
    assert sorted(environs) == ["[0]", "[1]", "[2]"]
    addresses = {environ["JAX_COORDINATOR_ADDRESS"] for environ in environs.values()}
    assert len(addresses) == 1
    assert addresses.pop().startswith("127.0.0.1:")
    for rank in range(3):
        environ = environs[f"[{rank}]"]
        assert environ["JAX_PROCESS_ID"] == environ["PENSTOCK_LOCAL_RANK"] == str(rank)
        assert (environ["JAX_NUM_PROCESSES"], environ["PENSTOCK_RESTARTS"]) == ("3", "0")
        assert float(environ["PENSTOCK_HANG_SECS"]) == 300
        assert float(environ["PENSTOCK_HEARTBEAT_SECS"]) == 12.5
        assert environ["PYTHONUNBUFFERED"] == "1"
        assert environ["JAX_PLATFORMS"] == os.environ["JAX_PLATFORMS"]
        assert 1 <= int(environ["OMP_NUM_THREADS"]) <= max(1, (os.cpu_count() or 1) // 3)


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


REPORT = """
def report(index, what):
    os.symlink(json.dumps({"index": index, "what": what}), os.environ["PENSTOCK_FIRST_FAILURE"])
"""


# What the processes do, how they are launched, and the status and the last line of the launcher.
FIRST_FAILURES = {
    "an error, and not of the one that ended first": (
        """
say_ready()
if rank == 1:
    report(0, "process 0 failed")
    sys.exit(75)
other = wait_for_ready(1)
while Path(f"/proc/{other}/stat").exists():
    time.sleep(0.01)
raise ValueError("7 is too much")
""",
        # Nor is its error one to start again after, as the end of the other would be.
        *({"linger_secs": 60, "max_restarts": 3}, 1),
        "process 0 ended with code 1 (ValueError: 7 is too much)",
    ),
    "an end with 0 in the middle of the run, which is no loss": (
        """
if rank == 1:
    os._exit(0)
report(1, "process 1 was lost: it was killed, called os._exit, or its machine is gone")
sys.exit(75)
""",
        *({"max_restarts": 3}, 1),
        "process 1 ended with code 0 in the middle of the run, as by os._exit(0)",
    ),
    "a stop, of which the others know": (
        """
say_ready()
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
stat = Path(f"/proc/{wait_for_ready(1)}/stat")
while stat.read_text().split()[2] != "T":
    time.sleep(0.01)
report(1, "process 1 has not answered for 30 s")
sys.exit(75)
""",
        *({"linger_secs": 0}, 75),
        "process 1 has not answered for 30 s; killed, as it did not end in time: process 1",
    ),
    "an exit, after which one ignores SIGTERM and one is stopped": (
        """
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
""",
        *({"num_processes": 3, "linger_secs": 0, "grace_secs": 0.1}, 3),
        "process 2 ended with code 3; killed, as it did not end in time: process 0 and 1",
    ),
    "a kill": (
        "os.kill(os.getpid(), signal.SIGKILL) if rank == 0 else wait()",
        *({"linger_secs": 0}, 137),
        "process 0 was killed by SIGKILL",
    ),
}


@pytest.mark.parametrize("failure", FIRST_FAILURES)
def test_process_that_failed_first_is_named_with_how_it_failed(run, failure):
    body, options, expected, line = FIRST_FAILURES[failure]
    status, _, (*traceback, last) = run(REPORT + body, **options)
    assert (status, last) == (expected, f"penstock launch: {line}")
    assert bool(traceback) == ("ValueError" in line)


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
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(local_launch, "_PORTS", [port] * local_launch._NUM_TRIES)
        assert local_launch.choose_port() not in (0, port)


def test_filter_whose_reader_has_ended_ends_without_a_word(capfd):
    assert local_launch.launch(["sh", "-c", "yes | head -n 1"], 1) == 0
    assert capfd.readouterr() == ("[0] y\n", "")


def test_machine_without_place_for_all_is_an_error_that_ends_those_that_were_started(write):
    words = write("wait()")
    code = (
        "import resource, sys; from penstock.distributed import local_launch\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))\n"
        "local_launch.launch(sys.argv[1:], 30)"
    )
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(
        r"OSError: launch got no place for process \d of 30 \(Too many open files\), expected "
        r"descriptors, memory and process numbers for all of them\. Each takes two descriptors "
        r"of the launcher\. See `ulimit -a`, or start fewer\.",
        last,
    )


def test_processes_of_a_group_that_could_not_start_are_gone_with_what_reads_them(
    monkeypatch, tmp_path
):
    started, marker = [], tmp_path / "escaped"

    def start(rank, *args, **options):
        if rank:
            while not marker.exists():
                time.sleep(0.01)
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        started.append(_child_process.ChildProcess(rank, *args, **options))
        return started[0]

    monkeypatch.setattr(local_launch, "ChildProcess", start)
    # A process of another session holds the pipes for longer.
    code = (
        "import os, subprocess, sys, time\n"
        "escaped = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "open(sys.argv[1] + '.new', 'w').write(str(escaped.pid))\n"
        "os.rename(sys.argv[1] + '.new', sys.argv[1])\n"
        "time.sleep(600)"
    )
    try:
        with pytest.raises(OSError, match="launch got no place for process 1 of 2"):
            local_launch.launch([sys.executable, "-c", code, str(marker)], 2)
        with pytest.raises(ProcessLookupError):
            os.kill(started[0].pid, 0)
        for thread in started[0]._copies:
            thread.join(20.0)
            assert not thread.is_alive()
    finally:
        os.kill(int(marker.read_text()), signal.SIGKILL)
