"""`penstock show`: the images that a network is fed in training, as a picture."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from penstock import readers
from penstock._errors import check_installed
from penstock._text_tables import escape
from penstock.commands._argument_parser import FlagValue, option, parse, positional
from penstock.commands._failures import check_numbers, command
from penstock.commands._flags import TrainFlags, choose_flags, make_train_flags
from penstock.commands._image_folders import describe_folder
from penstock.commands._run.data import check_has_pictures, open_data
from penstock.commands._run.splits import get_image_and_label, open_split, to_bytes
from penstock.commands._run.suited import suit
from penstock.handlers.figures import check_path, save
from penstock.readers.records.image_decoding import convert_channels

_EXAMPLES = """examples:
  penstock show photos/
  penstock show photos/ --raw
  penstock show --dataset_name=cifar10 --dataset_dir=data/cifar10 \\
      --model_name=resnet50 --preprocessing_name=inception

The network, image size and preprocessing are those that `penstock train`
would use with the same flags."""
_FROM_TRAIN = choose_flags(
    *("dataset_name", "dataset_dir", "train_files", "num_classes", "labels_offset"),
    *("model_name", "train_image_size", "preprocessing_name", "seed", "plugin"),
)
_COLUMNS = 8
_MAX_NAME = 18


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShowFlags:
    """Show what a network gets in training: images after augmentation, with their classes.

    Arguments:
      folder: a folder with one folder of images per class; without it the data that the flags
        name, by default handwritten digits.
      images: how many images to show.
      raw: show the images as they are stored, before any preprocessing.
      output: the picture to draw: .png, .svg or .pdf.
    """

    folder: str | None = positional("FOLDER", "?")
    images: int = 32
    raw: bool = False
    output: str = option("FILE", "show.png")

    def __post_init__(self) -> None:
        check_numbers(self, "images>=1")
        check_path("--output", self.output)


class _Shown(NamedTuple):
    """Images `[H, W, 1 or 3]` of uint8, their classes, and what the numbers were before."""

    images: Sequence[np.ndarray]
    names: Sequence[str]
    about: str


@command()
def run(argv: list[str]) -> None:
    """Run `penstock show` with the arguments after the command's name."""
    flags, overrides = parse(ShowFlags, argv, epilog=_EXAMPLES, extra=_FROM_TRAIN)
    path = check_path("--output", flags.output)
    check_installed("matplotlib", "plot", "penstock show")
    train_flags = _make_flags(flags.folder, {**overrides, "batch_size": flags.images})
    shown = _read_raw(train_flags, flags.images) if flags.raw else _read_fed(train_flags)
    _draw(path, shown)
    print(f"{escape(str(path))}  ({len(shown.images)} images, {shown.about})")


def _make_flags(folder: str | None, overrides: Mapping[str, FlagValue]) -> TrainFlags:
    # In this process: a picture is not worth starting others.
    overrides = {**overrides, "num_preprocessing_threads": 0}
    if folder is not None:
        return suit(describe_folder(folder, overrides), overrides).flags
    flags = make_train_flags(overrides)
    check_has_pictures(flags.dataset)
    return flags


def _read_raw(flags: TrainFlags, count: int) -> _Shown:
    split = open_split(flags, "train")
    source = split.make(batch_size=None, num_workers=0, seed=flags.performance.seed, shuffle=True)
    images, labels = [], []
    for sample in itertools.islice(source(), count):
        image, label = get_image_and_label(sample)
        images.append(to_bytes(image))
        labels.append(label)
    sizes = sorted({image.shape[:2] for image in images})
    about = f"{sizes[0][0]} x {sizes[0][1]}" if len(sizes) == 1 else f"of {len(sizes)} sizes"
    return _Shown(images, _name(labels, split.class_names or ()), f"as stored, {about}")


def _read_fed(flags: TrainFlags) -> _Shown:
    data = open_data(flags, None, num_devices=1, shard=readers.Shard(0, 1))
    batch, chosen = next(iter(data.train())), data.shape.preprocessing
    images = np.asarray(batch["image"])
    if chosen is not None:
        # The device's part of it.
        keys = jax.random.split(jax.random.key(flags.performance.seed), len(images))
        draws = jax.vmap(chosen.draw)(keys)
        images = np.asarray(jax.vmap(chosen.finish)(jnp.asarray(images, np.float32), draws))
    low, high = float(images.min()), float(images.max())
    # From the least to the largest: a network's numbers may be below 0.
    scaled = np.rint((images - low) * (255 / max(high - low, 1e-9))).astype(np.uint8)
    shown = [image if image.shape[-1] == 1 else convert_channels(image, 3) for image in scaled]
    names = _name(np.asarray(batch["label"]).reshape(-1).tolist(), data.facts.class_names)
    size = " x ".join(map(str, images.shape[1:]))
    return _Shown(shown, names, f"{size}, {images.dtype} from {low:.3g} to {high:.3g}")


def _name(labels: Sequence[int], names: Sequence[str]) -> list[str]:
    return [names[label] if 0 <= label < len(names) else str(label) for label in labels]


def _draw(path: Path, shown: _Shown) -> None:
    """Draw images in a grid, each with the name of its class below it."""
    from matplotlib.figure import Figure

    num_columns = min(len(shown.images), _COLUMNS)
    num_rows = -(-len(shown.images) // num_columns)
    figure = Figure(figsize=(1.5 * num_columns, 1.7 * num_rows), dpi=110, layout="constrained")
    grid = figure.subplots(num_rows, num_columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, image, name in zip(grid.flat, shown.images, shown.names, strict=False):
        # Pixels of small pictures as squares, not as a blur.
        how = "nearest" if max(image.shape[:2]) < 64 else "antialiased"
        gray = image[..., 0] if image.shape[-1] == 1 else image
        axes.imshow(gray, cmap="gray", vmin=0, vmax=255, interpolation=how)
        cut = name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 3]}..."
        # Names of folders are no formulas.
        axes.set_title(cut, fontsize=8, y=-0.18, parse_math=False)
    save(figure, path)
