"""Progress: what it shows where, how rarely it waits, and that it cleans up."""

import io
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import penstock as ps
from penstock.events import BeginEpoch, BeginTraining, EndEpoch, EndStep, EndTraining
from penstock.handlers import Evaluate, Progress, progress
from tests.handlers.driving import Source, drive, linear_trainer, two_objectives
from tests.networks import linear_reader

HIDE_CURSOR, SHOW_CURSOR, CURSOR_UP = "\x1b[?25l", "\x1b[?25h", "\x1b[1A"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return Terminal()


def shown(handler, clock, secs=1.0, beside=lambda step: (0.0, 0.0), refresh=lambda: None, **run):
    """Send the events of a run whose steps take so long; `refresh` is called before each."""

    def on_step(step):
        refresh()
        clock.now += secs + sum(beside(step))

    drive(handler, on_step=on_step, beside=beside, **run)


def lines_of(clock, *, names=("loss", "accuracy"), metrics=(0.5, 0.25), options=None, **run):
    """Return the lines that a run leaves in a file that is no terminal."""
    file = io.StringIO()
    handler = Progress(names, file=file, **(options or {}))
    shown(handler, clock, source=Source(metrics), **run)
    return file.getvalue().splitlines()


@pytest.mark.parametrize("is_behind", [False, True])
def test_an_evaluate_tests_at_its_own_interval(is_behind):
    trainer, file = linear_trainer(), io.StringIO()
    evaluate = Evaluate(linear_reader(), every_epochs=2, file=io.StringIO())
    handlers = [evaluate, Progress(file=file, test=evaluate)]
    trainer.train(linear_reader(), handlers[:: -1 if is_behind else 1], num_epochs=3)
    num_steps = trainer.global_step // 3
    assert [step for step, _ in evaluate.results] == [2 * num_steps]
    lines = file.getvalue().splitlines()
    assert ["(test " in line for line in lines] == [False, True, False]
    assert f"(test {evaluate.results[0][1]['loss']:.4f})" in lines[1]


def test_plain_lines_come_every_five_seconds_and_at_each_epoch(clock):
    metrics = lambda step: (1.5, 0.125) if step % 8 < 7 else (0.5, 0.25)  # noqa: E731
    assert lines_of(clock, num_epochs=2, metrics=metrics) == [
        "epoch 1/2  step 6/8  loss 1.5000  accuracy 0.1250  10 ex/s  0:10 left",
        "epoch 1/2  loss 0.5000  accuracy 0.2500  10 ex/s  0:08 left",
        "epoch 2/2  step 3/8  loss 1.5000  accuracy 0.1250  10 ex/s  0:05 left",
        "epoch 2/2  step 8/8  loss 1.5000  accuracy 0.1250  10 ex/s",
        "epoch 2/2  loss 0.5000  accuracy 0.2500  10 ex/s",
    ]


def test_time_left_is_unknown_until_the_first_epoch_has_shown_its_length(clock):
    lines = lines_of(clock, num_epochs=2, has_length=False, metrics=None)
    assert lines[0] == "epoch 1/2  step 6  10 ex/s"
    assert lines[1].endswith("0:08 left")


def test_first_launch_is_left_out_of_the_rates(clock):
    secs = iter([60.0, 2.0])
    file = io.StringIO()
    wait = lambda step: setattr(clock, "now", clock.now + next(secs))  # noqa: E731
    drive(Progress(file=file), num_steps=2, on_step=wait)
    assert file.getvalue().splitlines()[-1] == "epoch 1/1  loss 0.5000  5 ex/s"


def test_metrics_are_read_four_times_a_second_at_most(terminal, clock):
    source = Source()
    shown(Progress(file=terminal), clock, 0.002, num_epochs=2, num_steps=500, source=source)
    assert 4 <= len(source.steps) <= 8  # in two seconds
    assert np.diff(source.steps).min() * 0.002 > 0.2


def test_test_metrics_stand_beside_the_epochs(clock):
    test = {"test": lambda: {"loss": 2.0, "recall": 1e-5}}
    assert lines_of(clock, num_steps=1, names=("loss",), options=test) == [
        "epoch 1/1  loss 0.5000 (test 2.0000)  metric_1 0.2500  test recall 1.000e-05"
    ]


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
def test_metrics_are_named(clock, metrics, text):
    assert lines_of(clock, metrics=metrics)[0] == f"epoch 1/1  step 6/8{text}  10 ex/s  0:02 left"


@pytest.mark.parametrize(("secs", "text"), [(0.4, "0:00"), (59.6, "1:00"), (3725, "1:02:05")])
def test_durations_are_readable(secs, text):
    assert progress._format_duration(secs) == text


def test_terminal_gets_one_line_for_each_epoch_and_its_cursor_back(terminal, clock):
    handler = Progress(("loss", "accuracy"), file=terminal)
    shown(handler, clock, num_epochs=3, num_steps=9, source=Source((0.5, 0.25)))
    text = terminal.getvalue()
    for number in (1, 2, 3):
        assert f"epoch {number}/3  loss 0.5000  accuracy 0.2500\n" in text
    assert text.rindex(SHOW_CURSOR) > text.rindex(HIDE_CURSOR)


def test_terminal_without_unicode_gets_ascii(monkeypatch, clock):
    monkeypatch.setenv("TERM", "xterm")
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(file, "isatty", lambda: True, raising=False)
    shown(Progress(file=file), clock, num_steps=9)


def test_dumb_terminal_gets_plain_lines(terminal, clock, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    shown(Progress(file=terminal), clock, num_steps=2)
    assert "\x1b" not in terminal.getvalue()


@pytest.mark.quick("EndStep", "EndEpoch")
@pytest.mark.parametrize(
    ("kind", "is_first"),
    [
        *((BeginTraining, True), (BeginEpoch, False)),
        *((EndStep, True), (EndEpoch, False), (EndTraining, True)),
    ],
)
def test_display_is_closed_when_another_handler_raises(terminal, kind, is_first):
    def fail(event):
        if isinstance(event, kind):
            raise RuntimeError("a handler's own mistake")

    both = [Progress(file=terminal), fail]
    with pytest.raises(RuntimeError, match="a handler's own mistake"):
        linear_trainer().train(linear_reader(), both if is_first else both[::-1], num_epochs=2)
    text = terminal.getvalue()
    assert text.count(HIDE_CURSOR) == text.count(SHOW_CURSOR)
    assert text.rfind(SHOW_CURSOR) >= text.rfind(HIDE_CURSOR)


def test_second_training_goes_on_counting(clock):
    file, trainer = io.StringIO(), linear_trainer()
    handler = Progress(file=file, test=lambda: trainer.test(linear_reader()))
    trainer.train(linear_reader(), handler, num_epochs=2)
    trainer.train(linear_reader(), handler, num_epochs=1)
    numbers = [line[:11] for line in file.getvalue().splitlines()]
    assert numbers == ["epoch 1/2  ", "epoch 2/2  ", "epoch 3/3  "]


def test_several_steps_a_launch_and_several_objectives_are_shown(clock):
    file, trainer = io.StringIO(), ps.Trainer(two_objectives(), place="cpu", steps_per_call=2)
    handler = Progress(file=file, test=lambda: trainer.test(linear_reader()))
    trainer.train(linear_reader(), handler, num_epochs=2)
    for line in file.getvalue().splitlines():
        assert re.match(r"epoch \d/2  one [\d.e-]+ \(test [\d.e-]+\)  two [\d.e-]+ \(test", line)


def test_compiling_and_measuring_are_no_part_of_the_speed_and_measuring_one_of_the_time_left(clock):
    beside = {2: (90.0, 0.0), 3: (0.0, 4.0), 4: (0.0, 1.0)}
    lines = lines_of(clock, metrics=0.5, beside=lambda step: beside.get(step, (0.0, 0.0)))
    # From the second launch on five steps: five seconds, and five of measuring.
    assert lines[-2:] == [
        "epoch 1/1  step 6/8  loss 0.5000  10 ex/s  0:04 left",
        "epoch 1/1  loss 0.5000  10 ex/s",
    ]


@pytest.mark.parametrize(("data_wait", "is_shown"), [(0.123, True), (0.009, False), (None, False)])
def test_data_wait_of_a_percent_is_shown_with_its_epoch_and_in_the_next(clock, data_wait, is_shown):
    lines = lines_of(clock, num_epochs=2, data_wait=data_wait)
    assert ["12% data wait" in line for line in lines] == [False] + 4 * [is_shown]
    assert any("data wait" in line for line in lines) == is_shown


@pytest.mark.parametrize("width", [1, 10, 20, 30, 40, 60, 80, 100, 140])
def test_live_line_is_never_wider_than_the_terminal(terminal, clock, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    run = {"num_epochs": 2, "num_steps": 100, "data_wait": 0.1, "source": Source((0.5, 0.25))}
    shown(Progress(("loss", "accuracy"), file=terminal), clock, 0.1, **run)
    # More lines than one would be taken back by going up; at the end that is done for the one.
    assert CURSOR_UP not in terminal.getvalue().partition(SHOW_CURSOR)[0]


class Device:
    """A device that tells its memory, which the CPU does not."""

    def __init__(self, stats):
        self._stats = stats

    def memory_stats(self):
        return self._stats


@pytest.mark.parametrize(
    ("stats", "text"),
    [
        ({"bytes_in_use": 3 * 2**30, "bytes_limit": 75 * 2**30}, "  3.0/75.0 GiB"),
        ({"bytes_in_use": 2**29}, "  0.5 GiB"),
        ({"num_allocs": 1}, ""),
        (None, ""),
    ],
)
def test_memory_in_use_is_shown_where_the_device_tells_it(clock, stats, text):
    mesh = SimpleNamespace(local_devices=[Device(stats)])
    trainer = SimpleNamespace(builder=SimpleNamespace(mesh=mesh), secs_beside=0.0)
    file = io.StringIO()
    shown(Progress(file=file), clock, trainer=trainer)
    expected = f"epoch 1/1  step 6/8  loss 0.5000  10 ex/s  0:02 left{text}"
    assert file.getvalue().splitlines()[0] == expected


NAMES = ("loss", "accuracy", "top_5")


def lines_on_terminal(monkeypatch, clock, columns, **options):
    """Return the lines that a terminal of so many columns has shown, those replaced too."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    terminal, stats = Terminal(), {"bytes_in_use": 3 * 2**30, "bytes_limit": 75 * 2**30}
    trainer = SimpleNamespace(
        builder=SimpleNamespace(mesh=SimpleNamespace(local_devices=[Device(stats)])),
        secs_beside=0.0,
    )
    values = dict(zip(NAMES, (0.25, 0.5, 0.875), strict=True))
    shown_values = Progress(test=lambda: values, file=terminal, **options)
    shown(
        shown_values,
        clock,
        trainer=trainer,
        num_epochs=3,
        source=Source(lambda step: values),
        # rich's own thread does it ten times a second.
        refresh=lambda: shown_values._display._progress.refresh(),
    )
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", terminal.getvalue()))


@pytest.mark.parametrize(
    ("columns", "shown"),
    [(50, ()), (65, ("loss",)), (80, ("loss", "accuracy")), (120, (*NAMES, "75.0 GiB"))],
)
def test_terminal_shows_speed_and_time_left_in_lines_that_fit(monkeypatch, clock, columns, shown):
    lines = lines_on_terminal(monkeypatch, clock, columns)
    assert max(map(len, lines)) <= columns
    live = [line for line in lines if re.search(r"[2-7]/8 ", line)]
    assert live
    for line in live:
        assert re.search(r"epoch \d/3 .* \d/8  .*10 ex/s  0:\d\d left\b", line)
        # More where there is more.
        assert tuple(name for name in (*NAMES, "75.0 GiB") if name in line) == shown


def test_epochs_line_is_broken_between_metrics_only(monkeypatch, clock):
    lines = lines_on_terminal(monkeypatch, clock, 80)
    first = "epoch 1/3  loss 0.2500 (test 0.2500)  accuracy 0.5000 (test 0.5000)"
    number = [line.rstrip() for line in lines].index(first)
    assert lines[number + 1].rstrip() == "  top_5 0.8750 (test 0.8750)"


def test_epochs_and_steps_are_those_before_the_step_that_stops(clock):
    file = io.StringIO()
    shown(Progress(file=file, stop_at=12), clock, num_epochs=100)
    lines = file.getvalue().splitlines()
    assert lines[0] == "epoch 1/2  step 6/8  loss 0.5000  10 ex/s  0:06 left"
    second = next(line for line in lines if line.startswith("epoch 2"))
    assert re.match(r"epoch 2/2  step \d/4  loss 0.5000  10 ex/s", second)


def test_resumed_epoch_counts_the_steps_it_had_before(clock):
    file = io.StringIO()
    shown(Progress(file=file), clock, num_epochs=2, first=10)
    assert file.getvalue().startswith("epoch 2/2  step 8/8  loss 0.5000  10 ex/s")


def test_notebook_shows_one_output_that_changes(notebook, clock, capsys):
    source = Source(lambda step: (float(step), 0.25))
    shown(Progress(("loss", "accuracy")), clock, num_epochs=2, source=source)
    first = "epoch 1/2  loss 7.0000  accuracy 0.2500"
    assert notebook.texts[1] == "epoch 1/2  step 0/8  compiling"
    assert any(text.startswith(f"{first}\nepoch 2/2  step 2/8  loss") for text in notebook.texts)
    assert notebook.texts[-1] == f"{first}\nepoch 2/2  loss 15.0000  accuracy 0.2500"
    assert not capsys.readouterr().out


def test_notebook_that_gives_a_file_gets_lines_in_it(notebook, clock):
    file = io.StringIO()
    shown(Progress(file=file), clock)
    assert file.getvalue()
    assert not notebook.outputs


def test_ipython_on_a_terminal_is_no_notebook(notebook, monkeypatch, clock, capsys):
    shell = SimpleNamespace(get_ipython=lambda: object())
    monkeypatch.setitem(sys.modules, "IPython", shell)
    shown(Progress(), clock)
    assert capsys.readouterr().out.startswith("epoch 1/1")


def test_metrics_are_read_after_the_next_launch(clock):
    source = Source()
    shown(Progress(file=io.StringIO()), clock, 3.0, num_steps=50, source=source)
    assert len(source.late) > 5
    assert all(source.late[:-1])


def test_display_is_closed_when_the_test_raises(terminal):
    def test():
        raise RuntimeError("no test data")

    with pytest.raises(RuntimeError, match="no test data"):
        linear_trainer().train(linear_reader(), Progress(file=terminal, test=test))
    assert terminal.getvalue().rindex(SHOW_CURSOR) > terminal.getvalue().rindex(HIDE_CURSOR)
