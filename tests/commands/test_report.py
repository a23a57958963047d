"""`penstock report`: what its page shows of a run, and what it says of what is not there."""

import contextlib
import html
import json
import os
import re
import shutil
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from penstock import commands
from penstock.commands._flags import to_json
from penstock.commands._run.handlers import Record
from penstock.commands._run_folder.folder import RunFolder, find_differences
from penstock.commands._run_folder.runs import LogError, read_log, read_record
from penstock.commands._run_folder.runs import read_flags as read_run_flags
from penstock.commands.report import find_changed, make_command
from penstock.commands.train import read_flags
from penstock.events import BeginEpoch, BeginTraining, EndEpoch, EndStep, EndTraining
from penstock.handlers import CSVLog, JSONLog, _readings
from penstock.handlers.report import history
from penstock.program_builder._compilation import CompileTime
from tests.commands.running import TINY, succeed
from tests.handlers import driving
from tests.html_pages import HtmlPage

FAST = (
    *TINY,
    "--dataset_name=image_folder",
    "--dataset_dir=photos",
    "--train_image_size=8",
    "--batch_size=8",
)


def write_photos(folder, num_images=20):
    """Write a folder of two classes: bright and dark, but for one bright one among the dark."""
    random = np.random.default_rng(0)
    for name, light in (("bright", 200), ("dark", 20)):
        for split in ("train", "test"):
            (folder / f"photos/{split}/{name}").mkdir(parents=True)
            for number in range(num_images if split == "train" else 6):
                light_of_it = 200 if (split, number) == ("test", 5) else light
                image = light_of_it + random.integers(0, 20, (8, 8, 3))
                path = folder / f"photos/{split}/{name}/{number}.png"
                cv2.imwrite(str(path), image.astype(np.uint8))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train a network for four epochs; return the folder of runs."""
    folder = tmp_path_factory.mktemp("report")
    write_photos(folder)
    with contextlib.chdir(folder):
        assert commands.main(["train", *FAST, "--num_epochs=4", "--output_dir=."]) == 0
    (folder / "runs/photos_tiny").rename(folder / "run")
    return folder


@pytest.fixture
def run_folder(trained, tmp_path):
    """Copy the run, for a test to break; return its folder."""
    shutil.copytree(trained / "run", tmp_path / "run")
    (tmp_path / "photos").symlink_to(trained / "photos")
    return tmp_path / "run"


def test_page_has_every_part_and_loads_nothing(run_folder, capsys):
    out, err = succeed(capsys, "report", "run")
    assert re.fullmatch(r"run/report\.html  \(\d+ kB; open it in a browser\)\n", out)
    assert "left out" not in err
    page = HtmlPage(run_folder / "report.html")
    parts = ["what-was-run", "curves", "classes", "confusion-matrix", "worst-mistakes"]
    parts += ["calibration", "samples-of-each-class", "where-time-went", "parameters-by-layer"]
    assert [section["id"] for section in page.all("section")] == [*parts, "repeat-it"]
    assert not page.all("script") + page.all("link") + page.all("iframe")
    assert all(image["src"].startswith("data:image/png;base64,") for image in page.all("img"))
    assert all(link["href"].startswith("#") for link in page.all("a"))
    assert any(meta.get("name") == "viewport" for meta in page.all("meta"))
    assert len(page.all("svg")) == 4  # loss, accuracy, learning rate, calibration
    assert "complete" in page.said
    assert "40 images to train on, 12 to test on" in page.said
    assert "hidden" in page.said
    assert "penstock train" in page.said


@pytest.mark.parametrize(
    ("state", "step", "text"),
    [
        ("stopped", 20, "state complete steps 20 of 20"),
        ("stopped", 12, "state stopped early, by a handler steps 12 of 20"),
        ("interrupted", 12, "state interrupted; the same command resumes it steps 12 of 20"),
    ],
)
def test_state_of_a_run_is_told_by_its_last_step(state, step, text, run_folder, capsys):
    record = read_record(run_folder / "run.json")
    changed = record | {"state": state, "global_step": step, "num_steps": 20}
    (run_folder / "run.json").write_text(json.dumps(changed))
    succeed(capsys, "report", "run")
    assert text in HtmlPage(run_folder / "report.html").said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("versions", {"jax": 3}),
        ("versions", ["jax"]),
        ("devices", 5),
        ("image_shape", [[8]]),
        ("global_step", "20"),
        ("processes", "2"),
        ("seconds", {"training": "long"}),
    ],
)
def test_record_that_holds_another_kind_of_value_is_named(name, value, run_folder, capsys):
    record = read_record(run_folder / "run.json")
    (run_folder / "run.json").write_text(json.dumps(record | {name: value}))
    assert commands.main(["report", "run"]) == 1
    assert capsys.readouterr().err.replace("\n  ", " ") == (
        f"penstock report: the run's 'run/run.json' got {name} {value!r}, expected what `penstock "
        "train` writes there. Remove the file: the page is then made without it.\n"
    )


def test_worst_mistake_is_shown_with_what_was_said_and_what_is_right(run_folder, capsys):
    succeed(capsys, "report", "run", "--mistakes=1", "--output=other.html")
    assert not (run_folder / "report.html").exists()
    page = HtmlPage(run_folder.parent / "other.html")
    assert "dark/5.png" in page.said
    alts = [image["alt"] for image in page.all("img")]
    assert alts[0] == "dark, taken for bright"
    assert sum("taken for" in alt for alt in alts[1:]) == 1  # among the samples


def test_report_agrees_with_eval(run_folder, capsys):
    out, _ = succeed(capsys, "eval", "run", "--json=True", "--plot=")
    accuracy = json.loads(out)["accuracy"]
    succeed(capsys, "report", "run")
    assert f"{accuracy:.2%}" in HtmlPage(run_folder / "report.html").said


def test_class_that_is_called_like_markup_is_inert_on_the_whole_page(run_folder, capsys):
    labels = "0:<img src=x onerror=alert(1)>\n1:bright\n"
    (run_folder.parent / "data").mkdir()
    for split in ("train", "test"):
        words = [f"photos/{split}", f"data/{split}"]
        shutil.copytree(*words)
        os.rename(f"data/{split}/dark", f"data/{split}/<img src=x onerror=alert(1)>")
    (run_folder / "labels.txt").write_text(labels)
    succeed(capsys, "report", "run", "--dataset_dir=data")
    page = HtmlPage(run_folder / "report.html")
    assert not [image for image in page.all("img") if "onerror" in image]
    assert "<img src=x onerror=alert(1)>" in page.said


@pytest.mark.parametrize(
    ("gone", "text"),
    [
        ("../photos", "Classes, mistakes, calibration and samples: "),
        ("log.csv", "Curves: the run got"),
        ("best,params,checkpoints", "Parameters by layer: "),
        ("config.json", "Repeat it: The flags are not known"),
        ("run.json", "Where time went: Nothing was measured"),
    ],
)
@pytest.mark.quick("log", "best", "run")
def test_what_is_gone_is_left_out_with_a_sentence(run_folder, capsys, gone, text):
    for name in gone.split(","):
        path = run_folder / name
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    _, err = succeed(capsys, "report", "run")
    assert f"left out: {text}" in err
    sentence = err.split("left out: ")[1].splitlines()[0].partition(": ")[2]
    assert sentence in html.unescape((run_folder / "report.html").read_text(encoding="utf-8"))


def test_log_of_a_script_is_enough_for_curves(run_folder, capsys, tmp_path):
    (tmp_path / "logs").mkdir()
    rows = (run_folder / "log.csv").read_text()
    # Killed in the middle of a row, and diverged before.
    (tmp_path / "logs/a.csv").write_text(rows + "step,9,0,99,9,9,nan,0,0\nstep,9,1,1")
    succeed(capsys, "report", "logs")
    page = HtmlPage(tmp_path / "logs/report.html")
    assert len(page.all("svg")) == 3
    assert "Values that are NaN, infinite or beyond 1e+200 are left out: 1." in page.said


def test_command_of_a_run_is_understood_and_makes_the_same_flags(run_folder):
    words = make_command(read_run_flags(run_folder)[0]).split()
    assert find_differences(RunFolder(run_folder), to_json(read_flags(words[2:]))) == {}


def drive(record, clock, *, global_step=0):
    """Send the events of an epoch that compiles for a second, and of a stop in the next."""
    programs = SimpleNamespace(compile_time=CompileTime())
    builder = SimpleNamespace(programs=programs, mesh=SimpleNamespace(devices=np.array([])))
    trainer = SimpleNamespace(builder=builder, secs_beside=0.0)
    record(BeginTraining(epoch=0, num_epochs=2, global_step=global_step, trainer=trainer))
    clock.now += 1.0
    record(BeginEpoch(epoch=0, global_step=global_step))
    clock.now += 3.0
    programs.compile_time.secs += 1.0
    record(EndStep(epoch=0, step=0, global_step=global_step, num_examples=1, compile_secs=1.0))
    record(EndEpoch(epoch=0, global_step=global_step + 4, data_wait=0.5))
    clock.now += 1.0


def test_record_of_a_run_that_is_killed_and_goes_on_adds_up(tmp_path, monkeypatch):
    path, clock = tmp_path / "run.json", SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    for module in (_readings, history):
        monkeypatch.setattr(module, "time", clock)
    drive(Record(path, {"num_train": 40}), clock)
    first = read_record(path)
    names = ("steps", "data_wait", "measure", "compile", "between")
    assert first["seconds"] == dict(zip(names, (1.0, 1.0, 0.0, 1.0, 1.0), strict=True))
    assert (first["state"], first["global_step"], first["num_train"]) == ("running", 4, 40)
    resumed = Record(path, {})
    drive(resumed, clock, global_step=4)
    resumed(EndTraining("interrupted", global_step=8))
    last = read_record(path)
    assert last["seconds"] == dict(zip(names, (2.0, 2.0, 0.0, 2.0, 3.0), strict=True))
    assert (last["state"], last["global_step"]) == ("interrupted", 8)
    # What a person has broken is no reason to end a run that goes on.
    path.write_text(json.dumps({**last, "seconds": {"steps": "many"}}))
    drive(Record(path, {}), clock, global_step=8)
    assert set(read_record(path)["seconds"]) == set(names)


@pytest.mark.parametrize("kind", [CSVLog, JSONLog])
def test_log_has_whole_rows_and_metrics_that_are_numbers(kind, tmp_path):
    metrics = {"loss": 1.0} | ({"axes": np.ones(2)} if kind is JSONLog else {})
    log = kind(tmp_path / "log.csv", every_steps=4)
    driving.drive(log, source=driving.Source(metrics))
    rows = read_log(tmp_path)
    assert [row.kind for row in rows] == ["step", "step", "epoch"]
    assert [row.metrics for row in rows] == [{"loss": 1.0}] * 3
    text = (tmp_path / "log.csv").read_text()
    (tmp_path / "log.csv").write_text(text[:-9])
    assert read_log(tmp_path) == rows[:-1]


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "Was a CSVLog or JSONLog among the run's handlers?"),
        ({"a.csv": "", "b.csv": ""}, "The folder has several. Name one: {0}/a.csv, {0}/b.csv."),
        ({"a.csv": ""}, "got no rows, expected at least one."),
        ({"a.csv": "a,b\n1,2\n"}, "(rows without 'kind', 'epoch',"),
        ({"a.jsonl": "{a\n"}, "got bytes that cannot be read (Expecting"),
        ({"a.jsonl": '{"kind": []}\n'}, "got bytes that cannot be read"),
        (
            {"a.csv": "kind,epoch,step,global_step,seconds,examples\nstep,0,0,nan,1,1\n"},
            "got bytes that cannot be read (invalid literal for int() with base 10: 'nan')",
        ),
        ({"1/data.json": ""}, "Name a run in it, such as '{0}/1'."),
    ],
)
def test_what_is_no_log_says_why(tmp_path, files, problem):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(LogError) as caught:
        read_log(tmp_path)
    assert problem.format(tmp_path) in str(caught.value)


def test_command_leaves_out_what_is_usual_and_where_the_run_lies():
    flags = {"model_name": "vgg_16", "batch_size": 32, "checkpointDir": "x", "overwrite": True}
    assert find_changed(flags) == {"model_name": "vgg_16"}
    assert make_command({**flags, "hooks": ["StopAtStepHook", "ProfilerHook"]}) == (
        "penstock train --model_name=vgg_16 --hooks=StopAtStepHook,ProfilerHook "
        "--output_dir=repeated"
    )
