import tracemalloc

import cv2
import numpy as np
import pytest

from penstock.readers.records import (
    BlobConf,
    BytesListCodec,
    FeatureError,
    ImageCenterCropPreprocessor,
    ImageCodec,
    ImageCropPreprocessor,
    ImageError,
    ImagePreprocessor,
    ImageRandomSizeCropPreprocessor,
    ImageResizePreprocessor,
    NormByChannelPreprocessor,
    RawCodec,
    build_ofrecord,
    encode_png,
    messages,
    parse_ofrecord,
)

GOLDEN = bytes.fromhex("0a140a0b636c6173732f6c6162656c120522030a0107")
RGB = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)


def parse_one(blob: BlobConf, random: np.random.Generator | None = None, **values: object):
    (array,) = parse_ofrecord(build_ofrecord(values), [blob], random)
    return array


def image_blob(shape: tuple[int, ...], *steps: object, dtype: str = "uint8") -> BlobConf:
    return BlobConf("encoded", shape=shape, dtype=dtype, codec=ImageCodec(list(steps)))


def test_ofrecord_has_oneflows_bytes():
    assert build_ofrecord({"class/label": 7}) == GOLDEN
    assert build_ofrecord({"class/label": np.int32(7)}) == GOLDEN


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (b"a", 1),
        (1.5, 2),
        (np.float32(1.5), 2),
        (np.float64(1.5), 3),
        (7, 4),
        (np.uint8(7), 4),
        (2**31, 5),
        (np.int64(7), 5),
    ],
)
def test_values_go_to_the_list_of_their_dtype(value, field):
    payload = build_ofrecord({"x": value})
    wire_type = 2
    assert payload[2:5] == b"\x0a\x01x"
    assert payload[7] == field << 3 | wire_type


def test_image_is_bgr_until_it_is_swapped():
    encoded = encode_png(RGB)
    assert parse_one(image_blob((6, 8, 3)), encoded=encoded).tolist() == RGB[..., ::-1].tolist()
    swapped = parse_one(image_blob((6, 8, 3), ImagePreprocessor("bgr2rgb")), encoded=encoded)
    assert swapped.tolist() == RGB.tolist()
    assert parse_one(image_blob((6, 8, 1)), encoded=encoded).shape == (6, 8, 1)


def test_image_of_another_shape_is_an_error():
    expected = r"blob 'encoded' got an image of shape \(6, 8, 3\), expected \(6, 6, 3\)"
    with pytest.raises(ImageError, match=expected):
        parse_one(image_blob((6, 6, 3)), encoded=encode_png(RGB))


@pytest.mark.parametrize(
    "step",
    [
        ImagePreprocessor("mirror"),
        ImageCropPreprocessor(8, 6),
        ImageRandomSizeCropPreprocessor(8, 6),
    ],
)
def test_random_steps_draw_from_the_generator_alone(step):
    blob = image_blob((6, 8, 3), step)
    assert blob.is_random
    draws = [
        parse_one(blob, np.random.default_rng(seed), encoded=encode_png(RGB)).tolist()
        for seed in [*range(8), *range(8)]
    ]
    assert draws[:8] == draws[8:]


def test_mirror_flips_about_half():
    encoded = encode_png(RGB)
    blob = image_blob((6, 8, 3), ImagePreprocessor("bgr2rgb"), ImagePreprocessor("mirror"))
    images = [parse_one(blob, np.random.default_rng(s), encoded=encoded) for s in range(200)]
    flipped = sum(image.tolist() == RGB[:, ::-1].tolist() for image in images)
    kept = sum(image.tolist() == RGB.tolist() for image in images)
    assert flipped + kept == 200
    assert 70 < flipped < 130


def test_crops_cut_where_they_say():
    corner = ImageCropPreprocessor(3, 2, random_xy=False)(RGB, None)
    assert corner.tolist() == RGB[:2, :3].tolist()
    centre = ImageCenterCropPreprocessor(6, 6)(RGB, None)
    assert centre.tolist() == RGB[:, 1:7].tolist()
    places = {
        ImageCropPreprocessor(8, 5)(RGB, np.random.default_rng(seed)).tobytes()
        for seed in range(20)
    }
    assert places == {RGB[:5].tobytes(), RGB[1:].tobytes()}
    with pytest.raises(ImageError, match="got an image of 6 x 8, expected at least 7 x 8"):
        ImageCropPreprocessor(8, 7)(RGB, None)


def test_random_size_crop_keeps_to_area_and_aspect():
    crop = ImageRandomSizeCropPreprocessor(4, 4, area=(1.0, 1.0), aspect_ratio=(4 / 3, 4 / 3))
    whole = cv2.resize(RGB, (4, 4), interpolation=cv2.INTER_LINEAR)
    assert crop(RGB, np.random.default_rng(0)).tolist() == whole.tolist()
    impossible = ImageRandomSizeCropPreprocessor(4, 4, area=(1.0, 1.0), aspect_ratio=(9.0, 9.0))
    centre = ImageCenterCropPreprocessor(4, 4)(RGB, None)
    assert impossible(RGB, np.random.default_rng(0)).tolist() == centre.tolist()


@pytest.mark.parametrize(
    ("data_format", "shape"), [("channels_last", (2, 2, 3)), ("channels_first", (3, 2, 2))]
)
def test_norm_is_by_channel(data_format, shape):
    norm = NormByChannelPreprocessor((1, 2, 3), (1, 2, 4), data_format=data_format)
    array = np.full(shape, 11, np.float32)
    result = norm(array, None)
    channels = result[0, 0] if data_format == "channels_last" else result[:, 0, 0]
    assert channels.tolist() == [10.0, 4.5, 2.0]
    assert result.dtype == np.float32


def test_norm_without_channels_has_one_mean():
    norm = NormByChannelPreprocessor((3,), (2,), data_format="no_channel")
    assert norm(np.full((2, 2), 5, np.float32), None).tolist() == [[1.0, 1.0], [1.0, 1.0]]
    with pytest.raises(FeatureError, match=r"got shape \(2, 2\) .* expected 3 channels"):
        NormByChannelPreprocessor((1, 2, 3))(np.zeros((2, 2), np.float32), None)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8"])
def test_raw_codec_reads_every_numeric_list(dtype):
    blob = BlobConf("x", shape=(3,), dtype="float32", codec=RawCodec())
    assert parse_one(blob, x=np.asarray([1, 2, 3], dtype)).tolist() == [1.0, 2.0, 3.0]


def test_raw_codec_reads_bytes_as_oneflow_does():
    values = b"\x00\x7f\x80\xff"
    signed = BlobConf("x", shape=(4,), dtype="float32", codec=RawCodec())
    assert parse_one(signed, x=values).tolist() == [0.0, 127.0, -128.0, -1.0]
    unsigned = BlobConf("x", shape=(2, 2), dtype="uint8", codec=RawCodec())
    assert parse_one(unsigned, x=values).tolist() == [[0, 127], [128, 255]]


def test_raw_codec_pads_only_when_asked():
    plain = BlobConf("x", shape=(4,), dtype="int32", codec=RawCodec())
    padded = BlobConf("x", shape=(4,), dtype="int32", codec=RawCodec(auto_zero_padding=True))
    assert parse_one(padded, x=[1, 2]).tolist() == [1, 2, 0, 0]
    with pytest.raises(FeatureError, match="blob 'x' got 2 values, expected 4"):
        parse_one(plain, x=[1, 2])
    with pytest.raises(FeatureError, match="blob 'x' got 5 values, expected at most 4"):
        parse_one(padded, x=[1, 2, 3, 4, 5])


def test_bytes_list_codec_gives_a_row_a_value():
    blob = BlobConf("x", shape=(3, 4), dtype="int8", codec=BytesListCodec())
    rows = parse_one(blob, x=[b"ab", b"\xff"]).tolist()
    assert rows == [[97, 98, 0, 0], [-1, 0, 0, 0], [0, 0, 0, 0]]
    with pytest.raises(
        FeatureError, match="got 4 values of up to 5 bytes, expected at most 3 of 4"
    ):
        parse_one(blob, x=[b"12345", b"", b"", b""])


def test_example_is_not_taken_for_an_ofrecord_feature():
    with pytest.raises(FeatureError, match="feature 'x' got nothing, expected one of 'y'"):
        parse_one(BlobConf("x", shape=(), dtype="int32", codec=RawCodec()), y=1)


@pytest.mark.parametrize(
    ("declare", "expected"),
    [
        (lambda: ImagePreprocessor("rgb2bgr"), "got 'rgb2bgr', expected one of 'bgr2rgb'"),
        (lambda: ImageResizePreprocessor(0, 2), "got width=0, expected an integer of 1 or"),
        (lambda: NormByChannelPreprocessor((1, 2), (0, 1)), "got 2 means, std="),
        (lambda: BlobConf("x", (), "bytes", RawCodec()), r"BlobConf\('x'\) got shape=\(\), dtype="),
        (
            lambda: BlobConf("x", (1,), "uint8", RawCodec(), [NormByChannelPreprocessor((1,))]),
            "got dtype=uint8 with NormByChannelPreprocessor, expected a float dtype",
        ),
    ],
)
def test_declaration_that_makes_no_sense_is_an_error(declare, expected):
    with pytest.raises(ValueError, match=expected):
        declare()


def test_texts_of_many_lengths_take_no_more_memory_than_they_have_bytes():
    texts = [b"a"] * 1000 + [b"b" * (1 << 16)]
    tracemalloc.start()
    record = build_ofrecord({"texts": texts})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert messages.parse_ofrecord_features(record)["texts"].bytes_list.value == texts
    assert peak < 1 << 20
