import gzip
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest

from penstock.readers import convert
from penstock.readers._archives import read_idx
from penstock.readers.records import (
    FixedLenFeature,
    decode_image,
    parse_example,
)
from penstock.readers.records.messages import parse_sequence
from tests.readers.convert.originals import (
    convert_unchecked,
    idx_bytes,
    jpeg,
    write_cifar10,
    write_flowers,
    write_images,
    write_mnist,
    write_tar,
)
from tests.readers.convert.serving import serve
from tests.readers.published import read_records
from tests.readers.turned import check_quarters, draw_quarters, encode_turned

NOWHERE = "http://127.0.0.1:9"
SLIM_SPEC = {
    "image/encoded": FixedLenFeature((), "bytes", default_value=b""),
    "image/format": FixedLenFeature((), "bytes", default_value=b"png"),
    "image/class/label": FixedLenFeature((), "int64", default_value=0),
    "image/height": FixedLenFeature((), "int64"),
    "image/width": FixedLenFeature((), "int64"),
}


@pytest.fixture
def served(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    return folder


def read_slim(path: Path) -> list[dict]:
    payloads = read_records([path])
    for payload in payloads:
        assert sorted(parse_sequence(payload)[0]) == sorted(SLIM_SPEC)
    return [parse_example(payload, SLIM_SPEC) for payload in payloads]


def convert_pets(folder: Path, **options) -> list[Path]:
    return convert.convert_image_folder(
        folder / "images", folder / "out", "pets", **{"num_shards": 1, **options}
    )


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_cifar10_gives_slims_files_from_the_original_archive(tmp_path):
    records = write_cifar10(tmp_path)
    made = convert_unchecked("cifar10", tmp_path)
    assert names(made) == ["cifar10_train.tfrecord", "cifar10_test.tfrecord", "labels.txt"]
    for path, batches in zip(made, (records[:5], records[5:]), strict=False):
        samples = read_slim(path)
        flat = batches.reshape(-1, 3073)
        assert [sample["image/class/label"] for sample in samples] == flat[:, 0].tolist()
        for sample, record in zip(samples, flat, strict=True):
            image = decode_image(sample["image/encoded"])
            np.testing.assert_array_equal(image.transpose(2, 0, 1).ravel(), record[1:])
            assert (sample["image/format"], sample["image/height"]) == (b"png", 32)
    assert made[2].read_text().splitlines()[:2] == ["0:airplane", "1:automobile"]
    assert convert.read_labels(tmp_path)[9] == "truck"


def test_mnist_gives_slims_files_from_the_original_archives(served, tmp_path):
    splits = write_mnist(served)
    with serve(served) as server:
        made = convert_unchecked("mnist", tmp_path / "out", server.url)
    assert names(made) == ["mnist_train.tfrecord", "mnist_test.tfrecord", "labels.txt"]
    for path, split in zip(made, ("train", "test"), strict=False):
        images, labels = splits[split]
        samples = read_slim(path)
        assert [sample["image/class/label"] for sample in samples] == labels.tolist()
        for sample, image in zip(samples, images, strict=True):
            decoded = decode_image(sample["image/encoded"], channels=1)
            np.testing.assert_array_equal(decoded[..., 0], image)
            assert sample["image/encoded"][25] == 0  # colour type of a gray PNG
            assert (sample["image/height"], sample["image/width"]) == (28, 28)
    assert convert.read_labels(tmp_path / "out")[6] == "size"


def test_flowers_give_slims_shards_from_the_original_archive(tmp_path):
    photos = write_flowers(tmp_path)
    made = convert_unchecked("flowers", tmp_path, num_validation=6)
    assert names(made) == [
        *(f"flowers_train_{shard:05d}-of-00005.tfrecord" for shard in range(5)),
        *(f"flowers_validation_{shard:05d}-of-00005.tfrecord" for shard in range(5)),
        "labels.txt",
    ]
    shards = [read_slim(path) for path in made[:-1]]
    assert [len(shard) for shard in shards] == [3, 3, 3, 3, 2, 2, 2, 2, 0, 0]
    samples = [sample for shard in shards for sample in shard]
    assert Counter(sample["image/encoded"] for sample in samples) == Counter(photos.values())
    labels = convert.read_labels(tmp_path)
    assert labels == dict(enumerate(["daisy", "dandelion", "roses", "sunflowers", "tulips"]))
    by_bytes = {data: name.split("/")[1] for name, data in photos.items()}
    for sample in samples:
        assert labels[int(sample["image/class/label"])] == by_bytes[sample["image/encoded"]]
        size = (sample["image/height"], sample["image/width"])
        assert (sample["image/format"], size) == (b"jpg", (12, 10))
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == sorted([*names(made), "flower_photos.tgz"])


def test_flowers_are_the_same_whatever_the_order_of_the_folder(tmp_path):
    photos = write_flowers(tmp_path)
    made = []
    for number, order in enumerate([list(photos), list(photos)[::-1]]):
        out = tmp_path / str(number)
        out.mkdir()
        write_tar(out / "flower_photos.tgz", {name: photos[name] for name in order})
        made.append(convert_unchecked("flowers", out, NOWHERE, num_validation=6))
    assert [p.read_bytes() for p in made[0]] == [p.read_bytes() for p in made[1]]


def test_files_that_are_all_there_stay_unless_forced(tmp_path, caplog):
    write_mnist(tmp_path)
    write_flowers(tmp_path)

    def make(**options: bool) -> list[list[Path]]:
        flowers = {"num_validation": 6, **options}
        return [
            convert_unchecked("mnist", tmp_path, NOWHERE, **options),
            convert_unchecked("flowers", tmp_path, NOWHERE, **flowers),
        ]

    made = make()
    (message,) = caplog.messages
    assert message.startswith(f"'{tmp_path}/labels.txt' holds other names and is replaced.")
    caplog.clear()
    for paths in made:
        paths[0].write_bytes(b"mine")
    # One labels.txt serves a folder: it is the flowers' now, and there.
    assert make() == made
    assert [paths[0].read_bytes() for paths in made] == [b"mine", b"mine"]
    assert [line.split(":")[0] for line in caplog.messages] == [
        "Dataset files already exist. Exiting without re-creating them"
    ] * 2
    caplog.clear()
    assert make(force=True) == made
    assert len(caplog.messages) == 2
    assert b"mine" not in [paths[0].read_bytes() for paths in made]
    made[1][3].unlink()
    assert make()[1] == made[1]
    assert made[1][3].is_file()


def test_any_image_folder_converts(tmp_path):
    write_images(tmp_path / "images", count=3)
    (tmp_path / "images/cats/0.jpg").rename(tmp_path / "images/cats/0.JPEG")
    made = convert_pets(tmp_path, num_validation=2)
    assert names(made) == [
        "pets_train_00000-of-00001.tfrecord",
        "pets_validation_00000-of-00001.tfrecord",
        "labels.txt",
    ]
    assert [len(read_slim(path)) for path in made[:2]] == [4, 2]
    with pytest.raises(
        convert.ArgumentError, match=r"'images' got 6 images, num_validation=6, .* from 0 to 5"
    ):
        convert_pets(tmp_path, num_validation=6, force=True)
    (tmp_path / "images" / "cats" / "bad.png").write_bytes(b"no image")
    with pytest.raises(convert.ConversionError, match=r"cats/bad.png' got bytes '6e6f20"):
        convert_pets(tmp_path, num_validation=2, force=True)


def test_only_images_that_are_stored_turned_are_written_anew_upright(tmp_path):
    folder = tmp_path / "images/cat"
    folder.mkdir(parents=True)
    quarters = draw_quarters()
    files = {
        "a.jpg": jpeg(1),
        "b.jpg": encode_turned(quarters, 6),
        "c.png": encode_turned(quarters, 8, ".png"),
        # Turned by half a circle it is the same, so nothing is lost by another encoding.
        "d.jpg": encode_turned(np.full((8, 8, 3), 90, np.uint8), 3),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    made = convert_pets(tmp_path, num_validation=0)
    records = read_slim(made[0])
    kept = {record["image/encoded"] for record in records} & set(files.values())
    assert kept == {files["a.jpg"], files["d.jpg"]}
    turned = [record for record in records if record["image/width"] == 32]
    assert sorted(record["image/format"] for record in turned) == [b"jpg", b"png"]
    for image in turned:
        assert image["image/height"] == 16
        check_quarters(decode_image(image["image/encoded"]))


@pytest.mark.parametrize("suffix", [".webp", ".bmp", ".tiff"])
def test_kinds_that_slim_does_not_know_become_png(suffix, tmp_path):
    (tmp_path / "images/cat").mkdir(parents=True)
    bgr = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
    cv2.imwrite(str(tmp_path / f"images/cat/a{suffix}"), bgr, [cv2.IMWRITE_WEBP_QUALITY, 101])
    made = convert_pets(tmp_path, num_validation=0)
    (record,) = read_slim(made[0])
    assert record["image/format"] == b"png"
    np.testing.assert_array_equal(decode_image(record["image/encoded"])[..., ::-1], bgr)


def test_damaged_images_are_left_out_and_named_where_that_is_asked_for(tmp_path, caplog):
    write_images(tmp_path / "images")
    (tmp_path / "images/cats/bad.png").write_bytes(b"no image")
    # It begins and ends as a JPEG, so that its damage shows where it is decoded.
    (tmp_path / "images/dogs/bad.jpg").write_bytes(b"\xff\xd8 no image \xff\xd9")
    made = convert_pets(tmp_path, on_error="skip")
    assert [len(read_slim(path)) for path in made[:2]] in ([18, 2], [19, 1])
    assert "1 file that is no whole image, 'cats/bad.png'" in caplog.text
    assert "left out: '" in caplog.text
    assert "dogs/bad.jpg' got bytes" in caplog.text


def test_default_holds_out_a_tenth_of_the_images_that_are_written(tmp_path):
    write_images(tmp_path / "images", ("cats/2019/may", "cats", "dogs", ".thumbnails"))
    (tmp_path / "images" / "dogs" / "old.jpg").mkdir()
    made = convert_pets(tmp_path)
    assert [len(read_slim(path)) for path in made[:2]] == [27, 3]
    counts = Counter(int(sample["image/class/label"]) for p in made[:2] for sample in read_slim(p))
    assert counts == {0: 20, 1: 10}
    held_out = Counter(int(sample["image/class/label"]) for sample in read_slim(made[1]))
    assert held_out == {0: 2, 1: 1}
    assert convert.read_labels(tmp_path / "out") == {0: "cats", 1: "dogs"}


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"num_shards": 0}, "num_shards got 0, expected an integer of 1 or more"),
        ({"num_validation": -1}, "got 1 images, num_validation=-1"),
        (
            {"dataset_name": "../pets"},
            r"dataset_name got '\.\./pets', expected a name without a slash",
        ),
        ({"image_dir": "images/cats"}, "got no class, but"),
    ],
)
def test_argument_out_of_range_is_an_error_and_leaves_nothing(
    wrong, expected, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("images/cats").mkdir(parents=True)
    Path("images/cats/0.jpg").write_bytes(jpeg(0))
    arguments = {"image_dir": "images", "dataset_dir": "out", "dataset_name": "pets"} | wrong
    with pytest.raises(convert.ArgumentError, match=expected):
        convert.convert_image_folder(**arguments)
    assert not Path("out").exists()


def test_other_archive_of_flowers_is_an_error(tmp_path):
    write_tar(tmp_path / "flower_photos.tgz", {"roses/0.jpg": jpeg(0)})
    with pytest.raises(convert.ArchiveError, match="got no folder 'flower_photos', expected"):
        convert_unchecked("flowers", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["flower_photos.tgz"]


def test_archive_with_other_contents_is_an_error_and_leaves_no_records(tmp_path):
    archive = tmp_path / "cifar-10-binary.tar.gz"
    for members, expected in [
        ({"a": b""}, "got no file 'data_batch_1.bin'"),
        ({"x/data_batch_1.bin": bytes(3072)}, "got 3072 bytes, expected 30730000 as published"),
        ({"x/data_batch_1.bin": b"\x0a" + bytes(3072)}, "got label 10 of image 0, expected 0 to 9"),
        ({"x/data_batch_1.bin": bytes(3073 * 10_001)}, "expected at most 30730000"),
        # When all that is to train on was written.
        (
            {"x/data_batch_1.bin": bytes(3073), "x/test_batch.bin": b"\xff" * 3073},
            "test_batch.bin got label 255 of image 0",
        ),
    ]:
        batches = {f"x/data_batch_{number}.bin": bytes(3073) for number in range(2, 6)}
        write_tar(archive, batches | members)
        with pytest.raises(convert.ArchiveError, match=expected):
            convert_unchecked("cifar10", tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [archive.name]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no gzip",
        gzip.compress(b"\0\0\x08\x03", mtime=0),
        gzip.compress(idx_bytes(np.zeros(3, np.uint8)), mtime=0),
        gzip.compress(idx_bytes(np.zeros((2, 3, 3), np.uint8)), mtime=0)[:-9],
        gzip.compress(idx_bytes(np.zeros((2, 3, 3), np.uint8)) + b"more", mtime=0),
        gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12 + bytes(100), mtime=0),
    ],
)
def test_file_that_is_no_idx_of_images_is_an_error(data, tmp_path):
    (tmp_path / "a.gz").write_bytes(data)
    with pytest.raises(convert.ArchiveError, match=r"a.gz' got .*expected "):
        read_idx(tmp_path / "a.gz", (3, 3))
