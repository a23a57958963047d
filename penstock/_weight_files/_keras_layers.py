"""The HDF5 layout of Keras 3: groups named after classes, variables by number."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from penstock._weight_files._file import WeightFileError
from penstock._weight_files._hdf5 import Tree

VARIABLES = "vars"
# The second is Keras 2's.
CONTAINERS = ("layers", "_layer_checkpoint_dependencies")
OPTIMIZER = "optimizer"

CONVOLUTION = ("kernel", "bias")
SEPARABLE = ("depthwise_kernel", "pointwise_kernel", "bias")

# The variables of each class in Keras's order. Class names are in lower case, as Keras writes them
# in the names of groups: a Conv2D is the group conv2d_3.
KERAS_VARIABLES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "dense": CONVOLUTION,
        "conv1d": CONVOLUTION,
        "conv2d": CONVOLUTION,
        "conv3d": CONVOLUTION,
        "conv2dtranspose": CONVOLUTION,
        "depthwiseconv2d": CONVOLUTION,
        "separableconv2d": SEPARABLE,
        "batchnormalization": ("gamma", "beta", "moving_mean", "moving_variance"),
        "layernormalization": ("gamma", "beta"),
        "groupnormalization": ("gamma", "beta"),
        "normalization": ("mean", "variance", "count"),
        "embedding": ("embeddings",),
        "prelu": ("alpha",),
    }
)

# Variables that a layer may lack, and the setting that leaves them out.
OPTIONAL: Mapping[str, str] = MappingProxyType(
    {"bias": "use_bias", "gamma": "scale", "beta": "center"}
)

# How deep models may be nested in models: a hostile configuration could overflow the stack.
MAX_DEPTH = 16

Config = Mapping[str, Any]
"""What JSON says of a model or a layer."""


def has_layout(tree: Tree) -> bool:
    """Return whether a file has this layout."""
    return any(name.split("/")[-1] == VARIABLES for name in tree.groups)


def read(tree: Tree, config: Config) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return the arrays as `<layer>/<variable>`, and notes.

    A variable is named by the class and the settings of its layer. Where they leave it open, as in
    a `.weights.h5`, which has no settings, for a batch norm of three variables, its number stays:
    `<layer>/0`. Older Keras 3 wrote no names: layers are called as in `config`, or as their groups.

    Arguments:
      tree: the file.
      config: the model's configuration, or nothing. It also gives the order.
    """
    layers = dict(_walk_layers(config))
    order = {place: index for index, place in enumerate(layers)}
    numbers: dict[str, list[str]] = {}
    for name in tree.datasets:
        parent, _, number = name.rpartition("/")
        group, _, container = parent.rpartition("/")
        if container == VARIABLES:
            numbers.setdefault(group, []).append(number)
    groups = sorted(numbers, key=lambda g: (order.get(_find_place(g), len(order)), _natural_key(g)))
    arrays, left = {}, set()
    for group in groups:
        if group.split("/")[0] == OPTIMIZER:
            left.add(OPTIMIZER)
            continue
        layer = _name_layer(tree, group, layers)
        for variable, number in _name_group(group, numbers[group], layers):
            name = f"{layer}/{variable}" if layer else variable
            if name in arrays:
                raise WeightFileError(
                    f"got two weights {name!r}, expected one of a name. Two layers share it: name "
                    "them apart and save the weights again."
                )
            arrays[name] = tree.read_array(f"{group}/{VARIABLES}/{number}".lstrip("/"))
    return arrays, tuple(f"left out the group {name!r}" for name in sorted(left))


def _name_group(
    group: str, numbers: list[str], layers: Mapping[str, Config]
) -> Iterable[tuple[str, str]]:
    """Return the name and number of each variable of a layer."""
    numbers = sorted(numbers, key=_natural_key)
    place = _find_place(group)
    kind = place.split("/")[-1].partition("#")[0]
    names = name_variables(kind, len(numbers), layers.get(place))
    if not names or numbers != [str(number) for number in range(len(numbers))]:
        names = numbers
    return zip(names, numbers, strict=True)


def name_variables(kind: str, count: int, settings: Config | None) -> list[str] | None:
    """Return the names of a layer's variables, or None where they are ambiguous.

    >>> name_variables("conv2d", 1, None)
    ['kernel']
    >>> name_variables("batchnormalization", 3, {"scale": False, "center": True})
    ['beta', 'moving_mean', 'moving_variance']
    >>> name_variables("batchnormalization", 3, None) is None
    True

    Arguments:
      kind: the class, in lower case.
      count: how many variables the layer has.
      settings: its configuration, if known.
    """
    names = KERAS_VARIABLES.get(kind, ())
    optional = [name for name in names if name in OPTIONAL]
    num_missing = len(names) - count
    if settings is not None:
        choices = [tuple(name for name in optional if settings.get(OPTIONAL[name]) is False)]
    else:
        choices = list(itertools.combinations(optional, max(0, num_missing)))
    fitting = [missing for missing in choices if len(missing) == num_missing]
    if not names or len(fitting) != 1:
        return None
    return [name for name in names if name not in fitting[0]]


def _name_layer(tree: Tree, group: str, layers: Mapping[str, Config]) -> str:
    """Return the names of a layer and of those around it, as the model calls them."""
    parts = group.split("/") if group else []
    names = []
    for length, part in enumerate(parts, 1):
        if part in CONTAINERS:
            continue
        path = "/".join(parts[:length])
        config = layers.get(_find_place(path), {})
        name = tree.read_text(f"{path}/{VARIABLES}", "name") or config.get("name")
        names.append(name if isinstance(name, str) else part)
    return "/".join(names)


def _walk_layers(config: Config, prefix: str = "") -> Iterator[tuple[str, Config]]:
    """Yield the place of each layer in a model's configuration, with the layer's own."""
    settings = config.get("config")
    layers = settings.get("layers") if isinstance(settings, dict) else None
    if not isinstance(layers, list) or prefix.count("/") > MAX_DEPTH:
        return
    counts: Counter[str] = Counter()
    for layer in layers:
        if isinstance(layer, dict) and isinstance(layer.get("config"), dict):
            kind = str(layer.get("class_name")).lower()
            place = f"{prefix}{kind}#{counts[kind]}"
            counts[kind] += 1
            yield place, layer["config"]
            yield from _walk_layers(layer, f"{place}/")


def _find_place(group: str) -> str:
    """Return where in the configuration the layer of a group is.

    Keras names groups after classes, numbered in the model's order: the second `Conv2DTranspose` is
    `conv2d_transpose_1` in the file, and `conv2dtranspose#1` here for file and configuration.
    """
    parts = []
    for part in group.split("/"):
        if part not in CONTAINERS:
            name, number = re.sub(r"_\d{1,6}$", "", part), re.search(r"_(\d{1,6})$", part)
            parts.append(f"{name.replace('_', '')}#{int(number[1]) if number else 0}")
    return "/".join(parts)


def _natural_key(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts conv2d_2 before conv2d_10."""
    return [
        (len(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name) if part
    ]
