"""Loading parts of a parameter file: by pattern, under other names, of another shape."""

import numpy as np
import optax
import pytest

import penstock as ps
from penstock import _parameters, layers
from penstock._parameter_names import Selection
from tests.networks import one_device


def network(num_classes, scope):
    def program():
        hidden = layers.scope(scope)(backbone)(layers.data("x", shape=[4]))
        return layers.mean(layers.fc(hidden, size=num_classes, name="head"))

    return program


def backbone(x):
    return layers.batch_norm(layers.fc(x, size=8))


def make(num_classes=3, scope="backbone", seed=0):
    program = network(num_classes, scope)
    return ps.Trainer(program, optax.sgd(0.1), place=one_device(), seed=seed)


@pytest.fixture(scope="module")
def trained():
    trainer = make(seed=1)
    for name, value in trainer.parameters.items():
        trainer.parameters[name] = value + np.float32(7)
    return trainer


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "a.params"
    trained.save_params(folder)
    return folder


def changed(before, trainer):
    after = dict(trainer.parameters)
    return {name for name in after if not np.array_equal(before[name], after[name])}


def names_under(trainer, prefix):
    return {name for name in trainer.parameters if name.startswith(prefix)}


def test_included_entries_are_loaded_with_their_statistics_and_the_rest_is_kept(folder, capsys):
    trainer = make()
    before = dict(trainer.parameters)
    report = trainer.load_params(folder, include="backbone")
    assert changed(before, trainer) == names_under(trainer, "backbone/")
    assert set(report["loaded"]) == names_under(trainer, "backbone/")
    assert set(report["excluded"]) == names_under(trainer, "head/")
    assert "kept, not asked for: head/w" in capsys.readouterr().out


def test_excluded_globs_are_kept(folder):
    trainer = make()
    before = dict(trainer.parameters)
    trainer.load_params(folder, exclude=["*/w", "head"])
    names = set(trainer.parameters)
    kept = {name for name in names if name.endswith("/w") or name.startswith("head/")}
    assert changed(before, trainer) == names - kept


def test_a_layer_of_another_shape_is_left_out_on_request(folder, capsys):
    trainer = make(num_classes=5)
    before = dict(trainer.parameters)
    with pytest.raises(ps.ParameterError, match="mismatched: head/w got"):
        trainer.load_params(folder)
    report = trainer.load_params(folder, skip_mismatched=True)
    assert changed(before, trainer) == names_under(trainer, "backbone/")
    assert {line.split()[0] for line in report["mismatched"]} == names_under(trainer, "head/")
    printed = capsys.readouterr().out
    assert "of another shape or dtype in the file: head/w got float32[8, 3]" in printed


def test_renamed_entries_are_loaded_under_the_programs_names(folder, trained):
    for rename in ({"backbone": "body"}, lambda name: name.replace("backbone", "body")):
        trainer = make(scope="body")
        trainer.load_params(folder, rename=rename)
        for name, value in trainer.parameters.items():
            old = name.replace("body", "backbone")
            np.testing.assert_array_equal(value, trained.parameters[old])


def test_missing_entries_of_what_is_included_are_an_error(folder):
    trainer = make(scope="body")
    with pytest.raises(ps.ParameterError, match="missing: body/fc_0/w"):
        trainer.load_params(folder, include="body")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"include": "backbon"},
            "include got 'backbon', expected a pattern that matches a parameter",
        ),
        ({"exclude": ["head", "hed/*"]}, "exclude got 'hed/*', expected a pattern that matches"),
        ({"rename": {"bakbone": "body"}}, "rename got 'bakbone', expected the beginning of a name"),
    ],
)
def test_names_that_match_nothing_are_refused_and_nothing_is_loaded(folder, options, text):
    trainer = make()
    before = dict(trainer.parameters)
    with pytest.raises(ps.UnknownNameError) as caught:
        trainer.load_params(folder, **options)
    assert text in str(caught.value)
    assert not changed(before, trainer)


@pytest.mark.parametrize("rename", [{"": "teacher"}, {"a/": "teacher/a"}, {"a": "/teacher/a/"}])
def test_renamed_parts_are_joined_by_one_slash(rename):
    renamed = Selection(rename=rename).rename_entries({("params", ("a", "w")): 0})
    assert renamed == {("params", ("teacher", "a", "w")): 0}


def test_two_entries_for_one_name_are_refused():
    entries = {("params", ("a", "w")): 1, ("params", ("b", "w")): 2}
    with pytest.raises(ps.ParameterError, match="rename got two entries for 'c/w'"):
        Selection(rename={"a": "c", "b": "c"}).rename_entries(entries)


def test_report_names_some_of_what_was_not_asked_for_and_all_that_is_missing(capsys):
    names = [f"layer_{number}/w" for number in range(9)]
    report = {"loaded": [], "excluded": names, "missing": names, "mismatched": [], "extra": []}
    _parameters._print_report("a", report)
    output = capsys.readouterr().out
    assert output.count("kept, not asked for") == 5
    assert "kept, not asked for: 5 more of 9" in output
    assert output.count("kept, not in the file") == 9
