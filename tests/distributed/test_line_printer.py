"""Lines of several processes on one stdout: whole, numbered, and never waited for."""

import contextlib
import io
import os
import pty
import sys

import pytest

from penstock.distributed._line_printer import LinePrinter


@contextlib.contextmanager
def streams_on(monkeypatch, descriptor: int):
    """Have stdout and stderr on a descriptor."""
    with os.fdopen(descriptor, "w", closefd=False) as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)
        yield


def test_lines_have_the_number_of_their_process(capfd):
    printer = LinePrinter()
    printer.print_lines(0, [b"one", b"", b"\xff"], is_error=False)
    printer.print_lines(11, [b"two"], is_error=True)
    printer.say("bye")
    printer.drain((), 10.0)
    printed = capfd.readouterr()
    assert printed.out == "[0] one\n[0] \n[0] \udcff\n".encode(errors="surrogateescape").decode(
        errors="replace"
    )
    assert printed.err == "[11] two\npenstock launch: bye\n"


def test_streams_without_a_descriptor_are_written_as_text(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", None)
    printer = LinePrinter()
    printer.print_lines(0, [b"one\xff"], is_error=False)
    printer.print_lines(0, [b"two"], is_error=True)
    printer.flush()
    assert out.getvalue() == "[0] one\N{REPLACEMENT CHARACTER}\n"
    assert printer.failure is None


def test_reader_that_has_stopped_is_not_waited_for_and_gets_all_when_it_goes_on(monkeypatch):
    reading, writing = os.pipe()
    with streams_on(monkeypatch, writing):
        printer = LinePrinter()
        lines = 0
        while not printer.is_full(is_error=True):
            printer.print_lines(lines % 3, [b"%d" % lines * 1000], is_error=lines % 2 == 1)
            printer.flush()
            lines += 1
        printer.drain((), 0.0)
        # A signal ends the wait too.
        printer.drain([15], 60.0)
        read = b""
        while read.count(b"\n") < lines:
            read += os.read(reading, 1 << 16)
            printer.flush()
    assert read == b"".join(b"[%d] %s\n" % (n % 3, b"%d" % n * 1000) for n in range(lines))
    os.close(reading)
    os.close(writing)


def test_closed_pipe_is_remembered_and_the_rest_dropped(monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    with streams_on(monkeypatch, writing):
        printer = LinePrinter()
        printer.print_lines(0, [b"one"] * 10_000, is_error=False)
        printer.drain((), 60.0)
    os.close(writing)
    assert printer.failure is not None
    name, error = printer.failure
    assert (name, type(error)) == ("standard output", BrokenPipeError)
    assert not printer.is_full(is_error=False)


@pytest.mark.parametrize("is_refused", [False, True])
def test_terminal_gets_colours_unless_it_refuses_them(monkeypatch, is_refused):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    if is_refused:
        monkeypatch.setenv("NO_COLOR", "1")
    master, terminal = pty.openpty()
    with streams_on(monkeypatch, terminal):
        printer = LinePrinter()
        printer.print_lines(1, [b"plain", b"\x1b[31mred"], is_error=False)
        printer.drain((), 60.0)
    read = os.read(master, 1 << 16).replace(b"\r\n", b"\n")
    os.close(master)
    os.close(terminal)
    if is_refused:
        assert read == b"[1] plain\n[1] \x1b[31mred\n"
    else:
        prefix = b"\x1b[33m[1]\x1b[0m "
        assert read == prefix + b"plain\n" + prefix + b"\x1b[31mred\x1b[0m\n"
