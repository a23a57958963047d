"""`penstock docs`, and what of the pages and README a package holds."""

import os
import pty
import re
import subprocess
import sys
import tomllib

import pytest

from tests.commands.running import run, succeed
from tests.source_tree import PACKAGE, ROOT

PAGES = {path.stem: path for path in (ROOT / "docs").glob("*.md") if path.stem != "index"}


def test_list_has_every_page_with_its_title(capsys):
    status, out, err = run(capsys, "docs")
    assert (status, err) == (0, "")
    listed = dict(line.split(maxsplit=1) for line in out.splitlines()[1:-1])
    assert set(listed) == set(PAGES)
    assert listed["from_keras"] == "From Keras"


@pytest.mark.parametrize(
    "word", ["train_command", "train-command", "docs/train_command.md#every-flag"]
)
def test_page_is_printed_as_it_is_written(word, capsys):
    out, _ = succeed(capsys, "docs", word)
    assert out == PAGES["train_command"].read_text()


READ = """
import sys
from penstock.commands import main
for page in sys.argv[1:]:
    assert main(["docs", page]) == 0
    print("\\f")
"""


def read_in_terminal(*pages):
    """Return what a terminal of 80 columns gets of each page."""
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", READ, *pages],
        stdout=terminal,
        env=os.environ | {"PAGER": "cat", "TERM": "xterm", "COLUMNS": "80"},
    )
    os.close(terminal)
    read = b""
    try:
        while part := os.read(master, 1 << 16):
            read += part
    # What Linux says at the end of a terminal that nobody writes to.
    except OSError:
        pass
    os.close(master)
    assert process.wait() == 0
    *texts, _ = re.sub(r"\x1b\[[\d;]*m", "", read.decode()).split("\f")
    return dict(zip(pages, texts, strict=True))


def test_pages_in_a_terminal_are_laid_out():
    for page, text in read_in_terminal(*PAGES).items():
        assert max(map(len, text.splitlines())) <= 80, page
        # Settings of the site, columns, buttons, and Markdown itself.
        for mark in ("hide:", "<div", "{ .", "\n# ", "\n```"):
            assert mark not in text.replace("\r", ""), (page, mark)
        title = re.search(r"^# (.+)$", PAGES[page].read_text(), re.M)
        assert title is not None
        assert " ".join(title[1].split()) in " ".join(text.split())


def test_pages_that_messages_name_exist():
    texts = [path.read_text() for path in (ROOT / PACKAGE).rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"`penstock docs ([a-z_]+)`", text)}
    assert {"train_command", "weights"} <= named <= set(PAGES)
    # In an installed package there is no folder docs/.
    code = [line for text in texts for line in text.splitlines() if line.lstrip()[:1] != "#"]
    assert not [line for line in code if re.search(r"docs/\w+\.md\b", line)]


def test_readme_of_the_package_has_no_link_into_the_checkout():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = (ROOT / "README.md").read_text()
    for rule in hook["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    assert not re.findall(r"\]\((?!https?:)", text)
    assert "`from_keras`" in text
