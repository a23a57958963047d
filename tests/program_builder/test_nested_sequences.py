"""Sequences of sequences: documents of sentences of words, of any number and length."""

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers

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
    found = []

    def note(event):
        if isinstance(event, ps.EndStep | ps.EndEpoch):
            found.append(event.metrics)

    trainer = ps.Trainer(
        train_program,
        optax.sgd(0.5),
        place=jax.devices()[:num_devices],
        gradient_accumulation_steps=num_micro_batches,
    )
    trainer.train(lambda: iter(batches), note, num_epochs=2)
    assert trainer.builder.num_compiles["train"] == 2
    return np.asarray([*found, trainer.test(lambda: iter(batches))])


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


def test_documents_that_are_no_lists_of_sequences_are_refused():
    builder = ps.ProgramBuilder(infer_func=infer_program, place=jax.devices()[:1])
    message = "feed 'document' got ndarray, expected a list of examples, each a list of sequences"
    with pytest.raises(ps.FeedError, match=message):
        builder.infer(builder.init(), {"document": np.zeros([2, 3, 4], int)})
    with pytest.raises(ps.FeedError, match="feed 'document' got 3 as sequence 0, expected a list"):
        builder.infer(builder.init(), {"document": [[3]]})
