"""Every `>>>` example in penstock's docstrings runs and prints what it says."""

import doctest
import importlib
import io
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import penstock
from tests.source_tree import PACKAGE, module_name, read_sources

ROOMS = (
    *("fluid", "handlers", "inference_model", "inferencer", "layers", "metrics", "models"),
    *("onnx_export", "optimizers", "preprocessing", "program_builder", "sklearn", "trainer"),
)
HAVE_TESTS_OF_EACH = tuple(f"{PACKAGE}.{room}." for room in ROOMS)
ASSUMED = {
    "jax": jax,
    "jnp": jnp,
    "np": np,
    "ps": penstock,
    "layers": penstock.layers,
    "fluid": penstock.fluid,
}
"""What examples of layers need not import, as `penstock.layers` says."""

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def find_examples() -> list[doctest.DocTest]:
    """Return the docstrings of penstock's modules that hold an example."""
    finder = doctest.DocTestFinder()
    with_examples = [path for path, source in read_sources(PACKAGE).items() if ">>> " in source]
    modules = [importlib.import_module(module_name(path)) for path in with_examples]
    docstrings = [
        docstring
        for module in modules
        for docstring in finder.find(module, module.__name__, extraglobs=ASSUMED)
    ]
    return [docstring for docstring in docstrings if docstring.examples]


def run(docstring: doctest.DocTest) -> str:
    """Run the examples of one docstring; return what differed, nothing when all agreed."""
    report = io.StringIO()
    doctest.DocTestRunner(optionflags=OPTIONS).run(docstring, out=report.write)
    return report.getvalue()


def as_parameter(docstring: doctest.DocTest) -> Any:
    """Return the docstring as a test, slow where its package has quick tests of each function."""
    is_slow = docstring.name.startswith(HAVE_TESTS_OF_EACH)
    marks = [pytest.mark.slow] if is_slow else []
    return pytest.param(docstring, id=docstring.name, marks=marks)


@pytest.mark.parametrize("docstring", [as_parameter(docstring) for docstring in find_examples()])
def test_example_prints_what_it_says(docstring: doctest.DocTest):
    difference = run(docstring)
    if difference:
        pytest.fail(difference, pytrace=False)
