"""README's first script and one line more, as several processes: the metrics are those of one."""

import re
import sys

import pytest

from benchmarks import failures
from tests import compiling
from tests.distributed import launchers
from tests.test_documentation import BLOCK, PAGES


def run_script(folder, launcher, line=""):
    """Run the script, with a line before its first; return the lines that it prints."""
    blocks = BLOCK.finditer(PAGES[0].read_text())
    program = next(block[2] for block in blocks if block[1] == "python")
    first = "train_reader = "
    assert program.count(first) == 1
    script = folder / "script.py"
    script.write_text(program.replace(first, line + first))
    done = launchers.run([*launcher, str(script)], folder, XLA_FLAGS=compiling.xla_flags(level=1))
    assert done.returncode == 0, done.stdout + done.stderr
    return [re.sub(r"^\[\d\] ", "", line) for line in done.stdout.splitlines()]


# 30 s of the processor: three processes train README's network for five epochs.
@pytest.mark.slow
def test_script_with_one_line_more_has_on_each_process_the_metrics_of_one(tmp_path):
    # The metrics are of all examples; the second line is of each process's own.
    metrics, predictions = run_script(tmp_path, [sys.executable])
    lines = run_script(tmp_path, failures.LAUNCHERS["launch"], "ps.distributed.initialize()\n\n")
    printed = "\n".join(lines)
    assert [printed.count(line) for line in (metrics, predictions)] == [2, 1], lines
