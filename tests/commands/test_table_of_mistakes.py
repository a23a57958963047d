"""Every mistake of `mistakes.txt` is answered with its line and its exit status, and no more."""

from collections import Counter

import pytest

from penstock import commands
from tests.commands import mistakes
from tests.commands.running import run

MISTAKES = mistakes.read_mistakes()
TRIED = [
    pytest.param(each, marks=() if each.is_quick else pytest.mark.slow, id=each.command)
    for each in MISTAKES
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder in which something is missing."""
    root = tmp_path_factory.mktemp("mistakes")
    mistakes.write_files(root)
    return root


@pytest.fixture(scope="module")
def runs(folder):
    """Put a run into the folder, and copies of it that were cut."""
    mistakes.write_runs(folder)


@pytest.mark.parametrize("mistake", TRIED)
def test_mistake_is_answered_with_its_line(mistake, folder, request, capsys, monkeypatch):
    if not mistake.is_quick:
        request.getfixturevalue("runs")
    monkeypatch.chdir(folder)
    status, _, err = run(capsys, *mistake.words)
    said = [line for line in err.splitlines() if line.startswith("penstock")]
    assert said == [mistakes.fill_in(mistake.answer, folder)]
    assert err.splitlines()[-1] == said[0]
    assert status == mistake.status
    assert "Traceback" not in err


def test_table_has_mistakes_of_every_command():
    assert len(MISTAKES) > 100
    counts = Counter(each.words[0].replace("_", "-") for each in MISTAKES)
    few = {name: counts[name] for name in commands._COMMANDS if counts[name] < 2}
    assert not few
    assert len({each.command for each in MISTAKES}) == len(MISTAKES)


def test_answers_name_what_came_and_nothing_of_python():
    for each in MISTAKES:
        assert " got " in each.answer or "does not fit" in each.answer or each.status == 1, each
        for word in ("Errno", "on_error", "dataset_dir= ", "param_path", ".names()", "??", "?."):
            assert word not in each.answer, each
