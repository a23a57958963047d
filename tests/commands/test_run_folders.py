"""`penstock runs` and `penstock compare`: what folders of runs say."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock._folder_lock import FolderLock
from penstock.commands import main
from penstock.commands._flags import TRAIN_FLAGS
from penstock.commands._run_folder.folder import RunFolder, SavedAnswers, write_answers
from penstock.commands._run_folder.runs import DISPLAY, SILENT, find_runs
from tests.commands.running import run

STARTED = 1_700_000_000


def write_run(
    path: Path,
    *,
    number: int = 0,
    steps: int = 90,
    accuracy: float | None = 0.9777,
    is_done: bool = True,
    network: str = "lenet",
    **flags: Any,
) -> None:
    (path / "best").mkdir(parents=True)
    sections = {
        "dataset": {"dataset_name": "digits", "dataset_dir": None},
        "model": {"model_name": network},
        "optimizer": {"optimizer": "adam", "learning_rate": 0.01} | flags,
        "logging": {"overwrite": bool(number), "log_loss_every_n_iters": number},
        "config": None,
    }
    (path / "config.json").write_text(json.dumps(sections))
    (path / "data.json").write_text("{}")
    rows = ["kind,epoch,step,global_step,seconds,examples,loss,accuracy"]
    rows += [f"step,0,{steps - 1},{steps - 1},1.5,32,0.25,0.5"] if steps else []
    if accuracy is not None:
        metrics = {"loss": 0.125, "accuracy": accuracy}
        record = {"step": steps // 2, "metrics": metrics, "monitor": "accuracy"}
        (path / "best" / "test.json").write_text(json.dumps(record))
        rows += [f"test,1,0,{steps},2.5,0,0.375,0.75"]
    (path / "log.csv").write_text("\n".join(rows) + "\n")
    state = "completed" if is_done else "running"
    (path / "run.json").write_text(json.dumps({"state": state}))
    os.utime(path / "config.json", (STARTED + 60 * number, STARTED + 60 * number))


@pytest.fixture
def folder(tmp_path):
    """Return a folder of runs of which one is done, one was stopped and one saved nothing."""
    write_run(tmp_path / "runs/digits_lenet")
    write_run(
        tmp_path / "runs/digits_lenet-2", number=1, steps=40, is_done=False, learning_rate=0.1
    )
    (tmp_path / "runs/digits_lenet-2/checkpoints/50").mkdir(parents=True)
    write_run(tmp_path / "runs/digits_lenet-3", number=2, steps=0, accuracy=None, is_done=False)
    write_run(tmp_path / "runs/more/deep/resnet", number=3, network="resnet_v1_50")
    # The run that another replaces is not one of its own.
    write_run(tmp_path / "runs/digits_lenet/replaced")
    return tmp_path / "runs"


def test_runs_are_listed_with_best_and_state(folder, capsys):
    status, out, err = run(capsys, "runs")
    assert (status, err) == (0, "")
    head, *rows = [line.split() for line in out.splitlines()]
    assert " ".join(head) == "run data network best steps started state flags that differ"
    day = rows[0][5:7]
    assert rows[0] == ["digits_lenet", "digits", "lenet", "97.77%", "90", *day, "done"]
    assert rows[1][:5] == ["digits_lenet-2", "digits", "lenet", "97.77%", "50"]
    # Neither what a run only shows nor where it writes is a difference.
    assert rows[1][-2:] == ["stopped", "learning_rate=0.1"]
    assert (rows[2][3], rows[2][-1]) == ("0", "failed")
    assert (rows[3][0], rows[3][2], rows[3][-1]) == ("more/deep/resnet", "resnet_v1_50", "done")
    assert len(rows) == 4


@pytest.mark.parametrize("text", ["", '{"model": {', "[]"])
def test_run_with_a_broken_config_is_named_and_hides_no_other(folder, capsys, text):
    (folder / "digits_lenet" / "config.json").write_text(text)
    status, out, err = run(capsys, "runs")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()][1:3] == [
        "digits_lenet-2",
        "digits_lenet-3",
    ]
    assert err == "left out: runs/digits_lenet, whose config.json is cut off or of another kind\n"


def test_folder_that_is_closed_to_a_user_hides_no_run_beside_it(folder):
    folder.parent.chmod(0o755)
    (folder / "closed").mkdir(mode=0)
    is_root = os.geteuid() == 0  # who may read it
    if is_root:
        os.seteuid(65534)
    try:
        # From where the process is: those above are pytest's.
        assert len(find_runs(Path("runs"))) == 4
    finally:
        if is_root:
            os.seteuid(0)


def test_folder_that_is_a_run_is_listed_by_its_name(folder, capsys):
    out = run(capsys, "runs", "runs/digits_lenet")[1]
    assert [line.split()[0] for line in out.splitlines()] == ["run", "runs/digits_lenet"]


def test_run_whose_folder_is_held_is_running(folder):
    with FolderLock(folder / "digits_lenet"):
        assert find_runs(folder)[0].state == "running"
    assert find_runs(folder)[0].state == "done"


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ('{"state": "completed"}', "done"),
        ('{"state": "stopped"}', "done"),
        ('{"state": "interrupted"}', "stopped"),
        ('{"state": "failed"}', "failed"),
        # Killed, or not to be read.
        ('{"state": "running"}', "stopped"),
        ("[]", "stopped"),
        ('{"state": ', "stopped"),
    ],
)
def test_record_of_a_run_says_how_it_ended(folder, text, state):
    (folder / "digits_lenet-2" / "run.json").write_text(text)
    assert find_runs(folder)[1].state == state


def test_runs_and_their_comparison_as_json(folder, capsys):
    def read(*words):
        return json.loads(run(capsys, *words, "--json")[1], parse_constant=pytest.fail)

    facts = read("runs", str(folder))
    assert facts[1]["flags"]["learning_rate"] == 0.1
    assert facts[0]["best"] == {"step": 45, "loss": 0.125, "accuracy": 0.9777}
    assert facts[2]["best"] is None
    record = {"step": 45, "metrics": {"loss": "inf", "accuracy": 0.1}, "monitor": "accuracy"}
    (folder / "digits_lenet" / "best" / "test.json").write_text(json.dumps(record))
    assert read("runs", str(folder))[0]["best"]["loss"] == "inf"
    facts = read("compare", *(str(folder / name) for name in ("digits_lenet", "digits_lenet-2")))
    assert [fact["flags"] for fact in facts] == [{"learning_rate": 0.01}, {"learning_rate": 0.1}]
    assert facts[0]["best"]["loss"] == "inf"


@pytest.mark.parametrize("columns", [80, 120])
def test_table_fits_the_terminal(folder, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    names = [f"runs/{path.name}" for path in sorted(folder.glob("digits*"))]
    for words in (["runs"], ["compare", *names, *names]):
        capsys.readouterr()
        assert main(words) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= columns
        assert any("0.1" in line for line in lines)


def test_table_of_runs_with_long_names_has_a_line_for_each_run(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    write_run(folder / "photos_resnet_cifar10_8", network="resnet_cifar10_8", learning_rate=0.2)
    assert main(["runs"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "data", "network", "best", "steps", "state"]
    assert max(map(len, lines)) <= 80
    assert any(re.match("photos_resnet_cifar10_8 .* 97.77% .* done$", line) for line in lines)


def test_runs_are_compared_by_what_differs(folder, capsys):
    paths = [str(folder / name) for name in ("digits_lenet", "digits_lenet-2", "digits_lenet-3")]
    status, out, err = run(capsys, "compare", *paths)
    assert (status, err) == (0, "")
    rows = {line[:18].strip(): line[18:].split() for line in out.splitlines() if line}
    assert rows["run"] == ["digits_lenet", "digits_lenet-2", "digits_lenet-3"]
    assert rows["--learning_rate"] == ["0.01", "0.1", "0.01"]
    assert rows["state"] == ["done", "stopped", "failed"]
    assert rows["steps"] == ["90", "50", "0"]
    assert rows["last train loss"] == ["0.25", "0.25"]
    assert rows["last test accuracy"] == ["75.00%", "75.00%"]
    assert rows["best test accuracy"] == ["97.77%", "97.77%"]
    assert "--optimizer" not in rows


def test_answers_to_the_same_images_say_whether_runs_differ_by_chance(folder, capsys):
    paths = [str(folder / name) for name in ("digits_lenet", "digits_lenet-2", "digits_lenet-3")]
    assert f"`penstock eval {paths[1]}`" in run(capsys, "compare", *paths)[1]
    label = np.arange(100) % 10
    for path, wrong in zip(paths, (20, 8, 18), strict=True):
        predicted = np.where(np.arange(100) < wrong, (label + 1) % 10, label)
        write_answers(RunFolder(Path(path)), SavedAnswers("test", "", label, predicted))
    text = " ".join(run(capsys, "compare", *paths)[1].split())
    assert (
        "Of the same 100 images digits_lenet is right about 80, digits_lenet-2 about 92: +12.00% "
        "(+5.63% to +18.37% with 95 % confidence), more than chance (p = 0.00049)." in text
    )
    assert "digits_lenet-3 about 82: +2.00% (-0.74% to +4.74% with 95 %" in text
    assert "no more than chance (p = 0.5)" in text
    # As two seeds deal the images of a folder: as many of each class.
    for other in (("a", label), ("", label[:50])):
        write_answers(RunFolder(Path(paths[1])), SavedAnswers("test", *other, other[1]))
        assert "were evaluated on different images" in run(capsys, "compare", *paths[:2])[1]
    answers = folder / "digits_lenet-3" / "answers.npz"
    for damaged in (
        b"PK\x03\x04 cut",
        answers.read_bytes().replace(b"\x00\x00\x08\x00", b"\0\0\1\0"),
    ):
        answers.write_bytes(damaged)
        assert f"`penstock eval {paths[2]}`" in run(capsys, "compare", *paths)[1]


def test_runs_of_one_name_are_compared_by_their_paths(folder, capsys):
    write_run(folder / "other/digits_lenet")
    paths = [folder / name for name in ("digits_lenet", "other/digits_lenet", "digits_lenet-2")]
    head, *_ = run(capsys, "compare", *map(str, paths))[1].splitlines()
    assert head.split() == ["run", str(paths[0]), str(paths[1]), "digits_lenet-2"]


def test_names_of_a_foreign_folder_do_not_reach_the_terminal_as_they_are(folder, capsys):
    write_run(folder / "evil\x1b[2J\u202e", network="net\x9b31m", learning_rate="\x1b]0;a\x07")
    paths = [str(folder / name) for name in ("digits_lenet", "evil\x1b[2J\u202e")]
    for words in (["runs"], ["compare", *paths], ["runs", f"{paths[1]}/none"]):
        _, out, err = run(capsys, *words)
        assert (out + err).replace("\n", "").isprintable(), (out, err)
        assert r"evil\x1b[2J\u202e" in out + err


def test_folder_without_runs_says_how_to_make_one(tmp_path, capsys):
    assert run(capsys, "runs", str(tmp_path)) == (
        0,
        f"no runs in {tmp_path}. `penstock train` makes one.\n",
        "",
    )


def test_flags_that_are_no_difference_are_flags():
    assert {*SILENT, *DISPLAY} <= set(TRAIN_FLAGS)


def test_flag_that_a_run_does_not_have_is_said_in_words(folder, capsys):
    for number, last in enumerate((100, 100, None)):
        write_run(folder / f"mlp-{number}", network="mlp", stop_at_step=last)
    _, out, _ = run(capsys, "runs")
    row = next(line for line in out.splitlines() if line.startswith("mlp-2"))
    assert row.endswith("no stop_at_step")
    assert "None" not in out
