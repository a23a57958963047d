"""README's first script and one line more, as several processes: the batches are those of one."""

import shutil
import sys

import numpy as np
import pytest

from benchmarks import failures
from penstock import readers
from tests import compiling
from tests.distributed import launchers
from tests.test_documentation import BLOCK, PAGES

NUM_EPOCHS, BATCH_SIZE = 5, 64  # of the script


def run_script(folder, launcher, line=""):
    """Run the script, with a line before its first.

    Returns:
      How many processes there were, and the images of the global batches.
    """
    blocks = BLOCK.finditer(PAGES[0].read_text())
    program = next(block[2] for block in blocks if block[1] == "python")
    first = "train_reader = "
    assert program.count(first) == 1
    script = folder / "script.py"
    script.write_text(program.replace(first, line + first))
    words = [*launcher, "-m", "tests.distributed.counted_script", str(script)]
    done = launchers.run(words, folder, XLA_FLAGS=compiling.xla_flags(level=1))
    assert done.returncode == 0, done.stdout + done.stderr
    parts = [list(np.load(path).values()) for path in sorted(folder.glob("*.npz"))]
    batches = [np.concatenate(each) for each in zip(*parts, strict=True)]
    return len(parts), batches


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return run_script(tmp_path_factory.mktemp("alone"), [sys.executable])


# 30 s of the processor: three processes train README's network for five epochs.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["launch", "mpirun"])
def test_script_with_one_line_more_trains_on_each_example_once_an_epoch(name, alone, tmp_path):
    launcher = failures.LAUNCHERS[name]
    if shutil.which(launcher[0]) is None:
        launchers.require_programs(launcher[0])
    count, batches = run_script(tmp_path, launcher, "ps.distributed.initialize()\n\n")
    assert count == 2
    (everything,) = readers.dataset("digits", "train", batch_size=10_000)
    images = sorted(image.tobytes() for image in everything["image"])
    whole, last = divmod(len(images), BATCH_SIZE)
    assert [len(batch) for batch in batches] == ([BATCH_SIZE] * whole + [last]) * NUM_EPOCHS
    per_epoch = whole + 1
    for start in range(0, len(batches), per_epoch):
        epoch = batches[start : start + per_epoch]
        assert sorted(image.tobytes() for batch in epoch for image in batch) == images
    # And batch by batch what one process has.
    for batch, expected in zip(batches, alone[1], strict=True):
        assert np.array_equal(batch, expected)
