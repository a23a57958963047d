"""A run in the place of another: neither is lost, wherever the process is killed."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from tests.commands.running import TINY, fail, run, start, succeed, wait_for

FAST = (*TINY, "--optimizer=momentum")
DIR = "runs/digits_tiny"

# Moves a run aside or back and ends, as killed, at the file operation of a number.
KILLED = """
import os, sys
from pathlib import Path
from penstock.commands._run_folder import replacement
from penstock.commands._run_folder.folder import RunFolder

action, root = sys.argv[1], Path(sys.argv[2])
CHANGES = ("os.rename", "os.mkdir", "os.rmdir", "os.remove", "shutil.rmtree")


def fill(folder, what):
    for name in ("checkpoints/7", "params", "best"):
        (folder / name).mkdir(parents=True)
    for name in ("checkpoints/7/state", "params/params.safetensors", "best/params.safetensors",
                 "config.json", "log.csv", "log.csv.1", "data.json", "labels.txt"):
        (folder / name).write_text(what)
    return RunFolder(folder)


def act(folder):
    if action == "aside":
        replacement.set_aside(folder)
    elif action == "back":
        replacement.set_aside(folder)
        (folder.path / "best").mkdir()
        for name in ("config.json", "log.csv"):
            (folder.path / name).write_text("new")
        is_armed.append(True)
        replacement.bring_back(folder)
    else:
        replacement.set_aside(folder)
        fill(folder.path, "new")
        is_armed.append(True)
        replacement.forget(folder)


for at in range(1, 200):
    folder = fill(root / str(at), "old")
    (folder.path / "notes.txt").write_text("mine")
    if not os.fork():
        count, is_armed = 0, [True] * (action == "aside")

        def watch(event, args):
            global count
            if event in CHANGES and is_armed:
                count += 1
                if count == at:
                    os._exit(9)

        sys.addaudithook(watch)
        act(folder)
        os._exit(0)
    if os.wait()[1] == 0:
        print(at)
        break
"""


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.quick("back")
@pytest.mark.parametrize("action", ["aside", "back", "forget"])
def test_run_is_whole_wherever_its_replacement_is_killed(action, tmp_path):
    from penstock.commands._run_folder.folder import RunFolder
    from penstock.commands._run_folder.replacement import bring_back

    done = subprocess.run(
        [sys.executable, "-c", KILLED, action, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 8
    for number in range(1, int(done.stdout)):
        folder = tmp_path / str(number)
        bring_back(RunFolder(folder))
        kept = contents(folder)
        assert kept.pop("notes.txt") == b"mine"
        new = {name: text for name, text in kept.items() if not name.startswith("replaced")}
        expected = {b"new"} if action == "forget" else {b"old"}
        assert set(new.values()) == expected
        assert len(new) == 8
        assert not (folder / ".replacing").exists()
        assert not (folder / ".deleted").exists()
        # Of the old one all or nothing.
        assert len(kept) in (8, 16)


# A process of its own and four runs in this one: 10 s.
@pytest.mark.slow
def test_interrupted_replacement_goes_on_and_then_deletes_the_old_run(capsys, tmp_path):
    succeed(capsys, "train", *FAST, "--stop_at_step=3")
    long = ("--checkpointDir=runs/digits_tiny", "--stop_at_step=300", "--log_loss_every_n_iters=1")
    process = start(tmp_path, "train", *FAST, *long, "--overwrite=True")
    wait_for(process, "global_step = 10\n")
    status, _, message = run(capsys, "train", *FAST, *long)
    assert status == 1
    assert f"It is held by process {process.pid}" in message
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    assert "the same command without --overwrite=True goes on from there" in err
    assert "the run before is in runs/digits_tiny/replaced until then" in err
    status, _, err = run(capsys, "eval", f"{DIR}/replaced", "--plot=")
    assert (status, err) == (0, "")
    out, _ = succeed(capsys, "train", *FAST, *long, "--num_epochs=1")
    assert re.search(r"at step \d\d+, resumed from", out)
    assert not os.path.exists(f"{DIR}/replaced")


# A process of its own and five runs in this one: 9 s.
@pytest.mark.slow
def test_run_comes_back_when_its_replacement_fails_or_is_killed(capsys, tmp_path):
    succeed(capsys, "train", *FAST, "--stop_at_step=3")
    before = contents(tmp_path / DIR)
    again = ("--stop_at_step=300", f"--checkpointDir={DIR}", "--overwrite=True")
    # It fails when the network is built, and when the first step runs.
    for words in ("--freeze=conv9", "--learning_rate=1e38"):
        status, _, _ = run(capsys, "train", *FAST, *again, words)
        assert status == 1
        assert contents(tmp_path / DIR) == before
    process = start(
        tmp_path, "train", *FAST, *again, "--log_loss_every_n_iters=1", "--eval_every_n_epochs=0"
    )
    wait_for(process, "global_step = 2\n")
    process.kill()
    process.communicate(timeout=240)
    assert os.path.exists(f"{DIR}/replaced")
    succeed(capsys, "eval", DIR, "--plot=")
    out, _ = succeed(capsys, "train", *FAST, "--stop_at_step=3")
    assert "is back" in out
    assert "The run is complete" in out
    assert contents(tmp_path / DIR).keys() == {*before, "answers.npz"}  # of `eval`


def test_results_of_another_run_are_not_replaced_unasked(capsys, tmp_path):
    # Nothing is tested: what is looked at is the folder.
    short = ("--stop_at_step=3", "--eval_every_n_epochs=0")
    named = ("--checkpointDir=a", *short)
    succeed(capsys, "train", *FAST, *named, "--hooks=StopAtStepHook")
    before = contents(tmp_path / "a")
    for words in ((), ("--hooks=StopAtStepHook",), ("--learning_rate=0.5",)):
        err = fail(capsys, "train", *FAST, *named, *words)
        assert "'a' got the folder of another run" in err or "--checkpointDir='a' got" in err
        assert ("--learning_rate was 0.01, is 0.5" in err) == ("--learning_rate=0.5" in words)
        assert contents(tmp_path / "a") == before
    # With checkpoints too, where the tests would be of other data.
    words = ("--checkpointDir=b", *short)
    succeed(capsys, "train", *FAST, *words)
    err = fail(capsys, "train", *FAST, *words, "--dataset_name=half_digits")
    assert "tests are of other data" in err
    # And where the run is over, so that nothing would read the other data.
    words = ("--checkpointDir=c", "--dataset_name=half_digits", *short)
    succeed(capsys, "train", *FAST, *words)
    err = fail(capsys, "train", *FAST, *words, "--dataset_dir=elsewhere")
    assert "--dataset_dir was None, is elsewhere" in err
    assert "That run is over" in err
    again = (*words, "--stop_at_step=4", "--dataset_dir=elsewhere")
    succeed(capsys, "train", *FAST, *again)


def test_run_that_is_over_keeps_the_flags_it_was_trained_with(capsys, tmp_path):
    words = ("train", *FAST, "--eval_every_n_epochs=0", "--checkpointDir=a")
    succeed(capsys, *words, "--stop_at_step=3")
    before = (tmp_path / "a/config.json").read_text()
    succeed(capsys, *words, "--stop_at_step=2", "--learning_rate=0.5")
    assert (tmp_path / "a/config.json").read_text() == before
    succeed(capsys, *words, "--stop_at_step=4", "--learning_rate=0.5")
    assert '"learning_rate": 0.5' in (tmp_path / "a/config.json").read_text()


@pytest.mark.slow
def test_best_stays_where_a_part_trained_again_is_worse(capsys, tmp_path):
    # As a kill between the last checkpoint and the best test leaves it.
    words = (*FAST, "--checkpointDir=a", "--log_loss_every_n_iters=0")
    succeed(capsys, "train", *words, "--stop_at_step=45")
    record = tmp_path / "a/best/test.json"
    result = json.loads(record.read_text())
    result |= {"step": 60, "metrics": result["metrics"] | {"accuracy": 0.999}}
    record.write_text(json.dumps(result))
    before = contents(tmp_path / "a/best")
    out, _ = succeed(capsys, "train", *words, "--stop_at_step=90", "--learning_rate=0.0001")
    assert re.search(r"best test: .* accuracy 99.90%, .* at step 60; last:", out)
    assert contents(tmp_path / "a/best") == before
