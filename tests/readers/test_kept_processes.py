"""A reader keeps its worker processes from pass to pass, and they end with it."""

import subprocess
import sys

import pytest

from tests.source_tree import ROOT


@pytest.mark.quick("records")
@pytest.mark.parametrize("kind", ["records", "map"])
def test_processes_are_kept_from_pass_to_pass_and_end_with_the_reader(kind, tmp_path):
    words = [sys.executable, "-m", "tests.readers.kept_processes", kind, str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
