"""A trainer's network as an ONNX file."""

import numpy as np
import onnxruntime
import optax
import pytest

import penstock as ps
from penstock import layers, onnx_export
from tests.networks import one_device
from tests.onnx_export.test_networks import encoder, recurrent


@pytest.mark.quick("recurrent")
@pytest.mark.parametrize("network", [encoder, recurrent], ids=lambda network: network.__name__)
def test_a_network_of_sequences_takes_batches_and_lengths_of_any_size(network, tmp_path):
    def train_program():
        outputs = network()
        return layers.mean(outputs[0] if isinstance(outputs, tuple) else outputs)

    trainer = ps.Trainer(train_program, optax.sgd(0.1), infer_func=network, place=one_device())
    trainer.save_params(tmp_path / "params")
    inferencer = ps.Inferencer(network, tmp_path / "params", place=one_device())
    assert onnx_export.save(tmp_path / "model.onnx", inferencer) < 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for lengths in ([3], [9, 2]):
        words = [np.arange(length, dtype=np.int32)[:, None] + 5 for length in lengths]
        padded = np.zeros([len(words), max(lengths), 1], np.int32)
        for row, example in zip(padded, words, strict=True):
            row[: len(example)] = example
        feed = {"words": padded, "words_length": np.array(lengths, np.int32)}
        answers = inferencer.infer({"words": words})
        expected = answers[0] if isinstance(answers, tuple) else answers
        np.testing.assert_allclose(session.run(None, feed)[0], expected, atol=1e-5)
