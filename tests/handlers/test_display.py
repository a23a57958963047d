"""Progress on a device that tells its memory, in little room, and in a notebook."""

import io
import re
import sys
from types import SimpleNamespace

import pytest

from penstock.handlers import Progress, _display, progress
from tests.handlers.driving import Clock, Source, drive


def shown(handler, monkeypatch, refresh=lambda: None, **options):
    """Send the events of a run of steps of a second each; `refresh` is called before each."""
    clock = Clock()
    for module in (_display, progress):
        monkeypatch.setattr(module, "time", clock)

    def on_step(step):
        refresh()
        clock.now += 1

    drive(handler, on_step=on_step, **options)


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
def test_memory_in_use_is_shown_where_the_device_tells_it(monkeypatch, stats, text):
    mesh = SimpleNamespace(local_devices=[Device(stats)])
    trainer = SimpleNamespace(builder=SimpleNamespace(mesh=mesh))
    file = io.StringIO()
    shown(Progress(file=file), monkeypatch, trainer=trainer)
    expected = f"epoch 1/1  step 6/8  loss 0.5000  10 ex/s  0:02 left{text}"
    assert file.getvalue().splitlines()[0] == expected


LOADS = ["  2% data wait", "  3.0/75.0 GiB"]


@pytest.mark.parametrize(
    ("num_chars", "text"),
    [
        (90, "3/8  loss 0.5  accuracy 0.2  9 ex/s  0:10 left  2% data wait  3.0/75.0 GiB"),
        (65, "3/8  loss 0.5  accuracy 0.2  9 ex/s  0:10 left  2% data wait"),
        (50, "3/8  loss 0.5  accuracy 0.2  9 ex/s  0:10 left"),
        (40, "3/8  loss 0.5  9 ex/s  0:10 left"),
        (30, "3/8  9 ex/s  0:10 left"),
        (12, "3/8  9 ex..."),
        (2, "..."),
    ],
)
def test_what_does_not_fit_goes_before_speed_and_time_left(num_chars, text):
    metrics, rates = ["  loss 0.5", "  accuracy 0.2"], ["  9 ex/s", "", "  0:10 left"]
    assert _display._fit("3/8", metrics, rates, LOADS, num_chars) == text


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self):
        return True


def lines_on_terminal(monkeypatch, columns, **options):
    """Return the lines that a terminal of so many columns has shown, those replaced too."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    terminal, stats = Terminal(), {"bytes_in_use": 3 * 2**30, "bytes_limit": 75 * 2**30}
    trainer = SimpleNamespace(
        builder=SimpleNamespace(mesh=SimpleNamespace(local_devices=[Device(stats)]))
    )
    values = {"loss": 0.25, "accuracy": 0.5, "top_5": 0.875}
    shown_values = Progress(test=lambda: values, file=terminal, **options)
    shown(
        shown_values,
        monkeypatch,
        trainer=trainer,
        num_epochs=3,
        source=Source(lambda step: values),
        # rich's own thread does it ten times a second.
        refresh=lambda: shown_values._display._progress.refresh(),
    )
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", terminal.getvalue()))


@pytest.mark.parametrize("columns", [80, 120])
def test_terminal_shows_speed_and_time_left_in_lines_that_fit(monkeypatch, columns):
    lines = lines_on_terminal(monkeypatch, columns)
    assert max(map(len, lines)) <= columns
    live = [line for line in lines if re.search(r"[2-7]/8 ", line)]
    assert live
    for line in live:
        assert re.search(r"epoch \d/3 .* \d/8  loss 0.2500  accuracy 0.5000.*  10 ex/s  ", line)
        assert re.search(r"  0:\d\d left\b", line)
        # More where there is more.
        assert ("top_5 0.8750" in line) == ("75.0 GiB" in line) == (columns == 120)


def test_epochs_line_is_broken_between_metrics_only(monkeypatch):
    lines = lines_on_terminal(monkeypatch, 80)
    first = "epoch 1/3  loss 0.2500 (test 0.2500)  accuracy 0.5000 (test 0.5000)"
    number = [line.rstrip() for line in lines].index(first)
    assert lines[number + 1].rstrip() == "  top_5 0.8750 (test 0.8750)"


def test_epochs_and_steps_are_those_before_the_step_that_stops(monkeypatch):
    file = io.StringIO()
    shown(Progress(file=file, stop_at=12), monkeypatch, num_epochs=100)
    lines = file.getvalue().splitlines()
    assert lines[0] == "epoch 1/2  step 6/8  loss 0.5000  10 ex/s  0:06 left"
    second = next(line for line in lines if line.startswith("epoch 2"))
    assert re.match(r"epoch 2/2  step \d/4  loss 0.5000  10 ex/s", second)


def test_resumed_epoch_counts_the_steps_it_had_before(monkeypatch):
    file = io.StringIO()
    shown(Progress(file=file), monkeypatch, num_epochs=2, first=10)
    assert file.getvalue().startswith("epoch 2/2  step 8/8  loss 0.5000  10 ex/s")


def test_notebook_shows_one_output_that_changes(notebook, monkeypatch, capsys):
    source = Source(lambda step: (float(step), 0.25))
    shown(Progress(("loss", "accuracy")), monkeypatch, num_epochs=2, source=source)
    first = "epoch 1/2  loss 7.0000  accuracy 0.2500"
    assert notebook.texts[1] == "epoch 1/2  step 0/8  compiling"
    assert any(text.startswith(f"{first}\nepoch 2/2  step 2/8  loss") for text in notebook.texts)
    assert notebook.texts[-1] == f"{first}\nepoch 2/2  loss 15.0000  accuracy 0.2500"
    assert not capsys.readouterr().out


def test_notebook_that_gives_a_file_gets_lines_in_it(notebook, monkeypatch):
    file = io.StringIO()
    shown(Progress(file=file), monkeypatch)
    assert file.getvalue()
    assert not notebook.outputs


def test_ipython_on_a_terminal_is_no_notebook(notebook, monkeypatch, capsys):
    shell = SimpleNamespace(get_ipython=lambda: object())
    monkeypatch.setitem(sys.modules, "IPython", shell)
    shown(Progress(), monkeypatch)
    assert capsys.readouterr().out.startswith("epoch 1/1")
