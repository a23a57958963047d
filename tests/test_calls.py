"""The counter of calls: it finds the package's files, in order, and the same numbers each time."""

import gc

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import calls
from penstock import readers

REACHED = {
    "Trainer(...)": (43, 169, 345),
    "first step": (44, 160, 286),
    "steady step": (15, 24, 45),
    "penstock train": (16, 99, 270),
}
"""Files, moves and calls of each window. They may become less, and the numbers here with them."""


# The collector comes at every allocation of the second count.
@pytest.mark.slow
def test_two_counts_of_a_run_are_the_same_and_name_files_of_the_package(capsys, monkeypatch):
    program, *rest = calls.NETWORKS["small"]
    monkeypatch.setitem(calls.NETWORKS, "small", (lambda: leave_garbage() or program(), *rest))
    assert command.main(["calls", "--list"]) == 0
    printed = capsys.readouterr().out
    thresholds = gc.get_threshold()
    gc.set_threshold(1)  # the collector comes at other moments than in the first count
    try:
        counted = calls.measure()
    finally:
        gc.set_threshold(*thresholds)
    for name, each in counted.items():
        files = each.ordered_files()
        assert f"{name}: files in the order" in printed
        assert "".join(f"{number:6}  {file}\n" for file, number in files) in printed
        assert sum(number for _, number in files) == len(each.entered)
        assert len(files) - 1 <= each.num_moves < len(each.entered)
    assert counted["Trainer(...)"].files[0] == "trainer/_trainer.py"
    assert counted["first step"].entered[0].co_qualname == "Trainer.train"
    assert len(counted["steady step"].entered) < len(counted["first step"].entered) / 5


def test_calls_files_and_moves_are_no_more_than_they_were():
    for name, each in calls.measure().items():
        files, moves, entered = REACHED[name]
        assert len(each.ordered_files()) <= files, (name, each.ordered_files())
        assert each.num_moves <= moves, (name, each.frequent_moves(20))
        assert len(each.entered) <= entered, (name, each.frequent(20))


def leave_garbage() -> None:
    """Leave a pass over a reader that the garbage collector alone ends, by penstock's finalizer."""
    cycle: list[object] = [iter(readers.arrays({"x": np.ones(2)}, batch_size=1))]
    cycle.append(cycle)
