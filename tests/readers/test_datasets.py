"""Named data sets: the embedded ones, those read from published files, and what is said without."""

import gzip
import re

import cv2
import numpy as np
import pytest

from penstock import readers
from penstock._errors import UnknownNameError
from penstock.readers import DatasetNotFoundError
from penstock.readers.datasets.splits import standardise
from tests.readers.archives.original_sets import ORIGINALS
from tests.readers.convert.originals import idx_bytes, write_cifar10
from tests.readers.published import whole, write_examples, write_records


@pytest.mark.parametrize(
    ("name", "num_train", "num_test", "shapes"),
    [
        ("digits", 1438, 359, {"image": (8, 8, 1), "label": ()}),
        ("diabetes", 354, 88, {"x": (10,), "y": (1,)}),
        ("wine", 143, 35, {"x": (13,), "label": ()}),
        ("breast_cancer", 456, 113, {"x": (30,), "label": ()}),
    ],
)
def test_embedded_set_has_its_size_and_shapes(name, num_train, num_test, shapes):
    train, test = whole(name), whole(name, "test")
    for split, length in ((train, num_train), (test, num_test)):
        assert {key: array.shape for key, array in split.items()} == {
            key: (length, *shape) for key, shape in shapes.items()
        }
        assert all(array.dtype in (np.float32, np.int32) for array in split.values())


def test_digits_are_scaled_and_split_as_ever():
    from sklearn.datasets import load_digits

    train, test = whole("digits"), whole("digits", "test")
    assert train["image"].min() == 0
    assert train["image"].max() == 1
    assert set(train["label"].tolist()) == set(range(10))
    bunch = load_digits()
    images = np.concatenate([train["image"], test["image"]])[..., 0] * 16
    order = np.random.default_rng(0).permutation(1797)
    np.testing.assert_array_equal(images, bunch.images[order])
    assert train["label"][:8].tolist() == bunch.target[order[:8]].tolist() == PINNED_LABELS


def test_feature_that_never_changes_is_left_at_0():
    """The mean of eighty times 0.1 is another number, and its deviation 1e-17."""
    scaled = standardise(np.full((100, 1), 0.1), np.arange(80), np.arange(100))
    assert np.abs(scaled).max() < 1e-6


PINNED_LABELS = [6, 6, 6, 2, 5, 6, 6, 2]


def test_features_are_standardised_by_the_training_split_alone():
    for name in ("diabetes", "wine", "breast_cancer"):
        train, test = whole(name)["x"], whole(name, "test")["x"]
        np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-5)
        np.testing.assert_allclose(train.std(axis=0), 1, atol=1e-5)
        assert np.abs(test.mean(axis=0)).max() > 1e-3


def test_reader_options_are_those_of_arrays():
    shard = readers.Shard(1, 2)
    reader = readers.dataset("digits", "test", 64, shuffle=True, seed=3, shard=shard)
    same = readers.arrays(whole("digits", "test"), 64, shuffle=True, seed=3, shard=shard)
    for one, other in zip(reader, same, strict=True):
        np.testing.assert_array_equal(one["image"], other["image"])
    doubled = readers.dataset("digits", transform=lambda sample: sample["label"] * 2)
    assert next(doubled()) == whole("digits")["label"][0] * 2


def test_mock_makes_any_shape_without_storing_it():
    reader = readers.dataset("mock", batch_size=32, image_shape=[299, 299, 3])
    assert len(reader) == 80
    batch = next(reader())
    assert batch["image"].shape == (32, 299, 299, 3)
    assert (batch["image"][0] == 1).all()
    assert batch["label"].tolist() == [1] * 32


def test_unknown_name_and_split_name_the_nearest():
    with pytest.raises(UnknownNameError, match=r"got 'digit', expected one of .* mean 'digits'\?"):
        readers.dataset("digit")
    with pytest.raises(
        ValueError, match=r"got 'tests', expected one of 'train', 'test'.* 'test'\?"
    ):
        readers.dataset("digits", "tests")


@pytest.mark.parametrize(
    ("name", "split", "file"),
    [(o.name, o.split, o.files[0].name) for o in ORIGINALS if o.reads == "dataset"],
)
def test_missing_download_says_what_is_expected_where_and_how_to_get_it(
    tmp_path, monkeypatch, name, split, file
):
    monkeypatch.setenv("PENSTOCK_DATA", str(tmp_path / "data"))
    with pytest.raises(DatasetNotFoundError, match=r"http|toolkit") as caught:
        readers.dataset(name, split)
    text = str(caught.value)
    assert text.startswith(f"dataset({name!r}, {split!r}) got no folder ")
    assert repr(str(tmp_path / "data" / name)) in text
    assert repr(file) in text
    assert text.endswith("or pass dataset_dir= or set PENSTOCK_DATA to where they are.")
    with pytest.raises(DatasetNotFoundError, match="without them, expected one of"):
        readers.dataset(name, split, dataset_dir=tmp_path)


IMAGES = np.arange(3 * 784, dtype=np.uint32).astype(np.uint8).reshape(3, 28, 28)
LABELS = np.array([7, 0, 9], np.uint8)


def test_mnist_is_read_from_its_published_files(tmp_path):
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(IMAGES)))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(LABELS))
    batch = whole("mnist", dataset_dir=tmp_path)
    np.testing.assert_array_equal(batch["image"][..., 0], IMAGES)
    assert batch["image"].dtype == np.uint8
    assert batch["label"].tolist() == [7, 0, 9]
    with pytest.raises(ValueError, match=r"got \[224, 224, 3\], expected \[28, 28, 1\]"):
        readers.dataset("mnist", dataset_dir=tmp_path, image_shape=[224, 224, 3])


def test_cifar10_is_read_from_its_published_archive(tmp_path):
    records = write_cifar10(tmp_path)[:5].reshape(-1, 3073)
    batch = whole("cifar10", dataset_dir=tmp_path)
    assert batch["label"].tolist() == records[:, 0].tolist()
    planes = batch["image"].transpose(0, 3, 1, 2).reshape(-1, 3072)
    np.testing.assert_array_equal(planes, records[:, 1:])


def test_cifar100_gives_the_fine_label(tmp_path):
    records = np.zeros((2, 3074), np.uint8)
    records[:, 0], records[:, 1] = 3, [42, 99]
    (tmp_path / "train.bin").write_bytes(records.tobytes())
    assert whole("cifar100", dataset_dir=tmp_path)["label"].tolist() == [42, 99]


def test_flowers_are_read_from_their_folder_and_split(tmp_path):
    for name in ("daisy", "tulips"):
        (tmp_path / "flower_photos" / name).mkdir(parents=True)
        for number in range(10):
            image = np.full((20, 30, 3), number, np.uint8)
            cv2.imwrite(str(tmp_path / "flower_photos" / name / f"{number}.jpg"), image)
    train = whole("flowers", dataset_dir=tmp_path, image_shape=(16, 16, 3))
    test = whole("flowers", "test", dataset_dir=tmp_path)
    assert train["image"].shape == (18, 16, 16, 3)
    assert test["image"].shape == (2, 224, 224, 3)
    labels = np.concatenate([train["label"], test["label"]])
    assert np.bincount(labels).tolist() == [10, 10]
    own = whole("flowers", "test", dataset_dir=tmp_path, image_shape=(None, None, 3))
    assert own["image"].shape == (2, 20, 30, 3)


def test_slims_record_files_are_read(tmp_path):
    pngs = [readers.records.encode_png(image[..., np.newaxis]) for image in IMAGES]
    pairs = zip(pngs, LABELS.tolist(), strict=True)
    examples = [{"image/encoded": png, "image/class/label": label} for png, label in pairs]
    write_examples(tmp_path / "mnist_train.tfrecord", examples)
    batch = whole("mnist", dataset_dir=tmp_path)
    np.testing.assert_array_equal(batch["image"][..., 0], IMAGES)
    assert batch["label"].dtype == np.int32
    assert batch["label"].tolist() == [7, 0, 9]


def test_uci_housing_is_split_and_standardised(tmp_path):
    table = np.random.default_rng(0).normal(size=(50, 14))
    np.savetxt(tmp_path / "housing.data", table)
    train = whole("uci_housing", dataset_dir=tmp_path)
    assert train["x"].shape == (40, 13)
    np.testing.assert_allclose(train["x"].mean(axis=0), 0, atol=1e-5)
    assert whole("uci_housing", "test", dataset_dir=tmp_path)["y"].shape == (10, 1)


def add_draw(sample, random):
    return {**sample, "draw": random.random()}


def test_set_in_memory_is_decoded_and_augmented_by_sample_in_the_order_it_has_without():
    options = {"batch_size": 64, "shuffle": True, "seed": 3}
    plain = readers.dataset("digits", "test", **options)
    assert plain.data["image"].shape == (359, 8, 8, 1)
    drawn = readers.dataset(
        "digits", "test", decode=lambda s: {"label": s["label"] + 1}, augment=add_draw, **options
    )
    for _ in range(2):
        for one, other in zip(plain, drawn, strict=True):
            np.testing.assert_array_equal(one["label"] + 1, other["label"])
            assert len(set(other["draw"].tolist())) == len(other["draw"])


def test_set_in_memory_is_padded():
    batch = next(readers.dataset("digits", "test", 2, pad={"image": readers.Padding()})())
    assert batch["image_length"].tolist() == [8, 8]


def test_option_out_of_range_is_refused_also_where_the_set_is_in_memory():
    with pytest.raises(ValueError, match=r"^dataset\('digits'\)\(on_error\) got 'ignore'"):
        readers.dataset("digits", on_error="ignore")


def parse(serialized):
    return {"x": np.frombuffer(serialized, np.uint8)}


def negate(sample):
    return {"x": -sample["x"].astype(int)}


def test_own_set_is_registered_with_a_parse_fn_that_comes_before_decode(tmp_path):
    write_records(tmp_path / "own_train_0.tfrecord", [bytes([number]) for number in range(5)])
    readers.register_dataset("own", files={"train": "own_train_*.tfrecord"})(parse)
    options = {"batch_size": 5, "dataset_dir": tmp_path, "decode": negate}
    readers.dataset("own", **options, workers="process")  # refused if they could not travel there
    reader = readers.dataset("own", **options)
    assert next(reader())["x"].tolist() == [[0], [-1], [-2], [-3], [-4]]
    with pytest.raises(DatasetNotFoundError, match=re.escape("'own_train_*.tfrecord'")):
        readers.dataset("own", dataset_dir=tmp_path / "nowhere")


def test_own_set_is_registered_with_a_loader_of_a_source():
    @readers.register_dataset("squares", splits=["train"])
    def load(request):
        assert request.split == "train"
        return [{"x": number * number} for number in range(4)]

    assert next(readers.dataset("squares", batch_size=4)())["x"].tolist() == [0, 1, 4, 9]
    assert "squares" in readers.dataset_names()
    assert readers.dataset_splits("squares") == ("train",)
