"""Steps of this checkout against those of another: five rounds, alternately, each in a process.

python -m benchmarks against_checkout --path=../old
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Sequence

from benchmarks import _timing

SCRIPT = pathlib.Path(__file__).with_name("_step_times.py")


def run(checkout: pathlib.Path) -> dict[str, float]:
    """Return what one process with the penstock of a checkout measures."""
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table: the other's median, this one's, and the median of the ratios by round."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks against_checkout")
    parser.add_argument("--path", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    pairs = [(run(options.path.resolve()), run(SCRIPT.parents[1])) for _ in range(options.rounds)]
    rows = []
    for name in pairs[0][0]:
        theirs, ours = zip(*[(other[name], own[name]) for other, own in pairs], strict=True)
        ratio = statistics.median(b / a for a, b in zip(theirs, ours, strict=True))
        medians = [f"{statistics.median(each):.3g}" for each in (theirs, ours)]
        rows.append([name, *medians, f"{ratio:.2f}"])
    print(_timing.environment())
    print(_timing.table(["", "other", "this", "this / other"], rows))
