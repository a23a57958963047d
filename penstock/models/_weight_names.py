"""What the parameters of a network are called in a weight file: the library's maps, and users'.

The library's are in `_weight_maps`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

import numpy as np

from penstock._errors import ParameterError, check_known, listed
from penstock._weight_files import Format, WeightFile
from penstock.models._registry import Model, load_families
from penstock.models._weight_layout import Entry, Layout
from penstock.preprocessing import Preprocessing

if TYPE_CHECKING:
    from penstock.models._weight_maps import FamilyNames

Source = Literal["tf_slim", "keras", "torch"]
SOURCES: Mapping[Format, str] = {
    "tf_slim": "TF-Slim",
    "keras": "keras.applications",
    "torch": "torchvision or timm",
    "paddle": "Paddle",
    "numpy": "an unknown writer",
}
_LAYOUTS: dict[Format, Layout] = {
    "tf_slim": "tensorflow", "keras": "tensorflow", "torch": "torch", "paddle": "paddle",
}  # fmt: skip
# Paddle's networks have torch's names as a rule.
_SOURCES_OF_USERS: dict[Format, tuple[Source, ...]] = {
    "torch": ("torch",),
    "keras": ("keras",),
    "tf_slim": ("tf_slim",),
    "paddle": ("torch",),
    "numpy": ("torch", "keras", "tf_slim"),
}

Names = Callable[[], Mapping[str, str | Entry]]
AUXILIARY = re.compile(r"(^|/)(AuxLogits|aux_logits)/")
"""Names of ours of auxiliary heads, which some files lack."""

N = TypeVar("N", bound=Names)


@dataclasses.dataclass(frozen=True)
class NameMap:
    """The file's names by ours, and what has to be known to use them.

    Arguments:
      names: our name -> the file's, or what of it makes the parameter.
      layout: how the file's arrays are laid out.
      ones: names in the file of scales that the network does not have: they must be ones.
      reversed_kernels: our names of kernels whose input channels the file has in reverse order.
    """

    names: Mapping[str, str | Entry]
    layout: Layout
    ones: tuple[str, ...] = ()
    reversed_kernels: tuple[str, ...] = ()


_USER_MAPS: dict[tuple[str, str], list[tuple[Names, Preprocessing | None]]] = {}


def register_weight_map(
    model_name: str, source: Source, *, preprocessing: Preprocessing | None = None
) -> Callable[[N], N]:
    """Register the names of a network's parameters in weight files: decorate a function.

    The function returns a dict from penstock's names, such as `"conv1/conv/w"`, to the file's, or
    to a `models.Entry` for arrays that are joined or cut. It has every parameter and statistic of
    the network, except those missing from the files. Kernels, dense and depthwise weights are
    transposed from the layout of TensorFlow, Keras and torch, other arrays are not. If several maps
    are registered for a network and source, or the library has one, the map with the most names in
    the file is used.

    Arguments:
      model_name: the network's name; it may be registered later.
      source: the format that the names belong to: `"tf_slim"` for TensorFlow checkpoints,
        `"keras"` for Keras files (`<layer>/<variable>`), `"torch"` for state dicts and
        `.safetensors`.
      preprocessing: the preprocessing that the weights were trained with; the network's by
        default.

    Raises:
      ValueError: there is no such source.

    >>> from penstock import models
    >>> @models.register_weight_map("net_of_a_tutorial", "torch")
    ... def names_of_a_tutorial():
    ...     names = {}
    ...     for ours, theirs in {"conv1/conv": "conv1", "conv2/conv": "conv2"}.items():
    ...         names |= {f"{ours}/w": f"{theirs}.weight", f"{ours}/b": f"{theirs}.bias"}
    ...     return names
    >>> names_of_a_tutorial()["conv2/conv/b"]
    'conv2.bias'
    """
    why = "It is the format whose names the map has."
    check_known("models.register_weight_map: source", source, get_args(Source), why, ValueError)

    def add(make: N) -> N:
        _USER_MAPS.setdefault((model_name, source), []).append((make, preprocessing))
        return make

    return add


def find_registered_preprocessing(model_name: str, source: Source) -> Preprocessing | None:
    """Return the preprocessing registered with a user's map, the last of several."""
    registered = reversed(_USER_MAPS.get((model_name, source), ()))
    return next((choice for _, choice in registered if choice is not None), None)


def find_family_names(model: Model) -> FamilyNames | None:
    """Return the library's names for a network's family; None for a user's, or one without any."""
    # Not at the top: it imports every family, and most runs need one of them.
    from penstock.models._weight_maps import FAMILIES

    return FAMILIES.get(load_families().get(model.name, ""))


def choose_names(model: Model, file: WeightFile, own: Iterable[str]) -> tuple[NameMap, WeightFile]:
    """Return the map from our names to a file's that the file has most names of, and the file.

    A prefix that all of its names share, or without which all fit, is taken off the file's names.
    """
    own = list(own)
    # A user's map comes before the library's where a file has as many names of both.
    maps = [*_make_user_maps(model, file, own), *_make_library_maps(model, file, own)]
    if not maps:
        raise ParameterError(
            f"weights file {str(file.path)!r} got names of {SOURCES[file.format]}, which has no "
            f"network that coincides with {model.name}. `penstock docs weights` says what can be "
            "loaded; models.register_weight_map adds names of your own."
        )
    fitted = [(names, take_off_prefixes(file, names)) for names in maps]
    return max(fitted, key=lambda pair: len(list_parts(pair[0].names) & set(pair[1].arrays)))


def list_parts(names: Mapping[str, str | Entry]) -> set[str]:
    return {part for name in names.values() for part in parts_of(name)}


def parts_of(name: str | Entry) -> tuple[str, ...]:
    return (name,) if isinstance(name, str) else name.parts


def take_off_prefixes(file: WeightFile, chosen: NameMap) -> WeightFile:
    """Return a file without what Lightning, mmpretrain and others put before a network's names.

    Only where every name of the map is then there, or where all names of the file begin so.
    """
    if file.format not in ("torch", "paddle", "numpy"):
        return file
    needed = {ours: name for ours, name in chosen.names.items() if not AUXILIARY.search(ours)}
    missing = list_parts(needed) - set(file.arrays)
    by_end: dict[str, list[str]] = {}
    for name in file.arrays if missing else ():
        end = name
        while "." in end:
            end = end.partition(".")[2]
            by_end.setdefault(end, []).append(name)
    prefixes = {
        ends[0].removesuffix(part) for part in missing if len(ends := by_end.get(part, [])) == 1
    }
    shared = [p for p in prefixes if all(name.startswith(p) for name in file.arrays)]
    if not shared and not all(len(by_end.get(part, [])) == 1 for part in missing):
        return file
    # The longest first: `model.backbone.` before `model.`.
    prefixes = sorted(shared or prefixes, key=len, reverse=True)
    arrays: dict[str, np.ndarray] = {}
    for name, array in file.arrays.items():
        prefix = next((p for p in prefixes if name.startswith(p)), "")
        arrays[name.removeprefix(prefix)] = array
    if not prefixes or len(arrays) < len(file.arrays):
        return file
    note = f"took {listed(sorted(prefixes))} off the names"
    return dataclasses.replace(file, arrays=arrays, notes=(*file.notes, note))


def _make_user_maps(model: Model, file: WeightFile, own: list[str]) -> list[NameMap]:
    maps = []
    for source in _SOURCES_OF_USERS[file.format]:
        layout = _LAYOUTS["paddle" if file.format == "paddle" else source]
        for make, _ in _USER_MAPS.get((model.name, source), ()):
            names = number_keras_variables(make(), file.arrays)
            for name in names:
                thing = f"models.register_weight_map of {model.name} got the name "
                expected = "one of its parameters or statistics"
                why = f"`penstock models {model.name}` lists them."
                check_known(thing, name, own, why, ParameterError, expected)
            maps.append(NameMap(names, layout))
    return maps


def _make_library_maps(model: Model, file: WeightFile, own: list[str]) -> list[NameMap]:
    if file.format == "numpy":
        return _make_maps_of_any(model, file, own)
    family = find_family_names(model)
    if family is None:
        return []
    layout = _LAYOUTS[file.format]
    if file.format == "tf_slim":
        find_name = family.tf_slim
        names = {path: find_name(model.name, path) for path in own} if find_name else None
        return [NameMap(names, layout)] if names is not None else []
    maps = make_library_names(model, file)
    if file.format != "keras":
        return [NameMap(names, layout, family.torch_ones(model.name)) for names in maps]
    maps = [number_keras_variables(names, file.arrays) for names in maps]
    return [NameMap(names, layout, reversed_kernels=family.keras_bgr) for names in maps]


def _make_maps_of_any(model: Model, file: WeightFile, own: list[str]) -> list[NameMap]:
    """Return the maps for arrays by name whose writer is not known: ours, and all others'."""
    maps = [NameMap({name: name for name in own}, "tensorflow")]
    for format in _LAYOUTS:
        maps += _make_library_maps(model, dataclasses.replace(file, format=format), own)
    return maps


def _name_in_paddle(name: str) -> str:
    return name.replace(".running_mean", "._mean").replace(".running_var", "._variance")


def make_library_names(model: Model, file: WeightFile) -> list[dict[str, str]]:
    """Return the library's maps for a network from which a file's names follow without tracing."""
    family = find_family_names(model)
    if family is None:
        return []
    maps: list[dict[str, str]] = []
    for make in family.keras if file.format == "keras" else family.torch:
        # Not every network of a family was published: nasnet_cifar has no names in Keras.
        with contextlib.suppress(KeyError):
            maps.append(dict(make(model.name)))
    if file.format == "keras":
        return [renumber_keras_layers(names, file.arrays) for names in maps]
    if file.format == "paddle":
        return [{ours: _name_in_paddle(n) for ours, n in names.items()} for names in maps]
    return maps


def renumber_keras_layers(names: Mapping[str, str], in_file: Iterable[str]) -> dict[str, str]:
    """Return Keras's names with the automatic numbers that a file has; ours begin without one."""
    # Keras numbers the layers of a process: the first Conv2D is conv2d in its first model, may be
    # conv2d_94 in its second, and was conv2d_1 in Keras 2. So numbers count from the least one.
    numbers: dict[str, list[int]] = {}
    for name in in_file:
        kind, number = _split_number(name)
        numbers.setdefault(kind, []).append(number)
    kinds = {name.partition("/")[0] for name in names.values()}
    first = {kind: min(numbers[kind]) for kind in kinds if kind in numbers}
    renamed = {}
    for path, name in names.items():
        kind, number = _split_number(name)
        layer, _, variable = name.partition("/")
        layer = f"{kind}_{number + first[kind]}" if first.get(kind) else layer
        renamed[path] = f"{layer}/{variable}"
    return renamed


# The variables of Keras's layers, in Keras's order.
_KERAS_ORDERS = (
    ("kernel", "bias"),
    ("depthwise_kernel", "pointwise_kernel", "bias"),
    ("gamma", "beta", "moving_mean", "moving_variance"),
    ("mean", "variance", "count"),
    ("embeddings",),
    ("alpha",),
)


def number_keras_variables(
    names: Mapping[str, str | Entry], in_file: Container[str]
) -> dict[str, str | Entry]:
    """Return names, with the numbers that a file of Keras has in place of a variable's name.

    >>> names = {"norm/bias": "bn/beta", "norm/mean": "bn/moving_mean"}
    >>> number_keras_variables(names, {"bn/0", "bn/1"})
    {'norm/bias': 'bn/0', 'norm/mean': 'bn/1'}
    >>> number_keras_variables({"fc/w": "dense/kernel"}, {"dense/0", "dense/1"})
    {'fc/w': 'dense/0'}
    """
    # A .keras or .weights.h5 numbers the variables of a layer. It does not say which of a batch
    # norm's four is missing where it has three, the scale or the shift; the network does.
    layers: dict[str, list[str]] = {}
    for name in list_parts(names):
        layer, _, variable = name.rpartition("/")
        layers.setdefault(layer, []).append(variable)
    renamed = {}
    for layer, variables in layers.items():
        order = next((order for order in _KERAS_ORDERS if set(variables) <= set(order)), None)
        if order is None:
            continue
        # A file may have all that such a layer can have, and the network less: the rest is left.
        is_whole = f"{layer}/{len(order) - 1}" in in_file
        in_order = order if is_whole else sorted(variables, key=order.index)
        if f"{layer}/{len(in_order)}" not in in_file:
            numbers = {f"{layer}/{variable}": f"{layer}/{n}" for n, variable in enumerate(in_order)}
            renamed.update({a: b for a, b in numbers.items() if a not in in_file and b in in_file})
    return {path: _rename(name, renamed) for path, name in names.items()}


def _rename(name: str | Entry, renamed: Mapping[str, str]) -> str | Entry:
    if isinstance(name, str):
        return renamed.get(name, name)
    return dataclasses.replace(name, names=[renamed.get(part, part) for part in name.parts])


def _split_number(name: str) -> tuple[str, int]:
    """Return the kind and number of a layer: `("conv2d", 3)` for `conv2d_3/kernel`."""
    layer = name.partition("/")[0]
    match = re.fullmatch(r"(.*?)_(\d+)", layer)
    return (match[1], int(match[2])) if match else (layer, 0)
