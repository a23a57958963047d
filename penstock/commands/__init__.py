"""The `penstock` command: `penstock train`, `penstock eval`, `penstock predict`, and others.

A command is a module of this package with `run(argv) -> int`, imported when it runs.
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import shlex
import shutil
import sys
from collections.abc import Sequence

from penstock import __version__
from penstock._compile_cache import use_in_commands
from penstock._errors import nearest
from penstock._text_tables import find_columns, wrap_words
from penstock.distributed import huge_pages

_COMMANDS = {
    "train": "train a network of the model library, by default on handwritten digits",
    "sweep": "train with many values of flags, and tell which are best",
    "launch": "start a command or a script as several processes on this machine, or on Ray",
    "eval": "evaluate a trained network, class by class",
    "predict": "classify images with a trained network",
    "export": "write a trained network as one file that runs without the code that made it",
    "serve": "answer requests over HTTP with trained models",
    "report": "show a run as a page: curves, classes, the worst mistakes as pictures",
    "import-weights": "convert published weights to parameters",
    "show": "draw the images that a network gets in training, with their classes",
    "models": "list the networks of the model library, or show the layers of one",
    "plan": "say what a training run needs on TPUs and GPUs that need not be here",
    "convert": "make record files from archives, image folders or other record files",
    "runs": "list the runs in a folder, with their best test results",
    "compare": "put the flags and the results of runs side by side",
    "clean": "list the images whose label the network doubts",
    "cache": "list or clear compiled programs and decompressed copies of record files",
    "docs": "show a page of the documentation",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Arguments:
      argv: the words after `penstock`; those of this process by default.

    Returns:
      The exit status: 0 when all went well, 1 when the command failed, 2 when it was called
      wrongly, 130 after Ctrl-C.

    >>> main(["--version"])
    penstock 0.1.0
    0
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        if words[:1] in (["train"], ["sweep"]):
            huge_pages.restart(words)
        _open_closed_descriptors()
        # Tracing makes objects by the million, few of them garbage: 12 % of a start's work went
        # into looking for it.
        gc.set_threshold(100_000, 20, 100)
        # Names of classes are in any alphabet: a locale without it gets escapes, and no failure.
        if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
            sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = _run_words(words)
        # Now: at exit it is too late to handle a closed pipe or a full disk.
        if sys.stdout is not None:
            sys.stdout.flush()
    # `penstock train | head` has seen enough.
    except BrokenPipeError:
        _discard_output()
        return 1
    except OSError as error:
        if os.environ.get("PENSTOCK_TRACEBACK") == "1":
            raise
        _discard_output()
        print(f"penstock: standard output cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    return status


def _run_words(words: list[str]) -> int:
    name = words[0] if words else "--help"
    # As in the names of flags, a dash is an underscore.
    if not name.startswith("-"):
        name = name.replace("_", "-")
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name in ("-V", "--version"):
        print(f"penstock {__version__}")
        return 0
    if name not in _COMMANDS:
        kind = "option" if name.startswith("-") else "command"
        expected = ", ".join(_COMMANDS)
        # The first letter is hardly ever wrong: `lenet` is a network, and no `clean`.
        alike = [command for command in _COMMANDS if command[:1] == name[:1]]
        hint = nearest(name, ["--help", "--version"] if kind == "option" else alike)
        if os.path.isdir(words[0]):
            hint = f" To train on the images in it: penstock train {shlex.quote(words[0])}."
        text = (
            f"penstock got the {kind} {name!r}, expected one of: {expected}.{hint} "
            "`penstock --help` says what they do."
        )
        print(wrap_words(text, find_columns(sys.stderr), "  "), file=sys.stderr)
        return 2
    use_in_commands()  # before JAX is imported, which reads it then
    try:
        # Imported only when it is called: `penstock --help` takes 0.1 s.
        module = importlib.import_module(f"penstock.commands.{name.replace('-', '_')}")
        return module.run(words[1:])
    except KeyboardInterrupt:
        print(f"\npenstock {name}: interrupted", file=sys.stderr)
        return 130
    # From argparse, which ends so after `--help`.
    except SystemExit as request:
        return request.code if isinstance(request.code, int) else 1


def _open_closed_descriptors() -> None:
    """Open what `2>&-` closed: the next file would get the number, and what XLA says with it."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest that is free, so this one; for child processes too.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _discard_output() -> None:
    """Leave what cannot be written: the flush at exit would fail too. `2>&1` closes both."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        # None: it was closed when Python started.
        if stream is None:
            continue
        try:
            stream.flush()
        except OSError:
            # The descriptor itself: what is left in the stream's buffer goes there at exit.
            os.dup2(nowhere, stream.fileno())


def _help() -> str:
    columns = shutil.get_terminal_size().columns
    lines = [
        wrap_words(f"  {name:14} {what}", columns, " " * 17) for name, what in _COMMANDS.items()
    ]
    more = (
        "`penstock COMMAND --help` lists a command's arguments. `penstock --version` prints the "
        "version."
    )
    head = "usage: penstock COMMAND [ARGUMENTS]"
    return "\n".join([head, "", *lines, "", wrap_words(more, columns)])
