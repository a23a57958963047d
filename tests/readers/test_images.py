"""Folders of images: classes, order, decoding, fitting, damage."""

import contextlib
import os
import re
import shutil
import struct

import cv2
import numpy as np
import pytest

from penstock import readers
from penstock.readers.images import find_damaged
from penstock.readers.records.image_decoding import decode_image, image_size
from tests.readers.turned import STORE, check_quarters, draw_quarters, encode_turned


@pytest.fixture
def folder(tmp_path):
    """Three classes of two images each; image i of class c is filled with RGB (c, i, 200)."""
    for label, name in enumerate(["ant", "bee", "cat"]):
        (tmp_path / name / "deep").mkdir(parents=True)
        for number, file in enumerate(["b.png", "deep/a.PNG"]):
            bgr = np.full((6, 8, 3), (200, number, label), np.uint8)
            cv2.imwrite(str(tmp_path / name / file), bgr)
        (tmp_path / name / "notes.txt").write_text("no image")
    (tmp_path / ".hidden").mkdir()
    return tmp_path


def test_classes_are_the_sorted_folders_and_images_are_rgb(folder):
    batches = list(readers.image_folder(folder, 4, num_workers=2))
    images = np.concatenate([batch["image"] for batch in batches])
    labels = np.concatenate([batch["label"] for batch in batches])
    assert images.shape == (6, 6, 8, 3)
    assert images.dtype == np.uint8
    assert labels.dtype == np.int32
    np.testing.assert_array_equal(images[:, 0, 0, 0], labels)
    assert labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert images[:, 0, 0, 1].tolist() == [0, 1, 0, 1, 0, 1]
    assert (images[:, 0, 0, 2] == 200).all()


def test_class_names_decide_the_labels_and_may_leave_classes_out(folder):
    batch = next(readers.image_folder(folder, 6, class_names=["cat", "ant"])())
    assert batch["label"].tolist() == [0, 0, 1, 1]
    assert batch["image"][:, 0, 0, 0].tolist() == [2, 2, 0, 0]


def test_crop_keeps_proportions_and_the_centre_while_stretch_keeps_everything(tmp_path):
    (tmp_path / "one").mkdir()
    wide = np.zeros((4, 8, 3), np.uint8)
    wide[:, 2:6] = 255  # the centre square
    cv2.imwrite(str(tmp_path / "one" / "wide.png"), wide)
    cropped = next(readers.image_folder(tmp_path, 1, size=(4, 4))())["image"]
    assert (cropped == 255).all()
    stretched = next(readers.image_folder(tmp_path, 1, size=(4, 4), fit="stretch")())["image"]
    assert stretched[0, 0, :, 0].tolist() == [0, 255, 255, 0]
    # A strip of less than half a pixel of it.
    assert next(readers.image_folder(tmp_path, 1, size=(1, 40))())["image"].shape == (1, 1, 40, 3)


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
@pytest.mark.parametrize("orientation", STORE)
def test_image_that_is_stored_turned_is_upright(orientation, suffix, tmp_path):
    (tmp_path / "one").mkdir()
    encoded = encode_turned(draw_quarters(), orientation, suffix)
    (tmp_path / f"one/a{suffix}").write_bytes(encoded)
    check_quarters(readers.ImageFolder(tmp_path)[0]["image"])
    gray = readers.ImageFolder(tmp_path, size=(8, 8), channels=1)[0]["image"]
    assert gray.shape == (8, 8, 1)
    assert gray[-1, -1] > 200


def test_record_of_an_image_that_is_stored_turned_stays_as_it_is_stored():
    encoded = encode_turned(draw_quarters(), 6)
    assert readers.records.decode_image(encoded).shape == (32, 16, 3)


def test_damaged_image_is_named(folder):
    (folder / "bee" / "b.png").write_bytes(b"\x89PNG not really")
    expected = (
        "expected a JPEG, PNG, WebP, BMP or TIFF of 1 to 67108864 pixels. The bytes are damaged or "
        "hold something else. Write it again or remove it; a reader leaves it out with "
        "on_error='skip'."
    )
    with pytest.raises(readers.RecordError, match=re.escape(expected)) as caught:
        list(readers.image_folder(folder, 6, num_workers=2))
    assert re.search(r"in image_folder, record 2: .*bee.b\.png", "\n".join(caught.value.__notes__))


@pytest.mark.parametrize(
    ("kind", "begins"),
    [("GIF", b"GIF89a"), ("AVIF", b"\0\0\0 ftypavif"), ("HEIC", b"\0\0\0\x18ftypheic")],
)
def test_image_of_another_kind_is_named_with_its_kind(kind, begins, folder):
    (folder / "bee" / "b.png").write_bytes(begins + bytes(99))
    expected = (
        rf"b\.png got an image in the format {kind}, expected a JPEG, .* or TIFF\. .*Convert it"
    )
    with pytest.raises(readers.RecordError, match=expected):
        list(readers.image_folder(folder, 6))
    [batch] = readers.image_folder(folder, 6, on_error="skip")()
    assert len(batch["label"]) == len(readers.ImageFolder(folder)) - 1


@pytest.mark.parametrize("suffix", [".webp", ".bmp", ".tiff"])
def test_images_of_other_kinds_that_opencv_reads_are_read(suffix, folder, caplog):
    image = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    options = [cv2.IMWRITE_WEBP_QUALITY, 101] if suffix == ".webp" else []
    encoded = cv2.imencode(suffix, image[..., ::-1], options)[1].tobytes()
    shutil.rmtree(folder / "bee")
    (folder / "bee").mkdir()
    (folder / "bee" / f"a{suffix.upper()}").write_bytes(encoded)
    source = readers.ImageFolder(folder)
    np.testing.assert_array_equal(source[2]["image"], image)
    assert image_size(encoded) == (5, 7)
    # Cut off anywhere it is an error, and no other.
    for end in range(len(encoded)):
        (folder / "bee" / f"a{suffix.upper()}").write_bytes(encoded[:end])
        assert image_size(encoded[:end]) in ((5, 7), None)
        assert find_damaged(source.files) in ([2], [])


@pytest.mark.parametrize("suffix", [".webp", ".bmp", ".tiff"])
def test_other_kinds_of_images_claim_no_more_pixels_than_jpegs(suffix, folder):
    encoded = bytearray(cv2.imencode(suffix, np.zeros((4, 4, 3), np.uint8))[1].tobytes())
    claimed = {".bmp": (18, b"\0\0\1\0" * 2), ".webp": (21, b"\xff\xff\xff\x0f")}
    if suffix == ".tiff":
        at = encoded.index(struct.pack("<HH", 256, 3))
        claimed[suffix] = (at + 2, struct.pack("<HII", 4, 1, 1 << 20))
        at = encoded.index(struct.pack("<HH", 257, 3))
        encoded[at + 2 : at + 12] = struct.pack("<HII", 4, 1, 1 << 20)
    at, value = claimed[suffix]
    encoded[at : at + len(value)] = value
    with pytest.raises(readers.RecordError, match=r"got \d+ x \d+ pixels, expected a JPEG, "):
        decode_image(bytes(encoded))


def test_kinds_that_are_not_read_are_named_and_are_an_error_alone(folder, caplog):
    for name in ("ant/a.heic", "ant/b.heic", "cat/c.GIF", "cat/.d.gif"):
        (folder / name).touch()
    readers.image_folder(folder, 2)
    assert "left out 2 .heic, 1 .gif: JPEG, PNG, WebP, BMP and TIFF are read" in caplog.text
    for path in (folder / "bee").rglob("*.[pP][nN][gG]"):
        path.rename(path.with_suffix(".avif"))
    with pytest.raises(ValueError, match=r"got nothing but \.avif files in 'bee', expected images"):
        readers.image_folder(folder, 2)


def test_linked_folders_are_followed_once_and_loops_end(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for name in ("x.png", "in/y.png"):
        (elsewhere / name).parent.mkdir(exist_ok=True)
        cv2.imwrite(str(elsewhere / name), np.zeros((6, 8, 3), np.uint8))
    (folder / "bee/more").symlink_to(elsewhere)
    (folder / "bee/more_again").symlink_to(elsewhere)
    (elsewhere / "in/round").symlink_to(elsewhere)
    (folder / "bee/up").symlink_to(folder)
    (folder / "bee/self").symlink_to(folder / "bee")
    files = readers.ImageFolder(folder).files
    inside = [os.path.relpath(file, folder / "bee") for file in files if "bee" in file]
    assert inside == ["b.png", "deep/a.PNG", "more/in/y.png", "more/x.png"]
    assert len(files) == 8


def test_large_jpeg_is_decoded_at_a_part_of_its_size_where_a_smaller_one_is_declared(folder):
    draw_large(folder, "z.jpg", 1600, 1600)
    source = readers.ImageFolder(folder, size=(100, 100))
    encoded = (folder / "cat/z.jpg").read_bytes()
    assert decode_image(encoded, shorter_side=100).shape == (200, 200, 3)
    with tracing_opencv() as peak:
        image = source[len(source) - 1]["image"]
    whole = readers.ImageFolder(folder)[len(source) - 1]["image"]
    expected = cv2.resize(whole, (100, 100), interpolation=cv2.INTER_AREA)
    assert np.abs(image.astype(int) - expected).mean() <= 2
    assert max(peak) <= 200


@contextlib.contextmanager
def tracing_opencv():
    """Yield the heights of the images that opencv decodes."""
    heights = []
    decode = cv2.imdecode

    def trace(*arguments):
        image = decode(*arguments)
        heights.append(image.shape[0])
        return image

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cv2, "imdecode", trace)
        yield heights


@pytest.fixture
def hostile(folder):
    """Add files to the folder that are no images and end a careless reader, or keep it for ever."""
    os.mkfifo(folder / "ant" / "pipe.png")
    (folder / "ant" / "broken.jpg").symlink_to("nowhere")
    (folder / "ant" / "loop.jpg").symlink_to("loop.jpg")
    (folder / "bee" / "zeros.png").symlink_to("/dev/zero")
    for name, begins in (("noise.jpg", b""), ("sparse.png", b"\x89PNG\r\n\x1a\n")):
        (folder / "cat" / name).write_bytes(begins)
        os.truncate(folder / "cat" / name, 1 << 42)
    return folder


def test_what_is_no_plain_file_is_skipped_with_damaged_images(hostile, caplog):
    iterator = readers.image_folder(hostile, 20, on_error="skip", num_workers=2)()
    assert next(iterator)["label"].tolist() == [0, 0, 1, 1, 2, 2]
    assert list(iterator) == []
    assert iterator.num_skipped == 6


@pytest.mark.parametrize(
    ("name", "got"),
    [
        ("ant/pipe.png", "got a pipe, a device or a folder, expected a file."),
        ("ant/broken.jpg", "got a broken link, expected a file that can be read."),
        ("ant/loop.jpg", "got a broken link, expected a file that can be read."),
        ("bee/zeros.png", "got a pipe, a device or a folder, expected a file."),
        ("cat/sparse.png", "got 4398046511104 bytes, expected an image file below 536870912"),
    ],
)
def test_what_is_no_plain_file_is_named_where_it_is_not_skipped(hostile, name, got):
    source = readers.ImageFolder(hostile)
    (index,) = [i for i in range(len(source)) if source.origin(i).endswith(name)]
    with pytest.raises(readers.RecordError, match=re.escape(f"{name}' {got}")):
        source.encoded(index)


def test_files_and_folders_of_macos_and_hidden_ones_are_no_images(folder):
    (folder / "__MACOSX" / "ant").mkdir(parents=True)
    (folder / "ant" / ".thumbnails").mkdir()
    for name in ("__MACOSX/ant/._b.png", "ant/._b.png", "ant/.thumbnails/b.png"):
        (folder / name).write_bytes(b"\0\x05\x16\x07")
    source = readers.ImageFolder(folder)
    assert (source.class_names, len(source)) == (("ant", "bee", "cat"), 6)


def test_images_of_different_size_without_a_size_say_so(folder):
    cv2.imwrite(str(folder / "cat" / "z.png"), np.zeros((3, 3, 3), np.uint8))
    with pytest.raises(ValueError, match=re.escape("['image'] [3, 3, 3] uint8")):
        list(readers.image_folder(folder, 7))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"class_names": ["bea"]}, ValueError, "Did you mean 'bee'?"),
        (
            {"fit": "pad"},
            ValueError,
            "image_folder(fit) got 'pad', expected one of 'crop', 'stretch'.",
        ),
        ({"channels": 4}, ValueError, "image_folder(channels) got 4, expected one of 1, 3."),
        ({"shorter_side": 0}, ValueError, "image_folder(shorter_side) got 0"),
        ({"shorter_side": 8, "size": (8, 8)}, ValueError, "with size=(8, 8), expected one of"),
    ],
)
def test_option_out_of_range_is_refused(folder, options, error, text):
    with pytest.raises(error, match=re.escape(text)):
        readers.image_folder(folder, 2, **options)


def test_folder_without_classes_images_or_existence_is_refused(tmp_path):
    with pytest.raises(
        FileNotFoundError, match="got no folder of that name, expected a folder that"
    ):
        readers.image_folder(tmp_path / "nowhere", 2)
    with pytest.raises(ValueError, match="got no class, expected one folder per class"):
        readers.image_folder(tmp_path, 2)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"got no image, expected files ending in \.jpg"):
        readers.image_folder(tmp_path, 2)


def draw_large(folder, name, height, width):
    small = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    bgr = cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)
    cv2.imwrite(str(folder / "cat" / name), bgr)


@pytest.mark.parametrize("suffix", ["jpg", "png"])
@pytest.mark.parametrize("channels", [1, 3])
def test_shorter_side_scales_larger_images_down(folder, suffix, channels):
    draw_large(folder, f"z.{suffix}", 600, 800)
    source = readers.ImageFolder(folder, shorter_side=40, channels=channels)
    assert source[0]["image"].shape == (6, 8, channels)
    small = source[len(source) - 1]["image"]
    assert small.shape == (40, 53, channels)
    whole = readers.ImageFolder(folder, channels=channels)[len(source) - 1]["image"]
    expected = cv2.resize(whole, (53, 40), interpolation=cv2.INTER_AREA).reshape(small.shape)
    # Of a JPEG a part of its size is decoded: a few steps of 255.
    assert np.abs(small.astype(int) - expected).mean() <= (4 if suffix == "jpg" else 0)


def test_shorter_side_of_a_turned_image(folder):
    upright = np.kron(draw_quarters(), np.ones((20, 20, 1))).astype(np.uint8)
    (folder / "cat" / "z.jpg").write_bytes(encode_turned(upright, 6))
    source = readers.ImageFolder(folder, shorter_side=16)
    small = source[len(source) - 1]["image"]
    assert small.shape == (16, 32, 3)
    check_quarters(small)


def test_small_images_are_decoded_once(folder):
    for name in ("ant", "bee", "cat"):
        shutil.rmtree(folder / name / "deep")
    draw_large(folder, "z.jpg", 60, 60)
    reader = readers.image_folder(
        folder, 1, shorter_side=4, cache_records=True, num_workers=0, decode=lambda s: s["image"]
    )
    first = [batch.tolist() for batch in reader]
    for name in ("ant", "bee", "cat"):
        shutil.rmtree(folder / name)
    assert [batch.tolist() for batch in reader] == first
