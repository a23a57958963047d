"""`penstock` as a person runs it: another process, or, where that would take too long, this one."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np

from penstock import commands
from tests import compiling
from tests.source_tree import ROOT

TINY = (
    f"--plugin={ROOT / 'tests/commands/tiny.py'}",
    "--model_name=tiny",
    "--enable_paisoar=False",
    "--num_preprocessing_threads=0",
)
"""Words for a network that compiles in no time, on one device."""

CODE = "import sys; from penstock.commands import main; sys.exit(main())"


def penstock(
    folder: Path, *words: str, code: str = CODE, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `penstock` with words in a folder, on one device."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *words],
        cwd=folder,
        env=os.environ
        | {"XLA_FLAGS": compiling.xla_flags(), "PYTHONIOENCODING": "utf-8"}
        | variables,
        capture_output=True,
        encoding="utf-8",
    )


def start(folder: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    """Start `penstock` with words in a folder, on one device."""
    own = {"XLA_FLAGS": compiling.xla_flags(), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", CODE, *words],
        cwd=folder,
        env=os.environ | own | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # With a small pipe it stays within some lines of what has been read, and so cannot end
        # before the signal, however late that comes.
        pipesize=4096,
        text=True,
    )


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    """Read what a process prints up to a line with a text."""
    assert process.stdout is not None
    assert process.stderr is not None
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(process.stderr.read())


def write_images(folder: Path, *classes: str, count: int, suffix: str = "png") -> None:
    """Write gray images, each lighter than the one before, into a folder for each class."""
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(count):
            image = np.full((9, 9, 3), 240 * number // count, np.uint8)
            cv2.imwrite(str(folder / name / f"{number}.{suffix}"), image)


def run(capsys, *words: str) -> tuple[int, str, str]:
    """Run `penstock` in this process; return exit status, stdout and stderr."""
    capsys.readouterr()
    status = commands.main(list(words))
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def succeed(capsys, *words: str) -> tuple[str, str]:
    """Run `penstock` in this process, which has to end well; return stdout and stderr."""
    status, out, err = run(capsys, *words)
    assert status == 0, err
    return out, err


def fail(capsys, *words: str, status: int = 1) -> str:
    """Run `penstock` in this process, which has to end with a status; return stderr."""
    ended, _, err = run(capsys, *words)
    assert ended == status, err
    return err


def make_train_words() -> list[str]:
    """Return the words that `make train` gives to `penstock`."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    match = re.search(r"^TRAIN_ARGS +\?= ((?:.*\\\n)*.*)$", text, re.M)
    assert match is not None
    return ["train", *shlex.split(match[1].replace("\\\n", " "))]
