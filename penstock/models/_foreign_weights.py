"""Weights that others published, under the names and in the shapes that a network has here."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from penstock import layers
from penstock._errors import ParameterError
from penstock._weight_files import WeightFile, read_weights
from penstock.models._registry import Model, get
from penstock.models._weight_maps._common import from_tensorflow, from_torch
from penstock.models._weight_names import SOURCES, names_in
from penstock.models._weight_preprocessing import preprocessing_of
from penstock.preprocessing import Preprocessing
from penstock.program_builder import ProgramBuilder

_AVERAGE = "/ExponentialMovingAverage"
_AUXILIARY = re.compile(r"(^|/)(AuxLogits|aux_logits)/")

# What optimizers and exporters leave in a file beside the weights.
_BY_THE_WAY = re.compile(
    r"(^|/)global_step$|_power$|num_batches_tracked$"
    r"|/(Momentum|RMSProp|Adam|Adagrad|Adadelta|Ftrl|ExponentialMovingAverage)(_\d+)?$"
)


@dataclasses.dataclass(frozen=True, eq=False)
class ForeignWeights(Mapping[str, np.ndarray]):
    """The parameters and statistics that a file holds, by our names; a mapping.

    `trainer.parameters.update(weights)` puts them into a program of the network.

    Arguments:
      model_name: of the network.
      source: whose names the file has.
      num_classes: the width of its last layer.
      preprocessing: of the images that they were trained with, the source's rather than the
        network's: `preprocessing.device` in a program, `preprocessing.for_evaluation` in a reader.
      entries: name to array.
      left_initial: what the network has here and does not have there: auxiliary heads.
      ignored: what the file has beside weights, such as an optimizer's state.
      notes: what was chosen on the way, a sentence each.
    """

    model_name: str
    source: str
    num_classes: int
    preprocessing: Preprocessing
    entries: Mapping[str, np.ndarray]
    left_initial: tuple[str, ...]
    ignored: tuple[str, ...]
    notes: tuple[str, ...]

    def __getitem__(self, name: str) -> np.ndarray:
        """Return an entry by our name."""
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over our names."""
        return iter(self.entries)

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.entries)


def program_of(model: Model, num_classes: int, image_size: int | None = None) -> ProgramBuilder:
    """Return a builder of the network's forward pass, from images to logits."""
    size = image_size or model.default_image_size

    def infer_program() -> Any:
        images = layers.data("image", shape=[size, size, model.num_channels])
        return model(images, num_classes)[0]

    return ProgramBuilder(infer_func=infer_program)


def load_weights(
    model: str | Model,
    path: str | os.PathLike[str],
    *,
    image_size: int | None = None,
    moving_averages: bool = True,
) -> ForeignWeights:
    """Read weights that TF-Slim, keras.applications, torchvision or timm published.

    Every parameter is looked up by an explicit name and its shape is checked; the number of classes
    is that of the file. Whatever the file has more than the network is an error, an optimizer's
    state aside; auxiliary heads that the file lacks are left as they are. `notes` says what was
    chosen.

    Arguments:
      model: the name of a network, or what `models.get` gave.
      path: a TF-Slim checkpoint (needs the `tensorflow` extra), a Keras `.h5`, `.keras` or
        `.weights.h5` file (needs h5py), a state dict as `.safetensors`, `.pth` or `.pt`, of which
        no code is run.
      image_size: height and width in pixels, where parameters depend on it; the network's own by
        default.
      moving_averages: take the moving averages that a TF-Slim checkpoint holds of its parameters,
        as TF-Slim's evaluation does, in the place of those that were trained last.

    Raises:
      UnknownNameError: there is no such network.
      FileNotFoundError: there is no such file.
      ParameterError: the file is damaged, of another network, or lists every entry that is missing,
        left over or of another shape.

    >>> import tempfile, numpy as np
    >>> from safetensors.numpy import save_file
    >>> file = tempfile.mkdtemp() + "/other.safetensors"
    >>> save_file({"weight": np.zeros([2, 2], np.float32)}, file)
    >>> load_weights("vgg_16", file)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    penstock._errors.ParameterError: weights file ... does not fit vgg_16:...
    """
    chosen = get(model) if isinstance(model, str) else model
    file = read_weights(path)
    ten, eleven = (_shapes(chosen, number, image_size) for number in (10, 11))
    return _fit(chosen, file, ten, eleven, moving_averages=moving_averages)


def _fit(
    chosen: Model,
    file: WeightFile,
    ten: Mapping[str, tuple[int, ...]],
    eleven: Mapping[str, tuple[int, ...]],
    *,
    moving_averages: bool,
) -> ForeignWeights:
    """Return a file's arrays as the network's, whose shapes for ten and eleven classes are given.

    Raises:
      ParameterError: they do not fit.
    """
    found = names_in(chosen, file, ten)
    names = _without_missing_heads(file, found.names)
    num_classes = _num_classes(chosen, file, names, ten, eleven)
    table = _for_classes(num_classes, ten, eleven)
    averages = {name for name in names.values() if name + _AVERAGE in file.arrays}
    taken = averages if moving_averages else set()
    entries, problems = _match(file, names, table, taken)
    for kernel in found.reversed_kernels:
        if kernel in entries:
            entries[kernel] = np.ascontiguousarray(entries[kernel][..., ::-1, :])
    left = set(file.arrays) - set(names.values()) - set(found.ones)
    ignored = tuple(sorted(name for name in left if _BY_THE_WAY.search(name)))
    problems += [f"left over: {name}" for name in sorted(left.difference(ignored))]
    problems += [
        f"not all ones: {name}, a scale that {chosen.name} does not have"
        for name in found.ones
        if name in file.arrays and not np.all(file.arrays[name] == 1)
    ]
    if problems:
        raise _misfit(file, chosen, problems)
    return ForeignWeights(
        model_name=chosen.name,
        source=SOURCES[file.format],
        num_classes=num_classes,
        preprocessing=preprocessing_of(chosen, file.path),
        entries=entries,
        left_initial=tuple(name for name in table if name not in names),
        ignored=tuple(name for name in ignored if name.removesuffix(_AVERAGE) not in taken),
        notes=(
            *file.notes,
            *_average_notes(averages, taken, len(entries)),
            *_channel_notes(found.reversed_kernels),
        ),
    )


def _without_missing_heads(file: WeightFile, names: Mapping[str, str]) -> dict[str, str]:
    """Return the names without an auxiliary head's, where the file has nothing of one."""
    of_heads = {ours: theirs for ours, theirs in names.items() if _AUXILIARY.search(ours)}
    if any(theirs in file.arrays for theirs in of_heads.values()):
        return dict(names)
    return {ours: theirs for ours, theirs in names.items() if ours not in of_heads}


def _average_notes(averages: set[str], taken: set[str], num_arrays: int) -> tuple[str, ...]:
    if not averages:
        return ()
    if taken:
        return (
            f"moving averages of {len(taken)} of {num_arrays} arrays, as TF-Slim evaluates; "
            "moving_averages=False, or --moving_averages=False of penstock import-weights, takes "
            "the raw ones",
        )
    return (f"the raw arrays, though the file has moving averages of {len(averages)}",)


def _channel_notes(reversed_kernels: tuple[str, ...]) -> tuple[str, ...]:
    if not reversed_kernels:
        return ()
    return (
        f"input channels of {', '.join(reversed_kernels)} reversed: there images are blue, green, "
        "red, here red, green, blue",
    )


def _match(
    file: WeightFile,
    names: Mapping[str, str],
    table: Mapping[str, tuple[int, ...]],
    averages: set[str],
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the file's arrays by our names, laid out as here, and what does not match.

    Arguments:
      averages: the names in the file whose moving averages are taken.
    """
    entries, problems = {}, []
    for ours, shape in table.items():
        theirs = names.get(ours)
        if theirs is None:
            continue
        theirs += _AVERAGE if theirs in averages else ""
        if theirs not in file.arrays:
            problems.append(f"missing: {theirs}, which is {ours} {list(shape)} here")
            continue
        entries[ours] = _lay_out(file, theirs, ours, shape)
        if entries[ours].shape != shape:
            found = list(entries[ours].shape)
            problems.append(f"mismatched: {theirs} got {found}, expected {list(shape)}")
    return entries, problems


def _misfit(file: WeightFile, model: Model, problems: Sequence[str]) -> ParameterError:
    lines = "\n".join(f"  {line}" for line in problems)
    return ParameterError(
        f"weights file {str(file.path)!r} does not fit {model.name}:\n{lines}\nIs it the file of "
        "another network? `penstock models` lists those there are."
    )


def _num_classes(
    model: Model,
    file: WeightFile,
    names: Mapping[str, str],
    ten: Mapping[str, tuple[int, ...]],
    eleven: Mapping[str, tuple[int, ...]],
) -> int:
    """Return the file's number of classes: of the biases that differ with ten and eleven."""
    biases = [name for name, shape in ten.items() if len(shape) == 1 and shape != eleven[name]]
    found = [file.arrays[names[b]] for b in biases if names.get(b) in file.arrays]
    if not found:
        return model.num_classes
    return int(found[0].shape[-1])


def _for_classes(
    num_classes: int, ten: Mapping[str, tuple[int, ...]], eleven: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the table for a number of classes, of those for ten and for eleven."""
    sides = ((name, zip(ten[name], eleven[name], strict=True)) for name in ten)
    return {name: tuple(a + (num_classes - 10) * (b - a) for a, b in both) for name, both in sides}


def _shapes(model: Model, num_classes: int, image_size: int | None) -> dict[str, tuple[int, ...]]:
    rows = program_of(model, num_classes, image_size).parameter_table()
    return {row.name: row.shape for row in rows}


def _lay_out(file: WeightFile, theirs: str, ours: str, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(file.arrays[theirs])
    if file.format == "torch":
        array = from_torch(ours, array, shape)
    else:
        array = from_tensorflow(array, shape)
    return np.ascontiguousarray(array, np.float32)
