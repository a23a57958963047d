import io
import sys

from penstock.readers.convert import download
from penstock.readers.convert.download import show_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminal_gets_a_bar_on_stderr_and_stdout_nothing(capsys, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with show_progress() as report:
        report("a.bin", 0, None)
        report("a.bin", 500_000, 1_000_000)
        report("a.bin", 1_000_000, 1_000_000)
    assert "a.bin" in terminal.getvalue()
    assert "1.0/1.0 MB" in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_pipe_gets_a_line_an_interval_on_stderr(capsys, monkeypatch):
    now_secs = iter([0.0, 4.0, 11.0, 12.0, 21.5, 22.0, 31.0, 33.0])
    monkeypatch.setattr(download.time, "monotonic", lambda: next(now_secs))
    with show_progress() as report:
        for num_bytes in range(5):
            report("a.bin", num_bytes * 1_000_000, 5_000_000)
        for num_bytes in range(3):
            report("b.bin", num_bytes * 1_000_000, None)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["a.bin: 2.0 of 5.0 MB", "a.bin: 4.0 of 5.0 MB", "b.bin: 2.0 MB"]
