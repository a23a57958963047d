"""Errors: each refines a builtin, and helpers put names into them."""

import copy
import pathlib
import pickle
import re
import weakref

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import _errors, fluid
from penstock._program.user_lines import is_user_file
from tests.networks import linear_program, one_device
from tests.trainer.poisoned import light_program


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (ps.ExportError, ValueError),
        (ps.FeedError, ValueError),
        (ps.LayerContextError, RuntimeError),
        (ps.NonFiniteError, ArithmeticError),
        (ps.ModelFileError, ValueError),
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


ONLY = "expected only 'about', 'update_scale' to be set."
READ = "Nothing would read it."


@pytest.fixture(scope="module")
def trainer():
    return ps.Trainer(light_program, optax.sgd(0.05), place=one_device())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("learning_rate", f"{ONLY} {READ} Did you mean 'update_scale'?"),
        ("update_scal", f"{ONLY} {READ} Did you mean 'update_scale'?"),
        ("freeze", f"{ONLY} It is a method. Call Trainer.freeze(...)."),
        ("test", f"{ONLY} It is a method. Call Trainer.test(...)."),
        ("place", f"{ONLY} {READ} Pass it where the object is made: Trainer(..., place=...)."),
        ("verbose", f"{ONLY} {READ} See help(Trainer)."),
        (
            "seed",
            f"{ONLY} It stays as it was made. Pass it where the object is made: "
            "Trainer(..., seed=...).",
        ),
        ("epoch", f"{ONLY} It stays as it was made. See help(Trainer)."),
    ],
)
def test_attribute_of_a_trainer_that_nothing_reads_is_refused_with_what_to_use(trainer, name, text):
    with pytest.raises(AttributeError) as caught:
        setattr(trainer, name, 1)
    assert str(caught.value) == f"Trainer.{name} got a value, {text}"


def test_attributes_of_a_trainer_that_are_read_can_be_set(trainer):
    trainer.about = {"preprocessing": "none"}
    trainer.update_scale = 0.5
    assert (trainer.about, trainer.update_scale) == ({"preprocessing": "none"}, 0.5)
    with pytest.raises(ValueError, match="update_scale got -1"):
        trainer.update_scale = -1


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps])
def test_trainer_that_is_pickled_or_copied_says_what_to_do(trainer, make):
    with pytest.raises(TypeError, match="Trainer got a pickle or a copy, expected neither"):
        make(trainer)


def test_builders_inferencers_and_fluids_trainers_refuse_what_nothing_reads(trainer, tmp_path):
    trainer.save_params(tmp_path)
    made = [
        trainer.builder,
        ps.Inferencer(light_program, tmp_path),
        fluid.Trainer(linear_program, fluid.optimizer.SGD),
        fluid.Inferencer(light_program, tmp_path),
    ]
    for instance in made:
        with pytest.raises(AttributeError, match=r"place got a value, .*\(\.\.\., place=\.\.\.\)"):
            instance.place = "cpu"
        assert weakref.ref(instance)() is instance


def test_trainers_subclass_of_a_user_has_attributes_of_its_own():
    class Named(ps.Trainer):
        def __init__(self, name):
            super().__init__(linear_program, optax.sgd(0.05), place=one_device())
            self.name = name

    assert Named("first").name == "first"


@pytest.mark.parametrize(
    ("folder", "is_users"),
    [
        ("flaxmodels", True),
        ("jax_resnet", True),
        ("flax", False),
        ("jax", False),
        ("jaxlib", False),
    ],
)
def test_lines_of_a_package_are_the_users_though_its_name_begins_as_that_of_jax(folder, is_users):
    packages = pathlib.Path(jax.__file__).parents[1]
    assert is_user_file(str(packages / folder / "model.py")) == is_users


@pytest.mark.parametrize(
    "value", [True, np.True_, "0.5", None, float("nan"), 1.5, np.array([0.1, 0.2])]
)
def test_what_is_no_number_of_an_interval_is_refused(value):
    text = rf"\Adropout got {re.escape(repr(value))}, expected a number from 0 to 1\. It is a share"
    with pytest.raises(ValueError, match=text):
        _errors.check_number("dropout", value, "[0, 1]", "It is a share.")


def test_ends_of_an_interval_are_said_to_the_last_digit():
    with pytest.raises(ValueError, match=r"expected a number from -1234567 to 1234566\. "):
        _errors.check_number("k", 1234567, "[-1234567, 1234566]", "It is a row.")
    with pytest.raises(ValueError, match=r"expected a number of 12345678 or more\. "):
        _errors.check_number("k", 0, "[12345678, inf]", "It is a row.")


def test_names_that_there_are_several_of_are_listed_with_the_nearest():
    with pytest.raises(ValueError, match=r"f got k='cats', expected one of 'cat', 'dog'\. Did"):
        _errors.check_known("f got k=", "cats", ("cat", "dog"), error=ValueError)
    with pytest.raises(ps.ProgramError, match=r"\Ak got \[2\], expected 1\.\Z"):
        _errors.check_choice("k", [2], (1,))


def test_kind_is_refused_by_its_value_where_that_is_short():
    for value, shown in ((True, "True"), ("3", "'3'"), (None, "None"), ([3] * 99, "list")):
        with pytest.raises(TypeError, match=rf"\Ak got {shown}, expected an integer\."):
            _errors.check_type("k", value, int, "an integer.")
    _errors.check_type("k", None, int | None, "an integer.")
