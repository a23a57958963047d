"""Small archives in the layout of the originals."""

import gzip
import io
import struct
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from penstock.readers import convert


def plain_tar(members: dict[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    path.write_bytes(gzip.compress(plain_tar(members)))
    return path


def convert_unchecked(name: str, folder: Path, mirror: str | None = None, **options: Any) -> Any:
    """Convert a set of the files in a folder, or at a mirror, whatever their checksums are."""
    if name == "mnist":
        sources = {k: s.at_mirror(mirror, is_checked=False) for k, s in convert.MNIST.items()}
        return convert.convert_mnist(folder, sources=sources, **options)
    source = {"cifar10": convert.CIFAR10, "flowers": convert.FLOWERS}[name]
    make = {"cifar10": convert.convert_cifar10, "flowers": convert.convert_flowers}[name]
    return make(folder, source=source.at_mirror(mirror, is_checked=False), **options)


def write_cifar10(folder: Path, images_a_batch: int = 4) -> np.ndarray:
    """Write cifar-10-binary.tar.gz; return `[6, N, 3073]`: 5 train batches, the test's."""
    random = np.random.default_rng(0)
    records = random.integers(0, 256, (6, images_a_batch, 3073), np.uint8)
    records[..., 0] %= 10
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    members = {
        f"cifar-10-batches-bin/{name}": batch.tobytes()
        for name, batch in zip(names, records, strict=True)
    }
    members = {"cifar-10-batches-bin/batches.meta.txt": b"airplane\n"} | members
    write_tar(folder / "cifar-10-binary.tar.gz", members)
    return records


def idx_bytes(array: np.ndarray) -> bytes:
    return (
        bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + bytes(array)
    )


def write_mnist(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Write the four IDX files; return images and labels by split."""
    random = np.random.default_rng(0)
    splits = {}
    for split, prefix, count in (("train", "train", 7), ("test", "t10k", 3)):
        images = random.integers(0, 256, (count, 28, 28), np.uint8)
        labels = random.integers(0, 10, count).astype(np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            path = folder / f"{prefix}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(idx_bytes(array)))
        splits[split] = (images, labels)
    return splits


def jpeg(seed: int, height: int = 12, width: int = 10) -> bytes:
    image = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return cv2.imencode(".jpg", image)[1].tobytes()


def write_images(folder: Path, names: Iterable[str] = ("cats", "dogs"), count: int = 10) -> None:
    """Write a folder of images, and a file of another kind beside each, for each class."""
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (folder / name / f"{number}.jpg").write_bytes(jpeg(number))
            (folder / name / f"{number}.json").write_text("no image")


def write_flowers(folder: Path, photos_a_class: int = 4) -> dict[str, bytes]:
    """Write flower_photos.tgz; return name -> bytes of its photos."""
    classes = ["daisy", "dandelion", "roses", "sunflowers", "tulips"]
    photos = {
        f"flower_photos/{name}/{number}.jpg": jpeg(10 * label + number)
        for label, name in enumerate(classes)
        for number in range(photos_a_class)
    }
    write_tar(folder / "flower_photos.tgz", {"flower_photos/LICENSE.txt": b"CC-BY"} | photos)
    return photos
