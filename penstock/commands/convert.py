"""`penstock convert`: datasets to TF-Slim's record files, and between record formats."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from penstock._errors import nearest
from penstock.readers import convert
from penstock.readers.convert.progress import shown_progress
from penstock.readers.ofrecord_files import find_parts
from penstock.readers.records.errors import RecordError
from penstock.readers.tfrecord_files import find_files

_ARCHIVES = ("cifar10", "mnist", "flowers")
_COPIES = ("ofrecord", "tfrecord")
_NAMES = (*_ARCHIVES, "image_folder", *_COPIES)
_USED_BY = {
    "source": ("image_folder", *_COPIES),
    "base_url": _ARCHIVES,
    "skip_checksum": _ARCHIVES,
    "num_validation": ("flowers", "image_folder"),
    "num_shards": ("image_folder", *_COPIES),
    "output_name": ("image_folder", "tfrecord"),
    "seed": ("image_folder",),
    "part_name_suffix_length": _COPIES,
    "rename": _COPIES,
    "force": _NAMES,
}
_DEFAULTS = {
    "source": None,
    "base_url": None,
    "skip_checksum": False,
    "num_validation": None,
    "num_shards": 5,
    "output_name": "images",
    "seed": 0,
    "part_name_suffix_length": 5,
    "rename": "",
    "force": False,
}
_EXAMPLES = """examples:
  penstock convert --dataset_name=flowers --dataset_dir=data/flowers
  penstock convert --dataset_name=image_folder --source=photos --dataset_dir=data/photos
  penstock convert --dataset_name=ofrecord --source='data/photos/images_train*' \\
      --dataset_dir=data/parts --rename=slim
"""
_MAX_SHARDS = 99_999  # their names have five digits


def run(argv: list[str]) -> int:
    """Run `penstock convert` with the arguments after the command's name.

    The paths go to stdout; progress, warnings and errors to stderr.

    Returns:
      The exit status: 0 when the files were made, or are there already and stay as they are; 1
      when something was wrong with a file or the network; 2 when an argument was, by
      `SystemExit` where it cannot be parsed.
    """
    flags = _parse(argv)
    try:
        made = _COMMANDS[flags.dataset_name](flags)
    except (convert.ArgumentError, FileNotFoundError) as error:
        print(f"penstock convert: {error}", file=sys.stderr)
        return 2
    except (OSError, convert.ArchiveError, convert.ConversionError, RecordError) as error:
        print(f"penstock convert: {error}", file=sys.stderr)
        return 1
    for path in made:
        print(path)
    return 0


class _Parser(argparse.ArgumentParser):
    """Say what is wrong in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith(("?", ".")) else "."
        self.exit(2, f"{self.prog}: {message}{end} `{self.prog} --help` says more.\n")


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = _parser()
    given = vars(parser.parse_args(argv))
    name = given["dataset_name"]
    unused = [flag for flag in _USED_BY if flag in given and name not in _USED_BY[flag]]
    if unused:
        used = ", ".join(f"--{flag}" for flag in _USED_BY if name in _USED_BY[flag])
        parser.error(
            f"--dataset_name={name} got {', '.join(f'--{flag}' for flag in unused)}, expected "
            f"none but {used}. It would have no effect. Leave it out"
        )
    return argparse.Namespace(**{**_DEFAULTS, **given})


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="penstock convert",
        usage="penstock convert --dataset_name=NAME --dataset_dir=FOLDER [OPTIONS]",
        description="Make TF-Slim's record files from the original archives or an image folder,\n"
        "or convert between TFRecord and OFRecord. Prints the paths of the files.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    add = parser.add_argument
    add(
        "--dataset_name",
        required=True,
        type=_name,
        metavar="NAME",
        help="cifar10, mnist or flowers, from the original archives (cifar10 from "
        "cifar-10-binary.tar.gz: TF-Slim's cifar-10-python.tar.gz is pickled, and is not read); "
        "image_folder, from your images; ofrecord, from your TFRecords; tfrecord, from your "
        "OFRecords",
    )
    add(
        "--dataset_dir",
        required=True,
        type=_folder,
        metavar="FOLDER",
        help="where the files go, and where archives are looked for and downloaded to",
    )
    add(
        "--force",
        action="store_true",
        help="make files again that are there already, and remove "
        "those that an earlier conversion to more files left",
    )
    add(
        "--num_validation",
        type=_int(0),
        metavar="N",
        help="image_folder, flowers: images held out (default: a tenth; flowers: 350)",
    )
    _add_archive_options(parser)
    _add_source_options(parser)
    return parser


def _add_archive_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("cifar10, mnist, flowers").add_argument
    add(
        "--base_url",
        type=_url,
        metavar="URL",
        help="a mirror's folder to download from, not the original address",
    )
    add("--skip_checksum", action="store_true", help="take archives of another checksum")


def _add_source_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("image_folder, ofrecord, tfrecord").add_argument
    add(
        "--source",
        metavar="PATH",
        help="a folder that holds a folder of images for each class; TFRecord files as a glob "
        "pattern; or a folder of OFRecord parts",
    )
    add(
        "--num_shards",
        type=_int(1, _MAX_SHARDS),
        metavar="N",
        help="number of files to make, of each split for image_folder (default: 5)",
    )
    add(
        "--output_name",
        type=_plain_name,
        metavar="NAME",
        help="image_folder, tfrecord: what the files' names begin with (default: images)",
    )
    add("--seed", type=int, metavar="N", help="image_folder: of the shuffle (default: 0)")
    add(
        "--part_name_suffix_length",
        type=_suffix_length,
        metavar="N",
        help="ofrecord, tfrecord: digits in the parts' names, -1 for part-0 (default: 5)",
    )
    add(
        "--rename",
        metavar="OLD:NEW,...",
        help="ofrecord, tfrecord: features under new names; `slim` is TF-Slim's names to "
        "OneFlow's, or back",
    )


def _name(text: str) -> str:
    if text not in _NAMES:
        raise argparse.ArgumentTypeError(
            f"got {text!r}, expected one of: {', '.join(_NAMES)}.{nearest(text, _NAMES)}"
        )
    return text


def _folder(text: str) -> str:
    present = next(path for path in (Path(text), *Path(text).parents, ".") if os.path.exists(path))
    if not text or not os.path.isdir(present):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a folder or a path for one")
    return text


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        is_url = False
    if not is_url:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected http://... or https://...")
    return text


def _plain_name(text: str) -> str:
    if not text or Path(text).name != text:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a name without a slash")
    return text


def _int(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    expected = f"an int >= {minimum}" if maximum is None else f"an int {minimum} to {maximum}"

    def parse(text: str) -> int:
        number = int(text) if text.isascii() and text.isdigit() else -1
        if number < minimum or (maximum is not None and number > maximum):
            raise argparse.ArgumentTypeError(f"got {text!r}, expected {expected}")
        return number

    return parse


def _suffix_length(text: str) -> int:
    if text != "-1" and not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected -1 or an int >= 1")
    return int(text)


def _cifar10(flags: argparse.Namespace) -> list[Path]:
    source = convert.CIFAR10.moved(flags.base_url, is_checked=not flags.skip_checksum)
    with shown_progress() as progress:
        return convert.convert_cifar10(
            flags.dataset_dir, source=source, force=flags.force, progress=progress
        )


def _mnist(flags: argparse.Namespace) -> list[Path]:
    sources = {
        name: source.moved(flags.base_url, is_checked=not flags.skip_checksum)
        for name, source in convert.MNIST.items()
    }
    with shown_progress() as progress:
        return convert.convert_mnist(
            flags.dataset_dir, sources=sources, force=flags.force, progress=progress
        )


def _flowers(flags: argparse.Namespace) -> list[Path]:
    source = convert.FLOWERS.moved(flags.base_url, is_checked=not flags.skip_checksum)
    with shown_progress() as progress:
        return convert.convert_flowers(
            flags.dataset_dir,
            source=source,
            num_validation=350 if flags.num_validation is None else flags.num_validation,
            force=flags.force,
            progress=progress,
        )


def _image_folder(flags: argparse.Namespace) -> list[Path]:
    with shown_progress() as progress:
        return convert.convert_image_folder(
            _required_source(flags),
            flags.dataset_dir,
            flags.output_name,
            num_validation=flags.num_validation,
            num_shards=flags.num_shards,
            seed=flags.seed,
            force=flags.force,
            progress=progress,
        )


def _to_ofrecord(flags: argparse.Namespace) -> list[Path]:
    with shown_progress() as progress:
        return convert.tfrecord_to_ofrecord(
            find_files(_required_source(flags)),
            flags.dataset_dir,
            num_parts=flags.num_shards,
            part_name_suffix_length=flags.part_name_suffix_length,
            rename=_rename(flags.rename, convert.SLIM_TO_ONEFLOW),
            force=flags.force,
            progress=progress,
        )


def _to_tfrecord(flags: argparse.Namespace) -> list[Path]:
    source = _required_source(flags)
    try:
        parts = find_parts(source, suffix_length=flags.part_name_suffix_length)
    except ValueError as error:  # not enough digits for the parts there are
        raise convert.ArgumentError(str(error)) from error
    names = (
        f"{flags.output_name}_{shard:05d}-of-{flags.num_shards:05d}.tfrecord"
        for shard in range(flags.num_shards)
    )
    back = {new: old for old, new in convert.SLIM_TO_ONEFLOW.items()}
    with shown_progress() as progress:
        return convert.ofrecord_to_tfrecord(
            parts,
            [Path(flags.dataset_dir) / name for name in names],
            rename=_rename(flags.rename, back),
            force=flags.force,
            progress=progress,
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
    if not flags.source:
        raise convert.ArgumentError(
            f"--source got nothing, expected a path. --dataset_name={flags.dataset_name} converts "
            "files of yours. Pass --source=..."
        )
    return flags.source


def _rename(text: str, slim: dict[str, str]) -> dict[str, str]:
    if text == "slim":
        return slim
    pairs = [pair.split(":") for pair in text.split(",") if pair]
    if any(len(pair) != 2 or not all(pair) for pair in pairs) or len(
        {pair[0] for pair in pairs}
    ) < len(pairs):
        raise convert.ArgumentError(
            f"--rename got {text!r}, expected old:new,old:new or slim. Each feature has one new "
            "name. Separate pairs by commas."
        )
    return {pair[0]: pair[1] for pair in pairs}
