"""How many files, moves and calls of the package a run goes through."""

from benchmarks import calls

REACHED = {
    "Trainer(...)": (28, 127, 306),
    "first step": (29, 100, 244),
    "steady step": (14, 22, 35),
    "penstock train": (16, 89, 231),
}
"""Files, moves and calls of each window. They may become less, and the numbers here with them."""


def test_calls_files_and_moves_are_no_more_than_they_were():
    for name, window in calls.measure().items():
        files, moves, entered = REACHED[name]
        assert len(window.ordered_files()) <= files, (name, window.ordered_files())
        assert window.num_moves <= moves, (name, window.frequent_moves(20))
        assert len(window.entered) <= entered, (name, window.frequent(20))
