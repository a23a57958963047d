"""Errors: each refines a builtin, and helpers put names into them."""

import pickle

import pytest

import penstock as ps
from penstock._errors import listed, nearest


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (ps.FeedError, ValueError),
        (ps.LayerContextError, RuntimeError),
        (ps.NonFiniteError, ArithmeticError),
        (ps.ParameterError, ValueError),
        (ps.ProgramError, ValueError),
        (ps.ReaderError, ValueError),
        (ps.UnknownNameError, KeyError),
    ],
)
def test_error_refines_a_builtin_and_prints_its_text(error, builtin):
    assert issubclass(error, builtin)
    assert str(error("a text")) == "a text"
    assert str(pickle.loads(pickle.dumps(error("a text")))) == "a text"


def test_nearest_name_is_suggested_where_one_is_near():
    assert nearest("lable", ["image", "label"]) == " Did you mean 'label'?"
    assert nearest("zzz", ["image", "label"]) == ""
    assert nearest("x", []) == ""


def test_names_are_listed_in_their_order():
    assert listed(["b", "a"]) == "'b', 'a'"
    assert listed([]) == "nothing"
