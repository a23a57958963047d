"""tf.Example and tf.SequenceExample: their bytes, and what is declared of their features."""

import re
import tracemalloc

import numpy as np
import pytest

from penstock import readers
from penstock.readers._batching import stack_samples
from penstock.readers.records import (
    FeatureError,
    FixedLenFeature,
    ImageError,
    ImageFeature,
    SequenceFeature,
    VarLenFeature,
    build_example,
    build_sequence_example,
    encode_png,
    parse_example,
)
from penstock.readers.records.messages import parse_sequence
from tests.readers.published import write_records

# What TensorFlow writes, by the values.
GOLDENS = [
    (np.int32(7), "0a0c0a0a0a017812051a030a0107"),
    ([300, -1], "0a170a150a017812101a0e0a0cac02ffffffffffffffffff01"),
    ([0.5, -2.0], "0a130a110a0178120c120a0a080000003f000000c0"),
    ([b"a\0", b""], "0a0f0a0d0a017812080a060a0261000a00"),
]


def parse_one(feature: object, **values: object):
    sample = parse_example(build_example(values), {"x": feature})
    return sample["x"]


@pytest.mark.parametrize(("value", "golden"), GOLDENS)
def test_example_has_tensorflows_bytes(value, golden):
    assert build_example({"x": value}).hex() == golden


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_become_the_declared_float(dtype):
    value = parse_one(FixedLenFeature((2, 2), dtype), x=[0.5, 1.5, 2.5, 3.5])
    assert (value.dtype, value.tolist()) == (np.dtype(dtype), [[0.5, 1.5], [2.5, 3.5]])


@pytest.mark.parametrize(
    ("dtype", "stored", "is_fitting"),
    [
        ("uint8", 255, True),
        ("uint8", 256, False),
        ("uint8", -1, False),
        ("int32", -(2**31), True),
        ("int32", 2**31, False),
        ("int64", 2**63 - 1, True),
        ("uint64", -1, False),
        ("bool", 1, True),
        ("bool", 2, False),
        ("float32", 3, True),
    ],
)
def test_integers_become_the_declared_dtype_or_an_error(dtype, stored, is_fitting):
    feature = FixedLenFeature((), dtype)
    if is_fitting:
        value = parse_one(feature, x=stored)
        assert (value.dtype, int(value)) == (np.dtype(dtype), stored)
    else:
        with pytest.raises(FeatureError, match=f"feature 'x' got values from {stored} to {stored}"):
            parse_one(feature, x=stored)


def test_numbers_have_the_machines_order_of_bytes_whatever_is_declared():
    array = parse_one(FixedLenFeature((2,), ">i4"), x=[1, 300])
    assert (array.tolist(), array.dtype.str) == ([1, 300], np.dtype("int32").str)


def test_bytes_keep_their_trailing_zeros_also_in_a_batch():
    assert parse_one(FixedLenFeature((), "bytes"), x=b"a\0") == b"a\0"
    values = parse_one(FixedLenFeature((2,), "bytes"), x=[b"a\0", "ü"])
    assert values.tolist() == [b"a\0", "ü".encode()]
    batch = stack_samples([{"x": b"a\0"}, {"x": b"longer"}])
    assert batch["x"].tolist() == [b"a\0", b"longer"]


def test_missing_feature_gives_the_default_or_an_error_with_the_nearest_name():
    assert parse_one(FixedLenFeature((2,), "int32", default_value=4), y=1).tolist() == [4, 4]
    expected = (
        r"feature 'imgae' got nothing, expected one of 'image', 'label'\. .* Did you mean 'image'\?"
    )
    with pytest.raises(FeatureError, match=expected):
        parse_one(FixedLenFeature((), "float32", key="imgae"), image=1.0, label=2)


def test_empty_list_is_a_missing_feature_only_where_nothing_is_stored():
    assert parse_one(FixedLenFeature((0,), "float32"), x=np.zeros(0, np.float32)).shape == (0,)
    with pytest.raises(FeatureError, match="feature 'x' got 0 values, expected 1"):
        parse_one(FixedLenFeature((), "float32"), x=np.zeros(0, np.float32))


def test_other_length_or_kind_is_an_error():
    with pytest.raises(FeatureError, match=r"feature 'x' got 3 values, expected 4\. Its declared"):
        parse_one(FixedLenFeature((2, 2), "float32"), x=[1.0, 2.0, 3.0])
    with pytest.raises(FeatureError, match="feature 'x' got values of float32, expected int32"):
        parse_one(FixedLenFeature((), "int32"), x=1.0)
    with pytest.raises(FeatureError, match="feature 'x' got values of bytes, expected float32"):
        parse_one(FixedLenFeature((), "float32"), x=b"1")
    with pytest.raises(FeatureError, match="feature 'x' got values of int64, expected bytes"):
        parse_one(FixedLenFeature((), "bytes"), x=1)


def test_foreign_payload_is_an_error():
    with pytest.raises(FeatureError, match=r"Example payload got 4 bytes that do not parse"):
        parse_example(b"\xff\xff\xff\xff", {})


def test_variable_lengths_have_one_shape_under_a_bound():
    spec = {"ids": VarLenFeature("int64", max_length=3)}
    sample = parse_example(build_example({"ids": [5]}), spec)
    assert (sample["ids"].tolist(), int(sample["ids_length"])) == ([5, 0, 0], 1)
    with pytest.raises(FeatureError, match="feature 'ids' got 4 values, expected at most 3"):
        parse_example(build_example({"ids": [1, 2, 3, 4]}), spec)


@pytest.mark.parametrize("names", [["ids", "ids_length"], ["ids_length", "ids"]], ids=str)
def test_feature_in_the_place_of_a_length_is_refused(names):
    features = {"ids": VarLenFeature("int64"), "ids_length": FixedLenFeature((), "int64")}
    record = build_example({"ids": [4, 5], "ids_length": 7})
    with pytest.raises(FeatureError, match="expected another name beside"):
        parse_example(record, {name: features[name] for name in names})


def test_variable_lengths_of_bytes_are_padded_with_empty_bytes():
    for pad in ({}, {"pad_value": b""}):
        spec = {"words": VarLenFeature("bytes", max_length=2, **pad)}
        sample = parse_example(build_example({"words": [b"hi"]}), spec)
        assert sample["words"].tolist() == [b"hi", b""]


def test_what_a_feature_is_filled_with_fits_its_dtype_and_shape():
    words = FixedLenFeature((2,), "bytes", default_value=b"?")
    assert parse_one(words, y=1).tolist() == [b"?", b"?"]
    for value, got in ((300, "from 300 to 300, expected 0 to 255"), (0.5, "of float64, expected")):
        for make in (
            lambda value: FixedLenFeature((), "uint8", default_value=value),
            lambda value: VarLenFeature("uint8", pad_value=value),
            lambda value: SequenceFeature(FixedLenFeature((), "uint8"), pad_value=value),
        ):
            with pytest.raises(FeatureError, match=f"_value' got values {got}"):
                make(value)


def test_text_that_fills_a_feature_is_bytes_as_in_records():
    words = FixedLenFeature((), "bytes", default_value="ü")
    batch = stack_samples([{"x": parse_one(words, x=b"a")}, {"x": parse_one(words, y=1)}])
    assert batch["x"].tolist() == [b"a", "ü".encode()]
    assert parse_one(FixedLenFeature((2,), "bytes", default_value="?"), y=1).tolist() == [b"?"] * 2
    assert VarLenFeature("bytes", pad_value="?").pad_value == b"?"
    assert VarLenFeature("bytes").pad_value == b""
    for make in (
        lambda: FixedLenFeature((), "bytes", default_value=1),
        lambda: VarLenFeature("bytes", pad_value=1),
    ):
        with pytest.raises(FeatureError, match="_value' got values of int64, expected bytes"):
            make()


def test_image_is_decoded_to_rgb_uint8_of_the_declared_shape():
    red = np.zeros((4, 6, 3), np.uint8)
    red[..., 0] = 200
    payload = build_example({"image/encoded": encode_png(red)})
    exact = parse_example(payload, {"image": ImageFeature((4, 6, 3))})["image"]
    assert (exact.dtype, exact.tolist()) == (np.uint8, red.tolist())
    small = parse_example(payload, {"image": ImageFeature((2, 2, 3), resize="area")})["image"]
    assert small.tolist() == red[:2, :2].tolist()
    own = parse_example(payload, {"image": ImageFeature((None, None, 3))})["image"]
    np.testing.assert_array_equal(own, exact)
    gray = parse_example(payload, {"image": ImageFeature((4, 6, 1))})["image"]
    assert gray.shape == (4, 6, 1)
    with pytest.raises(
        ImageError, match=r"feature 'image/encoded' got an image of 4 x 6, expected"
    ):
        parse_example(payload, {"image": ImageFeature((5, 6, 3))})


@pytest.mark.parametrize("encoded", [b"", b"GIF89a......", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"])
def test_bytes_that_are_no_image_are_an_error(encoded):
    with pytest.raises(ImageError, match="expected a JPEG, PNG, WebP, BMP or TIFF"):
        parse_example(build_example({"image/encoded": encoded}), {"i": ImageFeature((4, 4, 3))})


@pytest.mark.parametrize(
    ("declare", "expected"),
    [
        (lambda: FixedLenFeature((-1,)), r"FixedLenFeature got shape=\(-1,\) with a size of -1,"),
        (lambda: FixedLenFeature((), "complex64"), "dtype got 'complex64', expected a bool, int"),
        (lambda: VarLenFeature("no such"), "dtype got 'no such', expected a bool, int"),
        (lambda: ImageFeature((224, 224)), r"ImageFeature got shape=\(224, 224\), expected"),
        (lambda: ImageFeature((None, 9, 3)), r"ImageFeature got shape=\(None, 9, 3\), expected"),
        (
            lambda: ImageFeature((4, 4, 3), resize="cubic"),
            r"resize\) got 'cubic', expected one of 'bilinear', 'area'",
        ),
        (
            lambda: ImageFeature((None, None, 3), resize="area"),
            r"got shape=\(None, None, 3\) and resize='area', expected .* and no resize\.",
        ),
    ],
)
def test_declaration_that_makes_no_sense_is_an_error(declare, expected):
    with pytest.raises(ValueError, match=expected):
        declare()


@pytest.mark.parametrize("value", [1j, np.uint64(1), object(), [b"a", 1]])
def test_value_no_record_can_hold_is_not_written(value):
    with pytest.raises(FeatureError, match=r"feature 'x' got .* expected floats, integers up to"):
        build_example({"x": value})


def test_length_is_compared_before_values_are_converted():
    """A record of 60 MB may hold as many numbers: only those that are declared become an array."""
    features = parse_sequence(build_example({"a": np.zeros(1 << 20, np.int64)}))[0]
    for feature in (
        FixedLenFeature((3,), "int32"),
        VarLenFeature("int32", max_length=3),
        ImageFeature((4, 4, 3), key="a"),
    ):
        tracemalloc.start()
        with pytest.raises(FeatureError, match="1048576 values"):
            feature.extract("a", features)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20


# context { feature { key: "id" value { int64_list { value: 7 } } } }
# feature_lists { feature_list { key: "x" value { feature { float_list { value: 0.5 } }
#                                                 feature { float_list { value: -1 } } } } }
GOLDEN_SEQUENCE = bytes.fromhex(
    "0a0d0a0b0a02696412051a030a0107121b0a190a017812140a0812060a040000003f0a0812060a04000080bf"
)


def sequence_of(length, number=0):
    return build_sequence_example(
        {"label": number},
        {
            "x": [[step, -step] for step in range(length)],
            "word": [f"w{step}" for step in range(length)],
        },
    )


SPEC = {
    "label": FixedLenFeature((), "int32"),
    "x": SequenceFeature(FixedLenFeature((2,), "int32"), pad_value=-9),
    "word": SequenceFeature(FixedLenFeature((), "bytes")),
}


def test_lists_and_context_are_read_from_files_and_padded_with_their_lengths(tmp_path):
    records = [sequence_of(length, number) for number, length in enumerate((1, 3, 0))]
    path = write_records(tmp_path / "a.tfrecord", records)
    (batch,) = readers.tfrecord(path, SPEC, batch_size=3)
    assert batch["label"].tolist() == [0, 1, 2]
    assert batch["x"].tolist() == [
        [[0, 0], [-9, -9], [-9, -9]],
        [[0, 0], [1, -1], [2, -2]],
        [[-9, -9]] * 3,
    ]
    assert batch["x_length"].tolist() == batch["word_length"].tolist() == [1, 3, 0]
    assert batch["word"].tolist()[0] == [b"w0", b"", b""]


def test_sequence_example_has_tensorflows_bytes():
    spec = {"id": FixedLenFeature((), "int32"), "x": SequenceFeature(FixedLenFeature())}
    assert build_sequence_example({"id": 7}, {"x": [0.5, -1.0]}) == GOLDEN_SEQUENCE
    sample = parse_example(GOLDEN_SEQUENCE, spec)
    assert (int(sample["id"]), sample["x"].tolist()) == (7, [0.5, -1.0])


def test_encoded_frames_are_decoded():
    frames = [np.full((4, 6, 3), number, np.uint8) for number in range(2)]
    payload = build_sequence_example({}, {"video": [encode_png(f) for f in frames]})
    spec = {"video": SequenceFeature(ImageFeature((4, 6, 3)), max_length=3)}
    sample = parse_example(payload, spec)
    assert (sample["video"].shape, sample["video"].dtype) == ((3, 4, 6, 3), np.uint8)
    np.testing.assert_array_equal(sample["video"][:2], frames)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"x": VarLenFeature("int32")}, "feature 'x' got a feature list of 2 steps, expected a"),
        ({"x": FixedLenFeature((2,))}, "Declare SequenceFeature(FixedLenFeature(...)) to read"),
        ({"y": SequenceFeature(FixedLenFeature())}, "feature 'y' got nothing, expected one of"),
        (
            {"x": SequenceFeature(FixedLenFeature((3,), "int32"))},
            "step 0 of the feature list 'x': feature 'x' got 2 values, expected 3.",
        ),
        (
            {"x": SequenceFeature(FixedLenFeature((2,), "int32"), max_length=1)},
            "feature list 'x' got 2 steps, expected at most 1.",
        ),
    ],
)
def test_list_that_is_not_what_is_declared_is_named(spec, text):
    with pytest.raises(FeatureError, match=re.escape(text)):
        parse_example(sequence_of(2), spec)


def test_step_without_a_fixed_shape_is_refused():
    with pytest.raises(TypeError, match="expected a FixedLenFeature, or an ImageFeature with a s"):
        SequenceFeature(VarLenFeature("int32"))
