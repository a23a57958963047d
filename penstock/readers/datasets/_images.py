"""mnist, fashion_mnist, cifar10, cifar100 and flowers, from published files, TFRecord or TFDS."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import numpy as np

from penstock.readers._archives import (
    CIFAR10_LIMITS,
    CIFAR100_LIMITS,
    read_by_name,
    read_cifar_records,
    read_mnist,
)
from penstock.readers._errors import DatasetNotFoundError
from penstock.readers.datasets.registry import (
    DatasetRequest,
    Loaded,
    RecordSet,
    find,
    find_records,
    missing,
    register_dataset,
)
from penstock.readers.datasets.splits import fixed_split

# What `penstock convert` downloads.
_CONVERTED = ("cifar10", "mnist", "flowers")


@register_dataset("mnist")
def load_mnist(request: DatasetRequest) -> Loaded:
    """Load MNIST: image [28, 28, 1] uint8, label in 0..9."""
    return _load_idx(request, "https://storage.googleapis.com/cvdf-datasets/mnist/")


@register_dataset("fashion_mnist")
def load_fashion_mnist(request: DatasetRequest) -> Loaded:
    """Load Fashion-MNIST: image [28, 28, 1] uint8, label in 0..9."""
    return _load_idx(request, "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/")


def _load_idx(request: DatasetRequest, url: str) -> Loaded:
    part = "train" if request.split == "train" else "t10k"
    names = [f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"]
    found = [find(request, (f"{name}.gz", name)) for name in names]
    images_path, labels_path = found
    if images_path is None or labels_path is None:
        expected = [f"{name}.gz" for name in names]
        return _load_converted(request, (28, 28, 1), expected, f"Get them from {url}")
    _check_shape(request, (28, 28, 1))
    images, labels = read_mnist(images_path, labels_path)
    return {"image": images[..., np.newaxis], "label": labels.astype(np.int32)}


@register_dataset("cifar10")
def load_cifar10(request: DatasetRequest) -> Loaded:
    """Load CIFAR-10: image [32, 32, 3] uint8, label in 0..9."""
    files = [f"data_batch_{i}.bin" for i in range(1, 6)]
    return _load_cifar(request, files, "cifar-10-binary.tar.gz", "cifar-10-batches-bin", 1)


@register_dataset("cifar100")
def load_cifar100(request: DatasetRequest) -> Loaded:
    """Load CIFAR-100: image [32, 32, 3] uint8, (fine) label in 0..99."""
    return _load_cifar(request, ["train.bin"], "cifar-100-binary.tar.gz", "cifar-100-binary", 2)


def _load_cifar(
    request: DatasetRequest,
    train_files: Sequence[str],
    archive: str,
    folder: str,
    num_labels: int,
) -> Loaded:
    test_file = "test_batch.bin" if num_labels == 1 else "test.bin"
    names = train_files if request.split == "train" else [test_file]
    path = find(request, [folder, archive])
    if path is None and find(request, names):
        # Unpacked right there.
        path = request.folder
    if path is None:
        url = f"https://www.cs.toronto.edu/~kriz/{archive}"
        return _load_converted(request, (32, 32, 3), [archive, folder], f"Get it from {url}")
    _check_shape(request, (32, 32, 3))
    num_classes, limits = (10, CIFAR10_LIMITS) if num_labels == 1 else (100, CIFAR100_LIMITS)
    files = read_by_name(path, names, limits)
    # Popped, so that each file's bytes are freed when its records are.
    parts = [read_cifar_records(files.pop(name), num_labels, num_classes) for name in names]
    # Written straight to their places: a joined copy of the files would be a third of the memory.
    images = np.empty((sum(map(len, parts)), 32, 32, 3), np.uint8)
    labels = np.concatenate([part[:, num_labels - 1] for part in parts]).astype(np.int32)
    start = 0
    for part in parts:
        planes = part[:, num_labels:].reshape(-1, 3, 32, 32)
        images[start : start + len(part)] = planes.transpose(0, 2, 3, 1)
        start += len(part)
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
    split = "validation" if request.name == "flowers" and request.split == "test" else request.split
    if paths := find_records(request):
        from penstock.readers.records.features import FixedLenFeature, ImageFeature

        has_size = request.name == "flowers" and shape[0] is not None
        resize = "bilinear" if has_size else None
        features = {
            "image": ImageFeature(shape, key="image/encoded", resize=resize),
            "label": FixedLenFeature((), "int32", key="image/class/label"),
        }
        if request.name != "flowers":
            _check_shape(request, shape)
        return RecordSet(paths=paths, features=features)
    source = None if request.name == "flowers" else _load_from_tfds(request)
    if source is None:
        names = [*expected, f"{request.name}_{split}*.tfrecord"]
        ways = [how]
        if request.name in _CONVERTED:
            folder = shlex.quote(str(request.folder))
            command = f"penstock convert --dataset_name={request.name} --dataset_dir={folder}"
            ways.append(f"let `{command}` get it")
        if request.name != "flowers":
            ways.append("prepare it with tensorflow-datasets")
        raise missing(request, names, f"{', '.join(ways[:-1])}, or {ways[-1]}")
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
            f"expected {list(shape)}. These images are read as they are. Resize them in the "
            "program or with transform=."
        )
