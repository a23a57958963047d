"""Sequences of sequences: documents of sentences of words, of any number and length."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import _padded_batches, layers
from penstock._program.inputs import FeedSpec

BUCKETS = [9]


def read_document():
    document = layers.data("document", [1], "int32", lod_level=2, buckets=BUCKETS)
    words = layers.embedding(document.inner, [50, 4])
    words = layers.dynamic_gru(layers.fc(words, 12), 4)
    sentences = document.outer(layers.sequence_pool(words, "last"))
    pooled = layers.sequence_pool(layers.fc(sentences, 6, act="tanh"), "sum")
    return layers.fc(pooled, 2, act="softmax"), words, sentences, document


def train_program():
    prediction, words, sentences, _ = read_document()
    label = layers.data("label", [1], "int32")
    loss = layers.mean(layers.cross_entropy(prediction, label))
    return loss, layers.mean(words), layers.mean(sentences)


def infer_program():
    prediction, _, sentences, document = read_document()
    return prediction, sentences, document


def make_batch(random, size):
    return {
        "document": [
            [random.integers(0, 50, random.integers(0, 10)) for _ in range(random.integers(0, 5))]
            for _ in range(size)
        ],
        "label": random.integers(0, 2, (size, 1)),
    }


def train(num_devices, num_micro_batches=1):
    random = np.random.default_rng(0)
    batches = [make_batch(random, size) for size in (24, 7)]
    metrics = []

    def note(event):
        if isinstance(event, ps.EndStep | ps.EndEpoch):
            metrics.append(event.metrics)

    trainer = ps.Trainer(
        train_program,
        optax.sgd(0.5),
        place=jax.devices()[:num_devices],
        gradient_accumulation_steps=num_micro_batches,
    )
    trainer.train(lambda: iter(batches), note, num_epochs=2)
    assert trainer.builder.num_compiles["train"] == 2
    return np.asarray([*metrics, trainer.test(lambda: iter(batches))])


@pytest.mark.quick("how0")
@pytest.mark.parametrize("how", [(3, 1), (8, 1), (1, 3)])
def test_documents_give_the_same_on_any_number_of_devices_and_micro_batches(how):
    np.testing.assert_allclose(train(*how), train(1), rtol=2e-6, atol=1e-7)


def test_each_document_gives_what_it_gives_alone():
    builder = ps.ProgramBuilder(infer_func=infer_program, place=jax.devices()[:1])
    state = builder.init()
    documents = make_batch(np.random.default_rng(1), 6)["document"]
    prediction, sentences, returned = builder.infer(state, {"document": documents})
    for number, document in enumerate(documents):
        assert len(returned[number]) == len(sentences[number]) == len(document)
        for words, its in zip(returned[number], document, strict=True):
            np.testing.assert_array_equal(words[:, 0], its)
        alone = builder.infer(state, {"document": [document]})
        np.testing.assert_allclose(alone[0][0], prediction[number], rtol=1e-5)
        np.testing.assert_allclose(alone[1][0], sentences[number], rtol=1e-5, atol=1e-7)


MASKED = np.ma.array([1, 2], mask=[False, True])
COUNTED = "for padded values of shape [1, 2, 3, 1], expected"


def nested(lengths, counts):
    return ps.NestedSequence(jnp.ones([1, 2, 3, 1], int), jnp.array(lengths), jnp.array(counts))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.ones([1, 2, 3], int), "ndarray, expected a list of examples, each a list of sequences"),
        ([[3]], "3 as sequence 0, expected a list"),
        ([[[3]], None], "None as example 1, expected a list of examples"),
        ([[MASKED]], "masked sequence 0, expected arrays without a mask"),
        (nested([2, -1], [2]), f"lengths [2, -1] {COUNTED} 2 whole numbers from 0 to 3"),
        (nested([4, 1], [2]), f"lengths [4, 1] {COUNTED} 2 whole numbers from 0 to 3"),
        (nested([2, 1], [3]), f"lengths [3] {COUNTED} 1 whole numbers from 0 to 2"),
    ],
)
def test_documents_that_are_no_lists_of_sequences_are_refused(value, message):
    specs = {"document": FeedSpec(name="document", shape=(1,), dtype=np.dtype(int), lod_level=2)}
    with pytest.raises(ps.FeedError, match=re.escape(f"feed 'document' got {message}")):
        _padded_batches.check_feed({"document": value}, specs)
