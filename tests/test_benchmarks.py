"""The benchmarks run and print a table; what they measure is not for a test to judge."""

import importlib

import pytest

ONCE = {"checkpoints": {"num_saves": 2}, "readers_memory": {"rounds": 1}}
"""Those that take less than a minute so; the types of the others are checked."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ONCE)
def test_benchmark_prints_a_table(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    importlib.import_module(f"benchmarks.{name}").main(**ONCE[name])
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) > 2
    assert all(row.count("|") == rows[0].count("|") for row in rows)
