"""Freezing: parameters and statistics that stay, bit for bit."""

import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers, optimizers
from penstock._errors import ProgramError, UnknownNameError
from tests.checkpoints.runs import as_killed_at, whole_state
from tests.networks import assert_same_bits, compile_warnings, host
from tests.program_builder.optax_makers import make, names

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


def test_compilations_before_freeze_and_unfreeze_stay_told():
    trainer = ps.Trainer(program, optax.sgd(0.1), place=ONE)
    for change in (trainer.freeze, trainer.unfreeze):
        trainer.train(READER)
        change("backbone")
    compiled = trainer.describe()["compilations"]
    assert [(entry["program"], entry["num_examples"]) for entry in compiled] == [("train", 16)] * 2
    assert trainer.builder.num_compiles == {"train": 2}


def test_frozen_batch_norm_normalises_by_its_running_statistics():
    losses = []
    frozen = ps.Trainer(program, optax.sgd(0.0), place=ONE, freeze="backbone")
    frozen.train(
        ps.readers.arrays({"x": X, "y": Y}, batch_size=64),
        lambda e: losses.append(e.metrics) if isinstance(e, ps.EndStep) else None,
    )
    assert losses[0] == pytest.approx(frozen.test(READER), rel=1e-6)


def test_parameters_of_flax_modules_freeze_too():
    def function():
        x = nn.Dense(8, name="dense")(layers.data("x", [6]))
        prediction = layers.fc(x, 3, act="softmax")
        return layers.mean(layers.cross_entropy(prediction, layers.data("y", [1], dtype="int32")))

    names, _ = changed("dense", function)
    assert names == {"fc_0/w", "fc_0/b"}


def test_pattern_that_matches_nothing_or_all_is_refused():
    with pytest.raises(UnknownNameError, match=r"freeze got 'bakbone'.*Did you mean"):
        changed("bakbone")
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


def is_matrix(params):
    return jax.tree.map(lambda x: x.ndim == 2, params)


def parted():
    """Return an optimizer with a mask, parts, a schedule and a clip over all parameters."""
    decayed = optax.adamw(optax.linear_schedule(0.05, 0.01, 20), mask=is_matrix)
    parts = optax.multi_transform({True: decayed, False: optax.adam(0.05)}, is_matrix)
    return optax.chain(optax.clip_by_global_norm(1.0), parts)


def moments(trainer):
    """Return the arrays of the optimizers' states by path, as text."""
    leaves = jax.tree_util.tree_leaves_with_path(host(trainer._engine.state.opt_state))
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def trainable(trainer):
    return {row.name for row in trainer.builder.parameter_table() if row.is_trainable}


@pytest.mark.quick("8")
@pytest.mark.parametrize("num_devices", [1, 3, 8])
def test_unfreezing_keeps_every_bit_and_begins_the_moments_of_what_becomes_trainable(num_devices):
    place = jax.devices()[:num_devices]
    trainer = ps.Trainer(program, parted(), place=place, freeze="backbone")
    trainer.train(READER, num_epochs=2)
    trainer.update_scale = 0.5
    before, state = moments(trainer), whole_state(trainer)
    trainer.unfreeze("backbone")
    assert len(trainable(trainer)) == 6
    after = moments(trainer)
    assert_same_bits({path: after[path] for path in before}, before)
    new = after.keys() - before.keys()
    assert len(new) == 8
    assert all("backbone" in path and not after[path].any() for path in new)
    assert_same_bits({**whole_state(trainer), "opt_state": 0}, {**state, "opt_state": 0})
    values = dict(trainer.parameters)
    trainer.train(READER)
    assert (trainer.global_step, trainer.epoch, trainer.update_scale) == (12, 3, 0.5)
    assert not [n for n, v in trainer.parameters.items() if np.array_equal(v, values[n])]
    moved = moments(trainer)
    trainer.freeze(["backbone"])
    assert_same_bits(moments(trainer), {path: moved[path] for path in before})


def test_freezing_adds_and_unfreezing_takes_away_by_name_and_glob():
    trainer = ps.Trainer(program, optax.adam(0.01), place=ONE, freeze="backbone")
    trainer.freeze("head/b")
    assert trainable(trainer) == {"head/w"}
    trainer.unfreeze("*/b")
    assert trainable(trainer) == {"head/w", "head/b", "backbone/fc_0/b"}
    trainer.unfreeze()
    assert len(trainable(trainer)) == 6


def test_freezing_what_is_not_there_or_all_or_while_training_changes_nothing():
    trainer = ps.Trainer(program, optax.adam(0.01), place=ONE)
    with pytest.raises(UnknownNameError, match=r"trainer\.unfreeze got 'haed'.*Did you mean"):
        trainer.unfreeze("haed")
    with pytest.raises(ProgramError, match="got nothing to train"):
        trainer.freeze("*")
    with pytest.raises(RuntimeError) as caught:
        trainer.train(READER, lambda _: trainer.freeze("backbone"))
    assert str(caught.value) == (
        "trainer.freeze got called while train runs, expected between two calls of it. What a step "
        "trains is compiled. End the run with trainer.stop(), and call it before the next "
        "trainer.train(...)."
    )
    trainer.train(READER)
    assert len(trainable(trainer)) == 6


@pytest.mark.slow
def test_freezing_a_part_of_several_objectives_leaves_the_other_as_it_is():
    def shrink():
        return layers.mean(layers.fc(layers.data("x", [6]), 1, name="other"))

    objectives = {
        "first": ps.Objective(program, optax.adam(0.01), updates=["backbone", "head"]),
        "second": ps.Objective(shrink, optax.adam(0.01), updates="other"),
    }
    trainer = ps.Trainer(objectives, place=ONE)
    trainer.train(READER)
    before, values = moments(trainer), dict(trainer.parameters)
    trainer.freeze("backbone")
    after = moments(trainer)
    assert before.keys() - after.keys() == {path for path in before if "backbone" in path}
    assert_same_bits(after, {path: before[path] for path in after})
    trainer.train(READER)
    same = {n for n, v in trainer.parameters.items() if np.array_equal(v, values[n])}
    assert same == {name for name in values if name.startswith("backbone")}
    with pytest.raises(ProgramError, match=r"Objective 'second' got nothing to train"):
        trainer.freeze("other")


# What no Trainer of this network runs.
REFUSED = {"line search in MultiSteps", "optax.measure_with_ema", "optax.contrib.scale_by_muon"}
EACH = [name for name in names() if name not in REFUSED]


@pytest.mark.quick("optax.adamw", "optax.lookahead")
@pytest.mark.parametrize("name", EACH)
def test_state_of_every_optimizer_of_optax_follows_what_is_frozen(name):
    def function():
        hidden = layers.fc(layers.data("x", [6]), 4, act="tanh", name="a")
        return layers.mean(jnp.square(layers.fc(hidden, 1, name="b") - 1.0))

    with jax.numpy_rank_promotion("allow"):
        trainer = ps.Trainer(function, make(name), place=ONE)
        trainer.train(READER)
        before, values = moments(trainer), dict(trainer.parameters)
        trainer.freeze("a")
        frozen = moments(trainer)
        assert before.keys() - frozen.keys() == {path for path in before if "['a']" in path}
        assert_same_bits(frozen, {path: before[path] for path in frozen})
        trainer.train(READER)
        assert np.array_equal(trainer.parameters["a/w"], values["a/w"])
        frozen = moments(trainer)
        trainer.unfreeze()
        after = moments(trainer)
        assert after.keys() == before.keys()
        assert_same_bits({path: after[path] for path in frozen}, frozen)
        trainer.train(READER)


def test_optimizer_with_one_state_for_all_parameters_together_is_refused():
    trainer = ps.Trainer(program, optax.flatten(optax.adam(0.01)), place=ONE)
    with pytest.raises(ProgramError) as caught:
        trainer.freeze("backbone")
    assert str(caught.value) == (
        "freeze got another choice of parameters with the optimizer optax.flatten, expected an "
        "optimizer that keeps a state by parameter. It keeps [0].mu for all of them together. Save "
        "the parameters, and make a Trainer with freeze=... and param_path=..."
    )
    trainer.train(READER)
    assert len(trainable(trainer)) == 6


STEPS = 4
"""Of an epoch."""


def run_in_stages(folder, handler=None, **options):
    """Train the head, then all, then all but a layer; the script of a run that is resumed."""
    config = ps.CheckpointConfig(directory=folder, save_interval_steps=1, max_to_keep=99)
    trainer = ps.Trainer(
        program, optax.adam(0.05), place=ONE, freeze="backbone", checkpoint=config, **options
    )
    trainer.train(READER, handler, num_epochs=2)
    trainer.unfreeze()
    trainer.train(READER, handler, num_epochs=2)
    trainer.freeze("backbone/fc_0")
    trainer.train(READER, handler)
    return trainer


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stages") / "whole"
    return folder, whole_state(run_in_stages(folder))


@pytest.mark.quick("9")
@pytest.mark.parametrize("step", [3, 2 * STEPS, 2 * STEPS + 1, 4 * STEPS, 4 * STEPS + 1])
def test_run_killed_in_any_stage_ends_with_the_bits_of_the_whole_run(step, stages, tmp_path):
    folder, expected = stages
    resumed = run_in_stages(as_killed_at(folder, step, tmp_path / "killed"))
    assert_same_bits(whole_state(resumed), expected)
    assert trainable(resumed) == {n for n in trainable(resumed) if "fc_0" not in n}


def test_checkpoint_of_another_choice_goes_on_with_that_of_the_script(stages, tmp_path, caplog):
    folder = as_killed_at(stages[0], STEPS, tmp_path / "killed")
    trainer = ps.Trainer(program, optax.adam(0.05), place=ONE, checkpoint=folder)
    before = moments(trainer)
    assert not any("backbone" in path for path in before)
    values = dict(trainer.parameters)
    trainer.train(READER, num_epochs=2)
    assert compile_warnings(caplog)[-1] == (
        "the checkpoint was written with 'backbone' frozen, training goes on with nothing: what "
        "the optimizer keeps of parameters that were frozen begins at zero"
    )
    assert trainer.global_step == 2 * STEPS
    assert not [n for n, v in trainer.parameters.items() if np.array_equal(v, values[n])]


@pytest.mark.slow
def test_roll_back_to_before_unfreezing_trains_what_is_trained_now(tmp_path):
    def poison():
        number = next(numbers)
        return {"x": X[:16] * np.float32(np.nan if number == 9 else 1), "y": Y[:16]}

    numbers = itertools.count()
    options = {"place": ONE, "freeze": "backbone", "on_non_finite": "roll_back"}
    config = ps.CheckpointConfig(directory=tmp_path, save_interval_epochs=1)
    trainer = ps.Trainer(program, optax.adam(0.05), checkpoint=config, **options)
    reader = lambda: iter([poison() for _ in range(8)])  # noqa: E731
    trainer.train(reader)
    trainer.unfreeze()
    trainer.train(reader, lambda e: e.metrics if isinstance(e, ps.EndStep) else None)
    assert trainer.global_step < 16 + 1
    assert len(trainable(trainer)) == 6
    counts = [leaf for path, leaf in moments(trainer).items() if path.endswith(".count")]
    assert counts == [14]
    assert all(np.isfinite(value).all() for value in trainer.parameters.values())
