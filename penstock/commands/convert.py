"""`penstock convert`: datasets to TF-Slim's record files, and between record formats."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.readers import convert
from penstock.readers.convert.download import Progress
from penstock.readers.ofrecord_files import find_parts
from penstock.readers.records.errors import RecordError
from penstock.readers.tfrecord_files import find_files

if TYPE_CHECKING:
    from rich.progress import TaskID

_NAMES = ("cifar10", "mnist", "flowers", "image_folder", "ofrecord", "tfrecord")


def run(argv: list[str]) -> int:
    """Run `penstock convert` with the arguments after the command's name.

    Returns:
      The exit status: 0 when the files were made, or are there already and stay as they are; 1
      when something was wrong with a file or the network; 2 (by argparse) when an argument was.
    """
    flags = _parser().parse_args(argv)
    try:
        made = _COMMANDS[flags.dataset_name](flags)
    except (OSError, convert.ConversionError, RecordError) as error:
        print(f"penstock convert: {error}", file=sys.stderr)
        return 1
    for path in made:
        print(path)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock convert",
        description="Make TF-Slim's record files from the original archives or an image folder, "
        "or convert between TFRecord and OFRecord.",
    )
    add = parser.add_argument
    add(
        "--dataset_name",
        required=True,
        choices=_NAMES,
        help="cifar10, mnist, flowers; image_folder: --source is a folder a class; ofrecord: "
        "--source is TFRecord files, converted to OFRecord; tfrecord: --source is an OFRecord "
        "folder, converted to TFRecord",
    )
    add("--dataset_dir", required=True, help="where the files go, and downloads are looked for")
    add("--source", help="image folder, TFRecord glob pattern or OFRecord folder")
    add("--base_url", help="a mirror to download from instead of the original address")
    add("--skip_checksum", action="store_true", help="take archives of another checksum")
    add("--num_validation", type=int, help="images held out (flowers: 350, image_folder: a tenth)")
    add("--num_shards", type=int, default=5, help="files a split, or OFRecord parts, or TFRecords")
    add("--output_name", default="images", help="what the names of the files begin with")
    add("--part_name_suffix_length", type=int, default=5, help="digits in OFRecord part names")
    add("--rename", default="", help="old:new,... or slim: TF-Slim's names to OneFlow's")
    add("--force", action="store_true", help="make files again that are there already")
    add("--seed", type=int, default=0, help="shuffles an image folder")
    return parser


def _cifar10(flags: argparse.Namespace) -> list[Path]:
    source = convert.CIFAR10.moved(flags.base_url, is_checked=not flags.skip_checksum)
    with _Bar() as progress:
        return convert.convert_cifar10(
            flags.dataset_dir, source=source, force=flags.force, progress=progress
        )


def _mnist(flags: argparse.Namespace) -> list[Path]:
    sources = {
        name: source.moved(flags.base_url, is_checked=not flags.skip_checksum)
        for name, source in convert.MNIST.items()
    }
    with _Bar() as progress:
        return convert.convert_mnist(
            flags.dataset_dir, sources=sources, force=flags.force, progress=progress
        )


def _flowers(flags: argparse.Namespace) -> list[Path]:
    source = convert.FLOWERS.moved(flags.base_url, is_checked=not flags.skip_checksum)
    with _Bar() as progress:
        return convert.convert_flowers(
            flags.dataset_dir,
            source=source,
            num_validation=350 if flags.num_validation is None else flags.num_validation,
            force=flags.force,
            progress=progress,
        )


def _image_folder(flags: argparse.Namespace) -> list[Path]:
    source = Path(_required_source(flags))
    num_validation = flags.num_validation
    if num_validation is None:
        num_validation = sum(1 for path in source.glob("*/*") if path.is_file()) // 10
    return convert.convert_image_folder(
        source,
        flags.dataset_dir,
        flags.output_name,
        num_validation=num_validation,
        num_shards=flags.num_shards,
        seed=flags.seed,
        force=flags.force,
    )


def _to_ofrecord(flags: argparse.Namespace) -> list[Path]:
    return convert.tfrecord_to_ofrecord(
        find_files(_required_source(flags)),
        flags.dataset_dir,
        num_parts=flags.num_shards,
        part_name_suffix_length=flags.part_name_suffix_length,
        rename=_rename(flags.rename, convert.SLIM_TO_ONEFLOW),
        force=flags.force,
    )


def _to_tfrecord(flags: argparse.Namespace) -> list[Path]:
    parts = find_parts(_required_source(flags), suffix_length=flags.part_name_suffix_length)
    names = (
        f"{flags.output_name}_{shard:05d}-of-{flags.num_shards:05d}.tfrecord"
        for shard in range(flags.num_shards)
    )
    back = {new: old for old, new in convert.SLIM_TO_ONEFLOW.items()}
    return convert.ofrecord_to_tfrecord(
        parts,
        [Path(flags.dataset_dir) / name for name in names],
        rename=_rename(flags.rename, back),
        force=flags.force,
    )


_COMMANDS: dict[str, Callable[[argparse.Namespace], list[Path]]] = {
    "cifar10": _cifar10,
    "mnist": _mnist,
    "flowers": _flowers,
    "image_folder": _image_folder,
    "ofrecord": _to_ofrecord,
    "tfrecord": _to_tfrecord,
}


def _required_source(flags: argparse.Namespace) -> str:
    if flags.source is None:
        raise convert.ConversionError(
            f"--source got nothing, expected a path. --dataset_name={flags.dataset_name} converts "
            "files of yours. Pass --source=..."
        )
    return flags.source


def _rename(text: str, slim: dict[str, str]) -> dict[str, str]:
    if text == "slim":
        return slim
    pairs = [pair.split(":") for pair in text.split(",") if pair]
    if any(len(pair) != 2 for pair in pairs):
        raise convert.ConversionError(
            f"--rename got {text!r}, expected old:new,old:new or slim. Each feature has one new "
            "name. Separate pairs by commas."
        )
    return {pair[0]: pair[1] for pair in pairs}


class _Bar:
    """A progress bar a download; nothing where there is no terminal."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

        columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._progress = Progress(*columns)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Progress:
        self._progress.start()
        return self._report

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _report(self, filename: str, num_bytes: int, total_bytes: int | None) -> None:
        if filename not in self._tasks:
            self._tasks[filename] = self._progress.add_task(filename, total=total_bytes)
        self._progress.update(self._tasks[filename], completed=num_bytes, total=total_bytes)
