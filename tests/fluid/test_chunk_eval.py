"""Counts of chunks against a plain walk over the words, in every scheme."""

import jax
import numpy as np
import pytest

from penstock import layers
from tests.layers import alone

MARKS = {"IOB": "BI", "IOE": "IE", "IOBES": "BIES", "plain": "P"}
NUM_TYPES = 3
LENGTHS = (9, 0, 1, 30, 6, 17, 1)


def goes_on(before, mark):
    """Return whether a word of `mark` is of the chunk of the word before, of the same type."""
    return before not in "ES" and mark not in "BS"


def find_chunks(tags, scheme):
    """Return (first, last, type) of each chunk, by a walk over the words."""
    marks, chunks, start = MARKS[scheme], [], None
    words = [divmod(tag, len(marks)) for tag in tags] + [(NUM_TYPES, 0)]
    for place, (kind, mark) in enumerate(words):
        if start is not None:
            kind_before, mark_before = words[place - 1]
            if kind != kind_before or not goes_on(marks[mark_before], marks[mark]):
                chunks.append((start, place - 1, kind_before))
                start = None
        if start is None and kind < NUM_TYPES:
            start = place
    return chunks


def count(predicted, true, scheme, excluded=()):
    totals = np.zeros(3)
    for actual, wanted in zip(predicted, true, strict=True):
        chunks, right = (
            {chunk for chunk in find_chunks(tags, scheme) if chunk[2] not in excluded}
            for tags in (actual, wanted)
        )
        totals += [len(chunks), len(right), len(chunks & right)]
    return totals


def draw(scheme, seed, share=0.15):
    """Return true tags, and predicted ones of which a share is another."""
    random = np.random.default_rng(seed)
    high = NUM_TYPES * len(MARKS[scheme]) + 1
    true = [random.integers(0, high, n) for n in LENGTHS]
    # Runs, of which chunks of several words are made.
    true = [np.repeat(ids, 3)[: len(ids)] for ids in true]
    predicted = [
        np.where(random.random(len(ids)) < share, random.integers(0, high, len(ids)), ids)
        for ids in true
    ]
    return tuple([ids[:, None].astype(np.int32) for ids in tags] for tags in (predicted, true))


def evaluate(predicted, true, scheme, **options):
    def whole(x, y):
        return alone.run(
            lambda: layers.chunk_eval(x, y, scheme, NUM_TYPES, **options), {}, len(predicted)
        )

    inputs = alone.pad(predicted, 33), alone.pad(true, 32)
    return [float(value) for value in jax.jit(whole)(*inputs)]


@pytest.mark.quick("IOB-excluded0", "IOE-excluded1", "IOBES-excluded1", "plain-excluded0")
@pytest.mark.parametrize("excluded", [(), (1,)])
@pytest.mark.parametrize("scheme", MARKS)
def test_chunks_are_those_of_a_walk_over_the_words(scheme, excluded):
    predicted, true = draw(scheme, seed=len(scheme))
    options = {"excluded_chunk_types": excluded} if excluded else {}
    precision, recall, f1, *counts = evaluate(predicted, true, scheme, **options)
    flat = [[ids[:, 0].tolist() for ids in tags] for tags in (predicted, true)]
    expected = count(*flat, scheme, excluded)
    assert counts == expected.tolist()
    assert expected[2] > 2
    assert precision == pytest.approx(expected[2] / expected[0])
    assert recall == pytest.approx(expected[2] / expected[1])
    assert f1 == pytest.approx(2 * precision * recall / (precision + recall))


def test_without_chunks_precision_and_recall_are_0():
    outside = [np.full([n, 1], 2 * NUM_TYPES, np.int32) for n in LENGTHS]
    assert evaluate(outside, outside, "IOB") == [0.0] * 6


@pytest.mark.parametrize("wrong", [-1, 2 * NUM_TYPES + 1, "a word less"])
def test_tags_of_no_class_and_labels_of_another_length_make_nan(wrong):
    predicted, true = draw("IOB", seed=0)
    if isinstance(wrong, str):
        true[0] = true[0][:-1]
    else:
        predicted[0][3] = wrong
    assert np.isnan(evaluate(predicted, true, "IOB")[:3]).all()
