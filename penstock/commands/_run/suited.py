"""What `penstock train photos/` chooses: network, size, batch, schedule and epochs that suit.

The one place where these choices are. A choice follows from the number of images, the kind of
machine and the flags that are given, so that the same line chooses the same again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from penstock import _mesh
from penstock._cores import num_usable_cores
from penstock._text_tables import find_columns, wrap_words
from penstock.commands._argument_parser import FlagValue
from penstock.commands._failures import split_words
from penstock.commands._flags import TrainFlags, make_train_flags
from penstock.commands._run.processes import join_processes
from penstock.commands._run.splits import Split, open_split

_FEW_IMAGES = 200
_MAX_EPOCHS = 200
# With fewer a rate that rises and falls does neither.
_FEW_STEPS = 10
# Decoded images are kept in memory up to this: three bytes for each of 1.5 times the pixels of a
# square one.
_MAX_CACHE_BYTES = 2 << 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """What suits a kind of machine; the epochs follow from `num_steps` and the images."""

    model_name: str
    train_image_size: int
    batch_size: int
    optimizer: str
    learning_rate: float
    num_steps: int
    min_epochs: int
    why: str
    other: str


_ON_CPU = Choice(
    model_name="resnet_cifar10_8",
    train_image_size=32,
    batch_size=32,
    optimizer="momentum",
    learning_rate=0.3,
    num_steps=1500,
    min_epochs=15,
    why="A CPU trains a small network on small images in minutes, a large one in hours.",
    other="--model_name=mobilenet_v2 --train_image_size=128 --num_epochs=50",
)
_ON_ACCELERATOR = Choice(
    model_name="resnet50",
    train_image_size=160,
    batch_size=64,
    # Not adam: TensorFlow 1's epsilon of 1 in it makes steps too small for a short run.
    optimizer="optax.adam",
    learning_rate=0.001,
    num_steps=6000,
    min_epochs=5,
    why="An accelerator trains a network of this size in minutes.",
    other="--model_name=mobilenet_v1_025 --train_image_size=96",
)
# Of a network that the user names, or whose weights are there: what most of them learn with.
_OPTIMIZER = "optax.adam"
_LEARNING_RATE = {"pretrain": 0.001, "finetune": 0.0003}


class Suited(NamedTuple):
    """Flags for a folder of one's own data; `chosen` are those that nobody gave, by name."""

    flags: TrainFlags
    choice: Choice
    chosen: Mapping[str, FlagValue]
    split: Split

    def print(self) -> None:
        num_classes, is_cpu = self.split.num_classes, self.choice is _ON_CPU
        machine = f"{num_usable_cores()} CPU cores" if is_cpu else "an accelerator"
        of_classes = "" if num_classes is None else f" of {num_classes} classes"
        images = f"{self.split.num_samples:,} images{of_classes}"
        lines = [f"{self.flags.dataset.dataset_dir}: {images} to train on, and {machine}."]
        if self.chosen:
            words = " ".join(f"--{name}={value}" for name, value in self.chosen.items())
            is_named = "model_name" not in self.chosen
            why = "The network is the one you named." if is_named else self.choice.why
            lines += [f"  chosen     {words}", f"  why        {why}"]
            other = f"any flag that you give wins, such as {self.choice.other}"
            lines.append(f"  otherwise  {other}")
            if not is_named:
                start = "with few images, start from published weights: `penstock docs weights`"
                lines.append(f"{'':13}{start}")
        # Also where it is no terminal: it is for a person.
        columns = find_columns() or 80
        for line in lines:
            print(wrap_words(line, columns, " " * 13 if line is not lines[0] else ""))
        if self.chosen:
            print(flush=True)


def suit(data: Mapping[str, str], overrides: Mapping[str, FlagValue]) -> Suited:
    """Return flags that suit the data in a folder and this machine; `overrides` win."""
    # A file that is no picture is no reason to train on none of a folder of photos. Of a set of
    # records, which a program has written, damage is unexpected, and stays an error.
    if data["dataset_name"] == "image_folder":
        overrides = {"skip_damaged": True, **overrides}
    plain = make_train_flags({**overrides, **data})
    # Devices start only when all processes are there.
    join_processes(split_words(plain.performance.worker_hosts), plain.performance.task_index)
    is_cpu = _mesh.find_devices(plain.performance.place)[0].platform == "cpu"
    choice = _ON_CPU if is_cpu else _ON_ACCELERATOR
    split = open_split(plain, "train")
    chosen = choose(choice, plain, overrides, split.num_samples)
    return Suited(make_train_flags({**chosen, **overrides, **data}), choice, chosen, split)


def choose(
    choice: Choice, plain: TrainFlags, overrides: Mapping[str, FlagValue], num_images: int
) -> dict[str, FlagValue]:
    """Return the flags that nobody gave, by name; `plain` has the defaults for them."""
    task = plain.model.task_type
    is_named = "model_name" in overrides
    batch_size = choice.batch_size // 2 if num_images < _FEW_IMAGES else choice.batch_size
    # The epochs of `auto` are those of our own size.
    own_size = overrides.get("batch_size")
    size = own_size if isinstance(own_size, int) else batch_size
    # About so many steps, as a round number: a few images more or less choose the same, and a run
    # goes on.
    epochs = choice.num_steps * size / num_images
    epochs = 5 * round(epochs / 5) if epochs >= 10 else round(epochs)
    chosen: dict[str, FlagValue] = {
        "model_name": choice.model_name,
        "optimizer": _OPTIMIZER if is_named else choice.optimizer,
        "learning_rate": _LEARNING_RATE[task] if is_named else choice.learning_rate,
        "learning_rate_decay_type": "one_cycle",
        "batch_size": batch_size,
        "num_epochs": min(max(epochs, choice.min_epochs), _MAX_EPOCHS),
    }
    size_of_image = plain.image_size
    # Weights know their own images; a network that the user names has a size.
    if task == "pretrain":
        chosen["preprocessing_name"] = "torchvision_mild"
        if not is_named:
            chosen["train_image_size"] = choice.train_image_size
            size_of_image = plain.preprocessing.train_image_size or choice.train_image_size
    side = 2 * size_of_image
    is_folder, num_bytes = plain.dataset.dataset_name == "image_folder", num_images * side**2 * 4.5
    if is_folder and num_bytes <= _MAX_CACHE_BYTES:
        chosen["cache_image_size"] = side
    # Another optimizer than ours has another rate.
    if "optimizer" in overrides:
        del chosen["learning_rate"]
    if overrides.get("stop_at_step"):
        del chosen["num_epochs"]
    if _count_steps({**chosen, **overrides, "batch_size": size}, num_images) < _FEW_STEPS:
        chosen["learning_rate_decay_type"] = "cosine"
    return {name: value for name, value in chosen.items() if name not in overrides}


def _count_steps(flags: Mapping[str, FlagValue], num_images: int) -> int:
    epochs, size, stop = (
        int(str(flags.get(name) or 0)) for name in ("num_epochs", "batch_size", "stop_at_step")
    )
    steps = epochs * -(-num_images // size)
    return min(steps or stop, stop or steps)
