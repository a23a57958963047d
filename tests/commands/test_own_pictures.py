"""A person's own pictures: broken files, turned photos, and classes with any names."""

import csv
import importlib.util
import json
import os
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest

import penstock as ps
from penstock.commands import predict, train
from penstock.commands._failures import UsageError
from penstock.commands._flags import make_train_flags
from penstock.commands._image_folders import describe_folder
from penstock.commands._run import splits
from penstock.commands._run.data import open_data, open_for_evaluation
from penstock.commands._run.network import find_network
from penstock.commands._run.splits import open_split
from penstock.commands._run_folder.folder import RunFolder
from penstock.commands._run_folder.runs import read_rows, write_rows
from penstock.commands.eval import EvalFlags, draw_confusion
from penstock.commands.eval import _plot as draw_own_confusion
from penstock.commands.predict import write_table
from penstock.readers import DatasetNotFoundError, Shard
from penstock.readers.convert import read_labels
from penstock.readers.images import find_damaged
from tests.commands.running import TINY, run, succeed
from tests.readers.turned import draw_quarters, encode_turned

PNG = cv2.imencode(".png", np.full((12, 12, 3), 200, np.uint8))[1].tobytes()
JPEG = cv2.imencode(".jpg", np.full((12, 12, 3), 200, np.uint8))[1].tobytes()
BROKEN = {
    "zero.jpg": b"",
    "text.jpg": b"a letter",
    "page.png": b"<html>404</html>",
    "cut.png": PNG[:-20],
    "cut.jpg": JPEG[: len(JPEG) // 2],
}


def write_photos(folder: Path, *classes: str, count: int = 12) -> Path:
    for value, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            image = np.full((12, 12, 3), 20 + 200 * (value % 2), np.uint8)
            encoded = cv2.imencode(".png", image)[1].tobytes()
            (folder / name / f"{number}.png").write_bytes(encoded)
    return folder


@pytest.fixture
def photos(tmp_path):
    """Return a folder of two classes, a few of whose files are broken."""
    folder = write_photos(tmp_path / "photos", "cat", "dog")
    for number, (name, content) in enumerate(BROKEN.items()):
        (folder / ("cat", "dog")[number % 2] / name).write_bytes(content)
    (folder / "cat/gone.jpg").symlink_to("nowhere")
    (folder / "cat/folder.jpg").mkdir()
    return folder


def open_own(folder, split="train", **options):
    data = describe_folder(str(folder), {})
    flags = make_train_flags({"skip_damaged": True, **options, **data})
    return open_split(flags, split)


def open_whole(folder, **options):
    data = describe_folder(str(folder), {})
    flags = make_train_flags({"model_name": "lenet", "batch_size": 4, **options, **data})
    return open_data(flags, None, num_devices=1, shard=Shard(0, 1))


def test_broken_files_are_left_out_and_named_at_the_start(photos):
    opened = open_own(photos)
    assert opened.num_samples == 20
    assert opened.notes == (
        f"left out of {str(photos)!r}: 6 files that are no whole images, 'cat/cut.jpg', "
        "'cat/gone.jpg', 'cat/page.png' and 3 more",
    )
    tested = open_own(photos, "test")
    assert tested.num_samples == 2
    assert tested.notes == ()
    assert open_own(photos, "validation").num_samples == 2


def test_held_out_pictures_stay_the_same_when_broken_files_are_removed(photos):
    def read():
        return [float(photo["image"].mean()) for photo in open_own(photos).make(batch_size=None)()]

    before = read()
    for name in BROKEN:
        for path in photos.rglob(name):
            path.unlink()
    (photos / "cat/gone.jpg").unlink()
    assert open_own(photos).notes == ()
    assert read() == before


def test_broken_files_are_an_error_where_a_flag_says_so(photos):
    (photos.parent / "c.json").write_text('{"skip_damaged": false}')
    for word in ("--skip_damaged=False", f"--config={photos.parent / 'c.json'}"):
        assert not train.read_flags([str(photos), word]).preprocessing.skip_damaged
    assert open_own(photos, skip_damaged=False).num_samples > 22


def test_run_says_what_is_left_out_of_either_part(tmp_path):
    for part in ("train", "test"):
        write_photos(tmp_path / part, "cat", "dog", count=3)
        (tmp_path / part / "dog/zero.jpg").touch()
    opened = open_whole(tmp_path, skip_damaged=True, num_preprocessing_threads=0)
    assert [opened.num_train, opened.facts.num_test] == [6, 6]
    named = [note for note in opened.notes if "'dog/zero.jpg'" in note]
    assert [f"{part}'" in note for part, note in zip(("train", "test"), named, strict=True)]
    assert all("1 file that is no whole image" in note for note in named)


def test_class_without_a_picture_that_can_be_read_is_an_error(tmp_path):
    write_photos(tmp_path, "cat", "dog", count=3)
    for path in (tmp_path / "cat").iterdir():
        path.write_text("no image")
    (tmp_path / "bird").mkdir()
    with pytest.raises(UsageError, match="with no image in 'bird'"):
        open_own(tmp_path)
    (tmp_path / "bird/1.png").write_bytes(PNG)
    with pytest.raises(ValueError, match=r"no image that can be read in 'cat', .*'cat/0\.png'"):
        open_own(tmp_path)


def test_whole_pictures_with_something_after_them_are_read(tmp_path):
    files = {"a.jpg": JPEG + b"sound of a phone", "b.png": PNG + b"\n", "c.jpg": JPEG, "d.png": PNG}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert find_damaged([str(tmp_path / name) for name in files]) == []


def test_images_of_kinds_that_are_not_read_are_named_at_the_start(tmp_path):
    write_photos(tmp_path, "cat", "dog", count=10)
    for name in ("cat/a.heic", "dog/b.HEIC", "dog/c.gif", "dog/.d.gif"):
        (tmp_path / name).write_bytes(PNG)
    (note,) = open_own(tmp_path).notes
    assert (
        note
        == f"{str(tmp_path)!r}: left out 2 .heic, 1 .gif: JPEG, PNG, WebP, BMP and TIFF are read"
    )


@pytest.mark.quick("30", "10")
@pytest.mark.parametrize("count", [10, 30, 200])
def test_tenths_held_out_have_their_share_of_each_class(tmp_path, count):
    write_photos(tmp_path, "cat", "dog", "eel", count=count)
    parts = [open_own(tmp_path, split).files or () for split in ("train", "validation", "test")]
    counts = [Counter(Path(name).parts[0] for name in names) for names in parts]
    tenth = dict.fromkeys(("cat", "dog", "eel"), count // 10)
    assert counts == [dict.fromkeys(tenth, count - 2 * (count // 10)), tenth, tenth]
    assert len({*parts[0], *parts[1], *parts[2]}) == 3 * count
    # As it was split in two, the images to test on were the same.
    two = [open_own(tmp_path, split, num_folder_parts=2) for split in ("train", "validation")]
    assert {*(two[1].files or ())} == {*parts[2]}
    assert two[0].num_samples == 3 * (count - count // 10)
    other = open_own(tmp_path, "test", split_seed=1).files or ()
    assert len(other) == len(parts[2])
    assert {*other} != {*parts[2]}


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        # A group that is larger than a tenth is to train on.
        ((20, *(1,) * 20), [32, 4, 4]),
        # Five people of as many images: one of them for each part.
        ((8,) * 5, [24, 8, 8]),
        ((2,) * 20, [32, 4, 4]),
    ],
)
def test_images_of_a_group_are_in_one_part(tmp_path, sizes, expected):
    for group, size in enumerate(sizes):
        for number in range(size):
            path = tmp_path / ("cat", "dog")[number % 2] / f"person{group}_{number}.png"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(PNG)
    (tmp_path / "cat" / "somebody.png").write_bytes(PNG)
    options = {"group_pattern": "person([0-9]+)_"}
    opened = [open_own(tmp_path, s, **options) for s in ("train", "validation", "test")]
    parts = [{Path(name).stem.split("_")[0] for name in split.files or ()} for split in opened]
    assert sum(map(len, parts)) == len({*parts[0], *parts[1], *parts[2]})
    counts = [split.num_samples for split in opened]
    counts[[("somebody" in part) for part in parts].index(True)] -= 1
    assert sum(counts) == 40
    assert counts == pytest.approx(expected, abs=1)
    note = f"--group_pattern: {len(sizes)} groups of images, each in one part; 1 images are in none"
    assert opened[0].notes == (note,)
    with pytest.raises(ValueError, match="expected a pattern that is found in paths such as 'cat/"):
        open_own(tmp_path, group_pattern="patient")


def test_group_is_what_the_parentheses_that_match_find():
    names = ["cat/person1_0.png", "cat/scan2.png", "dog/scan2b.png"]
    groups, _ = splits._find_groups("person([0-9]+)_|scan([0-9]+)", names)
    assert groups.tolist() == [0, 1, 1]


def test_brackets_in_a_folder_are_no_pattern(tmp_path):
    (tmp_path / "data[1]").mkdir()
    file = tmp_path / "data[1]" / "a.tfrecord"
    file.touch()
    assert splits._find_files(file.parent, ["*.tfrecord"]) == [str(file)]
    assert splits._find_files(file.parent, [str(tmp_path / "*" / "a.tfrecord")]) == [str(file)]


@pytest.mark.parametrize("label", [[0.0, 1.0], 0.5, []])
def test_label_that_is_no_number_of_a_class_is_refused(label):
    with pytest.raises(ValueError, match="expected the number of a class"):
        splits.get_image_and_label({"image": 0, "label": np.array(label)})
    assert splits.get_image_and_label((0, np.array([[3.0]])))[1] == 3


def test_best_network_is_chosen_on_a_part_that_it_is_not_tested_on_where_there_is_one(tmp_path):
    for part, count in (("train", 4), ("val", 2), ("test", 3)):
        write_photos(tmp_path / part, "cat", "dog", count=count)
    opened = open_whole(tmp_path)
    assert (opened.test_part, opened.facts.num_test, opened.facts.num_final_test) == ("val", 4, 6)
    assert open_own(tmp_path, "test").num_samples == 6
    (tmp_path / "val").rename(tmp_path / "elsewhere")
    opened = open_whole(tmp_path)
    assert (opened.test_part, opened.facts.num_test, opened.final_test) == ("test", 6, None)
    # Without parts, of a class of ten one is to choose on and another to test on.
    write_photos(tmp_path / "whole", "cat", "dog", count=10)
    opened = open_whole(tmp_path / "whole")
    assert (opened.num_train, opened.facts.num_test, opened.facts.num_final_test) == (16, 2, 2)
    assert opened.test_part == "another tenth"


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (["train/1.png", "bus/1.png"], ("bus", "train")),
        (["train/1.png", "test/1.png", "bus/1.png"], ("bus", "test", "train")),
        (["test/1.png", "bus/1.png"], ("bus", "test")),
        (["train/a/1.png", "train/b/1.png", "test/a/1.png", "test/b/1.png"], ("a", "b")),
        (["train/a/1.png", "train/b/1.png", "train/1.png", "val/a/1.png"], ("a", "b")),
    ],
)
def test_train_is_a_class_only_where_it_holds_pictures_beside_other_classes(
    names, classes, tmp_path
):
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(PNG)
    assert open_own(tmp_path).class_names == classes


@pytest.mark.parametrize("name", ["new\nline", "next\u2028line", os.fsdecode(b"caf\xe9")])
def test_class_whose_name_is_no_line_of_text_is_a_usage_error(name, tmp_path):
    write_photos(tmp_path, "cat", name, count=1)
    with pytest.raises(UsageError, match=r"expected a name of one line of text.*Rename"):
        describe_folder(str(tmp_path), {})


def test_line_of_labels_that_is_no_class_is_named(tmp_path):
    (tmp_path / "labels.txt").write_text("0:cat\n1:new\nline\n")
    with pytest.raises(ValueError, match=r"labels\.txt' got the line 'line', expected a number"):
        read_labels(tmp_path)


def test_matrix_of_any_names_is_drawn(tmp_path):
    names = ("$\\x$", "\N{DOG FACE}", "-dash", "a,b", "100%")
    draw_confusion(tmp_path / "a.svg", np.eye(5, dtype=int), names)
    assert (tmp_path / "a.svg").stat().st_size > 1000


def test_matrix_that_nobody_asked_for_is_no_failure_where_it_cannot_be_written(tmp_path, capsys):
    data: Any = SimpleNamespace(facts=SimpleNamespace(class_names=("cat", "dog")))
    # For root too.
    (tmp_path / "no_folder").touch()
    folder, matrix = RunFolder(tmp_path / "no_folder"), np.eye(2, dtype=int)
    draw_own_confusion(EvalFlags(run="run"), folder, matrix, data)
    assert re.search(r"no \S+/no_folder/confusion\.png: File exists", capsys.readouterr().out)
    asked = EvalFlags(run="run", plot=str(folder.path / "a.png"))
    with pytest.raises(FileExistsError):
        draw_own_confusion(asked, folder, matrix, data)


def test_too_few_pictures_to_hold_any_out_is_said(tmp_path):
    write_photos(tmp_path, "cat", "dog", count=2)
    with pytest.raises(DatasetNotFoundError, match="too few images"):
        open_own(tmp_path, "test")


@pytest.mark.slow
def test_run_on_a_persons_folder_leaves_out_what_is_broken(photos, capsys, monkeypatch):
    monkeypatch.chdir(photos.parent)
    (photos / "cat/turned.jpg").write_bytes(encode_turned(draw_quarters(), 6))
    cv2.imwrite(str(photos / "cat/upright.png"), draw_quarters()[..., ::-1])
    # In two parts: with fewer images the little network is not sure enough to compare two files.
    words = ["train", "photos", *TINY, "--num_epochs=2", "--batch_size=8", "--num_folder_parts=2"]
    out, err = succeed(capsys, *words)
    assert "left out of 'photos': 6 files that are no whole images" in " ".join(out.split())
    assert "skipped" not in err
    out, _ = succeed(capsys, "eval", "runs/photos_tiny", "--json")
    assert json.loads(out)["images"] == 2, err
    check_predictions(capsys, photos, monkeypatch)


def test_network_chosen_on_val_is_tested_once_at_the_end(tmp_path, capsys):
    for part, count in (("train", 4), ("val", 2), ("test", 3)):
        write_photos(tmp_path / "photos" / part, "cat", "dog", count=count)
    words = ["train", "photos", *TINY, "--num_epochs=2", "--batch_size=8"]
    out, _ = succeed(capsys, *words)
    assert (
        "8 images to train on, 4 to choose the best network on (val), 6 to test that on"
        in " ".join(out.split())
    )
    first = out[: out.index("compiling the train program")]
    assert max(map(len, first.splitlines())) <= 80
    (final,) = re.findall(r"^final test, 6 images that nothing was chosen on: (.*)$", out, re.M)
    out, _ = succeed(capsys, "eval", "runs/photos_tiny")
    assert "on 6 images, the test split of photos:" in out
    assert final in out
    assert re.search(r"With 95 % confidence the accuracy is [\d.]+% to [\d.]+%, the loss ", out)
    out, _ = succeed(capsys, "eval", "runs/photos_tiny", "--split=validation", "--json")
    answer = json.loads(out)
    assert answer["images"] == 4
    assert answer["loss_interval"][0] < answer["loss"] < answer["loss_interval"][1]
    # An image that a preprocessing does not take costs no other its answer.
    for name, width in (("a", 8), ("b", 12), ("c", 8)):
        cv2.imwrite(f"{name}.png", np.zeros((8, width, 3), np.uint8))
    words = ("runs/photos_tiny", "a.png", "b.png", "c.png", "--preprocessing_name=none")
    status, out, err = run(capsys, "predict", *words)
    assert (status, [line[:5] for line in out.splitlines()]) == (1, ["a.png", "c.png"])
    assert "b.png: left out, preprocessing.Plain got an image of 8 x 12, expected 8 x 8." in err


@pytest.mark.slow
def test_predict_and_an_exported_file_see_the_pixels_that_eval_sees(tmp_path, capsys):
    random = np.random.default_rng(0)
    for part in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / "photos" / part / name).mkdir(parents=True)
            for number, suffix in enumerate((".png", ".jpg", ".png")):
                image = random.integers(0, 256, (150, 90 + 7 * number, 3)).astype(np.uint8)
                cv2.imwrite(str(tmp_path / "photos" / part / name / f"{number}{suffix}"), image)
    words = ["train", "photos", *TINY, "--train_image_size=16", "--cache_image_size=40"]
    succeed(capsys, *words, "--batch_size=2", "--stop_at_step=1")
    saved = find_network("runs/photos_tiny", {})
    data, reader, _ = open_for_evaluation(saved.flags, "validation", saved.weights, num_devices=1)
    paths = [tmp_path / "photos/val" / name for name in data.test_files or ()]
    expected = np.concatenate([batch["image"] for batch in reader])
    network = predict._open_run(saved, predict.PredictFlags(run="", images=()))
    np.testing.assert_array_equal([network.read(path) for path in paths], expected)
    succeed(capsys, "export", "runs/photos_tiny")
    model = ps.InferenceModel.load("runs/photos_tiny/model.penstock")
    np.testing.assert_array_equal(model.prepare(paths)["image"], expected)


def check_predictions(capsys, photos, monkeypatch):
    status, out, err = run(capsys, "predict", "runs/photos_tiny", "photos", "--json=True")
    answers = {Path(answer["image"]).name: answer for answer in map(json.loads, out.splitlines())}
    assert status == 1
    assert len(out.splitlines()) == 26
    assert err.count("left out, not a whole image") == 6
    assert err.splitlines()[-1].startswith(
        "penstock predict: got 6 of 32 that cannot be read, expected images. Those named above"
    )
    upright, turned = (answers[name]["classes"] for name in ("upright.png", "turned.jpg"))
    for one, other in zip(upright, turned, strict=True):
        assert one["name"] == other["name"]
        assert one["probability"] == pytest.approx(other["probability"], abs=0.02)
    words = ("predict", "runs/photos_tiny", "photos/*/1.png")
    status, out, _ = run(capsys, *words)
    assert (status, len(out.splitlines())) == (0, 2)
    check_tables(capsys, words)
    monkeypatch.setattr(predict, "_PROGRESS_SECS", 0.0)
    _, _, err = run(capsys, *words, "--output=answers/a.csv")
    assert "2 of 2 images\n" in err


def check_tables(capsys, words):
    """Check that a file of each kind has what --json prints."""
    lines = [json.loads(line) for line in run(capsys, *words, "--json")[1].splitlines()]
    for ending in ("csv", "jsonl", "npz", "parquet"):
        file = Path(f"answers/a.{ending}")
        status, out, err = run(capsys, *words, f"--output={file}")
        if ending == "parquet" and importlib.util.find_spec("pyarrow") is None:
            assert (status, file.exists()) == (2, False)
            assert "--output got 'answers/a.parquet', expected pyarrow to be installed" in err
            continue
        assert (status, out) == (0, ""), err
        assert err.endswith(f"the answers for 2 images are in {file}\n")
    assert list(map(json.loads, Path("answers/a.jsonl").read_text().splitlines())) == lines
    with Path("answers/a.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["image", "class_1", "probability_1", "class_2", "probability_2"]
    for row, line in zip(rows, lines, strict=True):
        assert row["image"] == line["image"]
        for number, prediction in enumerate(line["classes"], 1):
            shown = row[f"class_{number}"], float(row[f"probability_{number}"])
            assert shown == (prediction["name"], prediction["probability"])
    table = np.load("answers/a.npz")
    assert table["image"].tolist() == [line["image"] for line in lines]
    best = table["class_names"][table["probabilities"].argmax(axis=1)]
    assert best.tolist() == [line["classes"][0]["name"] for line in lines]


def test_names_of_images_that_are_no_text_are_kept_in_tables(tmp_path):
    rows = [["image"], ["caf\udce9.png"]]
    write_rows(tmp_path / "doubted.csv", rows)
    assert read_rows(tmp_path / "doubted.csv") == rows
    assert b"caf\xe9.png" in (tmp_path / "doubted.csv").read_bytes()
    write_table(tmp_path / "answers.csv", [(Path("caf\udce9.png"), np.ones(1))], ["a"], top_k=1)
    assert read_rows(tmp_path / "answers.csv")[1] == ["caf\udce9.png", "a", "1.0"]
