"""Named data sets: the embedded ones, those read from published files, and what is said without."""

import gzip
import io
import re
import struct
import tarfile
import zipfile

import cv2
import numpy as np
import pytest

from penstock import readers
from penstock._errors import UnknownNameError
from penstock.readers import DatasetNotFoundError


def whole(name, split="train", **options):
    """Return a whole split as one batch."""
    (batch,) = readers.dataset(name, split, 10**6, **options)()
    return batch


@pytest.fixture(autouse=True)
def no_files_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_DATA", str(tmp_path / "data"))


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
    feature = next(iter(shapes))
    rows = np.concatenate([train[feature], test[feature]]).reshape(num_train + num_test, -1)
    assert len(np.unique(np.hstack([rows, _last(train, test)]), axis=0)) >= 0.9 * len(rows)


def _last(train, test):
    key = list(train)[-1]
    return np.concatenate([train[key].reshape(-1, 1), test[key].reshape(-1, 1)])


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
    ("name", "file"),
    [
        ("mnist", "train-images-idx3-ubyte.gz"),
        ("fashion_mnist", "train-labels-idx1-ubyte.gz"),
        ("cifar10", "cifar-10-binary.tar.gz"),
        ("cifar100", "cifar-100-binary.tar.gz"),
        ("flowers", "flower_photos"),
        ("uci_housing", "housing.data"),
        ("imdb", "aclImdb_v1.tar.gz"),
        ("imikolov", "simple-examples.tgz"),
        ("movielens", "ml-1m.zip"),
        ("wmt14", "wmt14.tgz"),
        ("wmt16", "wmt16.tar.gz"),
        ("sentiment", "movie_reviews.zip"),
        ("conll05", "conll05st-tests.tar.gz"),
    ],
)
def test_missing_download_says_what_is_expected_where_and_how_to_get_it(tmp_path, name, file):
    split = readers.dataset_splits(name)[0]
    with pytest.raises(DatasetNotFoundError, match=r"http|toolkit") as caught:
        readers.dataset(name, split)
    text = str(caught.value)
    assert text.startswith(f"dataset({name!r}, {split!r}) got no folder ")
    assert repr(str(tmp_path / "data" / name)) in text
    assert repr(file) in text
    assert text.endswith("or pass dataset_dir= or set PENSTOCK_DATA to where they are.")
    with pytest.raises(DatasetNotFoundError, match="without them, expected one of"):
        readers.dataset(name, split, dataset_dir=tmp_path)


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


IMAGES = np.arange(3 * 784, dtype=np.uint32).astype(np.uint8).reshape(3, 28, 28)
LABELS = np.array([7, 0, 9], np.uint8)


def test_mnist_is_read_from_its_published_files(tmp_path):
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(IMAGES)))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(LABELS))
    batch = whole("mnist", dataset_dir=tmp_path)
    np.testing.assert_array_equal(batch["image"][..., 0], IMAGES)
    assert batch["image"].dtype == np.uint8
    assert batch["label"].tolist() == [7, 0, 9]
    with pytest.raises(ValueError, match=r"got \[224, 224, 3\], expected \[28, 28, 1\]"):
        readers.dataset("mnist", dataset_dir=tmp_path, image_shape=[224, 224, 3])


def test_damaged_idx_file_is_refused(tmp_path):
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(IMAGES)[:-1])
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(LABELS))
    with pytest.raises(
        ValueError, match=r"'.*t10k-images-idx3-ubyte' got 2351 bytes .*\[3, 28, 28\]"
    ):
        readers.dataset("mnist", "test", dataset_dir=tmp_path)


def add(archive, name, content):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize("is_unpacked", [False, True])
def test_cifar10_is_read_from_its_published_archive(tmp_path, is_unpacked):
    rng = np.random.default_rng(0)
    records = rng.integers(0, 256, (10, 3073), dtype=np.uint8)
    records[:, 0] %= 10
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for i in range(5):
            name = f"cifar-10-batches-bin/data_batch_{i + 1}.bin"
            add(archive, name, records[2 * i : 2 * i + 2].tobytes())
    if is_unpacked:
        with tarfile.open(tmp_path / "cifar-10-binary.tar.gz") as archive:
            archive.extractall(tmp_path, filter="data")
        (tmp_path / "cifar-10-binary.tar.gz").unlink()
    batch = whole("cifar10", dataset_dir=tmp_path)
    assert batch["label"].tolist() == records[:, 0].tolist()
    red = records[4, 1:1025].reshape(32, 32)
    np.testing.assert_array_equal(batch["image"][4, :, :, 0], red)


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
    from penstock.readers.records import RecordWriter, build_example, encode_png

    with RecordWriter(str(tmp_path / "mnist_train.tfrecord")) as writer:
        for image, label in zip(IMAGES, LABELS, strict=True):
            png = encode_png(image[..., np.newaxis])
            writer.write(build_example({"image/encoded": png, "image/class/label": int(label)}))
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


def test_imdb_has_fluids_dictionary_and_labels(tmp_path):
    with tarfile.open(tmp_path / "aclImdb_v1.tar.gz", "w:gz") as archive:
        add(archive, "aclImdb/train/pos/0_9.txt", b"Good, " * 200)
        add(archive, "aclImdb/train/neg/0_1.txt", b"bad film! " * 160)
        add(archive, "aclImdb/test/neg/0_1.txt", b"bad rare")
    train = whole("imdb", dataset_dir=tmp_path, max_length=4)
    rows = {
        label: (words.tolist(), length)
        for words, length, label in zip(
            train["words"], train["length"], train["label"].tolist(), strict=True
        )
    }
    assert rows == {0: ([0, 0, 0, 0], 4), 1: ([1, 2, 1, 2], 4)}
    test = whole("imdb", "test", dataset_dir=tmp_path)
    assert test["words"].shape == (1, 256)
    assert test["words"][0, :3].tolist() == [1, 3, 0]  # 3 is <unk>, then padding
    assert test["length"].tolist() == [2]


def test_imdb_words_are_bytes_as_fluids_are(tmp_path):
    # Worked out by hand from Fluid's `tokenize` and `build_dict`: ASCII alone is punctuation, case
    # and white space. As text, É would be é, and the no-break space would divide x and y.
    review = "Don't, <br />CAFÉ x\u00a0y \u2019\n".encode()
    with tarfile.open(tmp_path / "aclImdb_v1.tar.gz", "w:gz") as archive:
        add(archive, "aclImdb/train/neg/1_1.txt", b"\xff b \x85\x1c")  # no UTF-8
        add(archive, "aclImdb/train/pos/2_9.txt", review * 151)
        add(archive, "aclImdb/train/pos/1_9.txt", b"b b" + b" b a" * 150)
        add(archive, "aclImdb/train/unsup/1_0.txt", b"a " * 500)
        add(archive, "aclImdb/test/pos/1_9.txt", b"\xff\t" * 150)
        add(archive, "aclImdb/urls_pos.txt", b"a " * 500)
    batch = whole("imdb", dataset_dir=tmp_path, max_length=6)
    # b 153; then 151 times each, by their bytes: br caf\xc3\x89 dont x\xc2\xa0y \xe2\x80\x99 \xff;
    # a is seen 150 times: not more, so <unk>, as is \x85\x1c.
    b, br, cafe, dont, x_y, quote, byte, unknown = range(8)
    assert batch["words"].tolist() == [
        [dont, br, cafe, x_y, quote, dont],
        [b, b, b, unknown, b, unknown],
        [byte, b, unknown, 0, 0, 0],
    ]
    assert batch["label"].tolist() == [0, 0, 1]  # positive first, in the archive's order
    assert batch["length"].tolist() == [6, 6, 3]


def test_imikolov_gives_five_grams_of_fluids_ids(tmp_path):
    with tarfile.open(tmp_path / "simple-examples.tgz", "w:gz") as archive:
        add(archive, "./simple-examples/data/ptb.train.txt", b" the cat sat down \n" * 60)
        add(archive, "./simple-examples/data/ptb.valid.txt", b" the cat <unk> odd \n")
    train = whole("imikolov", dataset_dir=tmp_path)
    assert list(train) == ["firstw", "secondw", "thirdw", "forthw", "nextw"]
    assert len(train["nextw"]) == 120  # <s> the cat sat down <e> holds two 5-grams
    # Most frequent first, then by name: <e> <s> cat the (61 times), down sat (60); 6 is <unk>.
    assert [int(column[0]) for column in train.values()] == [1, 3, 2, 5, 4]
    test = whole("imikolov", "test", dataset_dir=tmp_path)
    assert [column.tolist() for column in test.values()] == [[1, 3], [3, 2], [2, 6], [6, 6], [6, 0]]


def test_movielens_gives_the_recommenders_inputs(tmp_path):
    with zipfile.ZipFile(tmp_path / "ml-1m.zip", "w") as archive:
        archive.writestr("ml-1m/users.dat", "1::F::1::10::48067\n2::M::56::16::70072\n")
        archive.writestr("ml-1m/movies.dat", "7::Toy Story (1995)::Animation|Comedy\n")
        ratings = "".join(f"{1 + i % 2}::7::{1 + i % 5}::978300760\n" for i in range(20))
        archive.writestr("ml-1m/ratings.dat", ratings)
    train = whole("movielens", dataset_dir=tmp_path)
    assert train["score"].shape == (18, 1)
    assert set(train["score"].reshape(-1).tolist()) <= {-3.0, -1.0, 1.0, 3.0, 5.0}
    row = train["user_id"].tolist().index(1)
    assert (train["gender_id"][row], train["age_id"][row], train["job_id"][row]) == (1, 0, 10)
    assert train["category_id"][row].tolist() == [0, 1, 0, 0, 0, 0]
    assert train["category_length"][row] == 2
    assert train["movie_title"][row, :2].tolist() == [1, 0]  # "story" < "toy"
    assert train["title_length"][row] == 2


def test_wmt14_gives_source_target_and_the_target_a_word_later(tmp_path):
    with tarfile.open(tmp_path / "wmt14.tgz", "w:gz") as archive:
        add(archive, "wmt14/src.dict", b"<s>\n<e>\n<unk>\nle\nchat\n")
        add(archive, "wmt14/trg.dict", b"<s>\n<e>\n<unk>\nthe\ncat\n")
        long = b"le " * 80 + b"\tthe\n"
        text = b"le chat noir\tthe cat\nno pair\n" + long
        add(archive, "wmt14/train/train", text)
    batch = whole("wmt14", dataset_dir=tmp_path, max_length=6)
    assert batch["src_word_id"].tolist() == [[0, 3, 4, 2, 1, 1]]
    assert batch["target_language_word"].tolist() == [[0, 3, 4, 1, 1, 1]]
    assert batch["target_language_next_word"].tolist() == [[3, 4, 1, 1, 1, 1]]
    assert (batch["src_length"].tolist(), batch["trg_length"].tolist()) == ([5], [3])


def test_wmt16_builds_its_dictionaries_from_the_training_split(tmp_path):
    with tarfile.open(tmp_path / "wmt16.tar.gz", "w:gz") as archive:
        train = "a dog runs\tein hund rennt\na dog\tein hund\nno pair\n"
        add(archive, "wmt16/train", train.encode())
        add(archive, "wmt16/val", "dog zebra\thund größe\n".encode())
        add(archive, "wmt16/test", b"runs\trennt\n")
    batch = whole("wmt16", dataset_dir=tmp_path, max_length=5)
    assert batch["src_word_id"].tolist() == [[0, 3, 4, 5, 1], [0, 3, 4, 1, 1]]
    assert batch["target_language_word"].tolist() == [[0, 3, 4, 5, 1], [0, 3, 4, 1, 1]]
    assert batch["target_language_next_word"].tolist() == [[3, 4, 5, 1, 1], [3, 4, 1, 1, 1]]
    assert (batch["src_length"].tolist(), batch["trg_length"].tolist()) == ([5, 4], [4, 3])
    unseen = whole("wmt16", "validation", dataset_dir=tmp_path)
    assert unseen["src_word_id"].shape == (1, 64)
    assert unseen["src_word_id"][0, :4].tolist() == [0, 4, 2, 1]
    assert unseen["target_language_next_word"][0, :3].tolist() == [4, 2, 1]
    assert whole("wmt16", "test", dataset_dir=tmp_path)["src_word_id"][0, :3].tolist() == [0, 5, 1]


def test_sentiment_alternates_and_numbers_every_word_by_frequency(tmp_path):
    with zipfile.ZipFile(tmp_path / "movie_reviews.zip", "w") as archive:
        for number in range(5):
            archive.writestr(f"movie_reviews/neg/cv{number:03}_1.txt", "bad , don't watch .\n")
            archive.writestr(f"movie_reviews/pos/cv{number:03}_2.txt", "good , watch it !\n")
        archive.writestr("movie_reviews/README", "none of the reviews")
    train = whole("sentiment", dataset_dir=tmp_path, max_length=4)
    assert train["label"].tolist() == [0, 1] * 4
    # "," and "watch" are in both kinds; then in the order of first use: bad don ' t . good it !
    assert train["words"][0].tolist() == [2, 0, 3, 4]
    assert train["words"][1].tolist() == [7, 0, 1, 8]
    test = whole("sentiment", "test", dataset_dir=tmp_path)
    assert test["label"].tolist() == [0, 1]
    assert test["length"].tolist() == [7, 5]
    assert test["words"].shape == (2, 256)


def test_conll05_gives_fluids_nine_inputs_for_each_verb(tmp_path):
    words = "The\ncat\nsat\n\nGo\n\n"
    props = "-    (A0*\n-    *)\nsit  (V*)\n\ngo  (V*)\n\n"
    with tarfile.open(tmp_path / "conll05st-tests.tar.gz", "w:gz") as archive:
        for name, text in (("words", words), ("props", props)):
            content = gzip.compress(text.encode())
            add(archive, f"conll05st-release/test.wsj/{name}/test.wsj.{name}.gz", content)
    with pytest.raises(DatasetNotFoundError, match=r"expected one of 'wordDict.txt', 'verbDict"):
        readers.dataset("conll05", "test", dataset_dir=tmp_path)
    (tmp_path / "wordDict.txt").write_text("<unk>\nbos\neos\nThe\ncat\nsat\n")
    (tmp_path / "verbDict.txt").write_text("go\nsit\n")
    (tmp_path / "targetDict.txt").write_text("B-V\nI-V\nB-A0\nI-A0\nO\n")
    batch = whole("conll05", "test", dataset_dir=tmp_path, max_length=3)
    first = {name: column[0].tolist() for name, column in batch.items()}
    assert first == {
        "word_data": [3, 4, 5],
        "ctx_n2_data": [3, 3, 3],
        "ctx_n1_data": [4, 4, 4],
        "ctx_0_data": [5, 5, 5],
        "ctx_p1_data": [2, 2, 2],
        "ctx_p2_data": [2, 2, 2],
        "verb_data": [1, 1, 1],
        "mark_data": [1, 1, 1],
        "target": [2, 3, 0],
        "length": 3,
    }
    assert batch["ctx_n1_data"][1].tolist() == [1, 0, 0]
    assert batch["length"].tolist() == [3, 1]


def test_own_set_is_registered_with_a_parse_fn(tmp_path):
    from penstock.readers.records import RecordWriter

    with RecordWriter(str(tmp_path / "own_train_0.tfrecord")) as writer:
        for number in range(5):
            writer.write(bytes([number]))

    @readers.register_dataset("own", files={"train": "own_train_*.tfrecord"})
    def parse_fn(serialized):
        return {"x": np.frombuffer(serialized, np.uint8)}

    reader = readers.dataset("own", batch_size=5, dataset_dir=tmp_path)
    assert next(reader())["x"].tolist() == [[0], [1], [2], [3], [4]]
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
