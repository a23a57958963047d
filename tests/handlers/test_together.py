"""All these handlers in one list: what each must keep to whatever it does."""

import contextlib
import errno
import io
import json
import subprocess
import sys

import numpy as np
import pytest

import penstock as ps
from penstock._errors import NonFiniteError
from penstock.events import (
    BeginEpoch,
    BeginStep,
    BeginTraining,
    EndEpoch,
    EndStep,
    EndTraining,
    combine_handlers,
)
from penstock.handlers import (
    CSVLog,
    EarlyStopping,
    Evaluate,
    JSONLog,
    LearningRateFinder,
    Log,
    MLflow,
    Plot,
    ReduceOnPlateau,
    Report,
    StopAt,
    Summary,
    TensorBoard,
    WandB,
)
from tests.handlers.driving import Source, drive, driven_trainer, linear_trainer, two_objectives
from tests.networks import assert_same_bits, linear_data, linear_reader

STATEFUL = ("CSVLog", "EarlyStopping", "Evaluate", "JSONLog", "Plot", "ReduceOnPlateau", "Report")


def all_handlers(folder, every_steps=4):
    evaluate = Evaluate(linear_reader(), every_steps=every_steps, file=io.StringIO())
    handlers = [
        Plot(folder / "curves.png", every_steps=every_steps, test=evaluate),
        TensorBoard(folder / "board", every_steps=every_steps, test=evaluate),
        Summary(file=io.StringIO()),
        Log(every_steps, file=io.StringIO()),
        CSVLog(folder / "log.csv", every_steps=every_steps, test=evaluate),
        JSONLog(folder / "log.jsonl", every_steps=every_steps, test=evaluate),
        Report(folder / "report.html", every_steps=every_steps, test=evaluate),
        evaluate,
        EarlyStopping(patience=99, test=evaluate),
        ReduceOnPlateau(patience=99, test=evaluate),
        StopAt(step=10**9, seconds=1e9),
    ]
    return {type(handler).__name__: handler for handler in handlers}


STATELESS = ("Log", "StopAt", "Summary", "TensorBoard")
WRITERS = pytest.mark.parametrize("name", ["CSVLog", "JSONLog", "Plot", "Report", "TensorBoard"])
NAMES = pytest.mark.parametrize("name", [*STATEFUL, *STATELESS])


INTERVAL = [3, 7, 11, 15, 19]
READ = {
    "CSVLog": (INTERVAL, [0, 1]),
    "EarlyStopping": ([], [0, 1]),
    "Evaluate": ([], []),
    "JSONLog": (INTERVAL, [0, 1]),
    "Log": (INTERVAL, []),
    "Plot": (INTERVAL, []),
    "ReduceOnPlateau": ([], [0, 1]),
    "Report": (INTERVAL, [0, 1]),
    "StopAt": ([], []),
    "TensorBoard": (INTERVAL, [0, 1]),
}
"""The steps and the epochs of two, of ten steps each, whose metrics a handler reads."""


@pytest.mark.parametrize("name", READ)
def test_steps_off_the_interval_are_not_read_and_others_after_the_next_launch(name, tmp_path):
    plateaus = {plateau.__name__: plateau for plateau in (EarlyStopping, ReduceOnPlateau)}
    handler = plateaus[name](patience=9) if name in plateaus else all_handlers(tmp_path)[name]
    source = drive(handler, num_epochs=2, num_steps=10, trainer=driven_trainer())
    assert (source.steps, source.epochs) == READ[name]
    # The last step of an epoch has no launch behind it.
    assert source.late == [step != 19 for step in source.steps]


def test_of_a_launch_of_several_steps_none_is_read_before_the_next_launch(tmp_path):
    source = Source()
    emit = combine_handlers(
        [CSVLog(tmp_path / "log.csv", every_steps=2), Log(2, file=io.StringIO())]
    )
    emit(BeginTraining(0, 1, 0))
    emit(BeginEpoch(0, 0))
    for first in (0, 4, 8):
        for step in range(first, first + 4):
            emit(BeginStep(0, step, step))
        for step in range(first, first + 4):
            emit(EndStep(0, step, step, 10, source.step(step)))
        assert sorted({*source.steps}) == [*range(1, first, 2)]
    emit(EndTraining("completed"))
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 7


@pytest.mark.parametrize("is_first", [True, False])
def test_tests_before_a_checkpoint_are_in_the_curves_of_a_resumed_run(is_first, tmp_path):
    for num_epochs in (2, 3):
        evaluate = Evaluate(linear_reader(), file=io.StringIO())
        plot = Plot(tmp_path / "curves.png", test=evaluate)
        report = Report(tmp_path / "report.html", test=evaluate)
        handlers = [evaluate, plot, report] if is_first else [plot, report, evaluate]
        trainer = linear_trainer(checkpoint=tmp_path / "run")
        trainer.train(linear_reader(), handlers, num_epochs=num_epochs)
    assert plot.get_state()["test"]["loss"]["x"] == [3, 6, 9]
    assert [num_steps for num_steps, _ in report.get_state()["tests"]] == [3, 6, 9]


def test_all_together_do_not_change_what_is_trained(tmp_path):
    with_all, alone = linear_trainer(seed=3), linear_trainer(seed=3)
    handlers = list(all_handlers(tmp_path, every_steps=1).values())
    with_all.train(linear_reader(), handlers, num_epochs=3)
    alone.train(linear_reader(), num_epochs=3)
    assert_same_bits(dict(with_all.parameters), dict(alone.parameters))


def test_all_together_follow_several_objectives_and_several_steps_a_launch(tmp_path):
    trainer = ps.Trainer(two_objectives(), place="cpu", steps_per_call=2)
    file = io.StringIO()
    evaluate = Evaluate(linear_reader(), monitor="two", file=io.StringIO())
    handlers = [
        evaluate,
        Log(2, file=file),
        CSVLog(tmp_path / "log.csv", every_steps=2),
        JSONLog(tmp_path / "log.jsonl", every_steps=2),
        Report(tmp_path / "report.html", every_steps=2, test=evaluate),
        EarlyStopping("one", test=evaluate),
        ReduceOnPlateau("two"),
    ]
    trainer.train(linear_reader(), handlers, num_epochs=2)
    assert "] one = " in file.getvalue()
    header = (tmp_path / "log.csv").read_text().splitlines()[0]
    assert header.endswith(",examples,one,two")
    assert set(evaluate.results[0][1]) == {"one", "two"}


def test_all_together_leave_the_error_that_ends_training_and_write_what_was_before(tmp_path):
    data = linear_data(10)
    data["x"][5] = np.nan  # in the second batch
    handlers = all_handlers(tmp_path, every_steps=1)
    with pytest.raises(NonFiniteError):
        linear_trainer().train(ps.readers.arrays(data, 4), list(handlers.values()), num_epochs=2)
    rows = (tmp_path / "log.csv").read_text().splitlines()
    assert sum(row.startswith("step,0,0,0,") for row in rows) == 1
    assert any(row.endswith(",nan") for row in rows)
    assert "failed: NonFiniteError" in (tmp_path / "report.html").read_text(encoding="utf-8")


@NAMES
def test_handler_serves_one_training_after_another(name, tmp_path):
    handlers = all_handlers(tmp_path)
    for _ in range(2):
        drive([handlers["Evaluate"], handlers[name]], num_epochs=2, trainer=driven_trainer())


@pytest.mark.parametrize("name", STATEFUL)
def test_state_at_any_event_goes_through_json_and_back(name, tmp_path):
    handlers = all_handlers(tmp_path)
    states = []

    def keep(event):
        if isinstance(event, BeginTraining | EndStep | EndEpoch | EndTraining):
            states.append(handlers[name].get_state())

    drive([handlers["Evaluate"], handlers[name], keep], num_epochs=2, trainer=driven_trainer())
    assert len(states) == 20
    for state in states:
        as_json = json.loads(json.dumps(state, allow_nan=False))
        assert as_json == state
        other = all_handlers(tmp_path)[name]
        other.set_state(as_json)
        assert other.get_state() == state


@WRITERS
def test_other_processes_than_the_first_write_nothing(name, tmp_path, monkeypatch):
    monkeypatch.setattr("jax.process_index", lambda: 1)
    drive(all_handlers(tmp_path)[name], trainer=driven_trainer())
    assert list(tmp_path.iterdir()) == []


@WRITERS
def test_file_that_cannot_be_written_does_not_hide_the_error_that_ended_training(name, tmp_path):
    (tmp_path / "file").write_text("")
    handler = all_handlers(tmp_path / "file")[name]
    with contextlib.suppress(OSError):  # some say so when training begins
        handler(BeginTraining(0, 1, 0, driven_trainer()))
    handler(EndTraining("failed", ValueError("the first"), 0))


@pytest.mark.parametrize(
    ("handler", "package", "extra"),
    [
        (TensorBoard, "tensorboard", "tensorboard"),
        (Plot, "matplotlib", "plot"),
        (LearningRateFinder, "matplotlib", "plot"),
        (WandB, "wandb", "wandb"),
        (MLflow, "mlflow", "mlflow"),
    ],
)
def test_package_that_is_not_installed_names_the_extra(handler, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    text = rf'{handler.__name__} got no {package}, .* Run pip install "penstock\[{extra}\]"'
    with pytest.raises(ModuleNotFoundError, match=text):
        handler(*(["runs"] if handler is TensorBoard else []))


@pytest.mark.parametrize(
    ("make", "text"),
    [(Plot, "file"), (Report, "Report got the path .*, expected one that can be written ")],
)
def test_page_or_picture_that_cannot_be_written_is_warned_of_and_an_error_at_the_end(
    make, text, tmp_path, clock, caplog
):
    (tmp_path / "file").write_text("")
    suffix = "png" if make is Plot else "html"
    wait = lambda step: setattr(clock, "now", clock.now + 10)  # noqa: E731
    with pytest.raises(OSError, match=text) as caught:
        drive(make(tmp_path / "file" / f"a.{suffix}", every_steps=1), num_steps=5, on_step=wait)
    assert caught.value.errno in (errno.ENOTDIR, errno.EEXIST)
    assert len([r for r in caplog.records if "training goes on" in r.getMessage()]) == 1


@pytest.mark.slow
def test_writing_imports_neither_tensorflow_nor_the_plots_of_users(tmp_path):
    code = (
        "import sys; from tests.handlers.driving import drive\n"
        "from penstock.handlers import Plot, TensorBoard\n"
        f"drive(TensorBoard({str(tmp_path / 'board')!r}, every_steps=1))\n"
        f"drive(Plot({str(tmp_path / 'a.png')!r}, every_steps=1))\n"
        "names = ('tensorflow', 'tensorboard.compat.tensorflow_stub', 'matplotlib.pyplot')\n"
        "print('matplotlib.figure' in sys.modules, any(name in sys.modules for name in names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"], done.stderr
