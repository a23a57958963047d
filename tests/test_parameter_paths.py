"""Where parameters are read from: everything that takes them takes the same paths."""

import optax
import pytest

import penstock as ps
from penstock import layers
from tests.networks import assert_same_bits, linear_program, linear_reader, one_device


def make_trainer(**options):
    return ps.Trainer(linear_program, optax.adam(0.01), place=one_device(), **options)


def infer_program():
    return layers.fc(layers.data("x", shape=[4]), size=1)


def test_folder_that_holds_no_parameters_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing to load")
    for load in (
        lambda path: make_trainer(param_path=path),
        lambda path: ps.Inferencer(infer_program, path),
        make_trainer().load_params,
    ):
        with pytest.raises(FileNotFoundError, match=r"expected a folder with params\.safetensors"):
            load(tmp_path)


def test_trainer_of_an_empty_folder_starts_from_initial_values_and_says_so(tmp_path, caplog):
    make_trainer(param_path=tmp_path)
    assert caplog.messages == [
        f"no parameters at {tmp_path} yet: training starts from initial values"
    ]


@pytest.mark.quick("params", "3")
@pytest.mark.parametrize("part", ["params", "checkpoints", "checkpoints/3", ".", "checkpoint"])
def test_everything_that_takes_parameters_takes_the_same_paths(tmp_path, part):
    folder = tmp_path / "checkpoints"
    trainer = make_trainer(checkpoint=folder)
    trainer.train(linear_reader())
    if part == "params":
        trainer.save_params(tmp_path / part)
    if part == "checkpoint":  # called otherwise, and alone
        folder.rename(tmp_path / part)
    expected = dict(trainer.parameters)
    path = tmp_path / part
    started = make_trainer(param_path=path, seed=5)
    loaded = make_trainer(seed=5)
    loaded.load_params(path)
    inferencer = ps.Inferencer(lambda: layers.fc(layers.data("x", shape=[4]), size=1), path)
    for each in (started, loaded, inferencer):
        assert_same_bits(dict(each.parameters), expected)
