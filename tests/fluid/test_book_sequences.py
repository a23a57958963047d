"""The chapters of Fluid's book on sequences, as of August 2018: made-up data, the same programs."""

import re

import pytest

from penstock import _parameters
from tests.fluid.book import (
    label_semantic_roles,
    machine_translation,
    recommender_system,
    understand_sentiment,
)
from tests.fluid.test_book import numbers


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
@pytest.mark.parametrize("depth", [2, 8])
def test_label_semantic_roles_learns_saves_and_infers(depth, tmp_path, capsys, monkeypatch):
    # Eight LSTMs compile for several seconds.
    monkeypatch.setattr(label_semantic_roles, "depth", depth)
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
    assert sum(bool(re.search(r"dynamic_lstm_\d+/b$", name)) for name in names) == depth
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
    assert sum(wanted == found for wanted, found in pairs) >= 2
