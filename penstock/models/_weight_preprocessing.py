"""The preprocessing that goes with a weight file: of its source, not of the network."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock._errors import UnknownNameError
from penstock._weight_files import find_format
from penstock.models._registry import Model
from penstock.models._weight_names import registered_preprocessing, weight_maps_of
from penstock.preprocessing import Preprocessing, PreprocessingError, Torchvision, get

TIMM_CONFIG = "config.json"

# Beginnings of the SHA-256 of torchvision's files `IMAGENET1K_V2`, as their names have them: the
# names of the arrays are those of V1.
_SECOND_VERSIONS = ("11ad3fa6", "1a0047aa")
_HAVE_SECOND_VERSIONS = ("resnet50", "resnext50")


def preprocessing_of(model: Model, path: Path) -> Preprocessing:
    """Return the preprocessing that the weights in a file were trained with.

    It is told by the file's format and content, and by timm's `config.json` beside it; arrays are
    not read.

    Raises:
      FileNotFoundError: there is no such file.
      ParameterError: it is no weight file.
    """
    source = find_format(path)
    registered = registered_preprocessing(model.name, source)
    if registered is not None:
        return registered
    family = weight_maps_of(model)
    if source != "torch" or not hasattr(family, "torch"):
        return get(model.preprocessing)
    return _of_timm(path) or _of_second_version(model, path) or _of_torch(family, model)


def _of_torch(family: Any, model: Model) -> Preprocessing:
    own = getattr(family, "torch_preprocessing", None)
    return Torchvision() if own is None else own(model.name)


def _of_second_version(model: Model, path: Path) -> Preprocessing | None:
    if model.name not in _HAVE_SECOND_VERSIONS:
        return None
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return get("torchvision_v2") if digest.startswith(_SECOND_VERSIONS) else None


def _of_timm(path: Path) -> Preprocessing | None:
    """Return what timm's description beside a file says; None where there is none."""
    try:
        found = json.loads(path.with_name(TIMM_CONFIG).read_text(encoding="utf-8"))
        given = found.get("pretrained_cfg", found)
        return _from_timm(given) if isinstance(given, Mapping) and "mean" in given else None
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return None  # another program's, such as a run's


def _from_timm(given: Mapping[str, Any]) -> Preprocessing | None:
    (red, green, blue), deviations = given["mean"], given["std"]
    try:
        return Torchvision(
            means=(float(red), float(green), float(blue)),
            deviations=(float(deviations[0]), float(deviations[1]), float(deviations[2])),
            crop_fraction=float(given.get("crop_pct") or 0.875),
            interpolation=given.get("interpolation", "bilinear"),
        )
    except (PreprocessingError, UnknownNameError):
        return None
