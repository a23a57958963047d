"""`penstock train` as `make train` calls it: it says what it does, learns, saves, shows."""

import re
import shlex

import numpy as np
import pytest

from tests.commands.running import make_train_words, penstock, succeed


def train_in(folder, num_epochs):
    """Run what `make train` does in an empty folder, for so many epochs; return what it prints."""
    words = [
        word.replace("num_epochs=10", f"num_epochs={num_epochs}") for word in make_train_words()
    ]
    done = penstock(folder, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a folder after two of the ten epochs of `make train`, and what was printed: 10 s."""
    folder = tmp_path_factory.mktemp("work")
    return folder, train_in(folder, 2)


@pytest.mark.slow
def test_more_than_97_percent_of_the_held_out_digits_are_read_right(tmp_path):
    accuracy = re.search(r"; last: .*accuracy ([\d.]+)%", train_in(tmp_path, 10))
    assert accuracy is not None
    assert float(accuracy[1]) > 97


# One test: its run takes 10 s, and two processes of pytest would each make one.
def test_first_lines_lines_of_epochs_and_last_lines_say_what_happens(run, capsys, monkeypatch):
    folder, text = run
    head = text[: text.index("epoch 1")]
    for part in (
        "model      lenet, images 12 x 12 x 1, lenet preprocessing; 653,194 parameters",
        "data       digits: 1,438 images to train on, 359 to test on; 10 classes",
        "batch      32 = 1 process x 1 device (cpu) x 32; 45 steps an epoch",
        "ends       after --num_epochs (90 steps)",
        "precision  float32 (auto)",
        "optimizer  adam; learning rate 0.003; cosine to 0.0001 from step 0 to step 90",
        "writes to  runs/digits_lenet",
        "starts     from initial values",
    ):
        assert part in head
    for what in ("the initial values", "the train program", "the test program"):
        pattern = rf"^compiling {what} \.\.\.\ncompiled {what} in [\d.]+ s$"
        assert len(re.findall(pattern, text, re.M)) == 1
    lines = re.findall(r"^epoch +(\d+)/2  loss .* accuracy [\d.]+ \(test [\d.]+\)", text, re.M)
    assert [int(line) for line in lines] == [1, 2]
    assert text.replace("\n", "").isprintable()
    assert "██" in text  # a digit that it reads
    assert max(len(line) for line in text.splitlines() if "epoch" not in line) <= 140

    tail = text[text.index("best test") :]
    assert "params (the last), best (the best test), checkpoints, log.csv, config.json" in tail
    best = re.search(r"best test: loss ([\d.]+), accuracy ([\d.]+)%", tail)
    command = re.search(r"evaluate it: +penstock (.*)", tail)
    assert best is not None
    assert command is not None
    monkeypatch.chdir(folder)
    out, _ = succeed(capsys, *shlex.split(command[1]))
    assert f"loss {best[1]}, accuracy {best[2]}%" in out
    rows = re.findall(r"^(\d) +(\d+) +([\d.]+)%", out, re.M)
    assert [row[0] for row in rows] == [str(number) for number in range(10)]
    hits = np.array([float(recall) / 100 * int(count) for _, count, recall in rows])
    assert hits.sum() / 359 == pytest.approx(float(best[2]) / 100, abs=2e-3)
    assert (folder / "runs/digits_lenet/confusion.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_same_command_again_says_that_the_run_is_over(run):
    out = train_in(run[0], 2)
    assert "The run is complete" in out
    assert "epoch " not in out[out.index("The run is complete") :]
