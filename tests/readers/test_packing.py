"""`pack`: rows of several sequences, each whole and told apart."""

import re
from typing import Any

import numpy as np
import pytest

from penstock import readers
from penstock.readers import Shard
from tests.readers.sequence_samples import of_lengths, read_resumed, sequence_samples

OPTIONS = {
    "one-open-row": {"length": 12, "open_rows": 1},
    "three-open-rows": {"length": 12, "open_rows": 3},
    "many-open-rows": {"length": 15},
    "split": {"length": 4, "open_rows": 2, "splits_long": True},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def pack(source: Any, **options: Any) -> Any:
    return readers.pack(source, **{"field": "words", **options})


def unpack(row: dict[str, np.ndarray], name: str = "words") -> list[list[int]]:
    """Return the segments of a row."""
    segment_ids = row[f"{name}_segment_ids"]
    return [row[name][segment_ids == i].tolist() for i in range(1, segment_ids.max() + 1)]


def counts(rows: Any) -> list[list[int]]:
    return [[len(segment) for segment in unpack(row)] for row in rows]


def words(rows: Any) -> list[list[int]]:
    return [row["words"].tolist() for row in rows]


def test_rows_have_values_segments_and_positions():
    rows = list(pack([[5, 6, 7], [8, 8], [9], [3, 4]], length=5, open_rows=2))
    assert [{name: values.tolist() for name, values in row.items()} for row in rows] == [
        {
            "words": [5, 6, 7, 8, 8],
            "words_segment_ids": [1, 1, 1, 2, 2],
            "words_positions": [0, 1, 2, 0, 1],
        },
        {
            "words": [9, 3, 4, 0, 0],
            "words_segment_ids": [1, 2, 2, 0, 0],
            "words_positions": [0, 0, 1, 0, 0],
        },
    ]
    assert rows[0]["words_segment_ids"].dtype == rows[0]["words_positions"].dtype == np.int32


def test_first_open_row_with_room_takes_a_sample():
    assert counts(pack(of_lengths(4, 3, 2, 1), length=6)) == [[4, 2], [3, 1]]


def test_oldest_row_is_returned_where_no_other_may_be_opened():
    source = of_lengths(4, 5, 5, 2, 1)
    assert counts(pack(source, length=6, open_rows=1)) == [[4], [5], [5], [2, 1]]
    assert counts(pack(source, length=6, open_rows=2)) == [[4], [5], [5, 1], [2]]
    assert counts(pack(source, length=6, open_rows=3)) == [[4, 2], [5, 1], [5]]


def test_full_row_is_returned_at_once():
    read = []
    source = readers.map_readers(lambda s: read.append(1) or s, of_lengths(2, 4, 1))
    with pack(source, length=4)() as iterator:
        assert counts([next(iterator)]) == [[4]]
    assert len(read) == 2


def test_words_of_several_axes_keep_them():
    (row,) = pack([np.ones((2, 3), np.float32), np.full((1, 3), 2, np.float32)], length=4)
    assert row["words"].dtype == np.float32
    assert row["words"].tolist() == [[1.0] * 3, [1.0] * 3, [2.0] * 3, [0.0] * 3]


def test_fields_share_segments_and_have_rooms_of_their_own():
    samples = [
        {"source": [1, 1], "target": [1], "label": 0},
        {"source": [2], "target": [2, 2]},
        {"source": [3], "target": []},
    ]
    fields = ("source", "target")
    (row,) = readers.pack(samples, field=fields, length={"source": 5, "target": 4})
    assert sorted(row) == sorted(
        name + suffix for name in fields for suffix in ("", "_segment_ids", "_positions")
    )
    assert row["source"].tolist() == [1, 1, 2, 3, 0]
    assert row["source_segment_ids"].tolist() == [1, 1, 2, 3, 0]
    assert row["target"].tolist() == [1, 2, 2, 0]
    assert row["target_segment_ids"].tolist() == [1, 2, 2, 0]
    assert row["target"].dtype.kind == "i"
    # Full in one field is full: the second row is returned first.
    second, first = readers.pack(samples, field=fields, length={"source": 9, "target": 2})
    assert unpack(second, "target") == [[2, 2]]
    assert unpack(first, "target") == [[1]]
    assert unpack(first, "source") == [[1, 1], [3]]


def test_long_samples_are_cut_into_segments_of_their_own():
    rows = [unpack(row) for row in pack([[1, 2, 3, 4, 5], [6]], length=2, splits_long=True)]
    assert rows == [[[1, 2]], [[3, 4]], [[5], [6]]]
    (first, second) = readers.pack(
        [{"x": [1, 2, 3], "y": [4, 5, 6]}], field=("x", "y"), length=2, splits_long=True
    )
    assert (unpack(first, "y"), unpack(second, "y")) == ([[4, 5]], [[6]])
    assert second["y_positions"].tolist() == second["x_positions"].tolist() == [0, 0]


@every_option
@pytest.mark.parametrize("count", [1, 2, 23, 97])
def test_every_sample_comes_once_an_epoch_and_whole(options, count):
    samples = sequence_samples(Shard(), count)
    expected = sorted(word for sample in samples.iterate(0) for word in sample["words"].tolist())
    rows = list(pack(samples, **options))
    segments = [segment for row in rows for segment in unpack(row)]
    assert sorted(word for segment in segments for word in segment) == expected
    if not options.get("splits_long"):
        numbers = [segment[0] for segment in segments]
        assert len(numbers) == len(set(numbers))
    for row in rows:
        assert row["words"].shape == (options["length"],)
        assert all(len(set(segment)) == 1 for segment in unpack(row))
        assert not row["words"][row["words_segment_ids"] == 0].any()


@pytest.mark.parametrize(
    ("option", "source"),
    [*((option, "exact") for option in OPTIONS), ("three-open-rows", "counted")],
)
def test_resumed_at_every_row_it_yields_the_same_rest(option, source):
    samples = sequence_samples(Shard(), 41)  # more than there are between two marks
    if source == "counted":
        samples = list(samples.iterate(0))
    reader = pack(samples, **OPTIONS[option])
    whole = list(reader.iterate(1))
    for num_before in range(len(whole) + 1):
        rest = read_resumed(reader, num_before, epoch=1)
        assert len(rest) == len(whole) - num_before
        for row, expected in zip(rest, whole[num_before:], strict=True):
            assert list(row) == list(expected)
            for name, values in row.items():
                np.testing.assert_array_equal(values, expected[name], strict=True)


def test_resumed_it_reads_the_samples_of_its_open_rows_again_and_no_more():
    read = []
    source = readers.map_readers(
        lambda sample: read.append(1) or np.full(3, sample["id"]),
        readers.arrays({"id": np.arange(400)}, None),
    )
    reader = pack(source, length=12, open_rows=4)
    with reader() as iterator:
        for _ in range(90):
            next(iterator)
        state = iterator.get_state()
        rest = words(iterator)
    read.clear()
    with reader() as iterator:
        iterator.set_state(state)
        assert len(read) < 4 * 4 + 32
        assert words(iterator) == rest


def test_states_taken_early_stay_as_they_were():
    reader = pack(sequence_samples(Shard()), length=15)
    with reader.iterate(0) as iterator:
        next(iterator)
        state = iterator.get_state()
        kept = repr(state)
        rest = words(iterator)
    assert repr(state) == kept
    with reader.iterate(0) as iterator:
        iterator.set_state(state)
        assert words(iterator) == rest


def test_nothing_and_empty_samples_make_no_row():
    assert list(pack([], length=4)) == []
    assert list(pack(of_lengths(0, 0), length=4)) == []
    assert counts(pack([[], [1], [], [2]], length=4)) == [[1, 1]]


def test_iterator_of_one_pass_is_read_once_and_the_length_is_unknown():
    reader = pack(iter([[1], [2]]), length=2)
    assert words(reader) == [[1, 2]]
    with pytest.raises(readers.ReaderExhaustedError):
        reader()
    with pytest.raises(TypeError, match="pack: the length is unknown"):
        len(reader)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"length": 0}, "pack(length) of 'words' got 0, expected an integer of 1 or more."),
        ({"length": 4, "open_rows": 0}, "pack(open_rows) got 0, expected an integer of 1 or more."),
        ({"length": 4, "field": ()}, "pack got field=() and length=4, expected a name or more,"),
        ({"length": {"word": 4}}, "pack got field='words' and length={'word': 4}, expected a nam"),
        ({"length": 4, "field": ["a", "a"]}, "pack got field=['a', 'a'] and length=4, expected"),
        (
            {"length": {"a": 4, "b": 5}, "field": ["a", "b"], "splits_long": True},
            "pack(splits_long=True) got length={'a': 4, 'b': 5}, expected one length of all ",
        ),
    ],
)
def test_option_out_of_range_is_refused_before_reading(options, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        pack([], **options)


@pytest.mark.parametrize(
    ("samples", "options", "text"),
    [
        (
            of_lengths(1, 5),
            {},
            "pack got sample 1 with 'words' of length 5, expected at most 4. A row holds whole "
            "sequences. Raise length, or pass splits_long=True.",
        ),
        (
            [{"a": [1] * 5, "b": [1]}],
            {"field": ["a", "b"], "splits_long": True},
            "pack got sample 0 with 'a' of length 5, expected at most 4. Only fields of one length "
            "are cut side by side, and here they are [5, 1]. Raise length, or cut the sample "
            "before.",
        ),
        ([{"a": [1]}], {}, "pack got a dict of 'a', expected a sample with the field 'words'."),
        ([([1], [2])], {}, "pack got a tuple, expected a sample with the field 'words'. Dicts"),
        ([3], {}, "sample 0: field 'words' of type int, expected an array or a list of words"),
    ],
)
def test_sample_that_does_not_fit_is_an_error_with_its_number(samples, options, text):
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        list(pack(samples, **{"length": 4, **options}))
    assert caught.value.__notes__ == [f"in pack, sample {len(samples) - 1} of epoch 0"]


def test_words_of_several_dtypes_or_shapes_are_refused():
    samples = [np.ones(1, np.int32), np.ones(1, np.float32)]
    text = "words of 'words' of [] int32 in sample 0, [] float32 in sample 1, expected one shape"
    with pytest.raises(ValueError, match=re.escape(text)):
        list(pack(samples, length=4))


def test_state_of_other_options_or_of_a_longer_source_is_refused():
    with pack(of_lengths(3, 3, 3), length=4, open_rows=1)() as iterator:
        next(iterator)
        state = iterator.get_state()
    with pytest.raises(readers.ReaderStateError, match="Others make other rows"):
        pack(of_lengths(3, 3, 3), length=5, open_rows=1)().set_state(state)
    with pytest.raises(readers.ReaderStateError, match="got 1 items, expected at least the 2"):
        pack(of_lengths(3), length=4, open_rows=1)().set_state(state)
