"""The programs of Fluid's book as of August 2018: nothing changed but imports and data."""

import re

import pytest

from penstock import _parameters
from tests.fluid.book import (
    fit_a_line,
    image_classification,
    label_semantic_roles,
    machine_translation,
    recognize_digits,
    recommender_system,
    understand_sentiment,
    word2vec,
)


def numbers(pattern: str, text: str) -> list[float]:
    """Return every number that `pattern` finds, of which there must be some."""
    values = [float(number) for number in re.findall(pattern, text)]
    assert values, text
    return values


def test_fit_a_line_learns_saves_and_infers(tmp_path, capsys):
    fit_a_line.main(use_cuda=False, params_dirname=tmp_path / "fit_a_line.inference.model")
    text = capsys.readouterr().out
    costs = numbers(r"Test cost, Step \d+, Cost ([\d.]+)", text)
    assert costs[-1] < 10 < costs[0]
    assert "loss is less than 10.0, stop" in text
    assert len(numbers(r"(?m)^\d: (-?\d+\.\d\d)$", text)) == 10


@pytest.mark.parametrize(
    "network",
    [
        recognize_digits.softmax_regression,
        recognize_digits.multilayer_perceptron,
        recognize_digits.convolutional_neural_network,
    ],
)
@pytest.mark.quick("softmax_regression")
def test_recognize_digits_learns_saves_and_infers(network, tmp_path, capsys):
    recognize_digits.main(network, use_cuda=False, params_dirname=tmp_path / "digits")
    text = capsys.readouterr().out
    assert numbers(r"accuracy is ([\d.]+)%", text)[0] > 90
    assert re.search(r"Inference result of a (\d) is: \1", text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "network", [image_classification.resnet_cifar10, image_classification.vgg_bn_drop]
)
def test_image_classification_trains_saves_and_infers(network, tmp_path, capsys):
    image_classification.main(
        network, use_cuda=False, params_dirname=tmp_path / "images", batch_size=4
    )
    text = capsys.readouterr().out
    assert len(numbers(r"Cost ([\d.]+), Acc [\d.]+", text)) == 2
    assert len(numbers(r"Test with Pass \d, Loss ([\d.e+]+), Acc [\d.]+", text)) == 2
    assert re.search(r"infer results: [a-z]+", text)


@pytest.mark.slow
def test_word2vec_learns_saves_and_infers(tmp_path, capsys):
    word2vec.main(use_cuda=False, is_sparse=True, params_dirname=tmp_path / "words")
    text = capsys.readouterr().out
    costs = numbers(r"Step \d+: Average Cost ([\d.]+)", text)
    assert costs[-1] < costs[0]
    assert f"(1, {word2vec.dict_size})" in text
    assert re.search(r"the next word: word\d+", text)


@pytest.mark.slow
def test_recommender_system_learns_saves_and_infers(tmp_path, capsys):
    recommender_system.main(use_cuda=False, params_dirname=tmp_path / "recommender")
    text = capsys.readouterr().out
    losses = numbers(r"Test Loss ([\d.]+)", text)
    assert losses[-1] < 0.5 < losses[0]
    # User and movie are both odd, for which the made-up score is 5.
    assert numbers(r"infer results:  \[\[([\d.]+)\]\]", text)[0] > 4


@pytest.mark.quick("conv")
@pytest.mark.parametrize("network", ["conv", "dynamic_rnn", "stacked_lstm"])
def test_understand_sentiment_learns_saves_and_infers(network, tmp_path, capsys):
    understand_sentiment.main(False, network, params_dirname=tmp_path / "sentiment")
    text = capsys.readouterr().out
    costs = numbers(r"Metrics \[([\d.]+),", text)
    assert costs[-1] < costs[0]
    assert numbers(r"Acc ([\d.]+)", text)[-1] > 0.9
    # The second review has words of the lower half, which make it one of label 0.
    chances = numbers(r"probability of  ([\d.e-]+)  to be positive", text)
    assert [chance > 0.5 for chance in chances] == [False, True, False]


@pytest.mark.slow
def test_label_semantic_roles_learns_saves_and_infers(tmp_path, capsys):
    folder = tmp_path / "roles"
    label_semantic_roles.main(use_cuda=False, params_dirname=folder)
    text = capsys.readouterr().out
    costs = numbers(r"avg_cost: ([\d.]+)", text)
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) == 3
    assert "infer results:  (9, 1) [[3, 4, 2]]" in text
    names = ["/".join(path) for _, path in _parameters.read(folder)]
    # One table for six inputs of words; biases and peepholes for each LSTM.
    assert {"crfw", "emb", "vemb"} < set(names)
    assert sum(bool(re.search(r"dynamic_lstm_\d+/b$", name)) for name in names) == 8
    assert sum(bool(re.search(r"embedding_\d+/w$", name)) for name in names) == 1


@pytest.mark.slow
def test_machine_translation_learns_saves_and_decodes(tmp_path, capsys):
    machine_translation.main(False, is_sparse=True, params_dirname=tmp_path / "translation")
    text = capsys.readouterr().out
    costs = numbers(r"cost=([\d.]+)", text)
    assert costs[-1] < 1 < costs[0]
    # Most sentences are found, which the made-up translations repeat.
    pairs = re.findall(r"wanted: (\[.*?\]) found: (\[.*?\])", text)
    assert len(pairs) == 4
    assert sum(wanted == decoded for wanted, decoded in pairs) >= 2
