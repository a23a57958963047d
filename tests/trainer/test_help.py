"""`help(ps.Trainer)`: what a user may call, and in the class's own words what is used most.

Of packages: each function and class that they offer.
"""

import inspect
import pydoc
import re

import pytest

import penstock as ps
from tests.test_style import public_names

OF_PYTHON = {"__init__", "__reduce__", "__repr__", "__setattr__", "__dict__", "__weakref__"}
"""What `help` shows of every class that has one."""


def list_entries(text: str) -> list[str]:
    """Return the names that a page of `help` explains, in its order."""
    body = text.partition("Methods defined here:")[2]
    return re.findall(r"^ \|  (\w+)(?:\(| =|$)", body, re.MULTILINE)


def names_by_use() -> list[str]:
    """Return the names that the second paragraph of the class's docstring lists."""
    paragraph = (inspect.getdoc(ps.Trainer) or "").split("\n\n")[1]
    return re.findall(r"`([a-z_]+)`", paragraph)


def test_help_has_what_the_docstring_lists_and_nothing_else():
    shown = list_entries(pydoc.plain(pydoc.render_doc(ps.Trainer)))
    assert len(shown) == len(set(shown))
    assert set(shown) - OF_PYTHON == set(names_by_use())


@pytest.mark.parametrize("package", [ps.layers, ps.metrics], ids=["layers", "metrics"])
def test_help_of_a_package_explains_each_name_that_it_offers(package):
    text = pydoc.plain(pydoc.render_doc(package))
    shown = set(re.findall(r"^    (?:class )?(\w+)\(", text, re.MULTILINE))
    offered = public_names(package)
    assert len(offered) > 30
    assert not offered.keys() - shown


def test_star_import_takes_functions_and_classes_and_no_modules():
    namespace = {}
    exec("from penstock.layers import *", namespace)
    assert {"fc", "KeyValueCache", "chunk_eval"} < namespace.keys()
    assert not {"conv", "attention", "TYPE_CHECKING", "import_module"} & namespace.keys()
