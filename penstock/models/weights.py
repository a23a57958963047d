"""Weights that others published, under the names and in the shapes that a network has here."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from penstock import layers, preprocessing
from penstock._errors import ParameterError, UnknownNameError
from penstock._weight_files import WeightFile, find_format, read_weights
from penstock.models._registry import Model, get
from penstock.models._weight_layout import lay_out
from penstock.models._weight_names import (
    SOURCES,
    choose_names,
    find_family_names,
    find_registered_preprocessing,
)
from penstock.preprocessing import Preprocessing, PreprocessingError, Torchvision
from penstock.program_builder import ProgramBuilder

Shapes = Mapping[str, tuple[int, ...]]

# Hugging Face keeps timm's description of a network's images in this file beside the weights.
TIMM_CONFIG = "config.json"

# The beginnings of the SHA-256 of torchvision's files IMAGENET1K_V2, as their names have them. Only
# the content tells them from V1: the arrays have the same names and shapes.
_SECOND_VERSIONS = ("11ad3fa6", "1a0047aa")
_HAVE_SECOND_VERSIONS = ("resnet50", "resnext50")

_AVERAGE = "/ExponentialMovingAverage"
_AUXILIARY = re.compile(r"(^|/)(AuxLogits|aux_logits)/")

# Names of what optimizers and exporters leave in a file beside the weights.
_NO_WEIGHTS = re.compile(
    r"(^|/)global_step$|_power$|num_batches_tracked$"
    r"|/(Momentum|RMSProp|Adam|Adagrad|Adadelta|Ftrl|ExponentialMovingAverage)(_\d+)?$"
)


@dataclasses.dataclass(frozen=True, eq=False)
class ForeignWeights(Mapping[str, np.ndarray]):
    """The parameters and statistics of a file, a mapping from penstock's names to arrays.

    `trainer.parameters.update(weights)` loads them into a program of the network.

    Arguments:
      model_name: the network's name.
      source: who published such files: TF-Slim, keras.applications, or torchvision or timm.
      num_classes: the width of the last layer.
      preprocessing: the preprocessing that these weights were trained with. It may differ from
        the network's default. Use `preprocessing.device` in a program and
        `preprocessing.for_evaluation` in a reader.
      entries: name to array.
      left_initial: names of parameters that the file does not have: those of auxiliary heads.
      ignored: entries of the file that are not weights, such as an optimizer's state.
      notes: what was chosen, one sentence for each choice.
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
        """Return the array of a name."""
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self.entries)

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.entries)


def build_forward(model: Model, num_classes: int, image_size: int | None = None) -> ProgramBuilder:
    """Build the network's forward pass, from images to logits."""
    size = image_size or model.default_image_size

    def infer_program() -> jax.Array:
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

    Every parameter is looked up by an explicit name, and its shape is checked. The number of
    classes is read from the file. An entry that the network does not have is an error, except for
    an optimizer's state. Auxiliary heads that the file does not have keep their initial values.
    `notes` says what was chosen.

    Arguments:
      model: the name of a network, or a `models.Model`.
      path: a TF-Slim checkpoint (needs the `tensorflow` extra), a Keras `.h5`, `.keras` or
        `.weights.h5` file (needs h5py), or a state dict as `.safetensors`, `.pth` or `.pt`. Code
        in a `.pth` or `.pt` file is not run.
      image_size: height and width in pixels, for networks whose parameters depend on it; the
        network's own by default.
      moving_averages: use the moving averages of parameters if a TF-Slim checkpoint has them, as
        TF-Slim's evaluation does.

    Raises:
      UnknownNameError: there is no such network.
      FileNotFoundError: there is no such file.
      ParameterError: the file is damaged or of another network; lists every entry that is missing,
        left over or of the wrong shape.

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
    # From two sets of shapes follows which axes count classes, and so the shapes for any number.
    ten, eleven = (find_shapes(chosen, number, image_size) for number in (10, 11))
    return fit(chosen, file, ten, eleven, moving_averages=moving_averages)


def fit(
    chosen: Model,
    file: WeightFile,
    ten: Shapes,
    eleven: Shapes,
    *,
    moving_averages: bool,
) -> ForeignWeights:
    """Return a file's arrays as parameters of the network, given its shapes for 10 and 11 classes.

    Raises:
      ParameterError: they do not fit.
    """
    found = choose_names(chosen, file, ten)
    names = _leave_out_missing_heads(file, found.names)
    num_classes = _find_num_classes(chosen, file, names, ten, eleven)
    table = _extrapolate(num_classes, ten, eleven)
    averages = {name for name in names.values() if name + _AVERAGE in file.arrays}
    taken = averages if moving_averages else set()
    entries, problems = _match(file, names, table, taken)
    # Keras's VGG takes blue, green, red. Its kernel is turned round rather than the images: then it
    # is like any other network for every preprocessing, and nothing can forget to turn them.
    for kernel in found.reversed_kernels:
        if kernel in entries:
            entries[kernel] = np.ascontiguousarray(entries[kernel][..., ::-1, :])
    # What nobody asked for is an error too: a file of another network may have all the rest.
    left = set(file.arrays) - set(names.values()) - set(found.ones)
    ignored = tuple(sorted(name for name in left if _NO_WEIGHTS.search(name)))
    problems += [f"left over: {name}" for name in sorted(left.difference(ignored))]
    problems += [
        f"not all ones: {name}, a scale that {chosen.name} does not have"
        for name in found.ones
        if name in file.arrays and not np.all(file.arrays[name] == 1)
    ]
    if problems:
        raise _misfit_error(file, chosen, problems)
    return ForeignWeights(
        model_name=chosen.name,
        source=SOURCES[file.format],
        num_classes=num_classes,
        preprocessing=find_preprocessing(chosen, file.path),
        entries=entries,
        left_initial=tuple(name for name in table if name not in names),
        ignored=tuple(name for name in ignored if name.removesuffix(_AVERAGE) not in taken),
        notes=(
            *file.notes,
            *_note_averages(averages, taken, len(entries)),
            *_note_channels(found.reversed_kernels),
        ),
    )


def _leave_out_missing_heads(file: WeightFile, names: Mapping[str, str]) -> dict[str, str]:
    """Return the names without an auxiliary head's, where the file has nothing of it.

    Checkpoints of evaluation graphs and files of Keras and timm have none.
    """
    of_heads = {ours: theirs for ours, theirs in names.items() if _AUXILIARY.search(ours)}
    if any(theirs in file.arrays for theirs in of_heads.values()):
        return dict(names)
    return {ours: theirs for ours, theirs in names.items() if ours not in of_heads}


def _note_averages(averages: set[str], taken: set[str], num_arrays: int) -> tuple[str, ...]:
    if not averages:
        return ()
    if taken:
        return (
            f"moving averages of {len(taken)} of {num_arrays} arrays, as TF-Slim evaluates; "
            "moving_averages=False, or --moving_averages=False of penstock import-weights, takes "
            "the raw ones",
        )
    return (f"the raw arrays, though the file has moving averages of {len(averages)}",)


def _note_channels(reversed_kernels: tuple[str, ...]) -> tuple[str, ...]:
    if not reversed_kernels:
        return ()
    return (
        f"input channels of {', '.join(reversed_kernels)} reversed: there images are blue, green, "
        "red, here red, green, blue",
    )


def _match(
    file: WeightFile,
    names: Mapping[str, str],
    table: Shapes,
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
        entries[ours] = lay_out(file.arrays[theirs], ours, shape, file.format)
        if entries[ours].shape != shape:
            found = list(entries[ours].shape)
            problems.append(f"mismatched: {theirs} got {found}, expected {list(shape)}")
    return entries, problems


def _misfit_error(file: WeightFile, model: Model, problems: Sequence[str]) -> ParameterError:
    lines = "\n".join(f"  {line}" for line in problems)
    return ParameterError(
        f"weights file {str(file.path)!r} does not fit {model.name}:\n{lines}\nIs it a file for "
        "another network? `penstock models` lists the networks."
    )


def _find_num_classes(
    model: Model,
    file: WeightFile,
    names: Mapping[str, str],
    ten: Shapes,
    eleven: Shapes,
) -> int:
    """Return the file's number of classes: the size of a bias that differs with 10 and 11."""
    biases = [name for name, shape in ten.items() if len(shape) == 1 and shape != eleven[name]]
    found = [file.arrays[names[b]] for b in biases if names.get(b) in file.arrays]
    # A file without its last layer: an error that `fit` reports.
    if not found:
        return model.num_classes
    return int(found[0].shape[-1])


def _extrapolate(num_classes: int, ten: Shapes, eleven: Shapes) -> dict[str, tuple[int, ...]]:
    """Return the shapes for a number of classes."""
    # Sizes grow by a fixed number with each class, so two points give the line.
    sides = ((name, zip(ten[name], eleven[name], strict=True)) for name in ten)
    return {name: tuple(a + (num_classes - 10) * (b - a) for a, b in both) for name, both in sides}


def find_shapes(model: Model, num_classes: int, image_size: int | None) -> Shapes:
    """Return the shapes of a network's parameters and statistics; nothing is computed."""
    rows = build_forward(model, num_classes, image_size).parameter_table()
    return {row.name: row.shape for row in rows}


def find_preprocessing(model: Model, path: Path) -> Preprocessing:
    """Return the preprocessing that the weights in a file were trained with.

    It follows from the file's format and content, or from timm's `config.json` beside it; arrays
    are not read.

    Raises:
      FileNotFoundError: there is no such file.
      ParameterError: it is not a weight file.
    """
    source = find_format(path)
    if source == "numpy":  # arrays by name, of any library
        return preprocessing.get(model.preprocessing)
    registered = find_registered_preprocessing(model.name, source)
    if registered is not None:
        return registered
    family = find_family_names(model)
    if source != "torch" or family is None or not family.torch:
        return preprocessing.get(model.preprocessing)
    return (
        _read_timm_config(path) or _find_second_version(model, path) or family.torch_preprocessing
    )


def _find_second_version(model: Model, path: Path) -> Preprocessing | None:
    """Return the preprocessing of torchvision's second weights, if the file is one of them."""
    if model.name not in _HAVE_SECOND_VERSIONS:
        return None
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return preprocessing.get("torchvision_v2") if digest.startswith(_SECOND_VERSIONS) else None


def _read_timm_config(path: Path) -> Preprocessing | None:
    """Return the preprocessing in timm's description beside a file; None where there is none."""
    try:
        found = json.loads(path.with_name(TIMM_CONFIG).read_text(encoding="utf-8"))
        given = found.get("pretrained_cfg", found)
        return _from_timm(given) if isinstance(given, Mapping) and "mean" in given else None
    # The file may be another program's, such as a run's.
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return None


def _from_timm(given: Mapping[str, Any]) -> Preprocessing | None:
    (red, green, blue), deviations = given["mean"], given["std"]
    try:
        return Torchvision(
            means=(float(red), float(green), float(blue)),
            deviations=(float(deviations[0]), float(deviations[1]), float(deviations[2])),
            # timm's own default, where a description leaves it out.
            crop_fraction=float(given.get("crop_pct") or 0.875),
            interpolation=given.get("interpolation", "bilinear"),
        )
    # timm has ways to resize that are not known here: then the family's holds.
    except (PreprocessingError, UnknownNameError):
        return None
