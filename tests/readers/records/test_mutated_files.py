"""100,000 damaged record files, a slice of them in `make test`: each gives what was written, in
order, or an error of ours. A case is one seed.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from penstock import readers
from penstock.readers.records import (
    OFRECORD,
    TFRECORD,
    BlobConf,
    BytesListCodec,
    FixedLenFeature,
    ImageCodec,
    ImageFeature,
    RawCodec,
    RecordError,
    VarLenFeature,
    build_example,
    build_ofrecord,
    encode_png,
    parse_example,
    parse_ofrecord,
)
from penstock.readers.records.framing import Framing
from tests.readers.records.mutations import (
    in_parts,
    mutate,
    on_linux,
    peak_bytes,
    run_in_a_child,
)

NUM_RECORDS = 6
FIRST_LABEL = 1000

SPEC = {
    "image": ImageFeature((8, 8, 3), resize="bilinear"),
    "label": FixedLenFeature((), "int32", key="image/class/label"),
    "weights": FixedLenFeature((2, 2), "float32", default_value=0.0),
    "boxes": VarLenFeature("float32", max_length=6),
    "ids": VarLenFeature("int64"),
}
BLOBS = {
    "image": BlobConf("encoded", shape=(8, 8, 3), dtype="float32", codec=ImageCodec()),
    "label": BlobConf("class/label", shape=(), dtype="int32", codec=RawCodec()),
    "pixels": BlobConf("p", shape=(6,), dtype="uint8", codec=RawCodec(auto_zero_padding=True)),
    "words": BlobConf("words", shape=(2, 4), dtype="int8", codec=BytesListCodec()),
}


def encoded_image(number: int) -> bytes:
    """Return a PNG, a JPEG, a PNG, a progressive JPEG, and so on."""
    image = np.arange(192, dtype=np.uint8).reshape(8, 8, 3) + np.uint8(10 * number)
    if number % 2 == 0:
        return encode_png(image)
    options = [cv2.IMWRITE_JPEG_OPTIMIZE, 1, cv2.IMWRITE_JPEG_PROGRESSIVE, int(number % 4 == 3)]
    return cv2.imencode(".jpg", image, options)[1].tobytes()


def example_of(number: int, image: bytes) -> bytes:
    values = {
        "image/encoded": image,
        "image/class/label": FIRST_LABEL + number,
        "weights": [0.5, 1.5, 2.5, 3.5],
        "boxes": [0.25] * number,
        "ids": [number, -number],
    }
    return build_example(values)


def ofrecord_of(number: int, image: bytes) -> bytes:
    label = FIRST_LABEL + number
    return build_ofrecord(
        {"encoded": image, "class/label": label, "p": b"\xffabc", "words": [b"ab", b"c"]}
    )


def parse_blobs(payload: bytes) -> dict[str, Any]:
    return dict(zip(BLOBS, parse_ofrecord(payload, list(BLOBS.values())), strict=True))


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A format: what builds a record around an image, and what parses one."""

    framing: Framing
    build: Callable[[int, bytes], bytes]
    parse: Callable[[bytes], dict[str, Any]]

    @property
    def payloads(self) -> list[bytes]:
        return [self.build(number, encoded_image(number)) for number in range(NUM_RECORDS)]


EXAMPLES = Kind(
    framing=TFRECORD, build=example_of, parse=lambda payload: parse_example(payload, SPEC)
)
OFRECORDS = Kind(framing=OFRECORD, build=ofrecord_of, parse=parse_blobs)
PAYLOADS = {kind.framing.name: kind.payloads for kind in (EXAMPLES, OFRECORDS)}
SAMPLES = {
    kind.framing.name: [kind.parse(payload) for payload in PAYLOADS[kind.framing.name]]
    for kind in (EXAMPLES, OFRECORDS)
}


@dataclass(frozen=True, kw_only=True)
class Damaged:
    """A damaged file.

    Args:
      kind: its format.
      data: its bytes.
      sure: the records before the first damage, by number.
      broken: the one damaged record, where the framing around it is whole.
    """

    kind: Kind
    data: bytes
    sure: tuple[int, ...]
    broken: int | None = None


def damage_file(kind: Kind, compression: int | None, random: np.random.Generator) -> Damaged:
    """Damage the bytes of a file, which may be compressed: by zlib's window bits."""
    frames = [kind.framing.frame(payload) for payload in PAYLOADS[kind.framing.name]]
    whole = b"".join(frames)
    if compression is None:
        data = plain = mutate(whole, random)
    else:
        data = mutate(zlib.compress(whole, wbits=compression), random)
        plain = decompress(data, compression)
    return Damaged(kind=kind, data=data, sure=whole_frames(plain, frames))


def decompress(data: bytes, compression: int) -> bytes:
    """Return what a cut or damaged stream begins with, byte by byte."""
    engine, pieces = zlib.decompressobj(compression), []
    try:
        for number in range(len(data)):
            pieces.append(engine.decompress(data[number : number + 1]))
    except zlib.error:
        pass
    return b"".join(pieces)


def whole_frames(data: bytes, frames: list[bytes]) -> tuple[int, ...]:
    """Return the numbers of the frames that data begins with.

    Of 100,000 splices and cuts some hit the edges of records: such a file repeats or lacks one,
    and nothing in it tells.
    """
    numbers: list[int] = []
    at = 0
    while number := [n for n, frame in enumerate(frames) if data.startswith(frame, at)]:
        numbers += number
        at += len(frames[number[0]])
    return tuple(numbers)


def damage_record(kind: Kind, of_image: bool, random: np.random.Generator) -> Damaged:
    """Damage one record, or the image in it alone, and frame it with the right checksum."""
    payloads = list(PAYLOADS[kind.framing.name])
    broken = int(random.integers(NUM_RECORDS))
    if of_image:
        payloads[broken] = kind.build(broken, mutate(encoded_image(broken), random))
    else:
        payloads[broken] = mutate(payloads[broken], random)
    data = b"".join(map(kind.framing.frame, payloads))
    return Damaged(kind=kind, data=data, sure=tuple(range(broken)), broken=broken)


def damaged(case: int) -> Damaged:
    """Return the file of a case."""
    random = np.random.default_rng(case)
    match case % 4:
        case 0:
            return damage_file(EXAMPLES, (None, None, 31, 15)[random.integers(4)], random)
        case 1:
            return damage_file(OFRECORDS, None, random)
        case 2:
            return damage_record((EXAMPLES, OFRECORDS)[random.integers(2)], False, random)
        case _:
            return damage_record((EXAMPLES, OFRECORDS)[random.integers(2)], True, random)


def is_written(file: Damaged, number: int, sample: dict[str, Any]) -> bool:
    """Say whether a sample is the one written under a number."""
    written = SAMPLES[file.kind.framing.name][number]
    return all(np.array_equal(sample[name], value) for name, value in written.items())


def check_sample(file: Damaged, sample: dict[str, Any]) -> None:
    """Check that a sample, of whatever values, has what was declared."""
    length = {"ids": (int(sample.get("ids_length", 0)),)}
    for name, value in SAMPLES[file.kind.framing.name][0].items():
        assert sample[name].dtype == value.dtype
        assert sample[name].shape == length.get(name, value.shape)


def check_samples(
    file: Damaged, samples: list[dict[str, Any]], *, num_lost: int = 0, is_whole: bool = True
) -> None:
    """Check what was read: the records before the damage come first, in order, none twice.

    Args:
      num_lost: undamaged records that an error may have taken with it.
      is_whole: the pass came to its end.
    """
    for sample in samples:
        check_sample(file, sample)
    assert len(samples) >= len(file.sure) - num_lost
    sure = zip(file.sure, samples, strict=False)
    assert all(is_written(file, number, sample) for number, sample in sure)
    if file.broken is not None and is_whole:
        after = range(file.broken + 1, NUM_RECORDS)
        rest = samples[len(samples) - len(after) :]
        assert NUM_RECORDS - 1 <= len(samples) <= NUM_RECORDS
        assert all(is_written(file, n, sample) for n, sample in zip(after, rest, strict=True))
    if file.broken is None and file.kind.framing.has_crc:  # nothing damaged passes
        numbers = [int(sample["label"]) - FIRST_LABEL for sample in samples]
        assert all(is_written(file, n, s) for n, s in zip(numbers, samples, strict=True))


def rows_of(batch: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    rows = [{name: column[i] for name, column in batch.items()} for i in range(len(batch["label"]))]
    for row in rows:
        if "ids" in row:
            row["ids"] = row["ids"][: int(row["ids_length"])]  # a batch pads it
    return rows


def check_reader(file: Damaged, path: Path, case: int) -> None:
    """Read a file with threads: samples or batches, errors raised or skipped."""
    batch_size = (None, 2)[case // 4 % 2]
    on_error = ("raise", "skip")[case // 8 % 2]
    options = {"batch_size": batch_size, "on_error": on_error, "num_workers": 2}
    options["cache_dir"] = path.parent
    if file.kind is EXAMPLES:
        reader = readers.tfrecord(path, SPEC, max_plain_bytes=1 << 24, **options)
    else:
        reader = readers.ofrecord(path.parent, BLOBS, **options)
    samples: list[dict[str, Any]] = []
    failure = None
    try:
        with reader() as iterator:
            for item in iterator:
                samples.extend([item] if batch_size is None else rows_of(item))
    except RecordError as error:
        failure = error
    if failure is None:
        check_samples(file, samples)
        return
    assert failure.path == str(path)
    num_lost = 0
    if on_error == "skip":
        assert not samples  # otherwise it would have been skipped
    else:  # indexing has raised it, or it took the records of its batch along
        num_lost = len(file.sure) if not samples and file.broken is None else (batch_size or 1) - 1
    check_samples(file, samples, num_lost=num_lost, is_whole=False)


def run_cases(cases: range, folder: Path) -> None:
    """Run cases, in a folder that must be empty."""
    path = folder / "part-0"
    for case in cases:
        file = damaged(case)
        # A new one each time: a file that is truncated and written is flushed when it is closed.
        path.unlink(missing_ok=True)
        path.write_bytes(file.data)
        check_reader(file, path, case)
        # A file of the same size, written within the clock's tick, would pass for this one.
        for kept in (folder / "plain").glob("*"):
            kept.unlink()


def grow(cases: range, folder: Path) -> int:
    """Run cases, and return the bytes by which they raised the peak of this process."""
    run_cases(range(40), folder)  # libraries and threads get what they need once
    before = peak_bytes()
    run_cases(cases, folder)
    return peak_bytes() - before


# Decoding may take this much: a damaged header may claim 2**26 pixels, three bytes each.
MAX_GROWTH_BYTES = 256 << 20


@on_linux
@in_parts(100_000, num_quick=250)
def test_mutated_files_give_right_records_in_order_or_our_error(cases, tmp_path):
    program = f"print(files.grow({cases!r}, Path(sys.argv[1])))"
    (growth_bytes,) = run_in_a_child(program, "tests.readers.records.test_mutated_files", tmp_path)
    assert growth_bytes < MAX_GROWTH_BYTES


def test_hostile_image_header_is_refused_before_anything_is_allocated():
    png = encoded_image(0)
    claims = png[:16] + (60_000).to_bytes(4, "big") * 2 + png[24:]
    payload = build_example({"image/encoded": claims, "image/class/label": 1})
    with pytest.raises(RecordError, match="60000 x 60000 pixels, expected a JPEG, PNG,"):
        parse_example(payload, SPEC)
