"""Compiled programs that are kept: a second start finds them, and nothing depends on them."""

import os
import subprocess
import sys

import pytest

from penstock import _compile_cache, use_compile_cache
from penstock.commands import main
from tests import compiling
from tests.source_tree import ROOT

SCRIPT = """
import sys
import jax
import numpy as np
import optax
import penstock as ps
from penstock import layers, readers
from tests.networks import classifier_program, class_data

ps.use_compile_cache(*sys.argv[1:])
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
trainer = ps.Trainer(classifier_program, optax.adam(0.1))
trainer.train(readers.arrays(class_data(64), 16))
print(sum(event.endswith("/cache_hits") for event in hits), trainer.parameters["fc_0/w"].sum())
"""


def run(*words, warnings="error", **variables):
    """Run the script in a process of its own; return the programs found, and a sum."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith("JAX_PERSISTENT")}
    plain.pop("JAX_COMPILATION_CACHE_DIR")
    variables = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", **variables}
    done = subprocess.run(
        [sys.executable, "-W", warnings, "-c", SCRIPT, *map(str, words)],
        cwd=ROOT,
        env={**plain, "XLA_FLAGS": compiling.xla_flags(), **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    number, total = done.stdout.split()
    return int(number), total, done.stderr


def test_second_start_finds_what_the_first_has_compiled_and_a_damaged_file_costs_a_compile(
    tmp_path,
):
    none, total, _ = run(tmp_path / "cache")
    assert none == 0
    kept = _compile_cache.list_programs(tmp_path / "cache")
    assert len(kept) > 3
    kept[0].write_bytes(kept[0].read_bytes()[:-9])
    kept[1].write_bytes(b"")
    kept[2].write_bytes(b"x" * 99)
    some, again, errors = run(tmp_path / "cache", warnings="default")
    assert some == len(kept) - 3
    assert again == total
    assert errors.count("Error reading persistent compilation cache entry") == 3


@pytest.mark.slow
def test_folder_is_penstocks_cache_or_what_jax_was_told(tmp_path):
    run(PENSTOCK_CACHE=str(tmp_path / "own"))
    assert _compile_cache.list_programs(tmp_path / "own" / "compiled")
    run(PENSTOCK_CACHE=str(tmp_path / "own"), JAX_COMPILATION_CACHE_DIR=str(tmp_path / "jax"))
    assert _compile_cache.list_programs(tmp_path / "jax")


def test_folder_that_cannot_be_written_is_an_error_in_a_script_and_a_line_of_a_command(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"use_compile_cache got .*, expected a folder that can be"):
        use_compile_cache(tmp_path / "file" / "cache")
    monkeypatch.delenv(_compile_cache.FOLDER)
    monkeypatch.setenv(_compile_cache.CHOICE, str(tmp_path / "file" / "cache"))
    _compile_cache.use_in_commands()
    assert _compile_cache.FOLDER not in os.environ
    errors = capsys.readouterr().err
    assert errors.startswith("penstock: PENSTOCK_COMPILE_CACHE got ")
    assert "What is compiled is not kept." in errors


def test_commands_use_the_folder_that_is_named_or_none(tmp_path, monkeypatch):
    monkeypatch.delenv(_compile_cache.FOLDER)
    monkeypatch.setenv(_compile_cache.CHOICE, "off")
    _compile_cache.use_in_commands()
    assert _compile_cache.FOLDER not in os.environ
    monkeypatch.setenv(_compile_cache.CHOICE, str(tmp_path))
    _compile_cache.use_in_commands()
    assert os.environ[_compile_cache.FOLDER] == str(tmp_path)
    monkeypatch.delenv(_compile_cache.FOLDER)


def test_cache_clear_removes_compiled_programs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(_compile_cache.CHOICE, str(tmp_path / "compiled"))
    (tmp_path / "compiled").mkdir()
    (tmp_path / "compiled" / "jit_train-0123-cache").write_bytes(b"x" * 2000)
    assert main(["cache"]) == 0
    assert f"{tmp_path / 'compiled'}: compiled programs: 1, 1.953 KiB" in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0
    assert "compiled programs: 0, 0 B" in capsys.readouterr().out
