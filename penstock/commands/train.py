"""`penstock train`: train a network of the model library, with FastNN's flags."""

from __future__ import annotations

import argparse
import dataclasses
import functools
from typing import TYPE_CHECKING

from penstock.commands._argument_parser import describe, parse, positional
from penstock.commands._failures import command
from penstock.commands._image_folders import describe_folder

if TYPE_CHECKING:
    from penstock.commands._flags import TrainFlags
    from penstock.commands._run.suited import Suited

PROG = "penstock train"
EXAMPLES = f"""examples:
  {PROG} photos/       # your own images, one folder per class
  {PROG}               # handwritten digits
  {PROG} --dataset_name=cifar10 --dataset_dir=data/cifar10 \\
      --model_name=resnet_v1_50 --num_epochs=20"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Folder:
    """Train a network on the images in FOLDER, which holds one folder per class, or on the data
    that the flags name. For a FOLDER, the network and its settings are chosen for you.

    Arguments:
      folder: train on the images in this folder, which holds one folder per class. The network,
        image size, batch size, schedule and epochs are chosen for it; flags override them.
    """

    folder: str | None = positional("FOLDER", "?")


# By what stands before the equals sign; their defaults are tested against the flags' own.
BASIC_FLAGS = {
    "model_name=NAME": "Train this network; `penstock models` lists them. (default: lenet)",
    "dataset_name=NAME": "Train on these images: digits, mnist, fashion_mnist, cifar10, cifar100, "
    "flowers, or image_folder for your own. (default: digits)",
    "dataset_dir=FOLDER": "Read the images of --dataset_name there. Not needed with FOLDER.",
    "num_epochs=INT": "Go through the images this many times. Without it, the run ends after 100 "
    "steps.",
    "batch_size=INT": "Use this many images in each step, on each device. (default: 32)",
    "learning_rate=FLOAT": "Reach this learning rate, the highest of the run. (default: 0.01; for "
    "adam 0.001)",
    "train_image_size=INT": "Make the images this many pixels high and wide. By default, the "
    "network decides.",
    "output_dir=FOLDER": "Write the run there, to runs/<data>_<network>. (default: .)",
}
_MORE = (
    f"`{PROG} --help_all` lists all flags. If a run was interrupted, repeat the command to resume "
    "it. `penstock docs train_command` says more."
)


def format_help() -> str:
    """Return the short help, as wide as the terminal."""
    parser = argparse.ArgumentParser(
        usage=f"{PROG} [FOLDER] [OPTIONS]",
        description=" ".join(describe(_Folder).split()),
        epilog=_MORE,
        add_help=False,
        formatter_class=functools.partial(argparse.HelpFormatter, max_help_position=30),
    )
    # With the value in its name, as it is written.
    for name, text in BASIC_FLAGS.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    return f"{parser.format_help()}\n{EXAMPLES}"


_EXAMPLES = f"""{EXAMPLES}
  {PROG} photos/ --model_name=mobilenet_v2 --train_image_size=128
  {PROG} photos/ --model_name=mobilenet_v2 \\
      --task_type=finetune --model_dir=weights \\
      --ckpt_file_name=mobilenet_v2_1.0_224.ckpt
  {PROG} --dataset_name=mock --model_name=resnet_v1_50  # how fast?

`penstock docs train_command` says more."""


@command()
def run(argv: list[str]) -> None:
    """Run `penstock train` with the arguments after the command's name."""
    if "-h" in argv or "--help" in argv:
        print(format_help())
        return
    # Imported here, and below: JAX takes seconds, and `penstock train --help` needs none of it.
    from penstock.commands._run.processes import is_writing_process
    from penstock.commands._run.training import train

    flags, suited = _resolve(argv)
    if suited is not None and is_writing_process():
        suited.print()
    train(flags)


def read_flags(argv: list[str]) -> TrainFlags:
    """Return the flags that words stand for.

    Raises:
      UsageError: an unknown flag or a wrong value.

    >>> read_flags(["--model_name=vgg_16", "--use_fp16=False"]).model.model_name
    'vgg_16'
    """
    return _resolve(argv)[0]


def _resolve(argv: list[str]) -> tuple[TrainFlags, Suited | None]:
    """Return the flags that words stand for, and for a folder what was chosen.

    Words win over the file that `--config` among them names, that over what is chosen for a folder,
    and that over the defaults.
    """
    from penstock.commands._flags import TRAIN_FLAGS, make_train_flags, read_config

    words, overrides = parse(
        _Folder,
        argv,
        epilog=_EXAMPLES,
        extra=TRAIN_FLAGS,
        help_flag="--help_all",
        unused="unused",
    )
    data = None if words.folder is None else describe_folder(words.folder, overrides)
    if (config := overrides.get("config")) is not None:
        overrides = {**read_config(str(config)), **overrides}
    if data is None:
        return make_train_flags(overrides), None
    from penstock.commands._run.suited import suit

    suited = suit(data, overrides)
    return suited.flags, suited
