"""The HDF5 layout of Keras 3: groups named after classes, variables by number."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from penstock._weight_files._file import Refusal
from penstock._weight_files._hdf5 import Tree

VARIABLES = "vars"
CONTAINERS = ("layers", "_layer_checkpoint_dependencies")  # the second is Keras 2's
OPTIMIZER = "optimizer"

CONVOLUTION = ("kernel", "bias")
SEPARABLE = ("depthwise_kernel", "pointwise_kernel", "bias")

# The variables of a class in Keras' order. Classes in lower case: Conv2D is the group conv2d_3.
CLASSES: Mapping[str, tuple[str, ...]] = MappingProxyType(
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

# Variables that a layer may lack, with the setting that says so.
OPTIONAL: Mapping[str, str] = MappingProxyType(
    {"bias": "use_bias", "gamma": "scale", "beta": "center"}
)

MAX_DEPTH = 16  # of models in models, in a hostile configuration

Settings = Mapping[str, Any]


def is_in(tree: Tree) -> bool:
    """Say whether a file has this layout."""
    return any(name.split("/")[-1] == VARIABLES for name in tree.groups)


def read(tree: Tree, config: Settings) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return the arrays as `<layer>/<variable>`, and notes.

    A variable is named by the class and the settings of its layer. Where they leave it open, as in
    a `.weights.h5`, which has no settings, for a batch norm of three variables, its number stays:
    `<layer>/0`. Older Keras 3 wrote no names: layers are called as in `config`, or as their groups.

    Arguments:
      tree: the file.
      config: the model's configuration, or nothing. It also gives the order.
    """
    layers = dict(_layers(config))
    order = {place: index for index, place in enumerate(layers)}
    numbers: dict[str, list[str]] = {}
    for name in tree.datasets:
        parent, _, number = name.rpartition("/")
        group, _, container = parent.rpartition("/")
        if container == VARIABLES:
            numbers.setdefault(group, []).append(number)
    groups = sorted(numbers, key=lambda g: (order.get(_place(g), len(order)), _natural(g)))
    arrays, left = {}, set()
    for group in groups:
        if group.split("/")[0] == OPTIMIZER:
            left.add(OPTIMIZER)
            continue
        layer = _layer_name(tree, group, layers)
        for variable, number in _variables(group, numbers[group], layers):
            name = f"{layer}/{variable}" if layer else variable
            if name in arrays:
                raise Refusal(
                    f"got two weights {name!r}, expected one of a name. Two layers share it: name "
                    "them apart and save the weights again."
                )
            arrays[name] = tree.array(f"{group}/{VARIABLES}/{number}".lstrip("/"))
    return arrays, tuple(f"left out the group {name!r}" for name in sorted(left))


def _variables(
    group: str, numbers: list[str], layers: Mapping[str, Settings]
) -> Iterable[tuple[str, str]]:
    """Return name and number of each variable of a layer."""
    numbers = sorted(numbers, key=_natural)
    place = _place(group)
    kind = place.split("/")[-1].partition("#")[0]
    names = variable_names(kind, len(numbers), layers.get(place))
    if not names or numbers != [str(number) for number in range(len(numbers))]:
        names = numbers
    return zip(names, numbers, strict=True)


def variable_names(kind: str, count: int, settings: Settings | None) -> list[str] | None:
    """Return the names of a layer's variables, or None where they cannot be told.

    >>> variable_names("conv2d", 1, None)
    ['kernel']
    >>> variable_names("batchnormalization", 3, {"scale": False, "center": True})
    ['beta', 'moving_mean', 'moving_variance']
    >>> variable_names("batchnormalization", 3, None) is None
    True

    Arguments:
      kind: the class, in lower case.
      count: how many variables the layer has.
      settings: its configuration, if known.
    """
    names = CLASSES.get(kind, ())
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


def _layer_name(tree: Tree, group: str, layers: Mapping[str, Settings]) -> str:
    """Return the names of a layer and of those around it, as the model calls them."""
    parts = group.split("/") if group else []
    names = []
    for length, part in enumerate(parts, 1):
        if part in CONTAINERS:
            continue
        path = "/".join(parts[:length])
        name = tree.text(f"{path}/{VARIABLES}", "name") or layers.get(_place(path), {}).get("name")
        names.append(name if isinstance(name, str) else part)
    return "/".join(names)


def _layers(config: Settings, prefix: str = "") -> Iterator[tuple[str, Settings]]:
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
            yield from _layers(layer, f"{place}/")


def _place(group: str) -> str:
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


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts conv2d_2 before conv2d_10."""
    return [
        (len(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name) if part
    ]
