"""`help(ps.Trainer)`: what a user may call, and in the class's own words what is used most."""

import ast
import inspect
import pydoc
import re

import penstock as ps

MOST_USED = ("train", "test", "predict", "predict_all", "infer", "save_params", "load_params")
OF_PYTHON = {"__init__", "__repr__", "__setattr__", "__dict__", "__weakref__"}
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


def test_docstring_and_source_have_what_is_used_most_first():
    assert tuple(names_by_use()[: len(MOST_USED)]) == MOST_USED
    source = ast.parse(inspect.getsource(ps.Trainer)).body[0]
    assert isinstance(source, ast.ClassDef)
    names = [each.name for each in source.body if isinstance(each, ast.FunctionDef)]
    public = [name for name in dict.fromkeys(names) if not name.startswith("_")]
    assert public == names_by_use()[: len(public)]


def test_every_name_is_explained():
    for name in names_by_use():
        assert inspect.getdoc(getattr(ps.Trainer, name)), name
