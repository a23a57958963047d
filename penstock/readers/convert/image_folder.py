"""A folder of images, one folder a class, as TF-Slim's files; and flowers, which is one."""

import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock.readers._errors import message
from penstock.readers.convert.archives import unpack
from penstock.readers.convert.download import Progress, Source, fetch, no_progress
from penstock.readers.convert.errors import ConversionError
from penstock.readers.convert.slim import (
    LABELS_FILENAME,
    are_there,
    image_example,
    shard_name,
    write_labels,
    write_records,
)
from penstock.readers.records.errors import ImageError
from penstock.readers.records.image_bytes import decode_image

FLOWERS = Source(
    url="https://storage.googleapis.com/download.tensorflow.org/example_images/flower_photos.tgz",
    sha256="4c54ace7911aaffe13a365c34f650e71dd5bf1be0a58b464e5a7183e3e595d9c",
)
FLOWERS_NUM_VALIDATION = 350
_FORMATS = {".jpg": "jpg", ".jpeg": "jpg", ".png": "png"}


def convert_flowers(
    dataset_dir: str | Path,
    *,
    source: Source = FLOWERS,
    num_validation: int = FLOWERS_NUM_VALIDATION,
    force: bool = False,
    progress: Progress = no_progress,
) -> list[Path]:
    """Make `flowers_{train,validation}_%05d-of-00005.tfrecord` and `labels.txt`.

    The archive is unpacked into a temporary folder, unless `flower_photos` is there already.
    TF-Slim draws the validation images from the order in which the file system lists them; here
    they are drawn with its seed from the sorted names, the same on every machine.

    Args:
      dataset_dir: where the files go, and where the archive is looked for and downloaded to.
      source: the archive.
      num_validation: number of images held out.
      force: make the files again that are there already.
      progress: called with file name, bytes so far and bytes in all while downloading.

    Returns:
      The paths made, or there already.

    Raises:
      DownloadError: the archive cannot be downloaded, or has another checksum.
      ConversionError: the archive holds something else.
      UnsafeArchiveError: a member of the archive would be written outside its folder.
    """
    targets = _targets(dataset_dir, "flowers", num_shards=5)
    if not force and are_there(targets):
        return targets
    photos = Path(dataset_dir) / "flower_photos"
    if photos.is_dir():
        return convert_image_folder(
            photos, dataset_dir, "flowers", num_validation=num_validation, force=True
        )
    archive = fetch(source, dataset_dir, progress=progress)
    with tempfile.TemporaryDirectory(prefix=".unpacked.", dir=dataset_dir) as folder:
        unpack(archive, folder)
        photos = Path(folder) / "flower_photos"
        return convert_image_folder(
            photos, dataset_dir, "flowers", num_validation=num_validation, force=True
        )


def convert_image_folder(
    image_dir: str | Path,
    dataset_dir: str | Path,
    dataset_name: str,
    *,
    num_validation: int,
    num_shards: int = 5,
    seed: int = 0,
    force: bool = False,
) -> list[Path]:
    """Make `<name>_{train,validation}_%05d-of-%05d.tfrecord` and `labels.txt` from images.

    Classes are the sorted names of the folders in `image_dir`, images their JPEG and PNG files,
    kept byte for byte; each is decoded once to see that it can be. Names are sorted, shuffled
    with `seed`, and the first `num_validation` held out; shards are filled one after another.
    Where all the files are there already nothing is done, but with `force`.

    Returns:
      The paths made, or there already.

    Raises:
      ConversionError: no image, an image that cannot be decoded, or too few to hold out.
    """
    targets = _targets(dataset_dir, dataset_name, num_shards)
    if not force and are_there(targets):
        return targets
    classes = sorted(path.name for path in Path(image_dir).glob("*") if path.is_dir())
    images = [path for name in classes for path in sorted((Path(image_dir) / name).glob("*"))]
    images = [path for path in images if path.suffix.lower() in _FORMATS]
    if not images or not 0 <= num_validation < len(images):
        raise ConversionError(
            message(
                f"'{image_dir}'",
                f"{len(images)} images in {len(classes)} classes, num_validation={num_validation}",
                "more images than are held out for validation",
                "Images lie in one folder a class, as .jpg, .jpeg or .png",
                "Check the folder, or lower num_validation",
            )
        )
    random.Random(seed).shuffle(images)
    splits = (images[num_validation:], images[:num_validation])
    labels = {name: label for label, name in enumerate(classes)}
    parts = [_part(paths, shard, num_shards) for paths in splits for shard in range(num_shards)]
    for path, paths in zip(targets[:-1], parts, strict=True):
        write_records(path, _examples(paths, labels))
    write_labels(dataset_dir, classes)
    return targets


def _targets(dataset_dir: str | Path, dataset_name: str, num_shards: int) -> list[Path]:
    """Return the files that are made, the labels last."""
    names = [
        shard_name(dataset_name, split, shard, num_shards)
        for split in ("train", "validation")
        for shard in range(num_shards)
    ]
    return [Path(dataset_dir) / name for name in (*names, LABELS_FILENAME)]


def _part(paths: Sequence[Path], shard: int, num_shards: int) -> Sequence[Path]:
    size = -(-len(paths) // num_shards)
    return paths[shard * size : (shard + 1) * size]


def _examples(paths: Sequence[Path], labels: dict[str, int]) -> Iterator[bytes]:
    for path in paths:
        encoded = path.read_bytes()
        try:
            height, width, _ = decode_image(encoded, name=f"'{path}'").shape
        except ImageError as error:
            raise ConversionError(str(error)) from error
        image_format = _FORMATS[path.suffix.lower()]
        yield image_example(encoded, image_format, height, width, labels[path.parent.name])
