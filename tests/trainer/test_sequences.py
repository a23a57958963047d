"""Training on sequences: compiles, resumed runs, replays, an inferencer, and two processes."""

import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from tests.checkpoints.runs import as_killed_at, every_step, whole_state
from tests.distributed.processes import run_group
from tests.networks import assert_same_bits, one_device
from tests.trainer import sequence_run
from tests.trainer.sequence_run import BUCKETS, make_reader, make_samples

ORDER = ["words", "tags"]


def light_program():
    words = layers.data("words", [1], "int32", lod_level=1, buckets=BUCKETS)
    tags = layers.data("tags", [1], "int32", lod_level=1, buckets=BUCKETS)
    hidden = layers.dropout(layers.embedding(words, [11, 4]), 0.2)
    scores = layers.fc(hidden, 3, act="softmax")
    return layers.mean(layers.cross_entropy(scores, tags))


def train(reader, checkpoint=None, num_epochs=2):
    trainer = ps.Trainer(light_program, optax.adam(0.05), place=one_device(), checkpoint=checkpoint)
    trainer.train(reader, num_epochs=num_epochs, feed_order=ORDER)
    return trainer


BUDGET = {"batch_size": None, "words_per_batch": 64}
COMPILES = [
    # Of each bucket full batches and short ones.
    ({"batch_size": 4}, 2 * len(BUCKETS)),
    ({**BUDGET, "drop_last": True}, len(BUCKETS)),
    (BUDGET, 2 * len(BUCKETS)),
]


@pytest.mark.quick("options1")
@pytest.mark.parametrize(("options", "most"), COMPILES)
def test_ten_epochs_of_batches_by_length_compile_as_often_as_there_are_buckets(options, most):
    trainer = train(make_reader(make_samples(61), seed=1, **options), num_epochs=10)
    assert len(BUCKETS) <= trainer._engine.programs.num_compiles["train"] <= most


def train_by_words(directory):
    reader = make_reader(make_samples(), words_per_batch=40, batch_size=None)
    return train(reader, every_step(directory))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, train_by_words(folder)


# Some in the middle of a pool, of both epochs.
@pytest.mark.slow
@pytest.mark.parametrize("step", [2, -1, 3])
def test_run_killed_in_an_epoch_of_batches_by_length_ends_with_the_same_bits(step, whole, tmp_path):
    folder, trainer = whole
    if step != 2:
        step += trainer.global_step // 2
    resumed = train_by_words(as_killed_at(folder, step, tmp_path / "left"))
    assert resumed.global_step == trainer.global_step
    assert_same_bits(whole_state(resumed), whole_state(trainer))


def nested_program():
    words = layers.data("words", [1], "int32", lod_level=2).inner
    return layers.mean(layers.fc(layers.embedding(words, [11, 4]), 1))


FLAT = {"words": [[1, 2, 3], [], [4]], "tags": [[0, 1, 2], [], [0]]}
NESTED = {"words": [[[1, 2], [3]], [[], [4, 5, 6]]]}
OUT_OF_RANGE = [
    (light_program, FLAT, {"tags": [[0, 1, -1], [], [0]]}, "'tags' holds -1 in word 2 of row 0"),
    (
        *(nested_program, NESTED, {"words": [[[1, 2], [3]], [[], [4, 5, 12]]]}),
        "'words' holds 12 in word 2 of sequence 1 of row 1",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("program", "good", "wrong", "text"), OUT_OF_RANGE)
def test_replay_names_the_word_that_is_out_of_range(program, good, wrong, text):
    trainer = ps.Trainer(program, optax.adam(0.05), place=one_device())
    with pytest.raises(FloatingPointError) as caught:
        trainer.replay([good, {**good, **wrong}])
    assert str(caught.value).startswith("replay of global step 1: ")
    assert f" The input {text} of the batch; with 0 there" in str(caught.value)


def test_replay_names_the_sequences_that_are_not_finite():
    def program():
        return layers.mean(layers.fc(layers.data("frames", [2], lod_level=1), 1))

    trainer = ps.Trainer(program, optax.sgd(0.1), place=one_device())
    good = [np.ones([3, 2], np.float32), np.ones([1, 2], np.float32)]
    bad = [good[0], good[1] * np.float32("nan")]
    with pytest.raises(FloatingPointError, match="values that are not finite, in 'frames'"):
        trainer.replay([{"frames": good}, {"frames": bad}])


@pytest.mark.slow
def test_two_processes_with_words_of_unequal_length_train_as_one():
    results = [output["result"] for output in run_group(2, 1, "tests.two_processes", "sequences")]
    assert results[0] == results[1]
    expected = sequence_run.run(ps.readers.Shard(), one_device())
    for name in ("said", "tested"):
        for actual, wanted in zip(results[0][name], expected[name], strict=True):
            np.testing.assert_allclose(actual, wanted, atol=1e-6)
    for name, value in expected["parameters"].items():
        np.testing.assert_allclose(results[0]["parameters"][name], value, atol=1e-5)
