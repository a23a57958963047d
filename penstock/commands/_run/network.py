"""Networks of the model library: their programs, and the weights that they have or start from."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from penstock import ProgramBuilder, Trainer, _parameters, layers, models, preprocessing
from penstock._errors import ParameterError
from penstock._parameter_names import Selection, spell
from penstock._parameters import read_parameters
from penstock.commands._flags import TrainFlags
from penstock.models.classification import AUXILIARY_WEIGHT
from penstock.models.weights import build_forward

_EVERYTHING = Selection()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """What a network is made for: images `[H, W, C]`, whose preprocessing ends in its programs."""

    image_shape: tuple[int, int, int]
    num_classes: int
    preprocessing: preprocessing.Preprocessing | None


def find_image_size(flags: TrainFlags) -> int:
    """Return the height and width in pixels of what the network gets."""
    own = models.get(flags.model.model_name).default_image_size
    return flags.preprocessing.train_image_size or own


def choose_model(flags: TrainFlags) -> models.Model:
    """Return the network of the model library with the settings that flags ask for."""
    wanted, is_fastnn = flags.model, flags.fastnn_compat
    settings = models.Settings(
        weight_decay=0.0 if is_fastnn else wanted.weight_decay,
        # FastNN never runs the updates of the running statistics.
        batch_norm_decay=1.0 if is_fastnn else wanted.batch_norm_decay,
        # A decay that is named, or FastNN's, holds from the first step: nothing warms up.
        batch_norm_warmup=False if is_fastnn or wanted.batch_norm_decay is not None else None,
        # FastNN's statistics are those of a device's share.
        batch_norm_group_size=wanted.batch_norm_group_size
        or (wanted.device_batch_size if is_fastnn else None),
    )
    return models.get(wanted.model_name, settings)


def make_network(
    flags: TrainFlags, shape: Shape, *, counts_auxiliary: bool = True
) -> models.Classifier:
    """Return the programs of a network, in whose loss an auxiliary head may count."""
    height, _, channels = shape.image_shape
    has_fastnns_accuracy = flags.fastnn_compat and flags.dataset.dataset_name == "mnist"
    return models.classifier(
        dataclasses.replace(choose_model(flags), num_channels=channels),
        shape.num_classes,
        image_size=height,
        label_smoothing=flags.model.label_smoothing,
        auxiliary_weight=AUXILIARY_WEIGHT if counts_auxiliary else 0.0,
        preprocess=None if shape.preprocessing is None else shape.preprocessing.device,
        accuracy=_compare_with_all_labels if has_fastnns_accuracy else layers.accuracy,
    )


def _compare_with_all_labels(logits: jax.Array, label: jax.Array) -> jax.Array:
    """Return the accuracy that FastNN logs for mnist.

    Its labels have a shape of `[B, 1]`, so that each prediction is compared with each label: what
    is logged is the sum over classes of the share predicted times the share labelled.
    """
    predicted = jnp.argmax(logits, axis=-1)[:, None]
    shares = [
        layers.mean((predicted == number).astype(jnp.float32))
        * layers.mean((label == number).astype(jnp.float32))
        for number in range(logits.shape[-1])
    ]
    return jnp.sum(jnp.stack(shares))


@contextlib.contextmanager
def name_smallest_size(model: models.Model, size: int) -> Iterator[None]:
    """Name the smallest images that a network takes where one for less than `size` is built."""
    try:
        yield
    except ValueError as error:
        smallest = _smallest_size(model, size)
        if smallest == size:
            raise
        raise ValueError(
            f"--train_image_size got {size}, expected {smallest} or more. With smaller "
            f"images, {model.name!r} has nothing left before its last layer. Leave the flag out "
            f"for {model.default_image_size}, the network's own."
        ) from error


def _smallest_size(model: models.Model, size: int) -> int:
    """Return the smallest image size from `size` on that a network takes, else `size`."""

    def is_accepted(side: int) -> bool:
        with contextlib.suppress(ValueError):
            return build_forward(model, 2, side) is not None
        return False

    # Building for a size that is too small ends early, at the layer that refuses it. One that fits
    # takes seconds for the largest networks. So the search begins with the small sizes.
    least, step = size - 1, 1
    while not is_accepted(least + step):
        least, step = least + step, 2 * step
        # Its size is not the reason: the network's own images would be refused too.
        if least > model.default_image_size:
            return size
    sizes = range(least + 1, least + step + 1)
    return sizes[bisect.bisect_left(sizes, True, key=is_accepted)]


def _find_last_layers(flags: TrainFlags, shape: Shape, trainer: Trainer) -> set[str]:
    # Found by building for one class more, not by names, which differ from network to network.
    wider = dataclasses.replace(shape, num_classes=shape.num_classes + 1)
    builder = ProgramBuilder(make_network(flags, wider).train_program)
    shapes = {row.name: row.shape for row in builder.parameter_table()}
    rows = trainer.builder.parameter_table()
    return {row.name for row in rows if shapes.get(row.name) != row.shape}


class Weights(NamedTuple):
    """The weights of a network, by the names of its parameters.

    `optional` are parameters of auxiliary heads that a file of others lacks, or lacked when it was
    imported: a network can do without them.
    """

    path: Path
    arrays: Mapping[str, np.ndarray]
    optional: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_weights(path: Path, model: models.Model, image_size: int) -> Weights:
    if path.is_dir():
        read = read_parameters(path).items()
        arrays = {spell(keys): np.asarray(value) for (_, keys), value in read}
        return Weights(path, arrays, tuple(_parameters.read_about(path).get("left_initial", ())))
    foreign = models.load_weights(model, os.fspath(path), image_size=image_size)
    note = f"{foreign.num_classes} classes, names of {foreign.source}"
    return Weights(path, foreign.entries, foreign.left_initial, (note, *foreign.notes))


def load_weights(
    trainer: Trainer,
    weights: Weights,
    flags: TrainFlags,
    shape: Shape,
    *,
    selection: Selection = _EVERYTHING,
    ignores_missing: bool = False,
) -> tuple[list[str], str | None]:
    """Put weights into a trainer's network; last layers for other classes are left initial.

    Returns:
      Sentences about what was loaded; and the last layers that were left initial, or None.
    """
    arrays = weights.arrays
    selection.check(trainer.builder.programs.network.table)
    shapes = {row.name: tuple(row.shape) for row in trainer.builder.parameter_table()}
    wanted = [name for name in shapes if selection.takes(name)]
    there = [name for name in wanted if name in arrays]
    misfits = [name for name in there if arrays[name].shape != shapes[name]]
    # Asked only where something does not fit: it builds the network once more.
    dropped = sorted(set(misfits) & _find_last_layers(flags, shape, trainer)) if misfits else []
    problems = [
        f"{name} has {list(arrays[name].shape)} there and {list(shapes[name])} here"
        for name in misfits
        if name not in dropped
    ]
    if not ignores_missing:
        needed = [name for name in wanted if name not in weights.optional]
        problems += [f"{name} is not there" for name in needed if name not in arrays]
    if problems or not there:
        raise ParameterError(
            f"{str(weights.path)!r} got weights that do not fit {flags.model.model_name}: "
            f"{'; '.join(problems)}. Are they for another network? --checkpoint_exclude_scopes "
            "leaves parts out."
        )
    loaded = {name: arrays[name] for name in there if name not in misfits}
    trainer.parameters.update(loaded)
    lines = [f"{len(loaded)} of {len(shapes)} arrays from {weights.path}", *weights.notes]
    misfit = None
    if dropped:
        numbers = arrays[dropped[0]].shape[-1], shapes[dropped[0]][-1]
        misfit = f"({numbers[0]} classes there, {numbers[1]} here): {', '.join(dropped)}"
        lines.append(f"last layers left initial {misfit}")
    if left := [name for name in shapes if name not in loaded and name not in dropped]:
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        lines.append(f"left initial: {', '.join(left[:3])}{more}")
    return lines, misfit
