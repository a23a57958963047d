"""Large pages: when the C library is told of them, and the process that starts anew."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.distributed import huge_pages, local_launch

TUNABLE = "glibc.malloc.hugetlb=1"


@pytest.fixture
def can_be_told(monkeypatch, tmp_path):
    """Give a kernel that leaves large pages to the program."""
    switch = tmp_path / "enabled"
    switch.write_text("always [madvise] never\n")
    monkeypatch.setattr(huge_pages, "_SWITCH", switch)
    return switch


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, TUNABLE),
        ({"GLIBC_TUNABLES": "glibc.malloc.check=1"}, f"glibc.malloc.check=1:{TUNABLE}"),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, None),
        ({"LD_PRELOAD": "libjemalloc.so"}, None),
    ],
)
def test_c_library_is_told_unless_the_environment_says_something_of_it(
    environ, expected, can_be_told
):
    assert huge_pages.find_variables(environ).get("GLIBC_TUNABLES") == expected


@pytest.mark.parametrize("text", ["[always] madvise never\n", "always madvise [never]\n", None])
def test_nothing_is_asked_of_a_kernel_that_needs_or_gives_nothing(text, can_be_told):
    can_be_told.unlink() if text is None else can_be_told.write_text(text)
    assert huge_pages.find_variables({}) == {}


def test_train_starts_anew_with_its_words_and_other_commands_do_not(tmp_path):
    script = tmp_path / "penstock"
    script.write_text(
        "import os, sys\n"
        "from penstock import commands\n"
        "from penstock.distributed import huge_pages\n"
        "huge_pages.find_variables = lambda: {} if 'TOLD' in os.environ else {'TOLD': '1'}\n"
        "commands._run_words = lambda words: print(os.environ.get('TOLD'), os.getpid(), words)\n"
        "print('begins', os.getpid(), flush=True)\n"
        "sys.exit(commands.main())\n"
    )

    def run(*words):
        root = Path(huge_pages.__file__).parents[2]
        command = [sys.executable, str(script), *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=True)
        return [line.split(maxsplit=2) for line in done.stdout.splitlines()]

    first, second, third = run("train", "--batch_size=3", "a b")
    assert first == second
    assert third == ["1", first[1], "['train', '--batch_size=3', 'a b']"]
    assert [line[0] for line in run("eval", "x")] == ["begins", "None"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (sys.orig_argv[-1:], OSError(7, "Argument list too long")),
        (["not", "its own"], AssertionError("a worker of Ray's would be gone")),
    ],
)
def test_process_that_cannot_start_anew_or_runs_the_command_for_another_goes_on(
    monkeypatch, words, error
):
    def execve(*_):
        raise error

    monkeypatch.setattr("os.execve", execve)
    monkeypatch.setattr(huge_pages, "find_variables", lambda: {"GLIBC_TUNABLES": TUNABLE})
    huge_pages.restart(words)


def test_processes_of_a_group_are_started_with_large_pages(can_be_told, monkeypatch):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    assert local_launch.make_group_variables(2, 1, 0)["GLIBC_TUNABLES"] == TUNABLE
