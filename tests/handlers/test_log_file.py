"""Logs and the file system: what cannot be written is said early, and no row is ever torn."""

import contextlib
import json
import resource
import signal
import subprocess
import sys

import pytest

from penstock.events import BeginTraining, EndTraining
from penstock.handlers import CSVLog, JSONLog
from tests.handlers.driving import Source, drive, linear_trainer
from tests.networks import compile_warnings, linear_reader
from tests.source_tree import ROOT

LOGS = pytest.mark.parametrize("log_class", [CSVLog, JSONLog])


@contextlib.contextmanager
def largest_file(num_bytes):
    """Let no file of this process grow beyond some bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def begin(log):
    log(BeginTraining(epoch=0, num_epochs=1, global_step=0))


@LOGS
def test_folder_on_the_way_is_made(log_class, tmp_path):
    path = tmp_path / "runs" / "a" / "log"
    drive(log_class(path))
    assert path.stat().st_size > 0


@LOGS
@pytest.mark.parametrize(
    ("name", "kind"),
    [("", IsADirectoryError), ("file/log", FileExistsError), ("full", OSError)],
    ids=["a folder", "a file on the way", "a full disk"],
)
def test_file_that_cannot_be_written_is_an_error_at_the_beginning(log_class, name, kind, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "full").symlink_to("/dev/full")
    path = tmp_path / name
    text = rf"{log_class.__name__} got the path '{path}', expected a file that can be written \("
    with pytest.raises(kind, match=text) as raised:
        begin(log_class(path))
    assert str(raised.value).endswith("give permission there, or choose another path.")


@LOGS
def test_run_that_could_not_begin_its_log_ends_without_a_second_error(log_class, tmp_path):
    log = log_class(tmp_path)
    with pytest.raises(IsADirectoryError) as raised:
        begin(log)
    log(EndTraining("failed", raised.value))


@LOGS
def test_row_that_cannot_be_written_is_warned_of_once_and_an_error_at_the_end(
    log_class, tmp_path, caplog
):
    path = tmp_path / "log"
    log = log_class(path, every_steps=1)
    with largest_file(8192), pytest.raises(OSError, match=r"got the path .*File too large"):
        drive(log, num_steps=400)
    (warning,) = compile_warnings(caplog)
    assert "Training goes on without it." in warning
    assert path.read_bytes().endswith(b"\n")


@LOGS
def test_rows_that_could_not_be_written_follow_when_there_is_room(log_class, tmp_path, caplog):
    paths = [tmp_path / "a", tmp_path / "b"]
    drive(log_class(paths[0], every_steps=1), num_steps=400)

    with contextlib.ExitStack() as limited:

        def limit(global_step):
            if global_step == 100:
                limited.enter_context(largest_file(8192))
            elif global_step == 300:
                limited.close()

        drive(log_class(paths[1], every_steps=1), num_steps=400, on_step=limit)
    steps = [[line.split(b",")[3] for line in path.read_bytes().splitlines()] for path in paths]
    assert steps[0] == steps[1]
    assert len(compile_warnings(caplog)) == 1


@LOGS
def test_unwritten_rows_do_not_hide_the_error_that_ended_training(log_class, tmp_path):
    error = RuntimeError("no more data")
    with largest_file(8192):
        end = EndTraining("failed", error)
        drive(log_class(tmp_path / "log", every_steps=1), num_steps=400, end=end)


@LOGS
def test_columns_that_cannot_be_added_leave_the_file_as_it_was(log_class, tmp_path, caplog):
    path = tmp_path / "log"
    source = Source(lambda step: {"loss": 0.5} if step < 100 else {"loss": 0.5, "auc": 0.25})
    with largest_file(6000), pytest.raises(OSError, match="File too large"):
        drive(log_class(path, every_steps=1), num_steps=200, source=source)
    assert path.read_bytes().endswith(b"\n")
    assert [file.name for file in tmp_path.iterdir()] == ["log"]


WRITER = """
import itertools, sys
from penstock.events import BeginStep, BeginTraining, EndStep
from penstock.handlers import CSVLog, JSONLog

logs = [CSVLog(sys.argv[1] + ".csv", every_steps=1), JSONLog(sys.argv[1] + ".jsonl", every_steps=1)]
for log in logs:
    log(BeginTraining(0, 1, 0))
for step in itertools.count():
    for log in logs:
        log(BeginStep(0, step, step))
        log(EndStep(0, step, step, 10, lambda: {"loss": 0.5, **{"auc": 0.5}} if step > 99 else 0.5))
    if step == 200:
        print("ready", flush=True)
"""


def test_killed_process_leaves_whole_rows(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path / "log")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
    csv_lines = (tmp_path / "log.csv").read_text().split("\n")
    json_lines = (tmp_path / "log.jsonl").read_text().split("\n")
    assert csv_lines.pop() == json_lines.pop() == ""
    assert {line.count(",") for line in csv_lines} == {7}
    assert [json.loads(line)["global_step"] for line in json_lines] == list(range(len(json_lines)))
    assert [int(line.split(",")[3]) for line in csv_lines[1:]] == list(range(len(csv_lines) - 1))
    assert min(len(csv_lines), len(json_lines)) >= 199


def test_error_of_a_log_reaches_the_caller_of_train_with_its_name(tmp_path):
    with pytest.raises(IsADirectoryError) as raised:
        linear_trainer().train(linear_reader(), CSVLog(tmp_path))
    assert any("event handler CSVLog" in note for note in raised.value.__notes__)


def test_file_that_is_given_as_text_is_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    drive(CSVLog("log.csv", every_steps=0))
    assert "epoch,0,8,8," in (tmp_path / "log.csv").read_text()
