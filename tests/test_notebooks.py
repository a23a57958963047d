"""The notebooks: they run from their sources, and what is saved with them is fit to be seen."""

import doctest
import importlib
import importlib.util
import json
import os
import re
from pathlib import Path

import pytest

from tests.source_tree import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PAGE_WRITERS = ("notebook_pages", "outside_pages")
MAX_BYTES = 300_000
MACHINE = re.compile(r"/(home|tmp|work|root|usr|opt|mnt|var|Users)/|[Ww]arning|Traceback")
"""What a notebook's text must not show of the machine that it ran on."""

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells_of(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def code_of(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in cells_of(path) if cell["cell_type"] == "code"]


CHECKS = {
    "digits": 'assert test()["accuracy"] > 0.95',
    "own_photos": """
assert test()["accuracy"] > 0.9
assert len(wrong) > 0, "no mistake is left to be looked at"
""",
    "gan": """
drawn = trainer.infer({"noise": noise, "label": labels})
assert drawn.std(axis=0).mean() > 0.1, "all drawings are alike"
""",
}
"""By notebook, a last cell, which says that it has learned what it shows."""


@pytest.mark.slow
@every_notebook
def test_notebook_runs_in_a_kernel_learns_and_shows_what_is_saved_with_it(path, tmp_path):
    if not os.environ.get("PENSTOCK_REQUIRE_EXTRAS"):
        pytest.importorskip("nbclient")
        pytest.importorskip("ipykernel")
    importlib.import_module("matplotlib.font_manager")  # the first time it says so on stderr
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    saved = [kinds_of(cell["outputs"]) for cell in notebook.cells if cell["cell_type"] == "code"]
    for cell in notebook.cells:
        cell.pop("outputs", None)
        if cell["cell_type"] == "code":
            cell["outputs"] = []
    notebook.cells.append(nbformat.v4.new_code_cell(CHECKS[path.stem]))
    resources = {"metadata": {"path": str(tmp_path)}}
    # Its own JAX flags: those of the tests make eight devices of one, and compile what is slower.
    environment = os.environ | {"XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}
    client = nbclient.NotebookClient(notebook, timeout=200, resources=resources)
    client.execute(env=environment)
    shown = [kinds_of(cell["outputs"]) for cell in notebook.cells if cell["cell_type"] == "code"]
    assert shown == [*saved, []]


def kinds_of(outputs: list[dict]) -> list[set[str]]:
    """Return what each output of a cell holds: types of content, or the name of a stream."""
    return [set(output.get("data", [output.get("name")])) for output in outputs]


@every_notebook
def test_notebook_is_saved_with_the_outputs_of_one_run(path):
    cells = [cell for cell in cells_of(path) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]


@every_notebook
def test_notebook_is_small_and_shows_nothing_of_the_machine_it_ran_on(path):
    assert path.stat().st_size < MAX_BYTES
    for cell in cells_of(path):
        for output in cell.get("outputs", []):
            data = dict(output.get("data", {}), text=output.get("text", ""))
            data.pop("image/png", None)
            assert not MACHINE.search("".join(map("".join, data.values())))


@every_notebook
def test_links_of_a_notebook_lead_to_files(path):
    text = "".join("".join(cell["source"]) for cell in cells_of(path) if not cell.get("outputs"))
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert links
    assert not [link for link in links if not (path.parent / link).is_file()]


@pytest.mark.parametrize("name", PAGE_WRITERS)
def test_examples_of_what_writes_the_site_s_pages_are_right(name):
    if name == "outside_pages":
        pytest.importorskip("mkdocs")
    file = ROOT / "docs" / "site" / f"{name}.py"
    specification = importlib.util.spec_from_file_location(name, file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    tried = doctest.testmod(module)
    assert tried.attempted
    assert not tried.failed
