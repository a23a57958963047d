"""What `penstock train --help` prints: the flags that a beginner needs.

It needs none of what training needs, and so comes at once. `--help_all` lists every flag.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

PROG = "penstock train"
ABOUT = (
    "Train a network on the images in FOLDER, which holds one folder per class, or on the data "
    "that the flags name. For a FOLDER, the network and its settings are chosen for you."
)
EXAMPLES = f"""examples:
  {PROG} photos/       # your own images, one folder per class
  {PROG}               # handwritten digits
  {PROG} --dataset_name=cifar10 --dataset_dir=data/cifar10 \\
      --model_name=resnet_v1_50 --num_epochs=20"""


class BasicFlag(NamedTuple):
    """A flag of the short help.

    Arguments:
      value: what stands for its value.
      help: what it does, in a sentence or two.
      default: as text; empty where the help says it.
    """

    value: str
    help: str
    default: str = ""


BASIC_FLAGS = {
    "model_name": BasicFlag("NAME", "Train this network; `penstock models` lists them.", "lenet"),
    "dataset_name": BasicFlag(
        "NAME",
        "Train on these images: digits, mnist, fashion_mnist, cifar10, cifar100, flowers, or "
        "image_folder for your own.",
        "digits",
    ),
    "dataset_dir": BasicFlag(
        "FOLDER", "Read the images of --dataset_name there. Not needed with FOLDER."
    ),
    "num_epochs": BasicFlag(
        "INT", "Go through the images this many times. Without it, the run ends after 100 steps."
    ),
    "batch_size": BasicFlag("INT", "Use this many images in each step, on each device.", "32"),
    "learning_rate": BasicFlag(
        "FLOAT", "Reach this learning rate, the highest of the run.", "0.01; for adam 0.001"
    ),
    "train_image_size": BasicFlag(
        "INT", "Make the images this many pixels high and wide. By default, the network decides."
    ),
    "output_dir": BasicFlag("FOLDER", "Write the run there, to runs/<data>_<network>.", "."),
}


def asks_for_help(words: Sequence[str]) -> bool:
    """Say whether words of a command line ask for the short help."""
    return "-h" in words or "--help" in words


def format_help() -> str:
    """Return the short help, as wide as the terminal."""
    columns = shutil.get_terminal_size().columns
    names = {name: f"  --{name}={flag.value}" for name, flag in BASIC_FLAGS.items()}
    indent = max(map(len, names.values())) + 2
    lines = [f"usage: {PROG} [FOLDER] [OPTIONS]", "", textwrap.fill(ABOUT, columns), "", EXAMPLES]
    lines += ["", "options:"]
    for name, flag in BASIC_FLAGS.items():
        text = f"{flag.help} (default: {flag.default})" if flag.default else flag.help
        # Never so narrow that each word has a line.
        wrapped = textwrap.wrap(text, max(columns - indent, 20), break_on_hyphens=False)
        lines.append(f"{names[name]:{indent}}{wrapped[0]}")
        lines += [" " * indent + line for line in wrapped[1:]]
    more = (
        f"`{PROG} --help_all` lists all flags. If a run was interrupted, repeat the command to "
        "resume it. `penstock docs train_command` says more."
    )
    return "\n".join([*lines, "", textwrap.fill(more, columns, break_on_hyphens=False)])
