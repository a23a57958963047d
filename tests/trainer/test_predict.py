"""`predict` and `predict_all`: their order, what is kept beside, how far they read, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers, readers
from penstock.trainer.prediction import LOOK_AHEAD
from tests.networks import (
    PLACES,
    class_data,
    classifier,
    classifier_program,
    eight_devices,
    one_device,
)

NUM_EXAMPLES = 23


def data(num_examples=NUM_EXAMPLES):
    names = np.array([f"image {n}.png" for n in range(num_examples)])
    return {"id": np.arange(num_examples), **class_data(num_examples), "name": names}


def make_trainer(infer_func=classifier, place=one_device):
    return ps.Trainer(classifier_program, optax.sgd(0.1), infer_func=infer_func, place=place())


def predicts(infer_func, place=one_device):
    """Return a trainer that predicts with a function without parameters."""
    loss = lambda: layers.mean(layers.data("x", shape=[4]))  # noqa: E731
    return ps.Trainer(loss, infer_func=infer_func, place=place())


@pytest.fixture(scope="module")
def trainer():
    return make_trainer()


@pytest.mark.parametrize(("devices", "batch_size"), [(1, 1), (3, 7), (8, 64)])
def test_rows_are_those_of_infer_in_the_order_of_the_reader(trainer, batch_size, devices):
    other = make_trainer(place=lambda: jax.devices()[:devices])
    columns = other.predict_all(readers.arrays(data(), batch_size), keep=("id", "name"))
    assert list(columns) == ["output", "id", "name"]
    assert columns["id"].tolist() == list(range(NUM_EXAMPLES))
    assert columns["name"].tolist() == data()["name"].tolist()
    expected = trainer.infer(data())
    np.testing.assert_allclose(columns["output"], expected, rtol=1e-5, atol=1e-6)
    joined = other.predict_all(readers.arrays(data(), batch_size))
    np.testing.assert_array_equal(joined, columns["output"])


def test_batches_have_the_structure_of_infer_and_with_keep_are_columns(trainer):
    reader = readers.arrays(data(), 8)
    sizes = [len(batch) for batch in trainer.predict(reader)]
    assert sizes == [len(batch["output"]) for batch in trainer.predict(reader, keep="id")]
    assert sizes == [8, 8, 7]


@PLACES
@pytest.mark.parametrize("batch_size", [8, 10])
def test_short_last_batch_compiles_nothing_where_rows_do_not_depend_on_others(place, batch_size):
    trainer = make_trainer(place=place)
    trainer.predict_all(readers.arrays(data(), batch_size))
    assert trainer.builder.num_compiles == {"infer": 1}


def test_program_of_the_whole_batch_sees_just_its_examples():
    def centred():
        x = layers.data("x", shape=[4])
        return x - jnp.mean(x, axis=0, keepdims=True)

    x = data()["x"]
    answers = predicts(centred, eight_devices).predict_all(readers.arrays(data(), 10))
    expected = np.concatenate([part - part.mean(axis=0) for part in (x[:10], x[10:20], x[20:])])
    np.testing.assert_allclose(answers, expected, rtol=1e-5, atol=1e-6)


def test_nested_outputs_are_joined_one_by_one_and_named_by_their_path():
    def nested():
        x = layers.data("x", shape=[4])
        return {"sum": layers.reduce_sum(x, dim=1), "both": (x, 2 * x)}

    trainer, reader = predicts(nested), readers.arrays(data(), 10)
    joined, x = trainer.predict_all(reader), data()["x"]
    assert joined["sum"].shape[0] == NUM_EXAMPLES
    assert isinstance(joined["both"], tuple)
    np.testing.assert_array_equal(joined["both"][1], 2 * x)
    columns = trainer.predict_all(reader, keep=["label"])
    assert list(columns) == ["sum", "both/0", "both/1", "label"]
    assert list(predicts(lambda: (layers.data("x", shape=[4]),)).predict_all(reader, "id")) == [
        "output_0",
        "id",
    ]


def test_sequences_are_cut_to_their_lengths():
    words = [[1], [2, 3, 4], [], [5, 6]]

    def doubled():
        return layers.data("words", shape=[1], dtype="int32", lod_level=1) * 2

    trainer = predicts(doubled)
    batches = [{"words": words[:3], "n": [0, 1, 2]}, {"words": words[3:], "n": [3]}]
    joined = trainer.predict_all(batches)
    assert [np.ravel(row).tolist() for row in joined] == [[2], [4, 6, 8], [], [10, 12]]
    columns = trainer.predict_all(batches, keep=["n", "words"])
    assert columns["n"].tolist() == [0, 1, 2, 3]
    assert [list(row) for row in columns["words"]] == words


def test_fields_of_tuples_are_kept_by_their_names_in_feed_order(trainer):
    samples = [[(row, f"n{number}") for number, row in enumerate(data()["x"])]]
    columns = trainer.predict_all(samples, keep="id", feed_order=["x", "id"])
    assert columns["id"][:2].tolist() == ["n0", "n1"]


def test_order_of_training_names_the_fields():
    trainer, (x, label) = make_trainer(), (data()["x"], data()["label"])
    trainer.train([(x, label)], feed_order=["x", "label"])
    assert trainer.predict_all([(x, label)], keep="label")["label"].tolist() == label.tolist()


def test_inferencer_predicts_what_the_trainer_does(trainer, tmp_path):
    trainer.save_params(tmp_path / "p")
    inferencer = ps.Inferencer(classifier, tmp_path / "p", place=one_device())
    reader = readers.arrays(data(), 10)
    expected = trainer.predict_all(reader)
    np.testing.assert_array_equal(inferencer.predict_all(reader), expected)
    batches = [batch["output"] for batch in inferencer.predict(reader, keep=["id"])]
    np.testing.assert_array_equal(np.concatenate(batches), expected)


# How far ahead it reads.


@PLACES
def test_reader_is_read_a_few_batches_ahead_and_closed_when_the_caller_ends(place):
    read = []

    def reader():
        try:
            for number in range(100):
                read.append(number)
                yield {"x": data(8)["x"]}
        finally:
            read.append("closed")

    answers = make_trainer(place=place).predict(reader)
    assert not read
    next(answers)
    assert read == list(range(1 + LOOK_AHEAD))
    answers.close()
    assert read[-1] == "closed"


def test_error_of_a_reader_comes_after_the_batches_before_it(trainer):
    def reader():
        yield {"x": data(4)["x"]}
        yield {"x": data(4)["x"]}
        raise OSError("the disk is gone")

    answers = trainer.predict(reader)
    assert [len(next(answers)), len(next(answers))] == [4, 4]
    with pytest.raises(OSError, match="the disk is gone"):
        next(answers)


def test_handlers_predict_in_the_midst_of_training():
    trainer, shapes = make_trainer(place=eight_devices), []

    def on_event(event):
        if isinstance(event, ps.EndStep):
            shapes.append(trainer.predict_all(readers.arrays(data(), 10)).shape)

    trainer.train(readers.arrays(data(), 10), on_event)
    assert shapes == [(NUM_EXAMPLES, 3)] * 3


# Errors.


def test_training_between_two_batches_is_told():
    trainer, reader = make_trainer(), readers.arrays(data(), 2)
    answers = trainer.predict(reader)
    next(answers)
    trainer.train(reader)
    with pytest.raises(RuntimeError, match="got parameters that a training step has overwritten"):
        list(answers)


def test_column_that_is_not_there_is_refused_with_the_nearest(trainer):
    with pytest.raises(ps.FeedError) as caught:
        trainer.predict_all(readers.arrays(data(), 10), keep=["nmae"])
    assert str(caught.value) == (
        "keep got 'nmae', expected one of 'id', 'x', 'label', 'name'. They are what the reader "
        "yields. Did you mean 'name'?"
    )


def test_column_of_another_length_or_with_the_name_of_an_output_is_refused(trainer):
    batch = {"x": data()["x"], "path": "a/b", "output": data()["id"]}
    with pytest.raises(ps.FeedError, match="keep got 'path' of 1 values in a batch of 23 examples"):
        trainer.predict_all([batch], keep=["path"])
    with pytest.raises(ValueError, match="keep got 'output', expected names that no output has"):
        trainer.predict_all([batch], keep=["output"])


def test_strict_trainer_keeps_what_is_asked_for_and_refuses_the_rest():
    strict = ps.Trainer(classifier_program, infer_func=classifier, place=one_device(), strict=True)
    columns = {name: data()[name] for name in ("x", "id", "name")}
    assert len(strict.predict_all([columns], keep=["id", "name"])["id"]) == NUM_EXAMPLES
    with pytest.raises(ps.FeedError, match="feed got the unknown input 'name', expected 'x'"):
        strict.predict_all([columns], keep=["id"])


def test_output_of_a_batch_is_yielded_and_never_joined():
    trainer = predicts(lambda: {"size": layers.mean(layers.data("x", shape=[4]))})
    reader = readers.arrays(data(), 10)
    assert len([batch["size"] for batch in trainer.predict(reader)]) == 3
    with pytest.raises(ps.ProgramError, match="has returned value 'size' without a batch axis"):
        trainer.predict_all(reader)


def test_trainer_without_infer_func_and_reader_without_batches_are_refused(trainer):
    without = ps.Trainer(classifier_program, optax.sgd(0.1), place=one_device())
    with pytest.raises(ps.ProgramError, match=r"trainer\.predict got no infer_func, expected one"):
        without.predict([data()])
    with pytest.raises(ps.ReaderError, match="got a reader without a batch, expected at least one"):
        list(trainer.predict([]))
