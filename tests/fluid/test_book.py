"""The programs of Fluid's book as of August 2018: nothing changed but imports and data."""

import functools
import re

import pytest

from tests.fluid.book import fit_a_line, image_classification, recognize_digits, word2vec


def numbers(pattern: str, text: str) -> list[float]:
    """Return every number that `pattern` finds, of which there must be some."""
    found = [float(number) for number in re.findall(pattern, text)]
    assert found, text
    return found


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


NETS = {
    "resnet8": functools.partial(image_classification.resnet_cifar10, depth=8),
    "resnet32": image_classification.resnet_cifar10,
    "vgg": image_classification.vgg_bn_drop,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet8", "resnet32", "vgg"])
def test_image_classification_trains_saves_and_infers(name, tmp_path, capsys):
    image_classification.main(
        NETS[name], use_cuda=False, params_dirname=tmp_path / "images", batch_size=16
    )
    text = capsys.readouterr().out
    assert len(numbers(r"Cost ([\d.]+), Acc [\d.]+", text)) == 2
    assert len(numbers(r"Test with Pass \d, Loss ([\d.e+]+), Acc [\d.]+", text)) == 2
    assert re.search(r"infer results: [a-z]+", text)


@pytest.mark.slow
@pytest.mark.parametrize("is_sparse", [True])
def test_word2vec_learns_saves_and_infers(is_sparse, tmp_path, capsys):
    word2vec.main(use_cuda=False, is_sparse=is_sparse, params_dirname=tmp_path / "words")
    text = capsys.readouterr().out
    costs = numbers(r"Step \d+: Average Cost ([\d.]+)", text)
    assert costs[-1] < costs[0]
    assert f"(1, {word2vec.dict_size})" in text
    assert re.search(r"the next word: word\d+", text)
