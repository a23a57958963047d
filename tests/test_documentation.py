"""README and docs/: their Python runs, a page's blocks in one namespace; their paths exist."""

import contextlib
import html
import importlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from penstock import commands
from tests import compiling
from tests.source_tree import PACKAGE, ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS_RUN_ON = ("tutorial.md",)
"""Pages whose commands are run too, in order with their Python; elsewhere they take hours."""

CODE = re.compile(r"^```(?:sh|bash|text)\b.*?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PACKAGES = ("fluid", "handlers", "layers", "models", "optimizers", "preprocessing", "readers")
REFERENCE = (PACKAGE, *(f"{PACKAGE}.{name}" for name in PACKAGES))

ARCHITECTURE = ROOT / "docs" / "architecture.md"
NAMED_PATH = re.compile(r"`([\w/]+(?:/|\.py))(?:::([\w.]+))?`")
"""A folder, a file or a name in a file: `layers/`, `_mesh.py`, `events.py::EndStep`."""

OPTIONAL = ("equinox", "haiku")
"""Of the extra test-all; a block that imports what is not installed is left out."""


def is_missing(name: str, source: str) -> bool:
    is_imported = re.search(rf"^import {name}\b", source, re.MULTILINE)
    return bool(is_imported) and importlib.util.find_spec(name) is None


def run_commands(block: str) -> str:
    """Run the lines of a block, each a command of penstock; return what they print."""
    printed = ""
    # As users compile, and on one device: they train for hundreds of steps.
    environment = os.environ | {"XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            assert words[0] == "penstock", line
            command = [sys.executable, "-W", "error", "-m", *words]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            printed += done.stdout
    return printed


@pytest.mark.quick("README")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Pages train for hundreds of steps; README for a hundred, in less time than that compiles in.
    jit = contextlib.nullcontext if page == PAGES[0] else compiling.as_users_do
    text = page.read_text()
    namespace: dict[str, object] = {"__name__": "page"}
    for block in BLOCK.finditer(text):
        language, code = block.groups()
        if language == "sh":
            run_commands(code if page.name in COMMANDS_RUN_ON else "")
            continue
        if any(is_missing(name, code) for name in OPTIONAL):
            continue
        # Blank lines before the block, so that a traceback shows the page's line number.
        source = "\n" * text[: block.start(2)].count("\n") + code
        with jit():
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


# It trains lenet, as README has it.
@pytest.mark.slow
def test_commands_of_the_readme_run_as_they_are_pasted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block = re.search(r"^```console\n(.*?)^```$", PAGES[0].read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    lines = re.findall(r"^\$ (penstock .*)$", block[1], re.MULTILINE)
    assert len(lines) == 3
    output = run_commands("\n".join(lines))
    for line in re.findall(r"^runs/\S+", block[1], re.MULTILINE):
        assert line in output


def find_unknown_commands(text: str) -> list[str]:
    """Return the commands of penstock that a page's blocks name and that do not exist."""
    named = {
        name
        for block in CODE.finditer(text)
        for name in re.findall(r"^(?:\$ )?penstock ([a-z-]+)", block.group(1), re.MULTILINE)
    }
    existing = re.findall(r"^  ([a-z-]+) ", commands._help(), re.MULTILINE)
    return sorted(named - set(existing))


def test_commands_that_pages_name_exist():
    unknown = {page.name: find_unknown_commands(page.read_text()) for page in PAGES}
    assert not {page: names for page, names in unknown.items() if names}


def find_pages(nav: object) -> set[str]:
    """Return the pages that a part of the site's navigation leads to."""
    if isinstance(nav, str):
        return {nav}
    parts = nav.values() if isinstance(nav, dict) else nav
    assert isinstance(parts, list | type({}.values()))
    return {page for part in parts for page in find_pages(part)}


def test_navigation_leads_to_every_page_and_example():
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    docs = ROOT / "docs"
    pages = {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}
    pages |= {f"examples/{program.stem}.md" for program in (ROOT / "examples").glob("*.py")}
    pages |= {f"notebooks/{file.stem}.md" for file in (ROOT / "notebooks").glob("*.ipynb")}
    assert find_pages(settings["nav"]) == pages | {"CHANGELOG.md", "CONTRIBUTING.md"}


def find_public_names(module: ModuleType) -> list[str]:
    """Return the classes and functions that a package offers, without Fluid's names of events."""
    return [
        name
        for name in dir(module)
        if not name.startswith("_")
        and not name.endswith("Event")
        and not isinstance(getattr(module, name), ModuleType)
        and getattr(getattr(module, name), "__module__", "").startswith("penstock")
    ]


@pytest.mark.parametrize("package", REFERENCE)
def test_reference_has_every_public_name(package):
    page = ROOT / "docs" / "reference" / f"{package.rpartition('.')[2]}.md"
    paths = re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    names = find_public_names(importlib.import_module(package))
    assert len(names) > 5
    assert not sorted(set(names) - {path.rpartition(".")[2] for path in paths})
    # A module would be shown in the place of its function of the same name.
    assert not [path for path in paths if (ROOT / f"{path.replace('.', '/')}.py").exists()]


def load_terminal_pictures() -> dict[str, list[str]]:
    """Return the words of the commands whose pictures are in docs/, by the pictures' names."""
    path = ROOT / "docs/make_terminal_pictures.py"
    spec = importlib.util.spec_from_file_location("make_terminal_pictures", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.COMMANDS


def find_words_missing(drawing: str, picture: str) -> set[str]:
    """Return the words of a mermaid drawing's labels that its picture does not show."""
    labels = re.findall(r'\["?(.+?)"?\](?:\s|$)|-- "(.+?)" -->', drawing)
    words = {word for pair in labels for word in re.split(r"<br/>| ", "".join(pair))}
    return words - set(html.unescape(re.sub(r"<[^>]+>", " ", picture)).split())


def test_picture_of_the_architecture_shows_its_drawing():
    drawing = re.findall(r"^```mermaid\n(.*?)^```$", ARCHITECTURE.read_text(), re.M | re.S)[0]
    picture = (ROOT / "docs" / "pictures" / "architecture.svg").read_text()
    assert not find_words_missing(drawing, picture)


@pytest.mark.parametrize(("name", "words"), load_terminal_pictures().items())
def test_picture_of_a_terminal_is_headed_by_the_command_that_was_run(name, words):
    picture = (ROOT / f"docs/pictures/{name}.svg").read_text()
    (title,) = re.findall(r"<text [^>]*-title[^>]*>([^<]*)</text>", picture)
    assert title.replace("&#160;", " ") == " ".join(["penstock", *words])
