"""Keras files: `.h5` of Keras 1 to 3 as `<layer>/<variable>`, others as `<layer>/<number>`."""

from __future__ import annotations

import io
import json
import mmap
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock._errors import check_installed
from penstock._weight_files._file import Archive, Content, WeightFileError, damaged
from penstock._weight_files._hdf5 import Tree, check_heaps, reading

HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
WEIGHTS_ENTRY = "model.weights.h5"
CONFIG_ENTRY = "config.json"


def read(path: Path) -> Content:
    """Read an HDF5 file: `.h5` or `.weights.h5`."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        check_heaps(content)
    return _read(path, path, path.stat().st_size, {})


def read_archive(path: Path) -> Content:
    """Read a `.keras` file: a zip archive of the weights and the model's configuration."""
    with Archive(path) as archive:
        content = archive.read_entry(WEIGHTS_ENTRY)
        check_heaps(content)
        has_config = CONFIG_ENTRY in archive.namelist()
        config = _read_config(archive.read_entry(CONFIG_ENTRY)) if has_config else {}
    return _read(path, io.BytesIO(content), len(content), config)


def _read(path: Path, source: Path | io.BytesIO, num_bytes: int, config: Config) -> Content:
    check_installed("h5py", "keras", f"weights file {str(path)!r}")
    import h5py

    with reading("its head"):
        opened = h5py.File(source, "r")
    with opened as file:
        tree = Tree.walk(file, num_bytes)
        if (root := _find_legacy_root(tree)) is not None:
            return _read_legacy(tree, root)
        if any(name.split("/")[-1] == _VARIABLES for name in tree.groups):
            return _read_layers(tree, config)
        found = ", ".join(sorted({name.split("/")[0] for name in tree.groups if name})[:5])
        raise WeightFileError(
            f"got an HDF5 file with {found or 'no groups'}, expected Keras weights: the attribute "
            "layer_names, or groups named vars. Save it with model.save_weights(...)."
        )


def _read_config(text: bytes) -> Config:
    """Return the configuration of the model, empty where it is no JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(f"a damaged {CONFIG_ENTRY} ({error})", "JSON") from error
    return value if isinstance(value, dict) else {}


# The HDF5 layout of Keras 3: groups named after classes, variables by number.

_VARIABLES = "vars"
# The second is Keras 2's.
_CONTAINERS = ("layers", "_layer_checkpoint_dependencies")
OPTIMIZER = "optimizer"

# How deep models may be nested in models: a hostile configuration could overflow the stack.
_MAX_DEPTH = 16

Config = Mapping[str, Any]
"""What JSON says of a model or a layer."""


def _read_layers(tree: Tree, config: Config) -> Content:
    """Return the arrays as `<layer>/<number>`, and notes; a network knows its layers' variables.

    Older Keras 3 wrote no names: layers are called as in `config`, or as their groups. The
    configuration also gives the order.
    """
    names = dict(_walk_layers(config))
    order = {place: index for index, place in enumerate(names)}
    variables = [name for name in tree.datasets if f"/{_VARIABLES}/" in f"/{name}"]
    groups = {name: name.rpartition("/")[0].rpartition("/")[0] for name in variables}

    def sort_key(name: str) -> tuple[int, list[tuple[int, str]]]:
        return order.get(_find_place(groups[name]), len(order)), _natural_key(name)

    arrays, left = {}, set()
    for path in sorted(variables, key=sort_key):
        if path.split("/")[0] == OPTIMIZER:
            left.add(OPTIMIZER)
            continue
        layer, number = _name_layer(tree, groups[path], names), path.rpartition("/")[2]
        name = f"{layer}/{number}".lstrip("/")
        if name in arrays:
            raise WeightFileError(
                f"got two weights {name!r}, expected one of a name. Two layers share it: name "
                "them apart and save the weights again."
            )
        arrays[name] = tree.read_array(path)
    return arrays, tuple(f"left out the group {name!r}" for name in sorted(left))


def _name_layer(tree: Tree, group: str, in_config: Mapping[str, object]) -> str:
    """Return the names of a layer and of those around it, as the model calls them."""
    parts = group.split("/") if group else []
    names = []
    for length, part in enumerate(parts, 1):
        if part in _CONTAINERS:
            continue
        path = "/".join(parts[:length])
        name = tree.read_text(f"{path}/{_VARIABLES}", "name") or in_config.get(_find_place(path))
        names.append(name if isinstance(name, str) else part)
    return "/".join(names)


def _walk_layers(config: Config, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the place of each layer in a model's configuration, and its name."""
    settings = config.get("config")
    layers = settings.get("layers") if isinstance(settings, dict) else None
    if not isinstance(layers, list) or prefix.count("/") > _MAX_DEPTH:
        return
    counts: Counter[str] = Counter()
    for layer in layers:
        if isinstance(layer, dict) and isinstance(layer.get("config"), dict):
            kind = str(layer.get("class_name")).lower()
            place = f"{prefix}{kind}#{counts[kind]}"
            counts[kind] += 1
            yield place, layer["config"].get("name")
            yield from _walk_layers(layer, f"{place}/")


def _find_place(group: str) -> str:
    """Return where in the configuration the layer of a group is.

    Keras names groups after classes, numbered in the model's order: the second `Conv2DTranspose` is
    `conv2d_transpose_1` in the file, and `conv2dtranspose#1` here for file and configuration.
    """
    parts = []
    for part in group.split("/"):
        if part not in _CONTAINERS:
            name, number = re.sub(r"_\d{1,6}$", "", part), re.search(r"_(\d{1,6})$", part)
            parts.append(f"{name.replace('_', '')}#{int(number[1]) if number else 0}")
    return "/".join(parts)


def _natural_key(name: str) -> list[tuple[int, str]]:
    return [
        (len(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name) if part
    ]


# The HDF5 layout of Keras 1 and 2, and of keras.applications: layers list their weights.

LAYERS = "layer_names"
WEIGHTS = "weight_names"
_LEGACY_OPTIMIZER = "optimizer_weights"

# Keras 1 named a variable `<layer>_W_1:0`; its running_std held the variance.
_KERAS_1 = {
    "W": "kernel",
    "b": "bias",
    "gamma": "gamma",
    "beta": "beta",
    "running_mean": "moving_mean",
    "running_std": "moving_variance",
}


def _find_legacy_root(tree: Tree) -> str | None:
    """Return the path of the group that lists the layers, `""` for the file itself."""
    # The file of a whole model has its weights in a group.
    for group in ("", "model_weights"):
        if group in tree.groups and tree.read_names(group, LAYERS) is not None:
            return group
    return None


def _read_legacy(tree: Tree, root: str) -> Content:
    """Return the arrays as `<layer>/<variable>`, in the model's order, and notes."""
    arrays = {}
    for layer in tree.read_names(root, LAYERS) or []:
        group = f"{root}/{layer}" if root else layer
        weights = tree.read_names(group, WEIGHTS) if group in tree.groups else None
        if weights is None:
            got = f"no group {group!r} with the names of its weights"
            raise damaged(got, "one, as the file lists this layer")
        for weight, name in zip(weights, name_legacy_variables(layer, weights), strict=True):
            if name in arrays:
                raise damaged(f"two weights {name!r}", "one of a name")
            arrays[name] = tree.read_array(f"{group}/{weight}")
    is_left = _LEGACY_OPTIMIZER in tree.groups
    return arrays, (f"left out the group {_LEGACY_OPTIMIZER!r}",) if is_left else ()


def name_legacy_variables(layer: str, weights: list[str]) -> list[str]:
    """Return `<layer>/<variable>` for the weights of a layer.

    >>> name_legacy_variables("conv1", ["conv1_2/kernel:0", "conv1_2/bias:0"])
    ['conv1/kernel', 'conv1/bias']
    >>> name_legacy_variables("fc6", ["fc6_W_1:0", "fc6_b_1:0"])
    ['fc6/kernel', 'fc6/bias']
    >>> name_legacy_variables("head", ["head/hidden/kernel", "head/out/kernel"])
    ['head/hidden/kernel', 'head/out/kernel']
    """
    parts = [re.sub(r":\d+$", "", weight).rpartition("/") for weight in weights]
    scopes = [_cut_layer(layer, scope) for scope, _, _ in parts]
    variables = [_rename_variable(layer, name) for _, _, name in parts]
    # A scope that all weights share and that does not begin with the layer's name is TensorFlow's
    # name of the model.
    foreign = {scope for scope, (full, _, _) in zip(scopes, parts, strict=True) if scope == full}
    if len(foreign) == 1 and len(set(scopes)) == 1 and max(Counter(variables).values()) == 1:
        scopes = [""] * len(scopes)
    if "depthwise_kernel" in variables and "pointwise_kernel" not in variables:
        # Keras 3 calls a depthwise convolution's weights `kernel`; only a separable one has both.
        variables = [name.replace("depthwise_kernel", "kernel") for name in variables]
    return [
        "/".join(part for part in (layer, scope, name) if part)
        for scope, name in zip(scopes, variables, strict=True)
    ]


def _cut_layer(layer: str, scope: str) -> str:
    """Return the part of a weight's scope that says more than the layer's name."""
    if re.fullmatch(rf"{re.escape(layer)}(_\d+)?", scope):
        return ""
    return scope.removeprefix(f"{layer}/")


def _rename_variable(layer: str, name: str) -> str:
    old = re.fullmatch(rf"{re.escape(layer)}_({'|'.join(_KERAS_1)})(_\d+)?", name)
    return _KERAS_1[old[1]] if old else name
