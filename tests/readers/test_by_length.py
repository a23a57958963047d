"""`batch_by_length`: which samples meet, in what order, within what budget."""

import re
from typing import Any

import numpy as np
import pytest

from penstock import readers
from penstock.readers import Shard, ShardError
from tests.readers.samples import ids
from tests.readers.sequence_samples import of_lengths, read_resumed, sequence_samples

OPTIONS = {
    "size": {"batch_size": 4, "pool_batches": 2},
    "full-batches-only": {"batch_size": 4, "pool_batches": 2, "drop_last": True},
    "in-order": {"batch_size": 4, "pool_batches": 2, "shuffle": False},
    "budget": {"words_per_batch": 20, "pool_batches": 2},
    "budget-in-buckets": {"words_per_batch": 24, "boundaries": [4, 12], "pool_batches": 2},
    "budget-in-pairs": {"words_per_batch": 24, "batch_multiple_of": 2, "drop_last": True},
    "both": {"words_per_batch": 20, "batch_size": 3, "pool_batches": 1},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def by_length(source: Any, **options: Any) -> Any:
    return readers.batch_by_length(source, **{"field": "words", **options})


def lengths(batches: Any) -> list[list[int]]:
    return [[len(sample["words"]) for sample in batch] for batch in batches]


def numbers(batches: Any) -> list[list[int]]:
    return [ids(batch) for batch in batches]


@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        # Pools are sorted by themselves and cut from the longest down.
        (
            (3, 1, 4, 2, 9, 0, 5, 7, 6),
            {"batch_size": 2, "pool_batches": 2},
            [[2, 0], [3, 1], [4, 7], [6, 5], [8]],
        ),
        # Samples of one length keep their order.
        ((1, 2, 1, 2, 1), {"batch_size": 3}, [[1, 3, 0], [2, 4]]),
        # A budget counts the longest of a batch for all, or the boundary of its bucket.
        ((1, 1, 2, 5, 3, 1), {"words_per_batch": 6}, [[3], [4, 2], [0, 1, 5]]),
        ((1, 4, 5, 2, 8, 0), {"words_per_batch": 16, "boundaries": (4, 8)}, [[2, 4], [0, 1, 3, 5]]),
        ((1, 4, 5, 2, 8, 3), {"batch_size": 2, "boundaries": (4, 8)}, [[2, 4], [0, 1], [3, 5]]),
    ],
)
def test_unshuffled_samples_meet_by_length_within_pool_and_budget(source, options, expected):
    assert numbers(by_length(of_lengths(*source), shuffle=False, **options)) == expected


def test_length_may_be_an_array_of_one_number():
    source, measure = of_lengths(1, 3, 2), lambda sample: np.array(len(sample["words"]))
    reader = by_length(source, field=None, length=measure, batch_size=2, shuffle=False)
    assert numbers(reader) == [[1, 2], [0]]


def test_orders_are_pinned():
    reader = by_length(of_lengths(*range(8), 3, 3), batch_size=2, pool_batches=4)
    assert [numbers(reader) for _ in range(2)] == [
        [[5, 4], [3, 2], [7, 6], [0, 1], [9, 8]],
        [[1, 0], [5, 4], [3, 2], [7, 6], [9, 8]],
    ]


def test_a_short_batch_is_the_last_of_its_pool_and_of_its_shortest():
    for seed in range(5):
        batches = lengths(by_length(of_lengths(*range(1, 11)), batch_size=4, seed=seed))
        assert [len(batch) for batch in batches] == [4, 4, 2]
        assert batches[-1] == [2, 1]


@every_option
@pytest.mark.parametrize("count", [1, 2, 8, 23])
def test_every_sample_comes_once_an_epoch(options, count):
    reader = by_length(sequence_samples(Shard(), count), **options)
    for _ in range(2):
        seen = [number for batch in reader for number in ids(batch)]
        assert len(seen) == len(set(seen))
        if not options.get("drop_last"):
            assert sorted(seen) == list(range(count))
        elif "batch_size" in options:
            assert len(seen) == count - count % options["batch_size"]


def test_no_sample_makes_no_batch():
    assert list(by_length([], batch_size=2)) == []
    assert list(by_length(of_lengths(1), batch_size=2, drop_last=True)) == []


@every_option
def test_budget_and_multiple_are_kept(options):
    for batch in lengths(by_length(sequence_samples(Shard()), **options)):
        boundaries = options.get("boundaries", range(1, 12))
        padded = next(boundary for boundary in boundaries if boundary >= max(*batch, 1, 0))
        assert len(batch) * padded <= options.get("words_per_batch", 1000)
        assert len(batch) <= options.get("batch_size", 1000)
        if options.get("drop_last"):
            assert len(batch) % options.get("batch_multiple_of", 1) == 0


@pytest.mark.parametrize(
    ("option", "source"), [*((option, "exact") for option in OPTIONS), ("budget", "counted")]
)
def test_resumed_at_every_batch_it_yields_the_same_rest(option, source):
    samples = sequence_samples(Shard())
    if source == "counted":
        samples = list(samples.iterate(0))
    reader = by_length(samples, **OPTIONS[option])
    for epoch in (0, 2):
        whole = numbers(reader.iterate(epoch))
        for num_before in range(len(whole) + 1):
            assert numbers(read_resumed(reader, num_before, epoch)) == whole[num_before:]


def test_state_between_pools_reads_nothing_again():
    read = []
    source = readers.map_readers(
        lambda sample: read.append(int(sample["id"])) or sample,
        readers.arrays({"id": np.arange(8)}, None),
    )
    reader = readers.batch_by_length(source, length=lambda _: 1, batch_size=2, pool_batches=2)
    with reader() as iterator:
        numbers([next(iterator), next(iterator)])
        state = iterator.get_state()
    read.clear()
    with reader() as iterator:
        iterator.set_state(state)
        assert sorted(ids([next(iterator), next(iterator)])) == [4, 5, 6, 7]
    assert read == [4, 5, 6, 7]


def test_joined_processes_divide_samples_of_ours_and_ask_whose_those_of_others_are(monkeypatch):
    from penstock.readers.decorators import _sequences

    monkeypatch.setattr(_sequences, "find_own_shard", lambda: Shard(1, 2))
    ours = readers.arrays({"words": np.arange(12).reshape(4, 3)}, None)
    assert [len(batch) for batch in by_length(ours, batch_size=4)] == [2]
    assert [len(batch) for batch in by_length(ours, batch_size=4, shard=Shard())] == [4]
    source = readers.shuffle(of_lengths(1, 2, 3, 4), 4)
    with pytest.raises(readers.ShardError, match=r"samples of .* without shard.*shard=Shard\(\)"):
        by_length(source, batch_size=4)
    for reader in [readers.cache(source), readers.buffered(readers.cache(source), 2)]:
        with pytest.raises(readers.ShardError, match="without shard"):
            by_length(reader, batch_size=4)
    assert [len(batch) for batch in by_length(source, batch_size=4, shard=Shard())] == [4]
    assert [len(batch) for batch in by_length(source, batch_size=4, shard=Shard(1, 2))] == [2]
    # Made with a shard, they are this process's own.
    part = readers.arrays({"words": np.arange(12).reshape(4, 3)}, None, shard=Shard(1, 2))
    assert [len(batch) for batch in by_length(part, batch_size=4)] == [2]


def test_field_of_tuples_several_fields_a_function_and_the_sample_itself():
    rows = [([1], [1, 1, 1]), ([2, 2], [2]), ([3, 3, 3, 3], [])]
    options = {"batch_size": 1, "shuffle": False}
    for chosen, order in (
        ({"field": 0}, [2, 1, 0]),
        ({"field": (0, 1)}, [2, 0, 1]),
        ({"length": lambda row: len(row[1])}, [0, 1, 2]),
    ):
        batches = list(readers.batch_by_length(rows, **chosen, **options))
        assert batches == [[rows[i]] for i in order]
    words = [[1], [2, 2, 2], [3, 3]]
    assert list(readers.batch_by_length(words, **options)) == [[words[i]] for i in (1, 2, 0)]


def test_length_is_known_with_a_size_and_unknown_with_a_budget():
    assert len(by_length(of_lengths(*range(7)), batch_size=3)) == 3
    assert len(by_length(of_lengths(*range(7)), batch_size=3, drop_last=True)) == 2
    with pytest.raises(TypeError, match="batch_by_length: the length is unknown"):
        len(by_length(of_lengths(1), words_per_batch=3))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "batch_by_length got batch_size=None, words_per_batch=None, batch_multiple_of=1, exp"),
        ({"batch_size": 4, "batch_multiple_of": 2}, "batch_size=4, words_per_batch=None, batch_m"),
        ({"batch_size": 0}, "batch_size got 0, expected an integer of 1 or more."),
        ({"words_per_batch": 0}, "words_per_batch got 0, expected an integer of 1 or more."),
        ({"words_per_batch": 8, "batch_multiple_of": 0}, "batch_multiple_of got 0"),
        (
            {"words_per_batch": 8, "batch_multiple_of": 2, "batch_size": 1},
            "batch_size got 1, expected an integer of 2 or more. It",
        ),
        (
            {"words_per_batch": 8, "boundaries": [4, 9]},
            "words_per_batch got 8, expected an integer of 9 or more",
        ),
        ({"batch_size": 1, "boundaries": [4, 4]}, "boundaries) got [4, 4], expected rising posit"),
        (
            {"batch_size": 1, "pool_batches": 0},
            "pool_batches got 0, expected an integer of 1 or more.",
        ),
        (
            {"batch_size": 1, "seed": -1},
            "batch_by_length(seed) got -1, expected an integer of 0 or more.",
        ),
        ({"batch_size": 1, "length": len}, "got field='words' and length=, expected one of them"),
        ({"batch_size": 1, "field": ()}, "batch_by_length(field) got (), expected a name or more."),
    ],
)
def test_option_out_of_range_is_refused_before_reading(options, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        by_length([], **options)


def test_batches_that_do_not_divide_are_refused():
    with pytest.raises(ShardError, match="batch_size got 3 over 2 processes, expected a multiple"):
        by_length([], batch_size=3, shard=Shard(0, 2))
    text = "batch_multiple_of got 1 over 2 processes, expected a multiple of 2. .* Pass 2 on any"
    with pytest.raises(ShardError, match=text):
        by_length([], words_per_batch=9, shard=Shard(0, 2))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"batch_size": 2, "boundaries": [3]},
            "batch_by_length got sample 1 of length 4, expected at most 3, the last boundary. "
            "Nothing is cut off in silence. Add a longer boundary, or cut or leave out long "
            "samples before.",
        ),
        (
            {"words_per_batch": 6, "batch_multiple_of": 2},
            "batch_by_length got sample 1 of length 4, expected at most 3. A batch has 2 samples "
            "or more, and 6 words at most. Raise words_per_batch, or cut or leave out long samples "
            "before.",
        ),
        ({"batch_size": 2, "field": "word"}, "got a dict of 'id', 'words', expected a sample with"),
        ({"batch_size": 2, "field": 0}, "got a dict, expected a sample with the field 0. Dicts"),
        ({"batch_size": 2, "field": "id"}, "got field 'id' of type int, expected an array or a l"),
        ({"batch_size": 2, "field": None}, "got a sample of type dict, expected an array or a li"),
        (
            {"batch_size": 2, "field": None, "length": lambda _: -1},
            "batch_by_length(length=) of a sample got -1, expected an integer of 0 or more.",
        ),
    ],
)
def test_sample_that_does_not_fit_is_an_error_with_its_number(options, text):
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        list(by_length(of_lengths(1, 4), **options))
    assert re.match("in batch_by_length, sample [01] of epoch 0", caught.value.__notes__[0])


def test_state_of_other_options_is_refused():
    with by_length(of_lengths(1, 2), batch_size=1)() as iterator:
        state = iterator.get_state()
    with pytest.raises(readers.ReaderStateError, match="Others make other batches"):
        by_length(of_lengths(1, 2), batch_size=2)().set_state(state)
