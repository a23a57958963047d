"""Weights that others published, under the names and in the shapes that a network has here."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from penstock import layers
from penstock._errors import ParameterError
from penstock._weight_files import WeightFile, read_weights
from penstock.models._registry import Model, family_of, get
from penstock.models._weight_maps._common import (
    from_tensorflow,
    from_torch,
    keras_by_number,
    keras_renumbered,
)
from penstock.program_builder import ProgramBuilder

SOURCES = {"tf_slim": "TF-Slim", "keras": "keras.applications", "torch": "torchvision or timm"}

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
      entries: name to array.
      left_initial: what the network has here and does not have there: auxiliary heads.
      ignored: what the file has beside weights, such as an optimizer's state.
      notes: what was chosen on the way, a sentence each.
    """

    model_name: str
    source: str
    num_classes: int
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
    model: str | Model, path: str | os.PathLike[str], *, image_size: int | None = None
) -> ForeignWeights:
    """Read weights that TF-Slim, keras.applications, torchvision or timm published.

    Every parameter is looked up by an explicit name and its shape is checked; the number of classes
    is that of the file. Whatever the file has more than the network is an error, an optimizer's
    state and moving averages aside; auxiliary heads that the file lacks are left as they are.

    Arguments:
      model: the name of a network, or what `models.get` gave.
      path: a TF-Slim checkpoint (needs the `tensorflow` extra), a Keras `.h5`, `.keras` or
        `.weights.h5` file (needs h5py), a state dict as `.safetensors`, `.pth` or `.pt`, of which
        no code is run.
      image_size: height and width in pixels, where parameters depend on it; the network's own by
        default.

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
    names, ones = _names_in(chosen, file, ten)
    num_classes = _num_classes(chosen, file, names, ten, eleven)
    table = _for_classes(num_classes, ten, eleven)
    entries, problems = _matched(file, names, table)
    left = set(file.arrays) - set(names.values()) - set(ones)
    ignored = tuple(sorted(name for name in left if _BY_THE_WAY.search(name)))
    problems += [f"left over: {name}" for name in sorted(left.difference(ignored))]
    problems += [
        f"not all ones: {name}, a scale that {chosen.name} does not have"
        for name in ones
        if name in file.arrays and not np.all(file.arrays[name] == 1)
    ]
    if problems:
        raise _misfit(file, chosen, problems)
    return ForeignWeights(
        model_name=chosen.name,
        source=SOURCES[file.format],
        num_classes=num_classes,
        entries=entries,
        left_initial=tuple(name for name in table if name not in names),
        ignored=ignored,
        notes=file.notes,
    )


def _matched(
    file: WeightFile, names: Mapping[str, str], table: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the file's arrays by our names, laid out as here, and what does not match."""
    entries, problems = {}, []
    for ours, shape in table.items():
        theirs = names.get(ours)
        if theirs is None:
            continue
        if theirs not in file.arrays:
            problems.append(f"missing: {theirs}, which is {ours} {list(shape)} here")
            continue
        entries[ours] = _laid_out(file, theirs, ours, shape)
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


def _names_in(
    model: Model, file: WeightFile, own: Iterable[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the file's names by ours, and those of scales that must be ones.

    Arguments:
      own: our names.

    Raises:
      ParameterError: nobody published weights of the network in the file's format.
    """
    module = f"penstock.models._weight_maps.{family_of(model.name)}"
    # One's own networks, and those nobody published, have none.
    family: Any = importlib.import_module(module) if importlib.util.find_spec(module) else None
    if file.format == "tf_slim" and hasattr(family, "tf_slim"):
        return {path: family.tf_slim(model.name, path) for path in own}, ()
    kinds = {"keras": ("keras", "keras_2"), "torch": ("torch", "timm")}.get(file.format, ())
    makers: list[Callable[[str], Any]] = [getattr(family, k) for k in kinds if hasattr(family, k)]
    maps = [dict(found) for found in (make(model.name) for make in makers) if found]
    if file.format == "keras":
        maps = [keras_renumbered(names, file.arrays) for names in maps]
        maps = [keras_by_number(names, file.arrays) for names in maps]
    if not maps:
        raise ParameterError(
            f"weights file {str(file.path)!r} got names of {SOURCES[file.format]}, which has no "
            f"network that coincides with {model.name}. See docs/models.md for what can be loaded."
        )
    best = max(maps, key=lambda names: len(set(names.values()) & set(file.arrays)))
    ones = getattr(family, "torch_ones", lambda _: ())(model.name) if "torch" in kinds else ()
    return best, tuple(ones)


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


def _laid_out(file: WeightFile, theirs: str, ours: str, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(file.arrays[theirs])
    if file.format == "torch":
        array = from_torch(ours, array, shape)
    else:
        array = from_tensorflow(array, shape)
    return np.ascontiguousarray(array, np.float32)
