from pathlib import Path

import pytest

from penstock.commands import convert
from tests.readers.convert.originals import jpeg, write_cifar10, write_flowers, write_mnist
from tests.readers.convert.serving import serve

WRITE = {"cifar10": write_cifar10, "mnist": write_mnist, "flowers": write_flowers}


@pytest.mark.parametrize("name", WRITE)
def test_dataset_is_downloaded_and_converted(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "served").mkdir()
    WRITE[name](tmp_path / "served")
    out = tmp_path / "out"
    with serve(tmp_path / "served") as server:
        flags = [f"--base_url={server.url}", "--skip_checksum", "--num_validation=5"]
        status = convert.run([f"--dataset_name={name}", f"--dataset_dir={out}", *flags])
    assert status == 0
    assert f"{out}/labels.txt" in capsys.readouterr().out.splitlines()
    assert len(list(out.glob(f"{name}_*.tfrecord"))) == (10 if name == "flowers" else 2)


def test_files_that_are_there_stay_unless_forced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
):
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
    assert convert.run([*flags, "--force"]) == 0
    assert train.read_bytes() != b"mine"


def test_archive_that_is_not_the_original_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_cifar10(tmp_path)
    status = convert.run(["--dataset_name=cifar10", f"--dataset_dir={tmp_path}"])
    assert status == 1
    error = capsys.readouterr().err
    assert "expected c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd" in error


def test_image_folder_goes_to_tfrecord_to_ofrecord_and_back(tmp_path: Path):
    for name in ("cats", "dogs"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(10):
            (tmp_path / "images" / name / f"{number}.jpg").write_bytes(jpeg(number))

    def run(name: str, source: str, out: str, *flags: str) -> list[str]:
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


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--dataset_name=image_folder"], "--source got nothing, expected a path"),
        (["--dataset_name=ofrecord", "--source=/no/such*"], "'/no/such*', which matches no file"),
        (["--dataset_name=tfrecord", "--source=/no/such"], "no such name (0 parts)"),
    ],
)
def test_wrong_source_is_an_error(
    flags: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert convert.run([*flags, f"--dataset_dir={tmp_path}"]) == 1
    assert expected in capsys.readouterr().err


def test_unknown_dataset_is_a_usage_error(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        convert.run(["--dataset_name=imagenet", "--dataset_dir=/tmp"])
    assert "invalid choice: 'imagenet'" in capsys.readouterr().err
