"""Records written here are read by TensorFlow, and the reverse."""

import numpy as np
import pytest

from penstock.readers.records import (
    FixedLenFeature,
    ImageFeature,
    RecordWriter,
    VarLenFeature,
    build_example,
    encode_png,
)
from penstock.readers.tfrecord_files import tfrecord
from tests.readers.case import require

pytestmark = pytest.mark.slow

COMPRESSIONS = ["", "GZIP", "ZLIB"]
IMAGE = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)


@pytest.fixture(scope="module")
def tf():
    return require("tensorflow")


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_tensorflow_reads_what_is_written_here(tf, compression, tmp_path):
    path = tmp_path / "a.tfrecord"
    with RecordWriter(path, compression=compression) as writer:
        for number in range(3):
            writer.write(
                build_example(
                    {
                        "label": number - 1,
                        "x": np.asarray([0.1, -2.5], np.float32),
                        "name": f"n{number}",
                        "image": encode_png(IMAGE),
                        "ids": list(range(number)),
                    }
                )
            )
    spec = {
        "label": tf.io.FixedLenFeature((), tf.int64),
        "x": tf.io.FixedLenFeature((2,), tf.float32),
        "name": tf.io.FixedLenFeature((), tf.string),
        "image": tf.io.FixedLenFeature((), tf.string),
        "ids": tf.io.VarLenFeature(tf.int64),
    }
    dataset = tf.data.TFRecordDataset(str(path), compression_type=compression)
    samples = [tf.io.parse_single_example(payload, spec) for payload in dataset]
    assert [int(sample["label"]) for sample in samples] == [-1, 0, 1]
    assert [sample["name"].numpy() for sample in samples] == [b"n0", b"n1", b"n2"]
    assert [sample["ids"].values.numpy().tolist() for sample in samples] == [[], [0], [0, 1]]
    assert samples[0]["x"].numpy().tolist() == np.asarray([0.1, -2.5], np.float32).tolist()
    np.testing.assert_array_equal(tf.io.decode_png(samples[0]["image"]), IMAGE)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_what_tensorflow_writes_is_read_here(tf, compression, tmp_path):
    path = tmp_path / "a.tfrecord"
    feature, train = tf.train.Feature, tf.train
    with tf.io.TFRecordWriter(str(path), options=compression) as writer:
        for number in range(40):
            features = {
                "label": feature(int64_list=train.Int64List(value=[number - 20])),
                "x": feature(float_list=train.FloatList(value=[0.1, number])),
                "ids": feature(int64_list=train.Int64List(value=range(number % 3))),
                "image/encoded": feature(
                    bytes_list=train.BytesList(value=[tf.io.encode_png(IMAGE).numpy()])
                ),
            }
            example = train.Example(features=train.Features(feature=features))
            writer.write(example.SerializeToString())
    spec = {
        "label": FixedLenFeature((), "int32"),
        "x": FixedLenFeature((2,)),
        "ids": VarLenFeature("int64", max_length=2),
        "image": ImageFeature((5, 7, 3)),
    }
    (batch,) = tfrecord(path, spec, batch_size=40, cache_dir=tmp_path)
    assert batch["label"].tolist() == list(range(-20, 20))
    assert batch["x"][:, 1].tolist() == list(range(40))
    assert batch["x"][0, 0] == np.float32(0.1)
    assert batch["ids_length"].tolist() == [number % 3 for number in range(40)]
    np.testing.assert_array_equal(batch["image"][39], IMAGE)


def test_parsing_agrees_on_examples_of_all_kinds(tf):
    random = np.random.default_rng(0)
    for _ in range(50):
        values = {
            "i": random.integers(-(2**63), 2**63 - 1, random.integers(0, 5)),
            "f": random.normal(size=random.integers(1, 5)).astype(np.float32),
            "b": [random.bytes(3) for _ in range(random.integers(1, 4))],
        }
        parsed = tf.train.Example.FromString(build_example(values)).features.feature
        assert list(parsed["i"].int64_list.value) == values["i"].tolist()
        assert list(parsed["f"].float_list.value) == values["f"].tolist()
        assert list(parsed["b"].bytes_list.value) == values["b"]
