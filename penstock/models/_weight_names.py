"""What the parameters of a network are called in others' files: the library's maps, and one's own.

The library's are in `_weight_maps`, a file for each family.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args

from penstock._errors import ParameterError, listed, nearest
from penstock._weight_files import WeightFile
from penstock.models._registry import Model, family_of
from penstock.models._weight_maps._common import keras_by_number, keras_renumbered
from penstock.preprocessing import Preprocessing

Source = Literal["tf_slim", "keras", "torch"]
SOURCES: Mapping[str, str] = MappingProxyType(
    {"tf_slim": "TF-Slim", "keras": "keras.applications", "torch": "torchvision or timm"}
)
_KINDS = {"keras": ("keras", "keras_2"), "torch": ("torch", "timm")}

Names = Callable[[], Mapping[str, str]]
N = TypeVar("N", bound=Names)


@dataclasses.dataclass(frozen=True)
class NameMap:
    """The file's names by ours, and what belongs to them.

    Arguments:
      names: our name -> the file's.
      ones: names in the file of scales that the network does not have: they must be ones.
      reversed_kernels: our names of kernels whose input channels are the other way round there.
    """

    names: Mapping[str, str]
    ones: tuple[str, ...] = ()
    reversed_kernels: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Registered:
    """A map of one's own."""

    make: Names
    preprocessing: Preprocessing | None


_WEIGHT_MAPS: dict[tuple[str, str], list[_Registered]] = {}


def register_weight_map(
    model_name: str, source: Source, *, preprocessing: Preprocessing | None = None
) -> Callable[[N], N]:
    """Say what a network's parameters are called in others' files; a decorator.

    The function returns a dict from our name, such as `"conv1/conv/w"`, to the file's. Every
    parameter and statistic of the network stands in it, but those that the files lack. Arrays are
    laid out by their shapes: kernels, dense and depthwise weights of TensorFlow, Keras and torch
    become ours. Of several maps for a network and source, the library's among them, the one that a
    file has most names of is taken.

    Arguments:
      model_name: of the network, which may be registered later.
      source: whose names they are: of TensorFlow checkpoints (`"tf_slim"`), of Keras files
        (`<layer>/<variable>`), or of torch's state dicts and `.safetensors`.
      preprocessing: of the images that those weights were trained with; without it the network's.

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
    if source not in get_args(Source):
        raise ValueError(
            f"models.register_weight_map got source={source!r}, expected one of "
            f"{listed(get_args(Source))}. It is the format whose names the map has."
            + nearest(str(source), get_args(Source))
        )

    def add(make: N) -> N:
        _WEIGHT_MAPS.setdefault((model_name, source), []).append(_Registered(make, preprocessing))
        return make

    return add


def registered_preprocessing(model_name: str, source: str) -> Preprocessing | None:
    """Return the preprocessing that was registered with a map, the last where there are several."""
    found = [each.preprocessing for each in _WEIGHT_MAPS.get((model_name, source), ())]
    return next((each for each in reversed(found) if each is not None), None)


def weight_maps_of(model: Model) -> Any:
    """Return the library's module of names of a network's family; None where there is none."""
    module = f"penstock.models._weight_maps.{family_of(model.name)}"
    # One's own networks, and those nobody published, have none.
    return importlib.import_module(module) if importlib.util.find_spec(module) else None


def names_in(model: Model, file: WeightFile, own: Iterable[str]) -> NameMap:
    """Return the map from our names to those of a file that the file has most of.

    Arguments:
      own: our names.

    Raises:
      ParameterError: nobody published weights of the network in the file's format, or a map that
        was registered has a name that the network has not.
    """
    own = list(own)
    maps = [*_registered_maps(model, file, own), *_library_maps(model, file, own)]
    if not maps:
        raise ParameterError(
            f"weights file {str(file.path)!r} got names of {SOURCES[file.format]}, which has no "
            f"network that coincides with {model.name}. See docs/weights.md for what can be loaded "
            "and for models.register_weight_map, which adds names of one's own."
        )
    return max(maps, key=lambda each: len(set(each.names.values()) & set(file.arrays)))


def _registered_maps(model: Model, file: WeightFile, own: list[str]) -> list[NameMap]:
    maps = []
    for registered in _WEIGHT_MAPS.get((model.name, file.format), ()):
        names = dict(registered.make())
        unknown = [name for name in names if name not in own]
        if unknown:
            raise ParameterError(
                f"models.register_weight_map got the name {unknown[0]!r} for {model.name}, "
                f"expected one of its parameters or statistics. `penstock models {model.name}` "
                f"lists them.{nearest(unknown[0], own)}"
            )
        maps.append(NameMap(names))
    return maps


def _library_maps(model: Model, file: WeightFile, own: list[str]) -> list[NameMap]:
    family = weight_maps_of(model)
    if file.format == "tf_slim":
        is_known = hasattr(family, "tf_slim")
        return [NameMap({path: family.tf_slim(model.name, path) for path in own})] * is_known
    makers = [getattr(family, kind) for kind in _KINDS[file.format] if hasattr(family, kind)]
    maps = [dict(found) for found in (make(model.name) for make in makers) if found]
    if file.format == "keras":
        maps = [keras_renumbered(names, file.arrays) for names in maps]
        maps = [keras_by_number(names, file.arrays) for names in maps]
    ones = _asked(family, "torch_ones", model) if file.format == "torch" else ()
    reversed_kernels = _asked(family, "keras_bgr", model) if file.format == "keras" else ()
    return [NameMap(names, ones, reversed_kernels) for names in maps]


def _asked(family: Any, name: str, model: Model) -> tuple[str, ...]:
    return tuple(getattr(family, name)(model.name)) if hasattr(family, name) else ()
