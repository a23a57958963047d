"""One of two real processes does wrong under `penstock launch`: all end, soon, and say why."""

import csv
import json
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from benchmarks import _faulty_run, failures, killed_groups
from penstock.distributed.exit_codes import AGAIN
from tests import compiling
from tests.distributed.launched_training import NUM_STEPS
from tests.distributed.launchers import SCRIPT
from tests.distributed.processes import read_until
from tests.html_pages import HtmlPage
from tests.source_tree import ROOT

# By fault: the exit code, and words of the line that names it.
EXPECTED = {
    "exception in a handler": (1, "process 1 failed with ValueError: a handler that fails"),
    "exception in a reader": (1, "process 1 failed with OSError: a disk that fails"),
    "exception in the program": (1, "process 1 failed with ValueError: a program that fails"),
    "sys.exit": (3, "process 1 called sys.exit(3)"),
    "stop()": (0, "trainer.stop() on process 1: all processes end after global step"),
    "stop() on all": (0, "trainer.stop(): all processes end after global step"),
    "SIGINT": (130, "SIGINT on process 1: all processes end after global step"),
    "os._exit(0)": (1, "process 1 ended with code 0 in the middle of the run, as by os._exit(0)"),
    "closed descriptors": (134, "process 1 was lost: it was killed"),
    "a removed folder of process 0": (1, "process 0 failed with CheckpointError"),
    "SIGTERM": (143, "SIGTERM on process 1: all processes end after global step"),
    "SIGKILL of process 0": (137, "process 0 was lost: it was killed"),
    "SIGKILL": (137, "process 1 was lost: it was killed"),
    "SIGSTOP": (75, "process 1 has not answered for"),
    "a stuck reader": (75, "process 1 has not moved for"),
    "a full disk of process 0": (1, "process 0 failed with CheckpointError"),
    "unequal readers": (1, "readers of different lengths: of batches process 0 has"),
    "another seed": (0, "process 1 began with another state than process 0 (seeds '0', '1')"),
    "another program": (1, "process 1 computes"),
    "other arguments": (1, "process 1 has in its arguments of Trainer 'steps_per_call' 2"),
    "param_path on one machine alone": (0, "process 1 began with another state than process 0"),
    "test on one": (1, "process 1 is in trainer.test, but process 0"),
}


# What all raise alike, so that it is nobody's.
OF_ALL = ("unequal readers", "another program", "other arguments")


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", compiling.xla_flags())


def test_every_fault_has_its_end():
    assert set(EXPECTED) == set(_faulty_run.FAULTS) - {"none"}


# Those that end while a checkpoint is written, as ends of every kind do below.
BELOW = {"exception in a handler", "sys.exit", "SIGKILL"}


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fault for fault in EXPECTED if fault not in BELOW])
def test_fault_of_one_process_ends_all_with_its_name(fault, tmp_path):
    code, words = EXPECTED[fault]
    failures.prepare(fault, tmp_path)
    outcome = failures.run(failures.LAUNCHERS["launch"], fault, tmp_path)
    # Each has lost the other there: JAX aborts process 1, or process 0 has ended before it.
    has_lost = fault == "closed descriptors" and outcome.code == AGAIN
    assert outcome.code == code or has_lost, outcome.output
    assert words in outcome.output
    assert "NOT OVER" not in outcome.output
    # JAX's own end of a process, which names nobody; where its coordinator dies it may be first.
    if fault != "SIGKILL of process 0":
        assert "Terminating process" not in outcome.output
    if fault in ("SIGSTOP", "a stuck reader"):
        assert "most recent call first" in outcome.output
    if not code:
        assert "RESULT" in outcome.output
    elif fault not in OF_ALL and not has_lost:
        last = outcome.output.splitlines()[-1]
        number = 0 if fault.endswith("of process 0") else 1
        assert last.startswith(f"penstock launch: process {number} "), outcome.output


# The checkpoint of global step 5 is being written when the failure comes, and until somebody waits
# for it. Where nobody does, it is lost with its process.
SAVING = """
import threading
import numpy as np, optax
import penstock as ps
from penstock import layers, readers
from penstock._checkpoint import Writer

ps.distributed.initialize()
is_awaited = threading.Event()
wait = Writer.wait
def wait_and_tell(writer):
    if writer.is_busy:
        is_awaited.set()
    wait(writer)
Writer.wait = wait_and_tell

def program():
    return layers.mean((layers.fc(layers.data("x", shape=[1]), size=1) - 1) ** 2)

reader = readers.arrays({"x": np.zeros((160, 1), np.float32)}, 8)
config = ps.CheckpointConfig(directory=folder, save_interval_steps=5)
trainer = ps.Trainer(program, optax.sgd(0.1), checkpoint=config)
write = trainer._saver.store.write
def write_late(contents):
    say_ready()
    while threading.main_thread().is_alive() and not is_awaited.wait(0.01):
        pass
    write(contents)
trainer._saver.store.write = write_late

def fail(event):
    if isinstance(event, ps.EndStep) and event.global_step == 7 and rank == who:
        wait_for_ready(0)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        errors = {"raise": ValueError("too much"), "Ctrl-C": KeyboardInterrupt()}
        raise errors.get(how, SystemExit(3))
trainer.train(reader, fail)
"""
# The launcher's code, what the other process says, and the launcher's last line.
ENDS = {
    "raise": (1, "failed with ValueError: too much", "ended with code 1 (ValueError: too much)"),
    "Ctrl-C": (130, "was interrupted", "ended with code 130 (KeyboardInterrupt)"),
    "exit": (3, "called sys.exit(3)", "ended with code 3"),
    "kill": (137, "was lost: it was killed", "was killed by SIGKILL"),
}


@pytest.mark.quick("raise-0")
@pytest.mark.parametrize(("how", "who"), [("raise", 0), ("Ctrl-C", 1), ("exit", 0), ("kill", 1)])
def test_checkpoint_that_is_being_written_when_one_fails_is_finished(how, who, run, tmp_path):
    folder = tmp_path / "run"
    words = f"how, who, folder = {how!r}, {who}, {str(folder)!r}\n"
    code, told, last = ENDS[how]
    status, out, err = run(words + SAVING)
    text = "\n".join(err)
    assert status == code, out + text
    assert [path.name for path in folder.glob("[0-9]*")] == ["5"], out + text
    assert "NOT SAVED" not in text
    assert err[-1] == f"penstock launch: process {who} {last}"
    # The error has one traceback, where it was raised; the other process has a line.
    assert "Gloo all-reduce failed" not in text
    assert text.count("Traceback") == (how in ("raise", "Ctrl-C"))
    assert text.count(f"[{1 - who}] penstock: process {who} ") == 1
    assert f"[{1 - who}] penstock: process {who} {told}" in text
    assert "Terminating process" not in text  # JAX's own end, which names nobody


@pytest.mark.slow
def test_sigterm_in_a_long_step_saves_after_it_and_kills_nobody(launch_apart, tmp_path):
    folder = tmp_path / "run"
    launched = launch_apart([str(SCRIPT), str(folder), "--fail=7:wait"])
    read_until(launched.stdout, b"waits for a signal")
    launched.send_signal(signal.SIGTERM)
    out, err = map(bytes.decode, launched.communicate())
    assert launched.returncode == 143, out + err
    assert "penstock launch: ended by SIGTERM\n" in err  # and not: killed, as it did not end
    ended = re.search(r"SIGTERM.*: all processes end after global step (\d+)", err)
    assert ended is not None, err
    # At the next place where all meet, and nothing but the signal saves.
    assert (folder / "steps" / ended[1]).is_dir()
    assert 8 <= int(ended[1]) < NUM_STEPS


# Process 0 waits for the other at its end, and process 1 is in no call.
BETWEEN = """
import penstock as ps
ps.distributed.initialize()
print("ready")
if rank:
    wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_between_calls_and_at_the_end_kills_nobody(write, launch_apart, number):
    launched = launch_apart(write(BETWEEN))
    read_until(launched.stdout, b"[0] ready", b"[1] ready")
    time.sleep(1)  # until process 0 has come to its end
    launched.send_signal(number)
    _, err = map(bytes.decode, launched.communicate())
    assert launched.returncode == 128 + number, err
    assert f"ended by {number.name}\n" in err  # and not: killed, as it did not end
    assert "atexit" not in err


def read_result(output):
    """Return what process 0 has printed, None where it has nothing."""
    lines = [line.partition("RESULT ")[2] for line in output.splitlines() if "RESULT " in line]
    return json.loads(lines[0]) if lines else None


def train(launcher, fault, folder):
    """Return the result, None where it has none, and everything that was written."""
    output = failures.run(launcher, fault, folder).output
    return read_result(output), output


@pytest.mark.slow
def test_run_goes_on_with_other_numbers_of_processes(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    expected, _ = train([sys.executable], "none", whole)
    launch = failures.LAUNCHERS["launch"]
    assert train(launch, "SIGKILL", parts)[0] is None
    (parts / "fault").unlink()
    alone, output = train([sys.executable], "SIGKILL of process 0", parts)
    assert alone is None
    assert "resuming from" in output
    three = [word if word != "2" else "3" for word in launch]
    got, output = train(three, "none", parts)
    assert "resuming from" in output
    assert got["step"] == expected["step"]
    # The epoch that it goes on with too: all of it counts, and not what is left.
    assert set(output.partition("EPOCHS ")[2].splitlines()[0].split()) == {"84"}
    for name, value in expected["params"].items():
        np.testing.assert_allclose(got["params"][name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_group_that_loses_processes_again_and_again_ends_with_the_same_bits(tmp_path):
    killed, plain = tmp_path / "killed", tmp_path / "plain"
    for folder in (killed, plain):
        folder.mkdir()
    launcher = killed_groups.choose_launcher("launch", 3, 2)
    victims, result = killed_groups.run(launcher, killed, num_processes=3, num_kills=2)
    assert len(victims) == 2
    process = killed_groups.start(launcher, plain, killed_groups.count_epochs(2), 0.0)
    assert json.loads(result) == read_result(process.communicate()[0])


@pytest.mark.slow
def test_every_stock_handler_does_on_two_processes_what_it_does_on_one(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    outputs = []
    for count, launcher in ((1, [sys.executable]), (2, failures.LAUNCHERS["launch"])):
        folder = tmp_path / str(count)
        folder.mkdir()
        words = [*launcher, "tests/distributed/handled_run.py", str(folder)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    one, two = map(read_result, outputs)
    for name in ("step", "counts", "scale"):
        assert two[name] == one[name]
    for name, value in one["parameters"].items():
        np.testing.assert_allclose(two["parameters"][name], value, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(two["losses"], one["losses"], rtol=1e-4)
    # The same files, written once, and each line printed once.
    files = [{path.name for path in (tmp_path / number).iterdir()} for number in "12"]
    assert files[0] == files[1]
    rows = [(tmp_path / number / "log.csv").read_text().splitlines() for number in "12"]
    kinds = [[line.split(",")[:4] for line in log] for log in rows]
    assert kinds[0] == kinds[1]
    norms = [
        [row["gradient_norm"] for row in csv.DictReader(log) if row["gradient_norm"]]
        for log in rows
    ]
    np.testing.assert_allclose(*[np.array(column, float) for column in norms], rtol=1e-4)
    assert len(norms[0]) == 5
    assert outputs[1].count("training stops") == outputs[0].count("training stops") == 1
    assert outputs[1].count("non-trainable") == 1
    pages = [HtmlPage(tmp_path / number / "report.html") for number in "12"]
    assert "in 2 processes" in pages[1].said
    ids = [[section["id"] for section in page.all("section")] for page in pages]
    assert ids[0] == ids[1]
    interval = r"[\d.]+% to [\d.]+% with 95 % confidence"
    figures = rf"[\d.]+% accuracy {interval} [\d.]+ cross entropy 90 images [\d.]+% calibration"
    shown = [re.search(figures, page.said) for page in pages]
    assert shown[0] is not None
    assert shown[1] is not None
    assert shown[0][0] == shown[1][0]
