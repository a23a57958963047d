"""Every Python block of README and docs/ runs, a page's blocks in order, in one namespace."""

import importlib.util
import re
import subprocess
import sys

import pytest

from tests.source_tree import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

OPTIONAL = ("equinox", "haiku")
"""Of the extra test-all; a block that imports what is not installed is left out."""


def is_missing(name: str, source: str) -> bool:
    is_imported = re.search(rf"^import {name}\b", source, re.MULTILINE)
    return bool(is_imported) and importlib.util.find_spec(name) is None


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
        exec(compile(source, str(page), "exec"), namespace)


@pytest.mark.parametrize("script", sorted((ROOT / "docs").glob("*.py")), ids=lambda path: path.name)
def test_script_of_docs_finds_what_it_imports(script):
    # Under another name than "__main__": it defines what it does and does nothing.
    program = f"import runpy; runpy.run_path({str(script)!r}, run_name='script')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_readme_has_the_two_commands_and_an_example():
    text = PAGES[0].read_text()
    assert "make train" in text
    assert "make test" in text
    assert BLOCK.search(text)
