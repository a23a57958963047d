"""README and docs/: their Python runs, a page's blocks in one namespace; their paths exist."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import compiling
from tests.source_tree import PACKAGE, ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

ARCHITECTURE = ROOT / "docs" / "architecture.md"
NAMED_PATH = re.compile(r"`([\w/]+(?:/|\.py))(?:::([\w.]+))?`")
"""A folder, a file or a name in a file: `layers/`, `_mesh.py`, `events.py::EndStep`."""

OPTIONAL = ("equinox", "haiku")
"""Of the extra test-all; a block that imports what is not installed is left out."""


def is_missing(name: str, source: str) -> bool:
    is_imported = re.search(rf"^import {name}\b", source, re.MULTILINE)
    return bool(is_imported) and importlib.util.find_spec(name) is None


# 22 s for the README, which trains four networks.
@pytest.mark.quick("README", "checkpoints")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    namespace: dict[str, object] = {"__name__": "page"}
    for block in BLOCK.finditer(text):
        if any(is_missing(name, block.group(1)) for name in OPTIONAL):
            continue
        # Blank lines before the block, so that a traceback shows the page's line number.
        source = "\n" * text[: block.start(1)].count("\n") + block.group(1)
        with compiling.as_users_do():  # pages train for hundreds of steps
            exec(compile(source, str(page), "exec"), namespace)


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted((ROOT / "docs").glob("*.py")), ids=lambda path: path.name)
def test_script_of_docs_finds_what_it_imports(script):
    # Under another name than "__main__": it defines what it does and does nothing.
    program = f"import runpy; runpy.run_path({str(script)!r}, run_name='script')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def find_path(path: str) -> Path | None:
    """Return where a path of the page leads: below the package, or below the checkout."""
    places = (ROOT / PACKAGE / path, ROOT / path)
    return next((place for place in places if place.exists()), None)


def find_wrong_paths(text: str) -> list[str]:
    """Return the paths of a page that lead nowhere, and the names that their file does not have."""
    wrong = []
    for path, name in NAMED_PATH.findall(text):
        place = find_path(path)
        last = name.rpartition(".")[2]
        if place is None:
            wrong.append(path)
        elif last and not re.search(
            rf"^\s*(?:def|class) {last}\b", place.read_text(), re.MULTILINE
        ):
            wrong.append(f"{path}::{name}")
    return wrong


def find_unnamed_packages(text: str) -> list[str]:
    """Return the packages, and the modules directly in penstock, that a page does not name."""
    package = ROOT / PACKAGE
    folders = [file.parent for file in package.rglob("__init__.py") if file.parent != package]
    rooms = [f"{folder.relative_to(package).as_posix()}/" for folder in folders]
    rooms += [file.name for file in package.glob("*.py") if not file.name.startswith("__")]
    return sorted(room for room in rooms if f"`{room}`" not in text)


def test_architecture_names_what_exists_and_every_package():
    text = ARCHITECTURE.read_text()
    assert not find_wrong_paths(text)
    assert not find_unnamed_packages(text)


def test_path_or_name_that_is_gone_and_package_without_a_line_are_found():
    text = "`layers/` has `layers/dense.py::fc`, `layers/_frame.py` and `events.py::Names.layer`."
    assert find_wrong_paths(text) == ["layers/_frame.py", "events.py::Names.layer"]
    unnamed = find_unnamed_packages(text)
    assert {"trainer/", "_mesh.py"} <= set(unnamed)
    assert "layers/" not in unnamed


def test_readme_has_the_two_commands_and_an_example():
    text = PAGES[0].read_text()
    assert "make train" in text
    assert "make test" in text
    assert BLOCK.search(text)
