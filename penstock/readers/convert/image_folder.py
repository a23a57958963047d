"""A folder of images, one folder per class, as TF-Slim's files; and flowers, which is one."""

from __future__ import annotations

import itertools
import logging
import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from penstock._errors import check_int, check_number
from penstock.readers._archives import Limits, archive_error, unpack
from penstock.readers._read_options import OnError
from penstock.readers.convert import file_set, slim
from penstock.readers.convert.download import Progress, RemoteFile, fetch, no_progress
from penstock.readers.datasets.splits import spread_classes
from penstock.readers.images import ImageFolder, check_damaged, find_damaged
from penstock.readers.records.image_decoding import ImageError, read_image, store_upright

FLOWERS = RemoteFile(
    url="https://storage.googleapis.com/download.tensorflow.org/example_images/flower_photos.tgz",
    sha256="4c54ace7911aaffe13a365c34f650e71dd5bf1be0a58b464e5a7183e3e595d9c",
)
FLOWERS_NUM_VALIDATION = 350
# 3,670 photographs, the largest of 300 KB, 230 MB together.
_FLOWERS_LIMITS = Limits(file_bytes=32 << 20, total_bytes=1 << 30, num_entries=100_000)
_LOGGER = logging.getLogger("penstock")


def convert_flowers(
    dataset_dir: str | Path,
    *,
    source: RemoteFile = FLOWERS,
    num_validation: int = FLOWERS_NUM_VALIDATION,
    force: bool = False,
    progress: Progress = no_progress,
) -> list[Path]:
    """Make `flowers_{train,validation}_%05d-of-00005.tfrecord` and `labels.txt`.

    The archive is unpacked into a temporary folder, unless `flower_photos` exists already.
    TF-Slim draws the validation images from the order in which the file system lists them. Here
    they are drawn with its seed from the sorted names, and are the same on every machine.

    Args:
      dataset_dir: the folder of the files, and of the archive, which is downloaded if missing.
      source: the archive.
      num_validation: number of images held out.
      force: rewrite files that exist already.
      progress: called with the file name, bytes so far and total bytes while downloading.

    Returns:
      The paths of the files.

    Raises:
      DownloadError: the archive cannot be downloaded, or has another checksum.
      ArchiveError: the archive is damaged, or holds something else.
      ConversionError: an image that cannot be decoded.
      ArgumentError: as many images to hold out as there are, or more.
      UnsafeArchiveError: a member of the archive would be written outside its folder.
    """
    targets = _list_targets(dataset_dir, "flowers", num_shards=5)
    if not file_set.needs_making(targets, force=force):
        return targets

    def convert(photos: Path) -> list[Path]:
        return convert_image_folder(
            photos,
            dataset_dir,
            "flowers",
            num_validation=num_validation,
            force=True,
            progress=progress,
        )

    photos = Path(dataset_dir) / "flower_photos"
    # As somebody may have unpacked it: then nothing is downloaded.
    if photos.is_dir():
        return convert(photos)
    archive = fetch(source, dataset_dir, progress=progress)
    with file_set.hidden_folder(Path(dataset_dir), ".unpacked.") as folder:
        unpack(archive, folder, _FLOWERS_LIMITS)
        photos = folder / "flower_photos"
        if not photos.is_dir():
            got, expected = "no folder 'flower_photos'", "the original archive's files"
            raise archive_error(archive, got, expected, "It is another archive")
        return convert(photos)


def convert_image_folder(
    image_dir: str | Path,
    dataset_dir: str | Path,
    dataset_name: str,
    *,
    num_validation: int | None = None,
    num_shards: int = 5,
    seed: int = 0,
    on_error: OnError = "raise",
    force: bool = False,
    progress: Progress = no_progress,
) -> list[Path]:
    """Make `<name>_{train,validation}_%05d-of-%05d.tfrecord` and `labels.txt` from images.

    Classes and images are those of `readers.ImageFolder`: the folders in `image_dir`, and the
    images under each. JPEGs and PNGs are copied byte for byte, except those with an EXIF rotation:
    record readers ignore it, so these are re-encoded upright. Other kinds become PNGs. Each image
    is decoded as a check. Paths are sorted and shuffled with `seed`, and the first
    `num_validation` are held out, of each class its share; shards are filled one after another. If
    all files exist already, nothing is done without `force`.

    Args:
      image_dir: the folder of images.
      dataset_dir: the folder to write to.
      dataset_name: the prefix of the file names.
      num_validation: number of images held out, a tenth of them by default.
      num_shards: number of files per split.
      seed: seeds the shuffling.
      on_error: `"skip"` leaves out files that are not images, and logs their names.
      force: rewrite files that exist already.
      progress: called with `dataset_name`, bytes of images so far and in total.

    Returns:
      The paths of the files.

    Raises:
      FileNotFoundError: no such folder.
      ArgumentError: no images, no images left to train on, no shards, or a name with a slash.
      ConversionError: an image cannot be decoded, or with `"skip"` none of a class.
    """
    _check_arguments(dataset_name, num_shards)
    targets = _list_targets(dataset_dir, dataset_name, num_shards)
    if not file_set.needs_making(targets, force=force):
        return targets
    folder = _open_folder(image_dir)
    rows = _find_whole(folder) if on_error == "skip" else np.arange(len(folder))
    splits = _split(
        folder.labels[rows], num_validation, seed, f"'{Path(image_dir).resolve().name}'"
    )
    starts = np.arange(1, num_shards)
    parts = [
        part
        for split in splits
        for part in np.split(rows[split], starts * -(-len(split) // num_shards))
    ]
    paths = [folder.files[row] for row in np.concatenate(parts)]
    # A broken link is reported where it is read.
    sizes = [os.path.getsize(path) if os.path.exists(path) else 0 for path in paths]
    done, total = itertools.accumulate(sizes), sum(sizes)

    def iterate(part: np.ndarray) -> Iterator[int]:
        for row in part.tolist():
            yield row
            progress(dataset_name, next(done), total)

    shards = (_build_examples(folder, iterate(part), on_error) for part in parts)
    slim.write_splits(targets, shards, folder.class_names)
    return targets


def _check_arguments(dataset_name: str, num_shards: int) -> None:
    check_int("num_shards", num_shards, 1, "Every record needs a file.", file_set.ArgumentError)
    if not dataset_name or Path(dataset_name).name != dataset_name:
        raise file_set.ArgumentError(
            f"dataset_name got {dataset_name!r}, expected a name without a slash. The names of the "
            "files begin with it. Pass the folder as dataset_dir."
        )


def _open_folder(image_dir: str | Path) -> ImageFolder:
    try:
        folder = ImageFolder(image_dir)
        slim.check_label_names(folder.class_names)
    except ValueError as error:
        raise file_set.ArgumentError(str(error)) from error
    return folder


def _find_whole(folder: ImageFolder) -> np.ndarray:
    """Return the indices of files that are images; log the names of the others."""
    damaged = find_damaged(folder.files)
    try:
        notes = check_damaged(folder, damaged)
    except ValueError as error:
        raise file_set.ConversionError(str(error)) from error
    for sentence in notes:
        _LOGGER.warning("%s", sentence)
    return np.setdiff1d(np.arange(len(folder)), damaged)


def _split(
    labels: np.ndarray, num_validation: int | None, seed: int, thing: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the shuffled images to train on, and those held out, by their indices."""
    num_validation = len(labels) // 10 if num_validation is None else num_validation
    begin = f"{thing} got {len(labels)} images, num_validation="
    why = "The other images are the training split."
    check_number(begin, num_validation, f"[0, {len(labels) - 1}]", why, file_set.ArgumentError)
    order = list(range(len(labels)))
    # Python's generator, as TF-Slim's converter has it.
    random.Random(seed).shuffle(order)
    shuffled = np.array(order)
    held_out = spread_classes(labels, shuffled)[:num_validation]
    return shuffled[~np.isin(shuffled, held_out)], held_out


def _list_targets(dataset_dir: str | Path, dataset_name: str, num_shards: int) -> list[Path]:
    names = [
        slim.shard_name(dataset_name, split, shard, num_shards)
        for split in ("train", "validation")
        for shard in range(num_shards)
    ]
    return [Path(dataset_dir) / name for name in (*names, slim.LABELS_FILENAME)]


def _build_examples(folder: ImageFolder, rows: Iterable[int], on_error: OnError) -> Iterator[bytes]:
    for row in rows:
        path = folder.files[row]
        try:
            # Decoded for its size, and to see that it can be.
            encoded, image_format, (height, width) = store_upright(
                read_image(path), name=f"'{path}'"
            )
        except ImageError as error:
            if on_error == "raise":
                raise file_set.ConversionError(str(error)) from error
            _LOGGER.warning("left out: %s", error)
            continue
        yield slim.image_example(encoded, image_format, height, width, int(folder.labels[row]))
