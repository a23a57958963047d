"""Two processes, each with half of every batch, train as one device does alone."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.battery.harness import CASES, UNEVEN, expect, find_losses
from tests.battery.test_battery import THEMES  # noqa: F401
from tests.source_tree import ROOT


def in_parts(names, size=45):
    """Return the names in parts, each for one launch, whose programs take minutes to compile."""
    return [tuple(names[first : first + size]) for first in range(0, len(names), size)]


# The quick test of two processes is in distributed/test_grid.py.
@pytest.mark.slow
@pytest.mark.parametrize("names", in_parts(list(CASES)), ids=lambda names: names[0])
def test_two_processes_have_the_losses_of_one(names, tmp_path):
    command = [sys.executable, "-m", "penstock", "launch", "--num_processes=2", "--"]
    done = subprocess.run(
        [*command, str(ROOT / "tests/battery/two_processes_run.py"), str(tmp_path / "f"), *names],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NPROC": "4"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "f").read_text())
    assert list(results) == list(names)
    for name, sizes in results.items():
        for size, losses in sizes.items():
            expected = find_losses(expect(name, int(size), UNEVEN))
            scale = max(np.abs(expected).max(), 0.1)
            rtol = CASES[name].rtol
            np.testing.assert_allclose(losses, expected, rtol, rtol * scale, err_msg=name)
