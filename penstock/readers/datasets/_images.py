"""mnist, fashion_mnist, cifar10, cifar100 and flowers, from published files, TFRecord or TFDS."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from penstock.readers._archives import (
    CIFAR10_FILES,
    CIFAR10_LIMITS,
    CIFAR100_LIMITS,
    Limits,
    read_by_name,
    read_cifar,
    read_mnist,
)
from penstock.readers._errors import DatasetNotFoundError
from penstock.readers.datasets.registry import (
    DatasetRequest,
    Loaded,
    RecordSet,
    find,
    missing,
    register_dataset,
)
from penstock.readers.datasets.splits import fixed_split

# What `penstock convert` downloads.
_CONVERTED = ("cifar10", "mnist", "flowers")


_IDX = {
    "mnist": "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "fashion_mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
}


@register_dataset("mnist")
@register_dataset("fashion_mnist")
def load_idx(request: DatasetRequest) -> Loaded:
    """Load MNIST or Fashion-MNIST: image [28, 28, 1] uint8, label in 0..9."""
    part = "train" if request.split == "train" else "t10k"
    names = [f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"]
    images_path, labels_path = (find(request, (f"{name}.gz", name)) for name in names)
    if images_path is None or labels_path is None:
        expected, how = [f"{name}.gz" for name in names], f"Get them from {_IDX[request.name]}"
        return _load_converted(request, (28, 28, 1), expected, how)
    _check_shape(request, (28, 28, 1))
    images, labels = read_mnist(images_path, labels_path)
    return {"image": images, "label": labels.astype(np.int32)}


class _Cifar(NamedTuple):
    """An archive, its folder and files, and what a record of theirs has; the last label counts."""

    archive: str
    folder: str
    files: dict[str, tuple[str, ...]]
    num_labels: int
    num_classes: int
    limits: Limits


_CIFAR100_FILES = {"train": ("train.bin",), "test": ("test.bin",)}
_CIFAR = {
    "cifar10": _Cifar(
        "cifar-10-binary.tar.gz", "cifar-10-batches-bin", CIFAR10_FILES, 1, 10, CIFAR10_LIMITS
    ),
    "cifar100": _Cifar(
        "cifar-100-binary.tar.gz", "cifar-100-binary", _CIFAR100_FILES, 2, 100, CIFAR100_LIMITS
    ),
}


@register_dataset("cifar10")
@register_dataset("cifar100")
def load_cifar(request: DatasetRequest) -> Loaded:
    """Load CIFAR-10 or CIFAR-100: image [32, 32, 3] uint8, (fine) label in 0..9 or 0..99."""
    archive, folder, files, num_labels, num_classes, limits = _CIFAR[request.name]
    names = files[request.split]
    path = find(request, [folder, archive])
    if path is None and find(request, names):
        # Unpacked right there.
        path = request.folder
    if path is None:
        how = f"Get it from https://www.cs.toronto.edu/~kriz/{archive}"
        return _load_converted(request, (32, 32, 3), [archive, folder], how)
    _check_shape(request, (32, 32, 3))
    contents = read_by_name(path, names, limits)
    # Popped, so that each file's bytes are freed when its records are.
    parts = [read_cifar(contents.pop(name), num_labels, num_classes) for name in names]
    labels = np.concatenate([labels for _, labels in parts]).astype(np.int32)
    # Without it numpy would lay the joined images out as planes, as the files are.
    images = np.empty((len(labels), 32, 32, 3), np.uint8)
    np.concatenate([images for images, _ in parts], out=images)
    return {"image": images, "label": labels}


@register_dataset("flowers")
def load_flowers(request: DatasetRequest) -> Loaded:
    """Load TensorFlow's flowers: 3670 photographs of 5 classes, resized to [224, 224, 3] uint8.

    With an image_shape of [None, None, 3] each has its own size, for a preprocessing to crop.
    """
    from penstock.readers.images import ImageFolder

    height, width, channels = request.image_shape or (224, 224, 3)
    size = None if height is None or width is None else (height, width)
    folder = find(request, ["flower_photos"])
    if folder is None:
        url = "http://download.tensorflow.org/example_images/flower_photos.tgz"
        how = f"Get {url} and unpack it"
        return _load_converted(request, (height, width, channels), ["flower_photos"], how)
    photos = ImageFolder(folder, size=size, channels=channels or 3)
    return photos.take(fixed_split(len(photos), request.split, test_share=10))


def _load_converted(
    request: DatasetRequest, shape: tuple[int | None, ...], expected: Sequence[str], how: str
) -> Loaded:
    """Return the set from TF-Slim's TFRecord files, else from TFDS, else raise."""
    is_flowers = request.name == "flowers"
    split = "validation" if is_flowers and request.split == "test" else request.split
    pattern = f"{request.name}_{split}*.tfrecord"
    if paths := sorted(request.folder.glob(pattern)):
        from penstock.readers.records.features import FixedLenFeature, ImageFeature

        resize = "bilinear" if is_flowers and shape[0] is not None else None
        features = {
            "image": ImageFeature(shape, key="image/encoded", resize=resize),
            "label": FixedLenFeature((), "int32", key="image/class/label"),
        }
        if not is_flowers:
            _check_shape(request, shape)
        return RecordSet(paths=paths, features=features)
    source = None if is_flowers else _load_from_tfds(request)
    if source is None:
        ways = [how]
        if request.name in _CONVERTED:
            folder = shlex.quote(str(request.folder))
            command = f"penstock convert --dataset_name={request.name} --dataset_dir={folder}"
            ways.append(f"let `{command}` get it")
        if not is_flowers:
            ways.append("prepare it with tensorflow-datasets")
        raise missing(request, [*expected, pattern], f"{', '.join(ways[:-1])}, or {ways[-1]}")
    _check_shape(request, shape)
    return source


def _load_from_tfds(request: DatasetRequest) -> Loaded | None:
    """Return the prepared TFDS set, `None` where TFDS or the set is not there."""
    from penstock.readers.tfds_sets import KeptFeatures, open_set

    for data_dir in (str(request.folder), None):
        try:
            source = open_set(request.name, request.split, data_dir, download=False)
        except ModuleNotFoundError:
            return None
        except DatasetNotFoundError:
            continue
        kept = ("image", "label")
        return KeptFeatures(source, kept, request.name, {"label": np.int32})
    return None


def _check_shape(request: DatasetRequest, shape: tuple[int | None, ...]) -> None:
    if request.image_shape not in (None, shape):
        raise ValueError(
            f"dataset({request.name!r}, image_shape) got {list(request.image_shape or ())}, "
            f"expected {list(shape)}. Resize them in the program or with transform=."
        )
