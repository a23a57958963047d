import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import readers
from penstock.commands import convert
from penstock.commands._run.data import open_data
from penstock.commands.train import read_flags
from tests.readers.convert.originals import (
    write_cifar10,
    write_flowers,
    write_images,
    write_mnist,
)
from tests.readers.convert.serving import serve

WRITE = {"cifar10": write_cifar10, "mnist": write_mnist, "flowers": write_flowers}


@pytest.mark.parametrize("name", WRITE)
def test_dataset_is_downloaded_and_converted(name, tmp_path, capsys):
    (tmp_path / "served").mkdir()
    WRITE[name](tmp_path / "served")
    out = tmp_path / "out"
    with serve(tmp_path / "served") as server:
        flags = [f"--base_url={server.url}", "--skip_checksum"]
        flags += ["--num_validation=5"] if name == "flowers" else []
        status = convert.run([f"--dataset_name={name}", f"--dataset_dir={out}", *flags])
    assert status == 0
    printed = capsys.readouterr()
    assert f"{out}/labels.txt" in printed.out.splitlines()
    assert len(list(out.glob(f"{name}_*.tfrecord"))) == (10 if name == "flowers" else 2)
    assert sorted(printed.out.splitlines()) == sorted(
        str(path) for path in out.iterdir() if path.suffix in (".tfrecord", ".txt")
    )
    command = re.fullmatch(r"train on it:  penstock train (.*)\n", printed.err)
    assert command is not None
    data = open_data(
        read_flags(shlex.split(command[1])), None, num_devices=1, shard=readers.Shard()
    )
    assert data.num_train > 0
    assert data.facts.num_test
    assert len(data.facts.class_names) > 1


def test_command_after_an_image_folder_trains_on_what_was_made(capsys):
    write_images(Path("images"))
    words = ["--dataset_name=image_folder", "--source=images", "--dataset_dir=my data"]
    assert convert.run([*words, "--output_name=pets"]) == 0
    command = capsys.readouterr().err.strip()
    assert command == (
        "train on it:  penstock train --dataset_name=pets '--dataset_dir=my data' "
        "--model_name=mobilenet_v2 --train_image_size=128 --num_epochs=10"
    )
    flags = read_flags(shlex.split(command)[5:])
    data = open_data(flags, None, num_devices=1, shard=readers.Shard())
    assert (data.num_train, data.facts.num_test, data.facts.class_names) == (
        18,
        2,
        ("cats", "dogs"),
    )


def test_terminal_shows_progress_and_a_pipe_gets_the_paths(tmp_path):
    write_images(tmp_path / "images")
    flags = ["--dataset_name=image_folder", f"--source={tmp_path}/images", "--num_shards=1"]
    program = "import sys; from penstock.commands import main; sys.exit(main())"
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, "convert", *flags, f"--dataset_dir={tmp_path}/out"],
            stdout=subprocess.PIPE,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        )
        shown = os.read(ours, 100_000).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 0
    assert [Path(line).name for line in done.stdout.decode().splitlines()] == [
        "images_train_00000-of-00001.tfrecord",
        "images_validation_00000-of-00001.tfrecord",
        "labels.txt",
    ]
    assert "images" in shown
    assert "kB" in shown


def test_files_that_are_there_stay_unless_forced(tmp_path, caplog, capsys):
    write_cifar10(tmp_path)
    flags = ["--dataset_name=cifar10", f"--dataset_dir={tmp_path}", "--skip_checksum"]
    assert convert.run(flags) == 0
    made = capsys.readouterr().out
    train, whole = tmp_path / "cifar10_train.tfrecord", caplog.text
    assert "already exist" not in whole
    train.write_bytes(b"mine")
    assert convert.run(flags) == 0
    assert "Dataset files already exist. Exiting without re-creating them: " in caplog.text
    assert capsys.readouterr().out == made
    assert train.read_bytes() == b"mine"
    assert convert.run([*flags, "--overwrite"]) == 0
    assert train.read_bytes() != b"mine"


def test_image_folder_goes_to_tfrecord_to_ofrecord_and_back(tmp_path):
    write_images(tmp_path / "images")

    def run(name, source, out, *flags) -> list[str]:
        where = [f"--source={tmp_path}/{source}", f"--dataset_dir={tmp_path}/{out}"]
        assert convert.run([f"--dataset_name={name}", *where, *flags]) == 0
        return sorted(path.name for path in (tmp_path / out).iterdir())

    made = run("image_folder", "images", "tf", "--num_shards=2", "--output_name=pets")
    assert made[1:3] == ["pets_train_00000-of-00002.tfrecord", "pets_train_00001-of-00002.tfrecord"]
    slim = ["--rename=slim", "--num_shards=2"]
    assert run("ofrecord", "tf/pets_train*", "of", *slim) == ["part-00000", "part-00001"]
    back = run("tfrecord", "of", "back", *slim, "--output_name=pets_train")
    assert back == made[1:3]
    for name in back:
        original, copy = tmp_path / "tf" / name, tmp_path / "back" / name
        assert original.read_bytes() == copy.read_bytes()


def test_server_that_is_not_there_and_a_broken_image_end_in_one_line_and_status_1(tmp_path, capsys):
    (tmp_path / "images" / "cats").mkdir(parents=True)
    (tmp_path / "images" / "cats" / "0.jpg").write_bytes(b"no image")
    where = [f"--source={tmp_path}/images", f"--dataset_dir={tmp_path}/out"]
    with serve(tmp_path) as server:
        mnist = ["mnist", f"--base_url={server.url}", f"--dataset_dir={tmp_path}/out"]
        for flags, expected in [
            (mnist, "HTTPError: HTTP Error 404: Not Found, expected the whole file"),
            (["image_folder", *where, "--skip_damaged=False"], "cats/0.jpg' got bytes"),
        ]:
            assert convert.run([f"--dataset_name={flags[0]}", *flags[1:]]) == 1
            (line,) = capsys.readouterr().err.splitlines()
            assert expected in line
    assert list((tmp_path / "out").iterdir()) == []


def test_archive_that_is_not_the_original_is_an_error(tmp_path, capsys):
    write_cifar10(tmp_path)
    status = convert.run(["--dataset_name=cifar10", f"--dataset_dir={tmp_path}"])
    assert status == 1
    error = capsys.readouterr().err
    assert "expected c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd" in error
