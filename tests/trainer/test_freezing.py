"""Freezing: parameters and statistics that stay, bit for bit."""

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers, optimizers
from penstock._errors import ProgramError, UnknownNameError

ONE = jax.devices("cpu")[0]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 6)).astype("float32") + 3
Y = RNG.integers(0, 3, size=(64, 1)).astype("int32")
READER = ps.readers.arrays({"x": X, "y": Y}, batch_size=16)


def program():
    def backbone():
        return layers.batch_norm(layers.fc(layers.data("x", [6]), 8), act="relu")

    prediction = layers.fc(layers.scope("backbone")(backbone)(), 3, act="softmax", name="head")
    return layers.mean(layers.cross_entropy(prediction, layers.data("y", [1], dtype="int32")))


def changed(freeze, function=program):
    trainer = ps.Trainer(function, optax.adam(0.01), place=ONE, freeze=freeze)
    before = dict(trainer.parameters)
    trainer.train(READER)
    return {n for n, v in trainer.parameters.items() if not np.array_equal(v, before[n])}, trainer


def test_frozen_scope_stays_with_its_statistics():
    names, trainer = changed("backbone")
    assert names == {"head/w", "head/b"}
    rows = {row.name: row.is_trainable for row in trainer.builder.parameter_table()}
    assert not rows["backbone/fc_0/w"]
    assert rows["head/w"]


@pytest.mark.slow
def test_globs_choose_entries():
    names, _ = changed(("*/b", "*/bias"))
    assert names == {
        "head/w",
        "backbone/fc_0/w",
        "backbone/batch_norm_0/scale",
        "backbone/batch_norm_0/mean",
        "backbone/batch_norm_0/variance",
    }


def test_frozen_batch_norm_normalises_by_its_running_statistics():
    losses = []
    frozen = ps.Trainer(program, optax.sgd(0.0), place=ONE, freeze="backbone")
    frozen.train(
        ps.readers.arrays({"x": X, "y": Y}, batch_size=64),
        lambda e: losses.append(e.metrics) if isinstance(e, ps.EndStep) else None,
    )
    assert losses[0] == pytest.approx(frozen.test(READER), rel=1e-6)


def test_optimizer_keeps_nothing_for_what_is_frozen():
    whole = ps.ProgramBuilder(program, optax.adam(0.01), place=ONE)
    part = ps.ProgramBuilder(program, optax.adam(0.01), place=ONE, freeze="backbone")
    names = {name for name in part.programs.states.leaf_names if name.startswith("opt_state")}
    assert names < {
        name for name in whole.programs.states.leaf_names if name.startswith("opt_state")
    }
    assert not any("backbone" in name for name in names)


def test_parameters_of_flax_modules_freeze_too():
    def function():
        x = nn.Dense(8, name="dense")(layers.data("x", [6]))
        prediction = layers.fc(x, 3, act="softmax")
        return layers.mean(layers.cross_entropy(prediction, layers.data("y", [1], dtype="int32")))

    names, _ = changed("dense", function)
    assert names == {"fc_0/w", "fc_0/b"}


def test_pattern_that_matches_nothing_is_refused():
    with pytest.raises(UnknownNameError, match=r"freeze got 'bakbone'.*Did you mean"):
        changed("bakbone")


def test_everything_frozen_is_refused():
    with pytest.raises(ProgramError, match="got nothing to train"):
        changed("*")


def test_average_of_parameters_is_tested_and_saved(tmp_path):
    optimizer = optimizers.get("sgd", 0.1, moving_average_decay=0.9)
    trainer = ps.Trainer(program, optimizer, place=ONE)
    trainer.train(READER, num_epochs=3)
    builder = trainer.builder
    expected = optimizers.averaged_params(
        trainer._engine.state.opt_state, trainer._engine.state.variables["params"]
    )
    trainer.save_params(tmp_path / "average", averaged=True)
    trainer.save_params(tmp_path / "live")
    averaged, live = trainer.test(READER, averaged=True), trainer.test(READER)
    other = ps.Trainer(program, optimizer, place=ONE, param_path=tmp_path / "average")
    np.testing.assert_allclose(other.parameters["head/w"], expected["head"]["w"], rtol=1e-6)
    assert other.test(READER) == pytest.approx(averaged)
    assert averaged != live
    assert trainer.test(READER) == live
    assert builder.num_compiles["test"] == 1


def test_average_that_nobody_keeps_is_an_error():
    trainer = ps.Trainer(program, optax.sgd(0.1), place=ONE)
    with pytest.raises(ValueError, match="without a moving average"):
        trainer.test(READER, averaged=True)


def test_file_in_place_of_a_folder_says_what_is_expected(tmp_path):
    (tmp_path / "weights").write_text("none")
    trainer = ps.Trainer(program, optax.sgd(0.1), place=ONE)
    with pytest.raises(FileNotFoundError, match=r"expected a folder with params\.safetensors"):
        trainer.load_params(tmp_path / "weights")
