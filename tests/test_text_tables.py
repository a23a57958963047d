"""Text in columns, and in lines that fit a terminal."""

import pytest

from penstock._text_tables import align_rows, wrap_parts, wrap_words


@pytest.mark.parametrize(
    ("columns", "lines"),
    [
        (None, ["a 0.125, b runs/a-very-long_name.1 c"]),
        (40, ["a 0.125, b runs/a-very-long_name.1 c"]),
        (12, ["a 0.125, b", "  runs/a-very-long_name.1", "  c"]),
        (4, ["a", "  0.125,", "  b", "  runs/a-very-long_name.1", "  c"]),
    ],
)
def test_words_are_not_cut(columns, lines):
    text = "a 0.125, b runs/a-very-long_name.1 c"
    assert wrap_words(text, columns, "  ").split("\n") == lines


@pytest.mark.parametrize(
    ("columns", "lines"),
    [
        (None, ["epoch 1/5  loss 0.125 (test 0.25)  top_5 1"]),
        (42, ["epoch 1/5  loss 0.125 (test 0.25)  top_5 1"]),
        (40, ["epoch 1/5  loss 0.125 (test 0.25)", "  top_5 1"]),
        (30, ["epoch 1/5", "  loss 0.125 (test 0.25)", "  top_5 1"]),
        (20, ["epoch 1/5", "  loss 0.125 (test", "  0.25)", "  top_5 1"]),
    ],
)
def test_parts_stay_whole_where_they_fit(columns, lines):
    parts = ["epoch 1/5", "  loss 0.125 (test 0.25)", "  top_5 1"]
    assert wrap_parts(parts, columns).split("\n") == lines


@pytest.mark.parametrize("columns", [None, 30])
def test_what_a_terminal_obeys_is_escaped(columns):
    name = "a\x1b[31m\x07\r\n\u202e\udce9"
    shown = r"a\x1b[31m\x07\r\n\u202e\udce9"
    assert wrap_words(f"Füchse 🦊 {name}", columns).replace("\n", " ") == f"Füchse 🦊 {shown}"
    assert align_rows([[name, "1"], ["b", "2"]], right=[1]) == [
        f"{shown}  1",
        f"{'b':{len(shown)}}  2",
    ]


def test_columns_are_aligned_and_numbers_stand_right():
    rows = [["name", "count"], ["a", "1"], ["bcdef", "20"]]
    assert align_rows(rows, right={1}) == ["name   count", "a          1", "bcdef     20"]
