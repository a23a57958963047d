"""CSVLog and JSONLog: their rows, none torn, and that a resume neither repeats nor loses any."""

import contextlib
import csv
import io
import json
import mmap
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest

from penstock.events import BeginStep, BeginTraining, EndEpoch, EndStep, EndTraining
from penstock.handlers import CSVLog, Evaluate, Gradients, JSONLog
from tests.handlers.driving import Source, drive, linear_trainer, resumed
from tests.networks import compile_warnings, linear_reader
from tests.source_tree import ROOT

COUNTS = ["kind", "epoch", "step", "global_step", "seconds", "examples"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.csv"


def rows(path):
    text = path.read_bytes().decode()
    assert text.endswith("\n") or not text
    return list(csv.DictReader(io.StringIO(text), strict=True))


def columns(path, *names):
    """Return some columns of a file, row by row, with spaces between."""
    return [" ".join(row[name] for name in names) for row in rows(path)]


def test_rows_are_those_of_steps_at_the_interval_and_of_epochs(path, clock):
    def advance(global_step):
        clock.now += 0.25

    log = CSVLog(path, every_steps=3, names=("loss", "accuracy"))
    source = Source(lambda step: (step / 4, 1.0))
    drive(log, num_epochs=2, num_steps=4, source=source, on_step=advance)
    assert path.read_text() == (
        "kind,epoch,step,global_step,seconds,examples,loss,accuracy\n"
        "step,0,2,2,1.0,30,0.5,1.0\n"
        "epoch,0,4,4,1.0,40,0.75,1.0\n"
        "step,1,1,5,1.75,60,1.25,1.0\n"
        "epoch,1,4,8,2.0,80,1.75,1.0\n"
    )


def test_metric_that_comes_later_gets_a_column(path):
    def metrics(step):
        return {"loss": 1.0} if step < 2 else {"auc": 0.5, "loss": 2.0, "a, b": 3.0}

    drive(CSVLog(path, every_steps=1), num_steps=3, source=Source(metrics))
    assert columns(path, "loss", "auc", "a, b") == ["1.0  ", "1.0  ", "2.0 0.5 3.0", "2.0 0.5 3.0"]


def test_name_of_several_lines_is_one_column_of_one_line(path):
    source = Source(lambda step: {"a\nb": 1.0} if step < 9 else {"a\nb": 2.0, "c\r\nd": 3.0})
    drive(CSVLog(path, every_steps=4), source=source)
    drive(CSVLog(path, every_steps=4), num_epochs=2, first=8, source=source)
    assert columns(path, "a b", "c d")[2:4] == ["1.0 ", "2.0 3.0"]


def test_values_that_are_not_finite_are_what_float_reads(path):
    values = [float("nan"), float("inf"), -float("inf")]
    drive(CSVLog(path, every_steps=1), num_steps=3, source=Source(lambda step: values[step]))
    assert columns(path, "loss") == ["nan", "inf", "-inf", "-inf"]


def test_metric_with_a_columns_name_is_told_from_it(path):
    drive(CSVLog(path, every_steps=4), source=Source({"step": 0.5, "loss": 1.0}))
    assert columns(path, "step", "metric step")[0] == "3 0.5"


def test_steps_that_fetch_nothing_have_a_row_without_metrics(path):
    drive(CSVLog(path, every_steps=4), source=Source(lambda step: None if step < 4 else 1.0))
    assert columns(path, "global_step", "loss") == ["3 ", "7 1.0", "8 1.0"]


def test_step_that_failed_is_an_error_unless_training_has_failed_of_it(path):
    error = RuntimeError("the device failed")

    def fail(step=0):
        # The last step's are those of the epoch too.
        if step < 7:
            raise error

    log = CSVLog(path, every_steps=1)
    with pytest.raises(RuntimeError, match="the device failed"):
        drive(log, source=Source(fail))
    for event in (BeginTraining(0, 1, 0), BeginStep(0, 0, 0), EndStep(0, 0, 0, 10, fail)):
        log(event)
    log(EndTraining("failed", error))
    assert rows(path) == []


def test_new_run_keeps_the_old_file_under_a_numbered_name(path, tmp_path):
    for loss in (1.0, 2.0, 3.0):
        drive(CSVLog(path, every_steps=0), source=Source(loss))
    assert columns(path, "loss") == ["3.0"]
    assert columns(tmp_path / "log.csv.1", "loss") == ["1.0"]
    assert columns(tmp_path / "log.csv.2", "loss") == ["2.0"]
    assert len(list(tmp_path.iterdir())) == 3


def test_new_run_takes_over_an_empty_file(path, tmp_path):
    path.touch()
    drive(CSVLog(path))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("every_steps", [1, 3])
@pytest.mark.parametrize("killed_at", [5, 7, 8, 9])
@pytest.mark.parametrize("resumed_at", [1, 3, 4, 5])
def test_resumed_run_neither_repeats_nor_loses_a_row(path, every_steps, killed_at, resumed_at):
    run = {"num_epochs": 3, "num_steps": 4, "source": Source(lambda step: step / 4)}
    whole = path.with_name("whole.csv")
    drive(CSVLog(whole, every_steps=every_steps), **run)
    states, files = {}, {}
    first = CSVLog(path, every_steps=every_steps)

    def save(global_step):  # a checkpoint of the steps done, while the next one runs
        if global_step == resumed_at:
            states[global_step] = first.get_state()
        files[global_step] = path.read_bytes()

    drive(first, **run, on_step=save)
    path.write_bytes(files[killed_at])
    second = CSVLog(path, every_steps=every_steps)
    options = resumed(second, states[resumed_at])
    drive(second, **run, first=resumed_at, **options)
    names = [name for name in [*COUNTS, "loss"] if name != "seconds"]
    assert columns(path, *names) == columns(whole, *names)


def test_row_that_waits_is_in_the_file_when_a_checkpoint_is_saved(path):
    log = CSVLog(path, every_steps=4)
    sizes = []

    def save(global_step):
        if global_step == 4:
            sizes.append(len(rows(path)))
            assert log.get_state()["examples"] == 40
            sizes.append(len(rows(path)))

    source = drive(log, on_step=save)
    assert sizes == [0, 1]
    assert source.steps == [3, 7]


def test_resumed_run_counts_seconds_and_examples_on(path, clock):
    states = []
    first = CSVLog(path, every_steps=1)

    def advance(global_step):
        clock.now += 1.0
        if global_step == 4:
            states.append(first.get_state())

    drive(first, on_step=advance)
    clock.now += 1000.0
    second = CSVLog(path, every_steps=1)
    options = resumed(second, json.loads(json.dumps(states[0])))
    drive(second, first=4, on_step=advance, **options)
    # While step 4 ran the checkpoint was saved: five seconds in.
    assert columns(path, "global_step", "seconds", "examples")[3:] == [
        *("3 5.0 40", "4 7.0 50", "5 8.0 60", "6 9.0 70", "7 9.0 80", "8 9.0 80")
    ]


def test_resumed_run_without_a_state_goes_on_in_the_file_and_counts_afresh(path):
    drive(CSVLog(path, every_steps=2))
    drive(CSVLog(path, every_steps=2), first=4)
    assert columns(path, "global_step", "examples") == ["1 20", "3 40", "5 20", "7 40", "8 40"]


def test_second_call_of_train_goes_on_in_the_file(path):
    log = CSVLog(path, every_steps=4)
    drive(log, num_epochs=1)
    drive(log, num_epochs=2, first=8)
    expected = ["3 40", "7 80", "8 80", "11 120", "15 160", "16 160"]
    assert columns(path, "global_step", "examples") == expected


def test_line_that_a_crash_cut_off_is_removed(path):
    drive(CSVLog(path, every_steps=4))
    whole = path.read_text()
    path.write_text(whole + "step,1,3,1")
    drive(CSVLog(path, every_steps=0), first=8)
    assert path.read_text() == whole


def test_resumed_run_without_a_file_begins_one(path):
    drive(CSVLog(path, every_steps=4), num_epochs=2, first=8)
    assert columns(path, "global_step") == ["11", "15", "16"]


def test_resumed_run_keeps_the_columns_of_its_file(path):
    drive(CSVLog(path, every_steps=4), source=Source({"auc": 0.5, "loss": 1.0}))
    drive(CSVLog(path, every_steps=4), num_epochs=2, first=8, source=Source({"loss": 2.0}))
    assert columns(path, "auc", "loss")[2:4] == ["0.5 1.0", " 2.0"]


@pytest.mark.parametrize(
    ("log_class", "text"),
    [
        (CSVLog, "name,age\nAda,36\n"),
        (CSVLog, ",".join(COUNTS) + "\nstep,1,2\n"),
        (JSONLog, "no JSON\n"),
        (JSONLog, "[1, 2]\n"),
        (JSONLog, '{"loss": 1}\n'),
    ],
)
def test_resumed_run_refuses_a_file_that_is_none_of_its_own(path, log_class, text):
    path.write_text(text)
    with pytest.raises(ValueError, match=r"log\.csv' got a line that cannot be read .*, expected"):
        drive(log_class(path), first=8)
    assert path.read_text() == text


def test_results_of_an_evaluate_get_rows(path):
    trainer = linear_trainer()
    evaluate = Evaluate(linear_reader(), every_steps=2, file=io.StringIO())
    logs = [CSVLog(path.with_name(name), every_steps=0, test=evaluate) for name in "ab"]
    # Before it and after it in the list.
    trainer.train(linear_reader(), [logs[0], evaluate, logs[1]], num_epochs=2)
    expected = ["test 2", "epoch 3", "test 3", "test 4", "test 6", "epoch 6"]
    for name in "ab":
        file = path.with_name(name)
        values = columns(file, "kind", "global_step")
        assert sorted(values) == sorted(expected)
        tests = [row for row in rows(file) if row["kind"] == "test"]
        assert [float(row["loss"]) for row in tests] == [m["loss"] for _, m in evaluate.results]


def test_results_of_a_function_get_rows_at_the_end_of_each_epoch(path):
    drive(CSVLog(path, every_steps=0, test=lambda: 0.25), num_epochs=2)
    values = columns(path, "kind", "epoch", "step", "global_step", "loss")
    assert values == ["epoch 0 8 8 0.5", "test 0 7 8 0.25", "epoch 1 8 16 0.5", "test 1 7 16 0.25"]
    # Resumed at the end of the last epoch, before it ended.
    log = CSVLog(path, every_steps=0, test=lambda: 0.25)
    log(BeginTraining(1, 1, 16))
    log(EndEpoch(1, 16, 8, 80, lambda: 0.5))
    log(EndTraining("completed"))
    assert sorted(columns(path, "kind", "epoch", "step", "global_step", "loss")) == sorted(values)


def test_resumed_run_repeats_no_test(path):
    evaluate = Evaluate(linear_reader(), every_steps=1, file=io.StringIO())
    trainer = linear_trainer()
    trainer.train(linear_reader(), [evaluate, CSVLog(path, every_steps=0, test=evaluate)])
    trainer.train(linear_reader(), [evaluate, CSVLog(path, every_steps=0, test=evaluate)])
    tests = [row["global_step"] for row in rows(path) if row["kind"] == "test"]
    assert tests == ["1", "2", "3", "4", "5", "6"]


def test_resumed_run_writes_a_test_at_the_checkpoint_and_none_before_it(path):
    evaluate = Evaluate(linear_reader(), file=io.StringIO())
    first = CSVLog(path, every_steps=0, test=evaluate)
    states = []

    def run_test(global_step):
        if global_step in (3, 6):
            evaluate.results.append((global_step, {"loss": 0.5}))
        if global_step == 6:
            # Killed after the checkpoint, before the row of this test is written.
            states.append((first.get_state(), path.read_bytes()))

    run = {"num_epochs": 2, "num_steps": 4}
    drive(first, **run, on_step=run_test)
    state, text = states[0]
    path.write_bytes(text)
    names = ("kind", "epoch", "step", "global_step")
    assert columns(path, *names) == ["test 0 3 3", "epoch 0 4 4"]
    # A row that somebody has cut out.
    path.write_bytes(b"".join(line for line in text.splitlines(True) if b"test" not in line))
    second = CSVLog(path, every_steps=0, test=evaluate)
    drive(second, **run, first=6, **resumed(second, state))
    assert columns(path, *names) == ["epoch 0 4 4", "test 1 1 6", "epoch 1 4 8"]


@pytest.mark.parametrize("steps_per_call", [1, 2])
def test_rows_of_a_real_training_hold_its_metrics(path, steps_per_call):
    epoch_losses = []

    def note(event):
        if isinstance(event, EndEpoch):
            epoch_losses.append(event.metrics)

    trainer = linear_trainer(steps_per_call=steps_per_call)
    trainer.train(linear_reader(16), [CSVLog(path, every_steps=2), note], num_epochs=2)
    kinds = columns(path, "kind", "epoch", "step", "global_step", "examples")
    assert kinds == [
        *("step 0 1 1 8", "step 0 3 3 16", "epoch 0 4 4 16"),
        *("step 1 1 5 24", "step 1 3 7 32", "epoch 1 4 8 32"),
    ]
    assert [float(row["loss"]) for row in rows(path) if row["kind"] == "epoch"] == epoch_losses


@pytest.fixture
def json_path(tmp_path):
    return tmp_path / "log.jsonl"


def refuse(constant):
    raise ValueError(f"{constant} is not JSON")


def lines(json_path):
    text = json_path.read_text()
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def fields(json_path, *names):
    return [tuple(line.get(name) for name in names) for line in lines(json_path)]


def test_lines_have_the_numbers_and_metrics_of_steps_and_epochs(json_path):
    drive(JSONLog(json_path, every_steps=5, names=("loss", "auc")), source=Source((0.5, 0.75)))
    names = [*COUNTS[:4], "examples", "loss", "auc"]
    assert fields(json_path, *names) == [
        ("step", 0, 4, 4, 50, 0.5, 0.75),
        ("epoch", 0, 8, 8, 80, 0.5, 0.75),
    ]


def test_numbers_that_are_not_finite_are_strings_that_float_reads(json_path):
    values = {"a": float("nan"), "b": float("inf"), "c": -float("inf"), "d": np.array([1, np.nan])}
    drive(JSONLog(json_path, every_steps=0), source=Source(values))
    assert fields(json_path, *"abcd") == [("nan", "inf", "-inf", [1.0, "nan"])]


@pytest.mark.parametrize(
    ("metrics", "options", "expected"),
    [
        ((0.5, np.eye(2), np.float32(1)), {}, {"loss": 0.5, "b": [[1, 0], [0, 1]], "metric_2": 1}),
        ({"loss": 0.5, "table": np.ones([2, 2])}, {"arrays": False}, {"loss": 0.5, "table": None}),
        ({"d": 0.5, "g": (0.25, np.ones([1]))}, {}, {"d": 0.5, "g loss": 0.25, "g b": [1.0]}),
    ],
    ids=["arrays", "no arrays", "objectives"],
)
def test_metrics_have_the_names_of_their_places(json_path, metrics, options, expected):
    log = JSONLog(json_path, every_steps=0, names=("loss", "b"), **options)
    drive(log, source=Source(metrics))
    assert fields(json_path, *expected) == [tuple(expected.values())]


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
    text = rf"{log_class.__name__} got the path '{path}', expected one that can be written \("
    with pytest.raises(kind, match=text) as raised:
        begin(log_class(path))
    assert str(raised.value).endswith("give permission there, or choose another path.")


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
    csv_text, json_text = ((tmp_path / name).read_text() for name in ("log.csv", "log.jsonl"))
    csv_lines, json_lines = csv_text.split("\n"), json_text.split("\n")
    # A row is one write, which Linux cuts by SIGKILL nowhere but where a page of memory ends.
    assert not csv_lines.pop() or len(csv_text) % mmap.PAGESIZE == 0
    assert not json_lines.pop() or len(json_text) % mmap.PAGESIZE == 0
    assert {line.count(",") for line in csv_lines} == {7}
    assert [json.loads(line)["global_step"] for line in json_lines] == list(range(len(json_lines)))
    assert [int(line.split(",")[3]) for line in csv_lines[1:]] == list(range(len(csv_lines) - 1))
    assert min(len(csv_lines), len(json_lines)) >= 199


def test_kind_and_numbers_come_first_then_rates_and_norms_and_then_metrics(json_path):
    trainer = linear_trainer()
    watching = [JSONLog(json_path, every_steps=2), Gradients(every_steps=2)]
    trainer.train(linear_reader(), watching, num_epochs=1)
    names = list(lines(json_path)[0])
    assert names[:6] == COUNTS
    norms = ["parameter_norm", "gradient_norm", "update_norm"]
    assert names[-4:] == [*norms, "loss"]


@LOGS
def test_columns_that_cannot_be_added_leave_the_file_as_it_was(log_class, tmp_path, caplog):
    path = tmp_path / "log"
    source = Source(lambda step: {"loss": 0.5} if step < 100 else {"loss": 0.5, "auc": 0.25})
    with largest_file(6000), pytest.raises(OSError, match="File too large"):
        drive(log_class(path, every_steps=1), num_steps=200, source=source)
    assert path.read_bytes().endswith(b"\n")
    assert [file.name for file in tmp_path.iterdir()] == ["log"]
