"""A notebook as far as handlers see one, and a clock that stands still."""

import sys
from types import SimpleNamespace

import pytest

from penstock.handlers import _readings, figures, progress, row_log, stop_at
from penstock.handlers.report import history


class Notebook:
    """What the cells of a notebook show; `display` is IPython's.

    Attributes:
      outputs: by cell output, what it showed in turn, by the type of the content.
    """

    def __init__(self):
        self.outputs = []

    @property
    def texts(self):
        """What the only output showed as text, in turn."""
        (shown,) = self.outputs
        return [data["text/plain"] for data in shown]

    def display(self, data, raw, display_id):
        assert raw
        assert display_id
        shown = [data]
        self.outputs.append(shown)

        def update(data, raw):
            assert raw
            shown.append(data)

        return SimpleNamespace(update=update)


@pytest.fixture
def notebook(monkeypatch):
    """Let this process look like a notebook's kernel; the real one would be a server."""
    notebook = Notebook()
    shell = SimpleNamespace(kernel=object())
    modules = {"IPython": SimpleNamespace(get_ipython=lambda: shell), "IPython.display": notebook}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return notebook


class Clock:
    """A clock that stands still until it is told to go on; takes the place of the module `time`."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (_readings, figures, history, progress, row_log, stop_at):
        monkeypatch.setattr(module, "time", clock)
    return clock
