"""The command line: which command runs, and what its exit status says."""

import os
import subprocess
import sys

import pytest

from penstock import __version__, commands

USAGES = {
    "train": "[FOLDER] [OPTIONS]",
    "launch": "-n N [OPTIONS] -- COMMAND [ARGUMENTS]",
    "eval": "RUN [OPTIONS]",
    "predict": "RUN IMAGE [IMAGE ...] [OPTIONS]",
    "report": "RUN [OPTIONS]",
    "import-weights": "MODEL FILE --output=FOLDER [OPTIONS]",
    "models": "[NAME] [OPTIONS]",
    "convert": "--dataset_name=NAME --dataset_dir=FOLDER [OPTIONS]",
    "runs": "[FOLDER] [OPTIONS]",
    "compare": "RUN [RUN ...] [OPTIONS]",
    "show": "[FOLDER] [OPTIONS]",
    "cache": "[list|clear] [OPTIONS]",
    "docs": "[PAGE] [OPTIONS]",
}


def test_version(capsys):
    assert commands.main(["--version"]) == 0
    assert capsys.readouterr().out == f"penstock {__version__}\n"


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(argv, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert commands.main(argv) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    assert all(f"  {name} " in out for name in USAGES)


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", USAGES)
def test_help_of_a_command_fits_the_terminal(name, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert commands.main([name.replace("-", "_"), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"usage: penstock {name} {USAGES[name]}"
    assert max(map(len, lines)) <= columns


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["train", "--help"]])
def test_help_and_version_need_neither_jax_nor_numpy(words):
    code = (
        "import sys\nfrom penstock.commands import main\nmain(sys.argv[1:])\n"
        "print([name for name in ('jax', 'numpy', 'optax', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.slow
def test_failure_keeps_its_traceback_and_ends_with_1():
    code = "from penstock.commands import main, train\ntrain.run = None\nmain(['train'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "TypeError" in done.stderr


@pytest.mark.parametrize("is_unbuffered", ["", pytest.param("1", marks=pytest.mark.slow)])
def test_closed_pipe_ends_without_a_word(is_unbuffered):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "penstock", "--help"],
            env=os.environ | {"PYTHONUNBUFFERED": is_unbuffered},
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (1, "")


def test_full_disk_under_standard_output_is_one_line():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "penstock", "--help"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    expected = "penstock: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, expected)


def test_terminal_of_another_alphabet_gets_escapes():
    command = [sys.executable, "-m", "penstock", "docs", "comparison"]
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=ascii_only, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u2020" in done.stdout


def test_no_file_gets_the_number_of_a_stream_that_is_closed(tmp_path):
    code = (
        "import sys\n"
        "from penstock import commands\n"
        "def write(words):\n"
        "    with open(words[0], 'w') as file:\n"
        "        file.write(str(file.fileno()))\n"
        "commands._run_words = write\n"
        "commands.main()\n"
    )
    closing = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", code]
    subprocess.run([*closing, str(tmp_path / "a")])
    assert int((tmp_path / "a").read_text()) > 2


@pytest.mark.slow
def test_interrupt_while_a_command_is_imported_ends_with_130():
    # As Ctrl-C in the first second, which the import of JAX and optax takes.
    code = (
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'optax':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from penstock.commands import main\n"
        "sys.exit(main(['train']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "\npenstock train: interrupted\n")
