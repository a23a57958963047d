"""`penstock train`: it says what it does, learns, saves, and shows what it has learnt."""

import io
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import penstock as ps
from penstock.commands import train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run `penstock train` once in an empty folder; return the folder and what it printed."""
    folder = tmp_path_factory.mktemp("work")
    code = "import sys; from penstock.commands import main; sys.exit(main(['train']))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=folder,
        env=os.environ | {"XLA_FLAGS": "", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_more_than_97_percent_of_the_held_out_digits_are_read_right(run):
    _, text = run
    accuracy = re.search(r"It reads ([\d.]+)% of the held-out digits right", text)
    assert accuracy is not None
    assert float(accuracy[1]) > 97


def test_it_begins_with_what_it_will_do(run):
    _, text = run
    head = text[: text.index("epoch ")]
    for part in (
        "21,450 parameters",
        "1,438 to train on, 359 held out",
        "batches of 64",
        "1 x cpu",
    ):
        assert part in head


def test_each_epoch_has_a_line_with_its_test_accuracy(run):
    _, text = run
    lines = re.findall(r"^epoch +(\d+)/15  loss .* accuracy [\d.]+ \(test [\d.]+\)", text, re.M)
    assert [int(line) for line in lines] == list(range(1, 16))


def test_lines_are_plain(run):
    _, text = run
    assert text.replace("\n", "").isprintable()
    assert max(len(line) for line in text.splitlines() if "epoch" not in line) <= 80


def test_saved_parameters_answer(run, digits):
    folder, _ = run
    inferencer = ps.Inferencer(train.infer_program, folder / train.PARAM_PATH, place="cpu")
    probabilities = inferencer.infer({"image": digits.test_images})
    assert np.mean(probabilities.argmax(axis=1) == digits.test_labels) > 0.97


def test_pictures_are_drawn_in_the_characters_the_output_has(monkeypatch):
    image = np.linspace(0, 1, 64).reshape(8, 8)
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    assert train._picture(image)[-1].endswith("██")
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert train._picture(image)[-1].endswith("##")
