"""Progress: what it shows, how rarely it waits, and that it cleans up."""

import io
import itertools
import re

import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers, readers
from penstock.events import BeginEpoch, BeginStep, BeginTraining, EndEpoch, EndStep, EndTraining
from penstock.handlers import Progress, _display, progress

HIDE_CURSOR, SHOW_CURSOR, CURSOR_UP = "\x1b[?25l", "\x1b[?25h", "\x1b[1A"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that stands still until it is told to go on."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (_display, progress):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return Terminal()


def run_epochs(
    progress,
    clock,
    *,
    num_epochs,
    num_steps,
    step_secs,
    read=None,
    length=True,
    data_wait=None,
    beside=lambda step: (0.0, 0.0),
):
    """Send the events of a run; each step takes `step_secs` and has 10 examples."""
    progress(BeginTraining(epoch=0, num_epochs=num_epochs, global_step=0))
    numbers = itertools.count()
    for epoch in range(num_epochs):
        progress(BeginEpoch(epoch, 0, num_steps if length else None))
        for step in range(num_steps):
            progress(BeginStep(epoch, step, next(numbers)))
            secs = beside(step)
            clock.now += step_secs + sum(secs)
            progress(EndStep(epoch, step, 0, 10, read, None, None, *secs))
        means = lambda: (0.5, 0.25)  # noqa: E731
        progress(EndEpoch(epoch, 0, num_steps, 10 * num_steps, means, data_wait))
    progress(EndTraining("completed"))


def test_plain_lines_come_every_five_seconds_and_at_each_epoch(clock):
    file = io.StringIO()
    progress = Progress(("loss", "accuracy"), file=file)
    run_epochs(progress, clock, num_epochs=2, num_steps=8, step_secs=1.0, read=lambda: (1.5, 0.125))
    assert file.getvalue().splitlines() == [
        "epoch 1/2  step 6/8  loss 1.5000  accuracy 0.1250  10 ex/s  0:10 left",
        "epoch 1/2  loss 0.5000  accuracy 0.2500  10 ex/s  0:08 left",
        "epoch 2/2  step 3/8  loss 1.5000  accuracy 0.1250  10 ex/s  0:05 left",
        "epoch 2/2  step 8/8  loss 1.5000  accuracy 0.1250  10 ex/s",
        "epoch 2/2  loss 0.5000  accuracy 0.2500  10 ex/s",
    ]


def test_plain_lines_hold_no_control_characters_and_no_carriage_return(clock):
    file = io.StringIO()
    run_epochs(Progress(file=file), clock, num_epochs=2, num_steps=50, step_secs=1.0)
    assert file.getvalue().replace("\n", "").isprintable()


def test_time_left_is_unknown_until_the_first_epoch_has_shown_its_length(clock):
    file = io.StringIO()
    run_epochs(Progress(file=file), clock, num_epochs=2, num_steps=8, step_secs=1.0, length=False)
    lines = file.getvalue().splitlines()
    assert lines[0] == "epoch 1/2  step 6  10 ex/s"
    assert lines[1].endswith("0:08 left")


def test_first_launch_is_left_out_of_the_rates(clock):
    file = io.StringIO()
    progress = Progress(file=file)
    progress(BeginTraining(epoch=0, num_epochs=1, global_step=0))
    progress(BeginEpoch(0, 0, 2))
    for step, secs in enumerate([60.0, 2.0]):
        progress(BeginStep(0, step, step))
        clock.now += secs
        progress(EndStep(0, step, step, 10))
    progress(EndEpoch(0, 2, read=lambda: 1.0))
    assert file.getvalue().splitlines()[-1] == "epoch 1/1  loss 1.0000  5 ex/s"


def test_metrics_are_read_four_times_a_second_at_most(terminal, clock):
    reads = []
    run_epochs(
        Progress(file=terminal),
        clock,
        num_epochs=2,
        num_steps=500,
        step_secs=0.002,
        read=lambda: reads.append(clock.now) or 1.0,
    )
    assert 4 <= len(reads) <= 8  # in two seconds
    assert np.diff(reads).min() > 0.2


def test_metrics_are_read_after_the_next_launch(clock):
    launched = []

    def read_of(number):
        def read():
            assert max(launched) > number, "waited for the last step that was launched"
            return 1.0

        return read

    progress = Progress(file=io.StringIO())
    progress(BeginTraining(epoch=0, num_epochs=1, global_step=0))
    progress(BeginEpoch(0, 0, 100))
    for first in range(0, 100, 4):  # four steps a launch
        for step in range(first, first + 4):
            progress(BeginStep(0, step, step))
        clock.now += 3
        launched.append(first)
        for step in range(first, first + 4):
            progress(EndStep(0, step, step, 10, read_of(first)))


def test_test_metrics_stand_beside_the_epochs(clock):
    file = io.StringIO()
    progress = Progress(("loss",), file=file, test=lambda: {"loss": 2.0, "recall": 1e-5})
    run_epochs(progress, clock, num_epochs=1, num_steps=1, step_secs=1.0)
    expected = "epoch 1/1  loss 0.5000 (test 2.0000)  metric_1 0.2500  test recall 1.000e-05\n"
    assert file.getvalue() == expected


@pytest.mark.parametrize(
    ("metrics", "text"),
    [
        (0.5, "  loss 0.5000"),
        ((0.5, 20000.0), "  loss 0.5000  accuracy 2.000e+04"),
        ([0.5, 0.25, 0.0], "  loss 0.5000  accuracy 0.2500  metric_2 0.0000"),
        ({"cost": 0.5, "auc": float("nan")}, "  cost 0.5000  auc nan"),
        ((0.5, np.ones([4])), "  loss 0.5000"),
        ({"d": 0.5, "g": (0.5, 1.0)}, "  d 0.5000  g loss 0.5000  g accuracy 1.0000"),
        (None, ""),
    ],
)
def test_metrics_are_named(metrics, text):
    values = progress.name_scalars(metrics, ("loss", "accuracy"))
    assert "".join(progress._format_metrics(values)) == text


@pytest.mark.parametrize(("secs", "text"), [(0.4, "0:00"), (59.6, "1:00"), (3725, "1:02:05")])
def test_durations_are_readable(secs, text):
    assert _display._format_duration(secs) == text


def test_terminal_gets_one_line_for_each_epoch_and_its_cursor_back(terminal, clock):
    run_epochs(
        Progress(("loss", "accuracy"), file=terminal), clock, num_epochs=3, num_steps=9, step_secs=1
    )
    text = terminal.getvalue()
    for number in (1, 2, 3):
        assert f"epoch {number}/3  loss 0.5000  accuracy 0.2500\n" in text
    assert text.rindex(SHOW_CURSOR) > text.rindex(HIDE_CURSOR)


def test_terminal_without_unicode_gets_ascii(monkeypatch, clock):
    monkeypatch.setenv("TERM", "xterm")
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(file, "isatty", lambda: True, raising=False)
    run_epochs(Progress(file=file), clock, num_epochs=1, num_steps=9, step_secs=1)


def test_dumb_terminal_gets_plain_lines(terminal, clock, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    run_epochs(Progress(file=terminal), clock, num_epochs=1, num_steps=2, step_secs=1.0)
    assert "\x1b" not in terminal.getvalue()


def program():
    prediction = layers.fc(layers.data("x", shape=[2]), size=1)
    return layers.mean(layers.square_error_cost(prediction, layers.data("y", shape=[1])))


def reader():
    x = np.ones([20, 2], "float32")
    return readers.arrays({"x": x, "y": x[:, :1]}, batch_size=10)


def raise_at(kind):
    def handler(event):
        if isinstance(event, kind):
            raise RuntimeError("a handler's own mistake")

    return handler


@pytest.mark.quick("True-EndStep", "False-EndEpoch")
@pytest.mark.parametrize("kind", [BeginTraining, BeginEpoch, EndStep, EndEpoch, EndTraining])
@pytest.mark.parametrize("is_first", [True, False])
def test_display_is_closed_when_another_handler_raises(terminal, kind, is_first):
    trainer = ps.Trainer(program, optax.sgd(0.1), place="cpu")
    both = [Progress(file=terminal), raise_at(kind)]
    with pytest.raises(RuntimeError, match="a handler's own mistake"):
        trainer.train(reader(), both if is_first else both[::-1], num_epochs=2)
    text = terminal.getvalue()
    assert text.count(HIDE_CURSOR) == text.count(SHOW_CURSOR)
    assert text.rfind(SHOW_CURSOR) >= text.rfind(HIDE_CURSOR)


def test_display_is_closed_when_the_test_raises(terminal):
    def test():
        raise RuntimeError("no test data")

    trainer = ps.Trainer(program, optax.sgd(0.1), place="cpu")
    with pytest.raises(RuntimeError, match="no test data"):
        trainer.train(reader(), Progress(file=terminal, test=test))
    assert terminal.getvalue().rindex(SHOW_CURSOR) > terminal.getvalue().rindex(HIDE_CURSOR)


def test_second_training_goes_on_counting(clock):
    file = io.StringIO()
    trainer = ps.Trainer(program, optax.sgd(0.1), place="cpu")
    progress = Progress(file=file, test=lambda: trainer.test(reader()))
    trainer.train(reader(), progress, num_epochs=2)
    trainer.train(reader(), progress, num_epochs=1)
    assert [line[:11] for line in file.getvalue().splitlines()] == [
        "epoch 1/2  ",
        "epoch 2/2  ",
        "epoch 3/3  ",
    ]


def test_several_steps_a_launch_and_several_objectives_are_shown(clock):
    @layers.scope("other")
    def other_program():
        return program()

    file = io.StringIO()
    objectives = {
        "one": ps.Objective(program, optax.sgd(0.1), updates="fc_0"),
        "two": ps.Objective(other_program, optax.sgd(0.1), updates="other"),
    }
    trainer = ps.Trainer(objectives, place="cpu", steps_per_call=2)
    progress = Progress(file=file, test=lambda: trainer.test(reader()))
    trainer.train(reader(), progress, num_epochs=2)
    for line in file.getvalue().splitlines():
        assert re.match(r"epoch \d/2  one [\d.e-]+ \(test [\d.e-]+\)  two [\d.e-]+ \(test", line)


def test_steps_that_fetch_nothing_show_no_metrics(clock):
    file = io.StringIO()
    run_epochs(Progress(file=file), clock, num_epochs=1, num_steps=8, step_secs=1.0, read=None)
    assert file.getvalue().splitlines()[0] == "epoch 1/1  step 6/8  10 ex/s  0:02 left"


def test_compiling_and_measuring_are_no_part_of_the_speed_and_measuring_one_of_the_time_left(clock):
    file = io.StringIO()
    beside = {2: (90.0, 0.0), 3: (0.0, 4.0), 4: (0.0, 1.0)}
    run_epochs(
        Progress(file=file),
        clock,
        num_epochs=1,
        num_steps=8,
        step_secs=1.0,
        beside=lambda step: beside.get(step, (0.0, 0.0)),
    )
    # From the second launch on five steps: five seconds, and five of measuring.
    assert file.getvalue().splitlines()[-2:] == [
        "epoch 1/1  step 6/8  10 ex/s  0:04 left",
        "epoch 1/1  loss 0.5000  metric_1 0.2500  10 ex/s",
    ]


@pytest.mark.parametrize(("data_wait", "is_shown"), [(0.123, True), (0.009, False), (None, False)])
def test_data_wait_of_a_percent_is_shown_with_its_epoch_and_in_the_next(clock, data_wait, is_shown):
    file = io.StringIO()
    progress = Progress(file=file)
    run_epochs(progress, clock, num_epochs=2, num_steps=8, step_secs=1.0, data_wait=data_wait)
    lines = file.getvalue().splitlines()
    assert ["12% data wait" in line for line in lines] == [False] + 4 * [is_shown]
    assert any("data wait" in line for line in lines) == is_shown


@pytest.mark.parametrize("width", [1, 10, 20, 30, 40, 60, 80, 100, 140])
def test_live_line_is_never_wider_than_the_terminal(terminal, clock, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    run_epochs(
        Progress(("loss", "accuracy"), file=terminal),
        clock,
        num_epochs=2,
        num_steps=100,
        step_secs=0.1,
        read=lambda: (0.5, 0.25),
        data_wait=0.1,
    )
    # More lines than one would be taken back by going up; at the end that is done for the one.
    assert CURSOR_UP not in terminal.getvalue().partition(SHOW_CURSOR)[0]
