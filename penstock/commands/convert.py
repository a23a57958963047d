"""`penstock convert`: datasets to TF-Slim's record files, and between record formats."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from penstock.commands._argument_parser import option, parse
from penstock.commands._failures import UsageError, check, check_numbers, command
from penstock.readers import convert
from penstock.readers.convert.download import show_progress
from penstock.readers.ofrecord_files import find_parts
from penstock.readers.tfrecord_files import find_files

_ARCHIVES = ("cifar10", "mnist", "flowers")
_COPIES = ("ofrecord", "tfrecord")
# Which data sets each flag beside --dataset_name and --dataset_dir has an effect on.
_USED_BY = {
    "base_url": _ARCHIVES,
    "skip_checksum": _ARCHIVES,
    "num_validation": ("flowers", "image_folder"),
    "source": ("image_folder", *_COPIES),
    "num_shards": ("image_folder", *_COPIES),
    "output_name": ("image_folder", "tfrecord"),
    "seed": ("image_folder",),
    "skip_damaged": ("image_folder",),
    "part_name_suffix_length": _COPIES,
    "rename": _COPIES,
    "overwrite": (*_ARCHIVES, "image_folder", *_COPIES),
}
_EXAMPLES = """examples:
  penstock convert --dataset_name=flowers --dataset_dir=data/flowers
  penstock convert --dataset_name=image_folder --source=photos \\
      --dataset_dir=data/photos
  penstock convert --dataset_name=ofrecord --dataset_dir=data/parts \\
      --source='data/photos/images_train*' --rename=slim
"""
# What suits the images, in minutes on a few cores; `penstock models` lists others.
_NETWORKS = {
    "cifar10": ("--model_name=cifarnet", "--num_epochs=10"),
    "mnist": ("--model_name=lenet", "--num_epochs=10"),
    "flowers": ("--model_name=mobilenet_v2", "--train_image_size=128", "--num_epochs=10"),
    "image_folder": ("--model_name=mobilenet_v2", "--train_image_size=128", "--num_epochs=10"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertFlags:
    """Make TF-Slim's record files, and print their paths.

    The source is an original archive or an image folder. TFRecord and OFRecord files can also be
    converted to each other.

    Arguments:
      dataset_name: what to convert: cifar10, mnist or flowers, from the original archives (cifar10
        from cifar-10-binary.tar.gz: TF-Slim's cifar-10-python.tar.gz is pickled, and is not read);
        image_folder, from your images; ofrecord, from your TFRecords; tfrecord, from your
        OFRecords.
      dataset_dir: the folder to write the files to; archives are looked for in it, or downloaded
        to it.
      overwrite: write existing files again, and remove extra files that an earlier conversion
        left.
      base_url: download from this folder of a mirror, not from the original address; for cifar10,
        mnist and flowers.
      skip_checksum: accept archives with another checksum; for cifar10, mnist and flowers.
      num_validation: how many images are held out; by default a tenth for image_folder, and 350 for
        flowers.
      source: what to convert: for image_folder a folder with one folder of images per class, for
        ofrecord TFRecord files as a glob pattern, for tfrecord a folder of OFRecord parts.
      num_shards: how many files to make, for image_folder per split; for image_folder, ofrecord
        and tfrecord.
      output_name: the beginning of the files' names; for image_folder and tfrecord.
      seed: the seed of the shuffle; for image_folder.
      skip_damaged: leave out files that are no whole images, and name them; for image_folder.
      part_name_suffix_length: how many digits the parts' names have, -1 for part-0; for ofrecord
        and tfrecord.
      rename: rename features, as OLD:NEW separated by commas; `slim` renames TF-Slim's names to
        OneFlow's, or back. For ofrecord and tfrecord.
    """

    dataset_name: Literal["cifar10", "mnist", "flowers", "image_folder", "ofrecord", "tfrecord"]
    dataset_dir: str
    overwrite: bool = False
    base_url: str | None = None
    skip_checksum: bool = False
    num_validation: int | None = None
    source: str | None = option("FILES|FOLDER", None)
    num_shards: int = 5
    output_name: str = "images"
    seed: int = 0
    skip_damaged: bool = True
    part_name_suffix_length: int = 5
    rename: str = ""

    def __post_init__(self) -> None:
        usable = [name for name, users in _USED_BY.items() if self.dataset_name in users]
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        changed = [name for name, value in defaults.items() if getattr(self, name) != value]
        if unused := [name for name in changed if name in _USED_BY and name not in usable]:
            used = ", ".join(f"--{name}" for name in usable)
            raise UsageError(
                f"--dataset_name={self.dataset_name} got {', '.join(f'--{n}' for n in unused)}, "
                f"expected none but {used}. It would have no effect. Leave it out."
            )
        # Names of shards have five digits.
        check_numbers(self, "num_validation>=0 num_shards>=1<=99999")
        # It may still have to be made; what is there of its path must be a folder.
        path = Path(self.dataset_dir)
        present = next(part for part in (path, *path.parents, ".") if os.path.exists(part))
        is_folder = bool(self.dataset_dir) and os.path.isdir(present)
        check(self, "dataset_dir", is_folder, "a folder or a path for one.")
        is_url = self.base_url is None or _is_url(self.base_url)
        check(self, "base_url", is_url, "http://... or https://...")
        is_name = bool(self.output_name) and Path(self.output_name).name == self.output_name
        check(self, "output_name", is_name, "a name without a slash.")


# Arguments whose mistake only the files show are still mistakes of usage.
@command(usage_errors=(convert.ArgumentError, FileNotFoundError))
def run(argv: list[str]) -> None:
    """Run `penstock convert` with the arguments after the command's name."""
    flags, _ = parse(ConvertFlags, argv, epilog=_EXAMPLES)
    with show_progress() as progress:
        options = {"force": flags.overwrite, "progress": progress}
        made = _COMMANDS[flags.dataset_name](flags, options)
    for path in made:
        print(path)
    if (command := suggest_training(flags)) is not None:
        # The paths on stdout are for programs.
        print(f"train on it:  {command}", file=sys.stderr)


def suggest_training(flags: ConvertFlags) -> str | None:
    """Return the command that trains a network on what was made; None where there is none.

    >>> suggest_training(ConvertFlags(dataset_name="mnist", dataset_dir="data"))
    'penstock train --dataset_name=mnist --dataset_dir=data --model_name=lenet --num_epochs=10'
    """
    # OFRecord files are for OneFlow. Of parts that become TFRecords nothing says which split
    # they are.
    if flags.dataset_name not in _NETWORKS:
        return None
    name = flags.output_name if flags.dataset_name == "image_folder" else flags.dataset_name
    words = [f"--dataset_name={name}", f"--dataset_dir={flags.dataset_dir}"]
    return shlex.join(["penstock", "train", *words, *_NETWORKS[flags.dataset_name]])


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    # A port that is no number.
    except ValueError:
        return False


def _archive(flags: ConvertFlags, options: Any) -> list[Path]:
    name = flags.dataset_name

    def find(source: convert.RemoteFile) -> convert.RemoteFile:
        return source.at_mirror(flags.base_url, is_checked=not flags.skip_checksum)

    if name == "mnist":
        sources = {file: find(source) for file, source in convert.MNIST.items()}
        return convert.convert_mnist(flags.dataset_dir, sources=sources, **options)
    if name == "cifar10":
        source = find(convert.CIFAR10)
        return convert.convert_cifar10(flags.dataset_dir, source=source, **options)
    options["num_validation"] = 350 if flags.num_validation is None else flags.num_validation
    return convert.convert_flowers(flags.dataset_dir, source=find(convert.FLOWERS), **options)


def _image_folder(flags: ConvertFlags, options: Any) -> list[Path]:
    return convert.convert_image_folder(
        _required_source(flags),
        flags.dataset_dir,
        flags.output_name,
        num_validation=flags.num_validation,
        num_shards=flags.num_shards,
        seed=flags.seed,
        on_error="skip" if flags.skip_damaged else "raise",
        **options,
    )


def _to_ofrecord(flags: ConvertFlags, options: Any) -> list[Path]:
    return convert.tfrecord_to_ofrecord(
        find_files(_required_source(flags)),
        flags.dataset_dir,
        num_parts=flags.num_shards,
        part_name_suffix_length=flags.part_name_suffix_length,
        rename=_rename(flags.rename, convert.SLIM_TO_ONEFLOW),
        **options,
    )


def _to_tfrecord(flags: ConvertFlags, options: Any) -> list[Path]:
    source, count = _required_source(flags), flags.num_shards
    try:
        parts = find_parts(source, suffix_length=flags.part_name_suffix_length)
    # Not enough digits for the parts that there are.
    except ValueError as error:
        raise convert.ArgumentError(str(error)) from error
    names = [f"{flags.output_name}_{n:05d}-of-{count:05d}.tfrecord" for n in range(count)]
    back = {new: old for old, new in convert.SLIM_TO_ONEFLOW.items()}
    return convert.ofrecord_to_tfrecord(
        parts,
        [Path(flags.dataset_dir) / name for name in names],
        rename=_rename(flags.rename, back),
        **options,
    )


_COMMANDS: dict[str, Callable[[ConvertFlags, Any], list[Path]]] = {
    **dict.fromkeys(_ARCHIVES, _archive),
    "image_folder": _image_folder,
    "ofrecord": _to_ofrecord,
    "tfrecord": _to_tfrecord,
}


def _required_source(flags: ConvertFlags) -> str:
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
    is_wrong = any(len(pair) != 2 or not all(pair) for pair in pairs)
    if is_wrong or len({pair[0] for pair in pairs}) < len(pairs):
        raise convert.ArgumentError(
            f"--rename got {text!r}, expected old:new,old:new or slim. Each feature has one new "
            "name. Separate pairs by commas."
        )
    return {pair[0]: pair[1] for pair in pairs}
