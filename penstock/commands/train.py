"""`penstock train`: train a network of the model library, with FastNN's flags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.commands._argument_parser import read_words
from penstock.commands._failures import run_command
from penstock.commands._train_help import ABOUT, EXAMPLES, PROG, asks_for_help, format_help

if TYPE_CHECKING:
    from penstock.commands._flags import TrainFlags

_EXAMPLES = f"""{EXAMPLES}
  {PROG} --dataset_name=image_folder --dataset_dir=photos \\
      --model_name=mobilenet_v2 --task_type=finetune --model_dir=weights \\
      --ckpt_file_name=mobilenet_v2_1.0_224.ckpt
  {PROG} --dataset_name=mock --model_name=resnet_v1_50  # how fast?

docs/train_command.md says more."""


def run(argv: list[str]) -> int:
    """Run `penstock train` with the arguments after the command's name.

    Returns:
      The exit status: 0 when the run is over, 1 when it failed, 2 when it was called wrongly; an
      interrupt is raised.
    """
    if asks_for_help(argv):
        print(format_help())
        return 0
    return run_command("train", lambda: _train(argv))


def read_flags(argv: list[str]) -> TrainFlags:
    """Return the flags that words stand for.

    Raises:
      UsageError: an unknown flag or a wrong value.

    >>> read_flags(["--model_name=vgg_16", "--use_fp16=False"]).model.model_name
    'vgg_16'
    """
    # Imported here, and below: JAX takes seconds, and `penstock train --help` needs none of it.
    from penstock.commands._flags import TRAIN_FLAGS, make_train_flags

    given = read_words(
        TRAIN_FLAGS,
        argv,
        prog=PROG,
        text=ABOUT,
        epilog=_EXAMPLES,
        help_flag="--help_all",
        unused="unused",
    )
    return make_train_flags(given)


def _train(argv: list[str]) -> None:
    from penstock.commands._run.training import train

    train(read_flags(argv))
