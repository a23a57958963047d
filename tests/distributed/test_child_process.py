"""Lines of several processes on one stdout: whole, numbered, and never waited for."""

import contextlib
import functools
import io
import os
import sys
import threading

import pytest

from penstock.distributed._child_process import ChildProcess, LineAssembler, LinePrinter


@contextlib.contextmanager
def streams_on(monkeypatch, descriptor: int):
    """Have stdout and stderr on a descriptor."""
    with os.fdopen(descriptor, "w", closefd=False) as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)
        yield


def test_streams_without_a_descriptor_are_written_as_text(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", None)
    printer = LinePrinter()
    printer.print_lines(0, [b"one\xff"], is_error=False)
    printer.print_lines(0, [b"two"], is_error=True)
    assert out.getvalue() == "[0] one\N{REPLACEMENT CHARACTER}\n"
    assert printer.failure is None


def test_reader_that_has_stopped_is_not_waited_for_and_gets_all_when_it_goes_on(monkeypatch):
    reading, writing = os.pipe()
    with streams_on(monkeypatch, writing):
        printer = LinePrinter()
        for n in range(3):
            lines = [b"%d" % n * 1000] * 200
            printer.start(functools.partial(printer.print_lines, n, lines, is_error=n == 1))
        printer.say("ended")
        printer.drain((), 0.0)
        # A signal ends the wait too.
        printer.drain([15], 60.0)
        read = b""
        while read.count(b"\n") < 601:
            read += os.read(reading, 1 << 16)
        printer.drain((), 60.0)
    whole = [b"[%d] %s" % (n, b"%d" % n * 1000) for n in range(3) for _ in range(200)]
    assert sorted(read.splitlines()) == [*whole, b"penstock launch: ended"]
    os.close(reading)
    os.close(writing)


def test_lines_of_the_launcher_come_in_their_order(monkeypatch):
    printer, lines, is_second_there = LinePrinter(), list[bytes](), threading.Event()

    def write(line: bytes) -> None:
        if b"one" in line:
            is_second_there.wait(0.2)
        is_second_there.set()
        lines.append(line)

    monkeypatch.setattr(printer._outputs[True], "write", write)
    printer.say("one")
    printer.say("two")
    printer.drain((), 60.0)
    assert lines == [b"penstock launch: one\n", b"penstock launch: two\n"]


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="needs os.waitid")
def test_number_of_a_process_stays_its_own_until_its_end_is_seen():
    printer = LinePrinter()
    child = ChildProcess(0, ["true"], os.environ, printer, hears_alone=True)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    for thread in threading.enumerate():
        if thread.name.startswith("penstock launch"):
            thread.join()
    assert os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    child.look()
    assert (child.code, child.is_over) == (0, True)


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


def assemble(*chunks: bytes) -> list[bytes]:
    """Return the lines of chunks, the last one whole or not."""
    lines = LineAssembler()
    whole = [line for chunk in chunks for line in lines.feed(chunk, now=0.0)]
    return whole + lines.show(0.0, is_last=True)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"one\ntwo\n", [b"one", b"two"]),
        (b"one\n\n\ntwo", [b"one", b"", b"", b"two"]),
        (b"windows\r\nends\r\n", [b"windows", b"ends"]),
        (b" 1%\r 50%\r100%\nnext\n", [b"100%", b"next"]),
        (b"\r 1%\r 50%\r100%\n", [b"100%"]),
        (b" 1%\r 2%\r", [b" 2%"]),
        (b"bar\r   \r", []),
        (b"\xff\xfe\x00\xe4\n", [b"\xff\xfe\x00\xe4"]),
        (b"", []),
    ],
)
def test_lines_are_the_same_however_the_bytes_arrive(text, lines):
    assert assemble(text) == lines
    assert assemble(*(bytes([byte]) for byte in text)) == lines
    for cut in range(len(text)):
        assert assemble(text[:cut], text[cut:]) == lines


def test_text_that_stands_for_long_is_shown_and_not_again():
    lines = LineAssembler()
    assert lines.feed(b"loading", now=100.0) == []
    assert lines.show(104.9) == []
    assert lines.show(105.0) == [b"loading"]
    assert lines.show(200.0) == []
    assert lines.feed(b" done\n", now=201.0) == [b" done"]
    # Its newline alone is no empty line.
    lines.feed(b"loading", now=300.0)
    assert lines.show(305.0) == [b"loading"]
    assert lines.feed(b"\n\n", now=306.0) == [b""]
    # As an unbuffered print writes them after a silence: a text, then its newline.
    assert lines.feed(b"two", now=400.0) + lines.show(400.1) == []
    assert lines.feed(b"\n", now=400.2) == [b"two"]


def test_line_without_end_is_cut_and_its_memory_given_back():
    lines, piece = LineAssembler(), b"x" * (600 << 10)
    assert lines.feed(piece, now=0.0) + lines.show(0.0) == []
    assert lines.feed(piece, now=0.0) + lines.show(0.0) == [piece + piece]
    assert lines.feed(b"\n", now=0.0) + lines.show(0.0, is_last=True) == []


def test_progress_bar_is_shown_every_few_seconds():
    lines = LineAssembler()
    shown = []
    for tenths in range(200):
        assert lines.feed(b"\r%d%%" % tenths, now=tenths / 10) == []
        shown += lines.show(tenths / 10)
    assert shown == [b"50%", b"101%", b"152%"]
    assert lines.feed(b"\n", now=20.0) == [b"199%"]
