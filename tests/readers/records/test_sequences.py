"""tf.SequenceExample: the context and the feature lists, padded, with their lengths."""

import re

import numpy as np
import pytest

from penstock import readers
from penstock.readers import FixedLenFeature, ImageFeature, SequenceFeature, VarLenFeature
from penstock.readers.records import FeatureError, encode_png, parse_example

# context { feature { key: "id" value { int64_list { value: 7 } } } }
# feature_lists { feature_list { key: "x" value { feature { float_list { value: 0.5 } }
#                                                 feature { float_list { value: -1 } } } } }
GOLDEN = bytes.fromhex(
    "0a0d0a0b0a02696412051a030a0107121b0a190a017812140a0812060a040000003f0a0812060a04000080bf"
)


def record(length, number=0):
    return readers.build_sequence_example(
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
    with readers.RecordWriter(tmp_path / "a.tfrecord") as writer:
        for number, length in enumerate((1, 3, 0)):
            writer.write(record(length, number))
    (batch,) = readers.tfrecord(tmp_path / "a.tfrecord", SPEC, batch_size=3)
    assert batch["label"].tolist() == [0, 1, 2]
    assert batch["x"].tolist() == [
        [[0, 0], [-9, -9], [-9, -9]],
        [[0, 0], [1, -1], [2, -2]],
        [[-9, -9]] * 3,
    ]
    assert batch["x_length"].tolist() == batch["word_length"].tolist() == [1, 3, 0]
    assert batch["word"].tolist()[0] == [b"w0", b"", b""]


def test_bytes_are_tensorflows():
    spec = {"id": FixedLenFeature((), "int32"), "x": SequenceFeature(FixedLenFeature())}
    assert readers.build_sequence_example({"id": 7}, {"x": [0.5, -1.0]}) == GOLDEN
    sample = parse_example(GOLDEN, spec)
    assert (int(sample["id"]), sample["x"].tolist()) == (7, [0.5, -1.0])


def test_encoded_frames_are_decoded():
    frames = [np.full((4, 6, 3), number, np.uint8) for number in range(2)]
    payload = readers.build_sequence_example({}, {"video": [encode_png(f) for f in frames]})
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
        parse_example(record(2), spec)


def test_step_without_a_fixed_shape_is_refused():
    with pytest.raises(TypeError, match="expected a FixedLenFeature, or an ImageFeature with a s"):
        SequenceFeature(VarLenFeature("int32"))
