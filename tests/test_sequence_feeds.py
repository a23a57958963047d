"""Feeds of sequences: every form that is accepted, what is refused and how, and their padding."""

import collections
import re

import jax.numpy as jnp
import numpy as np
import pytest

import penstock as ps
from penstock import _padded_batches, _sequence_feeds, layers
from penstock._program.inputs import FeedSpec
from tests.networks import eight_devices, one_device


def spec(name, shape=(1,), dtype="int32", buckets=()):
    return FeedSpec(name=name, shape=shape, dtype=np.dtype(dtype), lod_level=1, buckets=buckets)


IDS = spec("ids", buckets=(4, 8))
FRAMES = spec("frames", (3,), "float32")
MAPS = spec("maps", (2, 3), "float32")
KNOWN = {feed_spec.name: feed_spec for feed_spec in (IDS, FRAMES, MAPS)}


def words_of(expected, value, **beside):
    """Return what a feed of one input becomes: its words end to end, and their lengths."""
    specs = {expected.name: expected}
    columns, size = _padded_batches.check_feed({expected.name: value, **beside}, specs, KNOWN)
    words = columns[expected.name]
    assert size == len(words.lengths)
    assert words.values.dtype == expected.dtype
    assert words.lengths.dtype == np.int32
    assert words.values.shape == (words.lengths.sum(), *expected.shape)
    return words


def error_of(expected, value, **beside):
    with pytest.raises(ps.FeedError) as caught:
        words_of(expected, value, **beside)
    return str(caught.value)


class Tensor:
    """What torch's and TensorFlow's tensors share, ragged ones too; numpy takes no ragged one."""

    def __init__(self, array):
        self.array = array

    def numpy(self):
        if self.array is None:
            raise RuntimeError("it is on another device")
        return self.array


PackedSequence = collections.namedtuple("PackedSequence", ["data", "batch_sizes"])

# What is accepted.

PADDED = np.array([[1, 2, 9], [3, 9, 9], [9, 9, 9]])
LENGTHS = np.array([2, 1, 0])

FORMS = {
    "lists": [[1, 2], [3], []],
    "lists of words": [[[1], [2]], [[3]], []],
    "a tuple of lists": ([1, 2], (3,), ()),
    "arrays": [np.array([1, 2]), np.array([3]), np.array([], int)],
    "arrays of words": [np.array([[1], [2]]), np.array([[3]]), np.zeros([0, 1], int)],
    "jax's arrays": [jnp.array([1, 2]), jnp.array([3]), jnp.zeros(0, int)],
    "both": [np.array([1, 2]), [[3]], []],
    "masks without a masked value": [np.ma.array([1, 2]), np.ma.array([3]), []],
    "an array of lists": np.array([[1, 2], [3], []], object),
    "a ragged tensor": Tensor(np.array([[1, 2], [3], []], object)),
    "a Sequence": ps.Sequence(PADDED[..., None], LENGTHS),
    "a Sequence of numbers": ps.Sequence(PADDED, LENGTHS),
    "a Sequence on the device": ps.Sequence(jnp.asarray(PADDED), jnp.asarray(LENGTHS)),
    "a Sequence of lists": ps.Sequence(PADDED.tolist(), LENGTHS.tolist()),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_feed_is_the_same_words(form):
    words = words_of(IDS, FORMS[form])
    assert words.values.tolist() == [[1], [2], [3]]
    assert words.lengths.tolist() == [2, 1, 0]
    assert words.num_examples == 3


@pytest.mark.parametrize(
    "lengths",
    [LENGTHS, LENGTHS[:, None], LENGTHS.astype(np.uint8), [2, 1, 0], jnp.asarray(LENGTHS)],
    ids=["array", "column", "bytes", "list", "on the device"],
)
@pytest.mark.parametrize(
    "values",
    [PADDED, PADDED[..., None], jnp.asarray(PADDED), Tensor(PADDED)],
    ids=["array", "words", "on the device", "tensor"],
)
def test_padded_array_beside_its_lengths_is_cut_to_them(values, lengths):
    words = words_of(IDS, values, ids_length=lengths)
    assert words.values.tolist() == [[1], [2], [3]]
    assert words.lengths.tolist() == [2, 1, 0]


def test_tensor_without_a_numpy_array_is_refused_with_its_reason():
    assert "numpy makes no array: it is on another device" in error_of(IDS, Tensor(None))


def test_packed_sequence_is_refused_as_its_fields_are_no_sequences():
    packed = PackedSequence(np.array([1, 3, 2]), np.array([2, 1]))
    assert "got PackedSequence, expected a list of arrays" in error_of(IDS, packed)


def test_padded_array_without_lengths_is_full():
    words = words_of(IDS, PADDED)
    assert words.lengths.tolist() == [3, 3, 3]
    assert words.values[:, 0].tolist() == PADDED.reshape(-1).tolist()
    assert words_of(IDS, PADDED, ids_length=None).lengths.tolist() == [3, 3, 3]


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint16", "uint32", "uint64", "bool"])
def test_integers_of_another_dtype_are_converted_beside_an_empty_list_too(dtype):
    words = words_of(IDS, [np.array([1, 1], dtype), [], np.array([0], dtype)])
    assert words.values[:, 0].tolist() == [1, 1, 0]
    assert words.lengths.tolist() == [2, 0, 1]


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "bool"])
def test_numbers_for_a_floating_input_are_converted(dtype):
    words = words_of(FRAMES, [np.ones([2, 3], dtype), []])
    assert words.values.tolist() == [[1, 1, 1]] * 2


def test_bytes_for_a_floating_input_stay_bytes_beside_an_empty_list_too():
    specs = {"frames": FRAMES}
    batch = {"frames": [np.ones([2, 3], np.uint8), []]}
    columns, _ = _padded_batches.check_feed(batch, specs, specs)
    assert columns["frames"].values.dtype == np.uint8


@pytest.mark.parametrize("shape", [(4, 2, 3), (4, 6)])
def test_word_of_several_axes_may_be_flat(shape):
    values = np.arange(24, dtype=np.float32).reshape(shape)
    words = words_of(MAPS, [values, values[:1]])
    np.testing.assert_array_equal(words.values[:4].reshape(shape), values)
    assert words.lengths.tolist() == [4, 1]


def test_batch_may_have_no_word_at_all():
    for value in ([[], []], np.zeros([2, 0], int), np.zeros([2, 5], int)):
        words = words_of(IDS, value, **({} if isinstance(value, list) else {"ids_length": [0, 0]}))
        assert words.lengths.tolist() == [0, 0]
        assert not words.lengths.any()


# What is refused.

FORMS_EXPECTED = (
    "expected a list of arrays [length, {0}] of any length, or a ps.Sequence of values [batch, "
    "longest, {0}] and lengths [batch]."
)
OF_IDS, OF_FRAMES = FORMS_EXPECTED.format("1"), FORMS_EXPECTED.format("3")
COUNTED = (
    "for padded values of shape [3, 3], expected 3 whole numbers from 0 to 3. They count the words "
    "of each sequence."
)
NO_MASK = (
    "feed 'ids' got masked values, expected an array without a mask. What lies under it would be "
    "taken for data. Pass array.filled(0), and ~np.ma.getmaskarray(array) as an input of its own."
)
NO_MASK_EITHER = (
    "feed 'ids' got masked values or lengths, expected arrays without a mask. What lies under it "
    "would be taken for data. Pass the lengths that are meant."
)
NO_LOSS = "It is not converted, since that would lose information. Convert it in the reader."
MASKED = np.ma.array([1, 2], mask=[False, True])

REFUSED = {
    "a number": (IDS, 5, f"feed 'ids' got int, {OF_IDS}"),
    "nothing": (IDS, None, f"feed 'ids' got NoneType, {OF_IDS}"),
    "a word of letters": (IDS, "abc", f"feed 'ids' got str, {OF_IDS}"),
    "a dict": (IDS, {"a": [1]}, f"feed 'ids' got dict, {OF_IDS}"),
    "a generator": (IDS, ([1] for _ in "ab"), f"feed 'ids' got generator, {OF_IDS}"),
    "a scalar": (IDS, np.array(3), f"feed 'ids' got an array of shape [], {OF_IDS}"),
    "a vector": (IDS, np.arange(4), f"feed 'ids' got an array of shape [4], {OF_IDS}"),
    "one sequence": (IDS, [1, 2, 3], f"feed 'ids' got 1 as sequence 0, {OF_IDS}"),
    "no sequence": (IDS, [[1], None], f"feed 'ids' got None as sequence 1, {OF_IDS}"),
    "letters": (IDS, [["a", "b"]], f"feed 'ids' got dtype <U1, expected int32. {NO_LOSS}"),
    "floats": (IDS, [[1], [1.0]], f"feed 'ids' got dtype float64, expected int32. {NO_LOSS}"),
    "complex numbers": (
        FRAMES,
        np.ones([1, 2, 3], complex),
        f"feed 'frames' got dtype complex128, expected float32. {NO_LOSS}",
    ),
    "large numbers": (
        IDS,
        [[1, 2**40]],
        "feed 'ids' got int64 values from 1 to 1099511627776, expected values that fit int32.",
    ),
    "paragraphs of sentences": (
        IDS,
        [[[[1], [2]]], [[[3]]]],
        f"feed 'ids' got words of shape [2, 1], {OF_IDS}",
    ),
    "sentences of unequal length": (
        IDS,
        [[1], [[1], [2, 3]]],
        "feed 'ids' got sequence 1 of which numpy makes no array: ",
    ),
    "narrow words": (
        FRAMES,
        [np.ones([4, 2])],
        f"feed 'frames' got words of shape [2], {OF_FRAMES}",
    ),
    "words of nothing": (IDS, [np.ones([4, 0])], f"feed 'ids' got words of shape [0], {OF_IDS}"),
    "flat words": (FRAMES, [np.ones(6)], f"feed 'frames' got words of shape [], {OF_FRAMES}"),
    "narrow padded words": (
        FRAMES,
        np.ones([2, 4, 2]),
        f"feed 'frames' got words of shape [2], {OF_FRAMES}",
    ),
    "turned words": (
        MAPS,
        [np.ones([4, 3, 2])],
        f"feed 'maps' got words of shape [3, 2], {FORMS_EXPECTED.format('2, 3')}",
    ),
    "a mask": (IDS, np.ma.array([[1, 2]], mask=[[False, True]]), NO_MASK),
    "a mask in a list": (IDS, [[1], MASKED], NO_MASK),
    "a mask in a Sequence": (IDS, ps.Sequence(MASKED[None], np.array([2])), NO_MASK_EITHER),
    "a Sequence of floats as lengths": (
        IDS,
        ps.Sequence(PADDED, LENGTHS * 1.0),
        f"feed 'ids' got lengths [2.0, 1.0, 0.0] {COUNTED}",
    ),
    "a Sequence of unequal lists": (
        IDS,
        ps.Sequence([[1, 2], [3]], [2, 1]),
        "feed 'ids' got values or lengths of which numpy makes no array: ",
    ),
    "no example": (IDS, [], "feed got a batch of 0 examples, expected at least 1."),
}


def assert_says(actual, message):
    # What comes behind is numpy's own.
    end = len(message) if message.endswith("numpy makes no array: ") else None
    assert actual[:end] == message


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_sequence_is_told(what):
    expected, value, message = REFUSED[what]
    assert_says(error_of(expected, value), message)


WRONG_LENGTHS = {
    "too long": ([2, 4, 0], f"feed 'ids' got lengths [2, 4, 0] {COUNTED}"),
    "negative": ([2, -1, 0], f"feed 'ids' got lengths [2, -1, 0] {COUNTED}"),
    "floats": ([2.0, 1.0, 0.0], f"feed 'ids' got lengths [2.0, 1.0, 0.0] {COUNTED}"),
    "nan": (np.array([2, np.nan, 0]), f"feed 'ids' got lengths [2.0, nan, 0.0] {COUNTED}"),
    "flags": ([True, True, False], f"feed 'ids' got lengths [True, True, False] {COUNTED}"),
    "few": ([2, 1], f"feed 'ids' got lengths [2, 1] {COUNTED}"),
    "many": (list(range(9)), f"feed 'ids' got lengths [0, 1, 2, 3, 4, 5, 6, 7] ... {COUNTED}"),
    "one": (2, f"feed 'ids' got lengths [2] {COUNTED}"),
    "unequal": ([[2], [1, 0]], "feed 'ids' got values or lengths of which numpy makes no array: "),
    "masked": (np.ma.array([2, 1, 0], mask=[0, 1, 0]), NO_MASK_EITHER),
}


@pytest.mark.parametrize("what", WRONG_LENGTHS)
def test_lengths_that_do_not_fit_are_told(what):
    lengths, message = WRONG_LENGTHS[what]
    assert_says(error_of(IDS, PADDED, ids_length=lengths), message)


@pytest.mark.parametrize(
    ("value", "kind"),
    [([[1], [2]], "a list"), (([1],), "a list"), (ps.Sequence(PADDED, LENGTHS), "a Sequence")],
)
def test_lengths_beside_what_has_its_own_are_refused(value, kind):
    assert error_of(IDS, value, ids_length=[1, 1]) == (
        f"feed 'ids' got {kind} beside 'ids_length', expected a padded array beside it. The "
        "lengths are known already. Leave the second out."
    )


def test_unknown_names_are_told_those_of_lengths_too():
    assert error_of(IDS, [[1]], idz=[[1]]) == (
        "feed got the unknown input 'idz', expected 'ids', 'frames', 'maps'. Did you mean 'ids'?"
    )
    assert "the unknown input 'idz_length', expected 'ids'" in error_of(IDS, [[1]], idz_length=[1])
    specs = {"label": FeedSpec(name="label", shape=(1,), dtype=np.dtype("int32"))}
    with pytest.raises(ps.FeedError, match="unknown input 'label_length', expected 'label'"):
        _padded_batches.check_feed({"label": [[1]], "label_length": [1]}, specs, specs)


def test_misspelt_lengths_are_no_column_to_carry():
    specs = {"ids": IDS}
    with pytest.raises(ps.FeedError, match="got a padded array beside 'id_length', expected 'ids_"):
        _padded_batches.check_feed({"ids": PADDED, "id_length": LENGTHS}, specs)
    _padded_batches.check_feed({"ids": [[1]], "id_length": [1], "title_length": [1]}, specs)
    _padded_batches.check_feed({"ids": PADDED, "title_length": LENGTHS}, specs)
    # What is the length of another input is not misspelt, whatever its name is like.
    specs["id"] = spec("id")
    _padded_batches.check_feed({"ids": PADDED, "id": PADDED, "id_length": LENGTHS}, specs)


def test_lengths_of_another_programs_input_may_be_in_a_feed():
    assert words_of(IDS, [[1]], frames_length=[3]).lengths.tolist() == [1]


def test_missing_sequence_and_sequences_for_other_numbers_of_examples_are_told():
    both = {"ids": IDS, "frames": FRAMES}
    with pytest.raises(ps.FeedError, match=r"feed got 'ids', expected also 'frames'\."):
        _padded_batches.check_feed({"ids": [[1]]}, both, KNOWN)
    feed = {"ids": [[1], [2, 3]], "frames": [np.ones([7, 3])]}
    lengths = re.escape("{'ids': 2, 'frames': 1}")
    with pytest.raises(ps.FeedError, match=f"batches of different lengths {lengths}, expected one"):
        _padded_batches.check_feed(feed, both, KNOWN)


# Padding.


def test_sequences_are_padded_to_the_least_bucket_that_holds_the_longest():
    chosen = [_sequence_feeds.choose_bucket(IDS, longest) for longest in (0, 1, 4, 5, 8)]
    assert chosen == [4, 4, 4, 8, 8]
    chosen = [_sequence_feeds.choose_bucket(FRAMES, n) for n in (0, 1, 16, 17, 32, 33, 1000)]
    assert chosen == [16, 16, 16, 32, 32, 64, 1024]


def test_sequence_longer_than_the_last_bucket_is_refused():
    builder = ps.ProgramBuilder(
        infer_func=lambda: layers.data("ids", [1], "int32", lod_level=1, buckets=[4, 8]),
        place=one_device(),
    )
    with pytest.raises(ps.FeedError) as caught:
        builder.infer(builder.init(), {"ids": [[1], list(range(9))]})
    assert str(caught.value) == (
        "feed 'ids' got a sequence of length 9, expected at most 8, the last of its buckets [4, "
        "8]. Nothing is cut off in silence. Add a longer bucket, or cut or leave out long "
        "sequences in the reader."
    )


@pytest.mark.parametrize("place", [one_device, eight_devices])
def test_what_comes_back_is_what_was_fed_cut_to_its_lengths(place):
    def program():
        ids = layers.data("ids", [1], "int32", lod_level=1, buckets=[4, 8])
        return {"ids": ids, "frames": 2 * layers.data("frames", [3], lod_level=1)}

    builder = ps.ProgramBuilder(infer_func=program, place=place())
    random = np.random.default_rng(0)
    ids = [list(range(n)) for n in (5, 0, 1, 8, 3)]
    frames = [random.normal(size=(n, 3)).astype(np.float32) for n in (0, 20, 1, 2, 17)]
    out = builder.infer(builder.init(), {"ids": ids, "frames": frames})
    assert [sequence[:, 0].tolist() for sequence in out["ids"]] == ids
    for actual, expected in zip(out["frames"], frames, strict=True):
        np.testing.assert_array_equal(actual, 2 * expected)


def test_padding_repeats_the_last_word_and_the_last_example():
    words = words_of(IDS, [[1, 2], [], [3, 4, 5]])
    padded = _sequence_feeds.pad_words(words, 5, 4)
    assert padded.lengths.tolist() == [2, 0, 3, 3, 3]
    assert padded.values[..., 0].tolist() == [
        [1, 2, 2, 2],
        [0, 0, 0, 0],
        [3, 4, 5, 5],
        [3, 4, 5, 5],
        [3, 4, 5, 5],
    ]


@pytest.mark.parametrize("value", [[[], []], []])
def test_padding_of_no_word_is_zeros(value):
    words = _sequence_feeds.join_words(value, None, FRAMES)
    padded = _sequence_feeds.pad_words(words, 3, 4)
    assert padded.lengths.tolist() == [0, 0, 0]
    np.testing.assert_array_equal(padded.values, np.zeros([3, 4, 3], np.float32))
