"""Record files: JPEGs per second from TFRecord against opencv alone, index and CRC in GB/s.

    python -m benchmarks readers_records

1,000 JPEGs of 500x375 are decoded to RGB and resized to 224x224. The baseline is a bare loop over
the encoded bytes in memory, on as many threads as the reader has: no file, no checksum, no
parsing, no batch. Indexing is compared with reading the file's bytes; the checksum, and reading
verified records, with copying them. Then the resident memory of the process is sampled over one
long epoch: it must stay flat.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import google_crc32c
import numpy as np

from benchmarks import _timing
from benchmarks.readers_memory import cpu_seconds, memory_over
from penstock._cores import num_usable_cores
from penstock.readers.records import (
    TFRECORD,
    FixedLenFeature,
    ImageFeature,
    RecordFiles,
    RecordFormat,
    RecordWriter,
    build_example,
)
from penstock.readers.records.files import build_index
from penstock.readers.tfrecord_files import tfrecord

NUM_IMAGES = 1_000
BATCH_SIZE = 64
SPEC = {
    "image": ImageFeature((224, 224, 3), resize="bilinear"),
    "label": FixedLenFeature((), "int32", key="image/class/label"),
}
BARE = "opencv"


def _jpegs(num_images: int) -> list[bytes]:
    """Return JPEGs of blurred noise: about 60 kB each, as photographs of the size have."""
    rng = np.random.default_rng(0)
    base = [
        cv2.GaussianBlur(rng.integers(0, 256, (375, 500, 3), np.uint8), (0, 0), 1.2)
        for _ in range(8)
    ]
    encoded = []
    for number in range(num_images):
        image = np.roll(base[number % 8], number, axis=1)
        encoded.append(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 85])[1].tobytes())
    return encoded


def _by_opencv(jpegs: Sequence[bytes], num_threads: int) -> Callable[[], None]:
    def decode(encoded: bytes) -> np.ndarray:
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR_RGB)
        assert image is not None
        return cv2.resize(image, (224, 224), interpolation=cv2.INTER_LINEAR)

    def run() -> None:
        with ThreadPoolExecutor(num_threads) as pool:
            for _ in pool.map(decode, jpegs):
                pass

    return run


def _drain(reader: Any) -> Callable[[], None]:
    def run() -> None:
        for _ in reader:
            pass

    return run


def _by_tensorflow(path: Path) -> Any:
    import tensorflow as tf

    spec = {
        "image/encoded": tf.io.FixedLenFeature((), tf.string),
        "image/class/label": tf.io.FixedLenFeature((), tf.int64),
    }

    def decode(payload: Any) -> tuple[Any, Any]:
        sample = tf.io.parse_single_example(payload, spec)
        image = tf.io.decode_jpeg(sample["image/encoded"], channels=3)
        image = tf.cast(tf.image.resize(image, (224, 224)), tf.uint8)
        return image, sample["image/class/label"]

    dataset = tf.data.TFRecordDataset(str(path)).shuffle(1024)
    return dataset.map(decode, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH_SIZE).prefetch(2)


def _write(path: Path, jpegs: Sequence[bytes]) -> None:
    with RecordWriter(path) as writer:
        for label, encoded in enumerate(jpegs):
            writer.write(build_example({"image/encoded": encoded, "image/class/label": label}))


def _rate(seconds: dict[str, list[float]], base: str, unit: str, scale: float) -> str:
    cells = []
    for name, each in seconds.items():
        speed = 1 / _timing.ratio(seconds, name, base)
        cells.append(f"{name} {scale / statistics.median(each):,.4g} {unit}, {speed:.2f}x")
    return "; ".join(cells)


def _images(path: Path, jpegs: Sequence[bytes], rounds: int) -> list[str]:
    cores = num_usable_cores()
    contenders = {
        BARE: _by_opencv(jpegs, cores),
        "tfrecord, shuffled": _drain(tfrecord(path, SPEC, batch_size=BATCH_SIZE, shuffle=True)),
    }
    if importlib.util.find_spec("tensorflow"):
        contenders["tf.data"] = _drain(_by_tensorflow(path))
    contenders, cpu = cpu_seconds(contenders)
    seconds = _timing.alternate(contenders, rounds=rounds, units=len(jpegs))
    by_cpu = 1 / _timing.ratio(cpu, "tfrecord, shuffled", BARE)
    rate = f"{_rate(seconds, BARE, 'images/s', 1)} ({by_cpu:.2f}x by CPU time)"
    return [f"JPEG 500x375 to 224x224, {cores} threads", rate]


def _index(path: Path, rounds: int) -> list[str]:
    descriptor = os.open(path, os.O_RDONLY)
    size = os.fstat(descriptor).st_size

    def read() -> None:
        with open(path, "rb") as file:
            while file.read(1 << 20):
                pass

    contenders = {
        "reading the bytes": read,
        "index": lambda: build_index(descriptor, TFRECORD, path),
    }
    seconds = _timing.alternate(contenders, rounds=rounds, units=size)
    os.close(descriptor)
    records = len(RecordFiles([path], RecordFormat()))
    title = f"index, {size / records / 1e3:.3g} kB a record"
    return [title, _rate(seconds, "reading the bytes", "GB/s", 1e-9)]


def _checksum(path: Path, rounds: int) -> list[str]:
    data = path.read_bytes()
    view = np.frombuffer(data, np.uint8)
    target = np.empty_like(view)
    files = RecordFiles([path], RecordFormat())

    def read() -> None:
        for _ in files.read(range(len(files))):
            pass

    contenders = {
        "copying": lambda: np.copyto(target, view),
        "CRC-32C": lambda: google_crc32c.value(data),
        "verified records": read,
    }
    seconds = _timing.alternate(contenders, rounds=rounds, units=len(data))
    files.close()
    return ["CRC-32C", _rate(seconds, "copying", "GB/s", 1e-9)]


def _memory(path: Path) -> list[str]:
    """Return what the reader takes over one epoch of the file, read 20 times as if it were 20."""
    batch_size = 16
    reader = tfrecord([path] * 20, SPEC, batch_size=batch_size, shuffle=True)
    title = f"resident memory over one epoch of {len(reader):,} batches of {batch_size}"
    return [title, memory_over(reader(), every=5)]


def main(rounds: int = 9) -> None:
    """Print the table."""
    print(f"{os.cpu_count()} cores, opencv {cv2.__version__}, numpy {np.__version__}\n")
    jpegs = _jpegs(NUM_IMAGES)
    with tempfile.TemporaryDirectory() as folder:
        images, small = Path(folder, "images.tfrecord"), Path(folder, "small.tfrecord")
        _write(images, jpegs)
        _write(small, [jpeg[:400] for jpeg in jpegs] * 40)
        rows = []
        for measure in (
            lambda: _images(images, jpegs, rounds),
            lambda: _index(images, rounds),
            lambda: _index(small, rounds),
            lambda: _checksum(images, rounds),
            lambda: _memory(images),
        ):
            rows.append(measure())
            print("  ".join(rows[-1]), flush=True)
    print("\nmedians, and the median speed relative to the first named\n")
    print(_timing.table(["what", "result"], rows))


if __name__ == "__main__":
    main()
