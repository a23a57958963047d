"""Progress on a device that tells its memory, in little room, and in a notebook."""

import io
import sys
from types import SimpleNamespace

import pytest

from penstock.handlers import Progress, _display, _pace, progress
from tests.handlers.driving import Clock, Source, drive


def shown(handler, monkeypatch, **options):
    """Send the events of a run of steps of a second each."""
    clock = Clock()
    for module in (_pace, progress):
        monkeypatch.setattr(module, "time", clock)

    def on_step(step):
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


@pytest.mark.parametrize(
    ("num_chars", "text"),
    [
        (30, "loss 0.5  9 ex/s  0:10 left"),
        (17, "loss 0.5  9 ex/s"),
        (10, "loss 0.5"),
        (7, "loss..."),
        (2, "..."),
    ],
)
def test_parts_that_do_not_fit_are_left_out_from_the_end(num_chars, text):
    assert _display._fit("loss 0.5", ["  9 ex/s", "", "  0:10 left"], num_chars) == text


class Output:
    """What a notebook's cell shows; `IPython.display.display` is its first call."""

    def __init__(self):
        self.shown = []

    def display(self, data, raw, display_id):
        assert raw
        assert display_id
        return self.update(data, raw)

    def update(self, data, raw):
        self.shown.append(data["text/plain"])
        return self


@pytest.fixture
def notebook(monkeypatch):
    """Let this process look like a notebook's kernel; the real one would be a server."""
    output = Output()
    shell = SimpleNamespace(kernel=object())
    modules = {"IPython": SimpleNamespace(get_ipython=lambda: shell), "IPython.display": output}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return output


def test_notebook_shows_one_output_that_changes(notebook, monkeypatch, capsys):
    source = Source(lambda step: (float(step), 0.25))
    shown(Progress(("loss", "accuracy")), monkeypatch, num_epochs=2, source=source)
    first = "epoch 1/2  loss 7.0000  accuracy 0.2500"
    assert notebook.shown[1] == "epoch 1/2  step 0/8  compiling"
    assert any(text.startswith(f"{first}\nepoch 2/2  step 2/8  loss") for text in notebook.shown)
    assert notebook.shown[-1] == f"{first}\nepoch 2/2  loss 15.0000  accuracy 0.2500"
    assert not capsys.readouterr().out


def test_notebook_that_gives_a_file_gets_lines_in_it(notebook, monkeypatch):
    file = io.StringIO()
    shown(Progress(file=file), monkeypatch)
    assert file.getvalue()
    assert not notebook.shown


def test_ipython_on_a_terminal_is_no_notebook(notebook, monkeypatch, capsys):
    shell = SimpleNamespace(get_ipython=lambda: object())
    monkeypatch.setitem(sys.modules, "IPython", shell)
    shown(Progress(), monkeypatch)
    assert capsys.readouterr().out.startswith("epoch 1/1")
