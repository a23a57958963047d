"""`learn_buckets`: the least padding, against every other choice."""

import itertools
import re

import numpy as np
import pytest

from penstock import readers
from tests.readers.sequence_samples import of_lengths


def count_padded(lengths, buckets):
    return sum(next(bucket for bucket in buckets if bucket >= length) for length in lengths)


def find_least(lengths, max_buckets, multiple_of):
    """Return the fewest padded words over every choice of boundaries."""
    rounded = sorted({-(-max(length, 1) // multiple_of) * multiple_of for length in lengths})
    return min(
        count_padded(lengths, [*chosen, rounded[-1]])
        for count in range(max_buckets)
        for chosen in itertools.combinations(rounded[:-1], count)
    )


@pytest.mark.parametrize("multiple_of", [1, 4])
@pytest.mark.parametrize("seed", range(8))
def test_buckets_pad_as_little_as_the_best_of_all_choices(seed, multiple_of):
    random = np.random.default_rng(seed)
    lengths = (random.gamma(2.0, 6.0, size=40)).astype(int)[: seed * 5 + 1]
    for max_buckets in (1, 2, 3, 5, 8):
        buckets = readers.learn_buckets(lengths, max_buckets=max_buckets, multiple_of=multiple_of)
        assert buckets == sorted(set(buckets))
        assert len(buckets) <= max_buckets
        assert all(bucket % multiple_of == 0 and bucket > 0 for bucket in buckets)
        least = find_least(lengths.tolist(), min(max_buckets, 4), multiple_of)
        padded = count_padded(lengths.tolist(), buckets)
        assert padded == least if max_buckets <= 4 else padded <= least


def test_few_lengths_each_have_a_bucket():
    assert readers.learn_buckets([5, 1, 5, 1], multiple_of=1) == [1, 5]
    assert readers.learn_buckets([0]) == [8]
    assert readers.learn_buckets([8, 9]) == [8, 16]


def test_millions_of_words_are_counted_exactly():
    lengths = np.repeat([10, 1000, 100_000], [100_000, 50_000, 50_000])
    assert readers.learn_buckets(lengths, max_buckets=2, multiple_of=1) == [1000, 100_000]


def test_lengths_are_read_from_fields_functions_and_samples():
    samples = of_lengths(3, 9, 12)
    expected = [8, 16]
    assert readers.learn_buckets(samples, field="words") == expected
    assert readers.learn_buckets(samples, length=lambda sample: len(sample["words"])) == expected
    assert readers.learn_buckets([sample["words"] for sample in samples]) == expected
    assert readers.learn_buckets(lambda: iter([3, 9, 12])) == expected
    pairs = [([1], [1] * 12), ([1] * 3, [1])]
    assert readers.learn_buckets(pairs, field=0) == [8]
    assert readers.learn_buckets(pairs, field=[0, 1]) == expected


def test_the_readers_epochs_go_on_as_if_nothing_was_read():
    reader = readers.arrays({"words": np.zeros((5, 3))}, None, shuffle=True)
    readers.learn_buckets(reader, field="words")
    assert reader.next_epoch == 0


def test_batches_by_the_learned_buckets_pad_less_than_powers_of_two():
    lengths = np.random.default_rng(0).gamma(2.0, 20.0, size=500).astype(int)
    learned = readers.learn_buckets(lengths)
    assert len(learned) == 8
    doubled = [2**n for n in range(4, 9)]
    assert count_padded(lengths, learned) < 0.85 * count_padded(lengths, doubled)


@pytest.mark.parametrize(
    ("source", "options", "text"),
    [
        ([], {}, "learn_buckets got no sample, expected a sample or more."),
        ([3, -1], {}, "learn_buckets: a length got -1, expected an integer of 0 or more."),
        ([3], {"max_buckets": 0}, "max_buckets got 0, expected an integer of 1 or more."),
        ([3], {"multiple_of": 0}, "multiple_of got 0, expected an integer of 1 or more."),
        ([1.5], {}, "learn_buckets got a sample of type float, expected an array or a list of"),
        ([{"a": [1]}], {"field": "b"}, "learn_buckets got a dict of 'a', expected a sample with"),
    ],
)
def test_what_has_no_lengths_is_refused(source, options, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        readers.learn_buckets(source, **options)
