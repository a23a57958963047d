"""Fluid's tensors of sequences: made on the host, fed, and fetched."""

import numpy as np
import pytest

import penstock as ps
import penstock.fluid as fluid
from tests.layers.programs import infer, initial, normal

PLACE = fluid.CPUPlace()
WORDS = normal(6, 2)


def words_and_sums():
    words = fluid.layers.data(name="words", shape=[2], lod_level=1)
    return words, fluid.layers.sequence_pool(words, "sum")


def ids():
    return fluid.layers.data(name="ids", shape=[1], dtype="int64")


def test_flat_array_is_cut_by_the_lengths():
    tensor = fluid.create_lod_tensor(WORDS, [[3, 0, 1, 2]], PLACE)
    assert isinstance(tensor.values, np.ndarray)
    assert isinstance(tensor.lengths, np.ndarray)
    cut = tensor.cut()
    assert [len(sequence) for sequence in cut] == [3, 0, 1, 2]
    np.testing.assert_array_equal(np.concatenate(cut), WORDS)


def test_lists_of_numbers_become_words_of_one():
    tensor = fluid.create_lod_tensor([[3, 4], [5]], [[2, 1]], PLACE)
    assert [sequence.tolist() for sequence in tensor.cut()] == [[[3], [4]], [[5]]]


def test_random_words_are_in_the_range_with_both_ends():
    tensor = fluid.create_random_int_lodtensor([[40, 1, 20]], [1], PLACE, low=0, high=2)
    assert tensor.values.dtype == np.int64
    assert [sequence.shape for sequence in tensor.cut()] == [(40, 1), (1, 1), (20, 1)]
    assert set(np.unique(tensor.cut()[0])) == {0, 1, 2}


@pytest.mark.parametrize("function", ["create_lod_tensor", "create_random_int_lodtensor"])
@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        ([[1], [1], [1]], ValueError, "expected one list of lengths in a list, such as .* or two"),
        ([[1, 2], [1, 1]], ValueError, "a first one how many of them each example has"),
        ([], ValueError, r"recursive_seq_lens=\[\], expected one list"),
        ([[]], ValueError, r"such as \[\[3, 1\]\]"),
        ([2], ValueError, r"Put the lengths in such lists"),
        ([[1.0]], ValueError, r"recursive_seq_lens=\[\[1.0\]\]"),
        ([[2, -1]], ValueError, r"recursive_seq_lens=\[\[2, -1\]\]"),
    ],
)
def test_other_lengths_are_refused(function, lengths, error, message):
    arguments = ([[1, 2]],) if function == "create_lod_tensor" else ()
    options = {} if arguments else {"base_shape": [1], "low": 0, "high": 1}
    with pytest.raises(error, match=rf"fluid.{function} got .*{message}"):
        getattr(fluid, function)(*arguments, recursive_seq_lens=lengths, place=PLACE, **options)


def test_data_of_another_length_are_refused():
    with pytest.raises(ValueError, match="got 6 elements in data, expected 5, the sum"):
        fluid.create_lod_tensor(WORDS, [[3, 2]], PLACE)
    # Of as many words: the places where they are cut would not be those of the lists.
    with pytest.raises(ValueError, match=r"of lengths \[1, 2\], expected .*\[2, 1\]"):
        fluid.create_lod_tensor([[1], [2, 3]], [[2, 1]], PLACE)


def test_sequences_are_fed():
    tensor = fluid.create_lod_tensor(WORDS, [[3, 1, 2]], PLACE)
    words, sums = infer(words_and_sums, {"words": tensor})
    np.testing.assert_array_equal(np.concatenate(words), WORDS)
    expected = [part.sum(axis=0) for part in np.split(WORDS, [3, 4])]
    np.testing.assert_allclose(sums, expected, rtol=1e-5)


def test_sequences_of_one_element_are_fed_to_dense_inputs():
    tensor = fluid.create_lod_tensor([[3], [5]], [[1, 1]], PLACE)
    assert infer(ids, {"ids": tensor}).tolist() == [[3], [5]]


def test_longer_sequences_are_refused_by_dense_inputs():
    tensor = fluid.create_lod_tensor([[3, 4], [5]], [[2, 1]], PLACE)
    with pytest.raises(ps.FeedError, match=r"'ids' got a Sequence of lengths \[2 1\], expected an"):
        infer(ids, {"ids": tensor})


@pytest.mark.parametrize("return_numpy", [True, False])
def test_sequences_are_fetched_end_to_end_with_their_lengths(return_numpy, tmp_path):
    def network():
        words, sums = words_and_sums()
        return fluid.layers.fc(words, 4), sums

    def train_program():
        return fluid.layers.mean(network()[0])

    fluid.Trainer(train_program, fluid.optimizer.SGD).save_params(tmp_path / "params")
    inferencer = fluid.Inferencer(network, tmp_path / "params")
    feed = {"words": fluid.create_lod_tensor(WORDS, [[3, 1, 2]], PLACE)}
    rows, sums = inferencer.infer(feed, return_numpy=return_numpy)
    weights = initial(network)["params"]["fc_0"]["w"]
    np.testing.assert_allclose(rows, WORDS @ np.asarray(weights), rtol=1e-5, atol=1e-6)
    assert rows.recursive_sequence_lengths() == [[3, 1, 2]]
    assert rows.lod() == [[0, 3, 4, 6]]
    assert isinstance(sums, np.ndarray) == return_numpy
    assert not return_numpy or sums.recursive_sequence_lengths() == []
    assert rows[:2].recursive_sequence_lengths() == []


def test_one_sequence_is_fetched_as_one_value(tmp_path):
    def network():
        return fluid.layers.fc(fluid.layers.data(name="words", shape=[2], lod_level=1), 4)

    trainer = fluid.Trainer(
        lambda: fluid.layers.mean(network()), fluid.optimizer.SGD, infer_func=network
    )
    feed = {"words": fluid.create_lod_tensor(WORDS, [[4, 2]], PLACE)}
    [rows] = trainer.infer(feed)
    assert rows.shape == (6, 4)
    assert rows.recursive_sequence_lengths() == [[4, 2]]


def test_sequences_are_cut_again():
    tensor = fluid.create_lod_tensor([[3, 4], [5]], [[2, 1]], PLACE)
    again = fluid.create_lod_tensor(tensor, [[1, 2]], PLACE)
    assert [sequence.tolist() for sequence in again.cut()] == [[[3]], [[4], [5]]]
