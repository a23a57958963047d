"""Keras files: `.h5` of Keras 1 to 3 as `<layer>/<variable>`, others as `<layer>/<number>`.

Of HDF5 the groups, data sets and attributes are read that Keras writes.
"""

from __future__ import annotations

import contextlib
import io
import json
import mmap
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from penstock._errors import check_installed
from penstock._weight_files._file import Archive, Content, WeightFileError, damaged

if TYPE_CHECKING:
    import h5py

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
        groups = ", ".join(sorted({name.split("/")[0] for name in tree.groups if name})[:5])
        raise WeightFileError(
            f"got an HDF5 file with {groups or 'no groups'}, expected Keras weights: the attribute "
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


# What h5py raises for damaged files, depending on where the damage is.
_HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError)
_EXPECTED = "an HDF5 file that Keras wrote"


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn errors of h5py into a `WeightFileError` about what is being read."""
    try:
        yield
    except WeightFileError:
        raise
    except _HDF5_ERRORS as error:
        raise damaged(f"damage in {what} ({error})", _EXPECTED) from error


@dataclass
class Tree:
    """The objects in an open HDF5 file, by path; the file itself is `""`.

    Links to other files are not followed. The arrays read are together no larger than `num_bytes`,
    as in an `Archive`.
    """

    groups: Mapping[str, h5py.Group]
    datasets: Mapping[str, h5py.Dataset]
    num_bytes: int
    num_read: int = 0

    @classmethod
    def walk(cls, file: h5py.File, num_bytes: int) -> Tree:
        """Collect the objects of an open file; each is met once, so circular links do no harm."""
        import h5py

        groups: dict[str, h5py.Group] = {"": file}
        datasets: dict[str, h5py.Dataset] = {}

        def visit(name: str | bytes, item: object) -> None:
            # h5py leaves a name that it cannot decode as bytes.
            if isinstance(name, bytes):
                raise ValueError(f"the name {name[:40]!r} is no UTF-8")
            if isinstance(item, h5py.Dataset):
                datasets[name] = item
            elif isinstance(item, h5py.Group):
                groups[name] = item

        with reading("its groups"):
            file.visititems(visit)
        return cls(groups, datasets, num_bytes)

    def read_names(self, group: str, attribute: str) -> list[str] | None:
        """Return an attribute that lists names, as Keras splits long lists, or None without it."""
        with reading(f"the attribute {attribute!r} of {group or 'the file'!r}"):
            attributes = self.groups[group].attrs
            if attribute in attributes:
                return _read_strings(attributes, attribute)
            pattern = re.compile(rf"{re.escape(attribute)}(\d{{1,4}})")
            numbers = sorted(int(m[1]) for m in map(pattern.fullmatch, attributes) if m)
            parts = [_read_strings(attributes, f"{attribute}{number}") for number in numbers]
            return [name for part in parts for name in part] if parts else None

    def read_text(self, group: str, attribute: str) -> str | None:
        """Return an attribute that is a string, or None without it."""
        with reading(f"the attribute {attribute!r} of {group!r}"):
            if group not in self.groups or attribute not in self.groups[group].attrs:
                return None
            return next(iter(_read_strings(self.groups[group].attrs, attribute)), None)

    def read_array(self, name: str) -> np.ndarray:
        if name not in self.datasets:
            raise damaged(f"no data set {name!r}", "it, as the file lists it")
        with reading(f"the data set {name!r}"):
            return self._read_checked(name)

    def _read_checked(self, name: str) -> np.ndarray:
        dataset = self.datasets[name]
        if dataset.external or dataset.is_virtual:
            raise WeightFileError(
                f"got a data set {name!r} whose values lie in another file, expected them in this "
                "one. Other files are never opened. Save the weights again with Keras."
            )
        # A data set may be declared of any size and hold nothing, or be compressed a thousandfold.
        self.num_read += 0 if dataset.size is None else dataset.nbytes
        if dataset.size is None or self.num_read > self.num_bytes:
            expected = f"at most the {self.num_bytes} bytes of the file, with those before it"
            raise damaged(f"a data set {name!r} of shape {dataset.shape}", expected)
        # HDF5 has no bfloat16: Keras 3 writes it as opaque values of two bytes.
        is_bfloat16 = dataset.dtype == np.dtype("V2")
        if not is_bfloat16 and dataset.dtype.kind not in "fiub":
            raise damaged(f"a data set {name!r} of type {dataset.dtype}", "numbers")
        values = np.asarray(dataset[()])
        if is_bfloat16:
            return values.view(jnp.bfloat16)
        return values.astype(values.dtype.newbyteorder("="), copy=False)


def _read_strings(attributes: h5py.AttributeManager, name: str) -> list[str]:
    """Return an attribute that is text or a list of texts, which old files hold as bytes."""
    import h5py

    attribute = attributes.get_id(name)
    # Keras writes an empty list of names as an empty array of floats.
    if 0 in attribute.shape:
        return []
    # The HDF5 library crashes on some types that only damage makes; both kinds of text are safe.
    if not isinstance(attribute.get_type(), h5py.h5t.TypeStringID):
        raise damaged(f"an attribute {name!r} that is no text", "names")
    values = np.atleast_1d(np.asarray(attributes[name])).tolist()
    return [value.decode("utf-8") if isinstance(value, bytes) else str(value) for value in values]


_HEAP = b"GCOL\x01\x00\x00\x00"
"""Signature and version of a global heap."""
_HEADER_BYTES = 16
"""Of a heap, and of each object in it."""
# Where the superblock says how many bytes a length takes, by the superblock's version.
_LENGTH_AT = {b"\x00": 14, b"\x01": 14, b"\x02": 10, b"\x03": 10}


def check_heaps(content: bytes | mmap.mmap) -> None:
    """Raise unless every global heap in a file is whole: objects one after the other to its end.

    They hold names. Two of some thousand files damaged at random sent HDF5 2.0 into an endless
    loop, which Ctrl-C does not end: it never gets past an object of length 0 in such a heap.
    """
    length_at = _LENGTH_AT.get(content[8:9], 0)
    # The sizes of offsets and of lengths: Keras's files have 8 bytes for both.
    if content[length_at - 1 : length_at + 1] != b"\x08\x08":
        raise damaged("damage at byte 8", _EXPECTED)
    begin = content.find(_HEAP)
    while begin >= 0:
        size = int.from_bytes(content[begin + 8 : begin + _HEADER_BYTES], "little")
        if not _HEADER_BYTES <= size <= len(content) - begin:
            raise damaged(f"damage at byte {begin}", _EXPECTED)
        _check_objects(content, begin + _HEADER_BYTES, begin + size)
        begin = content.find(_HEAP, begin + size)


def _check_objects(content: bytes | mmap.mmap, position: int, end: int) -> None:
    """Raise unless the objects of a heap, the last one free space, fill it."""
    # Less than a header at the end is free space.
    while end - position >= _HEADER_BYTES:
        index = int.from_bytes(content[position : position + 2], "little")
        length = int.from_bytes(content[position + 8 : position + _HEADER_BYTES], "little")
        # Index 0 is free space, whose length counts its header.
        if index == 0 and length < _HEADER_BYTES:
            raise damaged(f"damage at byte {position}", _EXPECTED)
        position += length if index == 0 else _HEADER_BYTES + (length + 7) // 8 * 8
    if position > end:
        raise damaged(f"damage at byte {position}", _EXPECTED)
