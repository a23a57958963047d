"""The benchmarks run and print a table; what they measure is not for a test to judge."""

import importlib
import sys
from pathlib import Path

import pytest

from benchmarks import checkpoints, convolutions, first_hours, mistakes, recurrent

ONCE = {"checkpoints": {"num_saves": 2}, "readers_memory": {"rounds": 1}}
"""Those that take less than a minute so; the types of the others are checked."""


OPTIONS = {
    "attention": ["--rounds", "1"],
    "gradients": ["--network", "lenet", "--batch_size", "2", "--rounds", "1"],
    "bucketing": ["--samples", "64", "--rounds", "1"],
    "own_photos": ["--folder", "eight shapes", "--num_images", "4", "--flags=--num_epochs=1"],
    "hub": ["--processes", "4", "--late_secs", "0.1", "--steady_secs", "0.1"],
    "plans": ["--size", "tiny", "--topology", "here,here"],
    "optimizer_update": ["--network", "lenet", "--rounds", "1"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ONCE, *OPTIONS])
def test_benchmark_prints_a_table(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checkpoints, "BATCH_SIZE", 8)  # 100 MB are saved, whatever is learned
    main = importlib.import_module(f"benchmarks.{name}").main
    main(OPTIONS[name]) if name in OPTIONS else main(**ONCE[name])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(rows) > 2
    assert all(row.count("|") == rows[0].count("|") for row in rows)


def test_benchmark_of_mistakes_times_the_answers_of_a_command(capsys):
    mistakes.main(["--containing", "penstock --vresion"])
    out, err = capsys.readouterr()
    assert "got [" not in err  # the answer is the table's
    assert "Median of 1: " in out
    assert "| `penstock --vresion` |" in out


@pytest.mark.slow
def test_benchmark_of_recurrent_layers_compares_with_flax(capsys, monkeypatch):
    monkeypatch.setattr(recurrent, "_keras", recurrent._flax)  # of the extra bench
    recurrent.main(["--layer", "gru", "--rounds", "1"])
    assert "| gru |" in capsys.readouterr().out


@pytest.mark.slow
def test_benchmark_of_convolutions_adds_up_a_network(capsys):
    convolutions.main(["--network", "conv_net", "--batch_size", "2", "--rounds", "1"])
    assert capsys.readouterr().out.count("| conv_net | 2 |") == len(convolutions.KINDS)


@pytest.mark.slow
def test_first_hours_of_penstock_name_most_new_photos(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")  # as users compile: it trains for hundreds of steps
    first_hours.write_photos(tmp_path, num_photos=25)
    python = Path(sys.executable)
    seconds, printed = first_hours.reach(first_hours.WHEEL.goals[1], tmp_path, python)
    assert seconds > 0
    assert first_hours.find_result(printed).endswith("of 40 new ones right")
