"""Weights that others published, under the names and in the shapes that a network has here."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from penstock import preprocessing
from penstock._errors import ParameterError, UnknownNameError, listed
from penstock._weight_files import HOW_TO_READ_RAW, WeightFile, find_format, read_weights
from penstock.models._registry import Model, get
from penstock.models._registry import names as list_models
from penstock.models._weight_layout import Entry, Layout, lay_out
from penstock.models._weight_names import (
    AUXILIARY,
    SOURCES,
    Source,
    choose_names,
    find_family_names,
    find_registered_preprocessing,
    list_parts,
    make_library_names,
    number_keras_variables,
    parts_of,
)
from penstock.models.report import build_forward
from penstock.preprocessing import Preprocessing, PreprocessingError, Torchvision
from penstock.program_builder import ProgramBuilder

Arrays = Mapping[str, np.ndarray]
Shapes = Mapping[str, tuple[int, ...]]

# Hugging Face keeps timm's description of a network's images in this file beside the weights.
TIMM_CONFIG = "config.json"

# The beginnings of the SHA-256 of torchvision's files IMAGENET1K_V2, as their names have them. Only
# the content tells them from V1: the arrays have the same names and shapes.
_SECOND_VERSIONS = ("11ad3fa6", "1a0047aa")

_AVERAGE = "/ExponentialMovingAverage"

# Layers whose matrices are no dense weights: they lie here as in torch.
_TABLES = frozenset(
    {"embedding", "position_embedding", "create_parameter", "nce", "hsigmoid"}
    | {"linear_chain_crf", "crf_decoding"}
)

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
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


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
    file = read_weights(path, moving_averages=moving_averages)
    # From two sets of shapes follows which axes count classes, and so the shapes for any number.
    builders = [build_forward(chosen, number, image_size) for number in (10, 11)]
    ten, eleven = map(list_shapes, builders)
    specs = builders[0].programs.network.specs.values()
    tables = frozenset(spec.name for spec in specs if spec.layer in _TABLES)
    return fit(chosen, file, ten, eleven, moving_averages=moving_averages, tables=tables)


def fit(
    chosen: Model,
    file: WeightFile,
    ten: Shapes,
    eleven: Shapes,
    *,
    moving_averages: bool,
    tables: frozenset[str] = frozenset(),
) -> ForeignWeights:
    """Return a file's arrays as parameters of the network, given its shapes for 10 and 11 classes.

    Arguments:
      tables: parameters that are matrices and no dense weights.
    """
    name_map, file = choose_names(chosen, file, ten)
    names = _leave_out_missing_heads(file, name_map.names)
    num_classes = _find_num_classes(chosen, file, names, ten, eleven)
    # Sizes grow by a fixed number with each class, so two points give the line.
    sides = ((name, zip(ten[name], eleven[name], strict=True)) for name in ten)
    more = num_classes - 10
    table = {name: tuple(a + more * (b - a) for a, b in both) for name, both in sides}
    averages = {name for name in list_parts(names) if name + _AVERAGE in file.arrays}
    taken = averages if moving_averages else set()
    entries, problems = _match(file, names, table, taken, name_map.layout, tables)
    # Keras's VGG takes blue, green, red. Its kernel is turned round rather than the images: then it
    # is like any other network for every preprocessing, and nothing can forget to turn them.
    for kernel in name_map.reversed_kernels:
        if kernel in entries:
            entries[kernel] = np.ascontiguousarray(entries[kernel][..., ::-1, :])
    # What nobody asked for is an error too: a file of another network may have all the rest.
    left = set(file.arrays) - list_parts(names) - set(name_map.ones)
    ignored = tuple(sorted(name for name in left if _NO_WEIGHTS.search(name)))
    problems += [f"left over: {name}" for name in sorted(left.difference(ignored))]
    problems += [
        f"not all ones: {name}, a scale that {chosen.name} does not have"
        for name in name_map.ones
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
            *_note_choices(averages, taken, name_map.reversed_kernels, entries),
            *note_guess(chosen, file),
        ),
    )


def _leave_out_missing_heads(
    file: WeightFile, names: Mapping[str, str | Entry]
) -> dict[str, str | Entry]:
    """Return the names without an auxiliary head's, where the file has nothing of it.

    Checkpoints of evaluation graphs and files of Keras and timm have none.
    """
    of_heads = {ours: theirs for ours, theirs in names.items() if AUXILIARY.search(ours)}
    if list_parts(of_heads) & set(file.arrays):
        return dict(names)
    return {ours: theirs for ours, theirs in names.items() if ours not in of_heads}


def _note_choices(
    averages: set[str], taken: set[str], reversed_kernels: tuple[str, ...], entries: Arrays
) -> Iterator[str]:
    if taken:
        yield (
            f"moving averages of {len(taken)} of {len(entries)} arrays, as TF-Slim evaluates; "
            f"{HOW_TO_READ_RAW}"
        )
    elif averages:
        yield f"the raw arrays, though the file has moving averages of {len(averages)}"
    if reversed_kernels:
        yield (
            f"input channels of {', '.join(reversed_kernels)} reversed: there images are blue, "
            "green, red, here red, green, blue"
        )
    if bad := [name for name, array in entries.items() if not np.all(np.isfinite(array))]:
        yield f"NOT FINITE: {listed(bad, most=3)} have nan or infinite values"


def note_guess(model: Model, file: WeightFile) -> Iterator[str]:
    """Yield the note that nothing says how the images of torch's weights were prepared."""
    family = find_family_names(model)
    if file.format != "torch" or family is None or not family.torch:
        return
    if _read_timm_config(file.path) or find_registered_preprocessing(model.name, "torch"):
        return
    # torchvision's files have the beginning of their digest in their names.
    digest = re.search(r"-([0-9a-f]{8})\.pth$", file.path.name)
    if not digest or not _find_digest(file.path).startswith(digest[1]):
        yield (
            f"the preprocessing of its images is a guess, that of most weights of {model.name}: no "
            "config.json of timm's lies beside it"
        )


def _find_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _match(
    file: WeightFile,
    names: Mapping[str, str | Entry],
    table: Shapes,
    averages: set[str],
    layout: Layout,
    tables: frozenset[str],
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the file's arrays by our names, laid out as here, and what does not match."""
    entries, problems = {}, []
    arrays = {**file.arrays, **{name: file.arrays[name + _AVERAGE] for name in averages}}
    for ours, shape in table.items():
        if (theirs := names.get(ours)) is None:
            continue
        if missing := [part for part in parts_of(theirs) if part not in arrays]:
            problems.append(f"missing: {missing[0]}, which is {ours} {list(shape)} here")
            continue
        entry = Entry(theirs) if isinstance(theirs, str) else theirs
        shown = entry.parts[0]
        try:
            array = entry.take(arrays)
        except (ValueError, IndexError) as error:
            problems.append(f"mismatched: {shown} cannot make {ours} {list(shape)}: {error}")
            continue
        own = layout if entry.transpose else "tensorflow"
        entries[ours] = lay_out(array, ours, shape, own, is_table=ours in tables)
        if entries[ours].shape != shape:
            got = list(entries[ours].shape)
            problems.append(f"mismatched: {shown} got {got}, expected {list(shape)}")
    return entries, problems


def _misfit_error(file: WeightFile, model: Model, problems: Sequence[str]) -> ParameterError:
    kinds = {"missing": "missing", "mismatched": "of another shape", "left over": "left over"}
    counts = {words: sum(p.startswith(kind) for p in problems) for kind, words in kinds.items()}
    counted = ", ".join(f"{number} {words}" for words, number in counts.items() if number)
    first = [next((p for p in problems if p.startswith(kind)), None) for kind in kinds]
    shown = [problem for problem in first if problem] or list(problems[:1])
    name, array = next(iter(file.arrays.items()), ("nothing", np.zeros(0)))
    fitting = find_fitting_models(file)
    what = f"Its names are those of {listed(fitting)}" if fitting else "No network here has them"
    return ParameterError(
        f"weights file {str(file.path)!r} does not fit {model.name}: "
        f"{counted or f'{len(problems)} arrays are not as expected'}.\n"
        f"  {'; '.join(shown)}\n"
        f"  It has {len(file.arrays)} arrays of {SOURCES[file.format]}, such as {name} "
        f"{list(array.shape)}. {what}. `penstock models` lists the networks."
    )


def find_fitting_models(file: WeightFile) -> list[str]:
    """Return the networks of the library that a file has all names of, and no others' names.

    Of TF-Slim's the scope says it. Widths are not compared.
    """
    formats = get_args(Source) if file.format == "numpy" else (file.format,)
    files = [dataclasses.replace(file, format=format) for format in formats]
    return [name for name in list_models() if any(_has_names_of(get(name), form) for form in files)]


def _has_names_of(model: Model, file: WeightFile) -> bool:
    family = find_family_names(model)
    if family is None:
        return False
    if file.format == "tf_slim":
        scope = family.tf_slim(model.name, "conv/w").partition("/")[0] if family.tf_slim else None
        return any(name.partition("/")[0] == scope for name in file.arrays)
    in_file = {name for name in file.arrays if not _NO_WEIGHTS.search(name)}
    in_file -= {*family.torch_ones(model.name)}
    for names in make_library_names(model, file):
        numbered = number_keras_variables(names, file.arrays)
        needed = {ours: n for ours, n in numbered.items() if not AUXILIARY.search(ours)}
        if needed and list_parts(needed) <= in_file <= list_parts(numbered):
            return True
    return False


def _find_num_classes(
    model: Model,
    file: WeightFile,
    names: Mapping[str, str | Entry],
    ten: Shapes,
    eleven: Shapes,
) -> int:
    """Return the file's number of classes, by an array that differs with 10 and 11: a bias if any.

    Each class has as many of its values, however the file lays it out.
    """
    last = [name for name, shape in ten.items() if shape != eleven[name] and name in names]
    for name in sorted(last, key=lambda name: len(ten[name])):
        entry = names[name]
        if all(part in file.arrays for part in parts_of(entry)):
            size = sum(file.arrays[part].size for part in parts_of(entry))
            if isinstance(entry, Entry) and entry.part is not None:
                size //= entry.part[1]
            of_ten = math.prod(ten[name])
            return 10 + (size - of_ten) // (math.prod(eleven[name]) - of_ten)
    # A file without its last layer is an error that `fit` reports.
    return model.num_classes


def list_shapes(builder: ProgramBuilder) -> Shapes:
    """Return the shapes of a network's parameters and statistics; nothing is computed."""
    return {row.name: row.shape for row in builder.parameter_table()}


def find_preprocessing(model: Model, path: Path) -> Preprocessing:
    """Return the preprocessing that the weights in a file were trained with.

    It follows from the file's format and content, or from timm's `config.json` beside it; arrays
    are not read.

    Raises:
      FileNotFoundError: there is no such file.
      ParameterError: it is not a weight file.
    """
    source = find_format(path)
    if source == "numpy":
        return preprocessing.get(model.preprocessing)
    is_torch = source in ("torch", "paddle")
    registered = find_registered_preprocessing(model.name, "torch" if is_torch else source)
    if registered is not None:
        return registered
    family = find_family_names(model)
    if not is_torch or family is None or not family.torch:
        return preprocessing.get(model.preprocessing)
    if (described := _read_timm_config(path)) is not None:
        return described
    # Of the digests of all files only theirs are looked at.
    has_second = model.name in ("resnet50", "resnext50")
    if has_second and _find_digest(path).startswith(_SECOND_VERSIONS):
        return preprocessing.get("torchvision_v2")
    return family.torch_preprocessing


def _read_timm_config(path: Path) -> Preprocessing | None:
    """Return the preprocessing in timm's description beside a file; None where there is none."""
    try:
        described = json.loads(path.with_name(TIMM_CONFIG).read_text(encoding="utf-8"))
        config = described.get("pretrained_cfg", described)
        return _from_timm(config) if isinstance(config, Mapping) and "mean" in config else None
    # The file may be another program's, such as a run's.
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return None


def _from_timm(config: Mapping[str, Any]) -> Preprocessing | None:
    (red, green, blue), deviations = config["mean"], config["std"]
    try:
        return Torchvision(
            means=(float(red), float(green), float(blue)),
            deviations=(float(deviations[0]), float(deviations[1]), float(deviations[2])),
            # timm's own default, where a description leaves it out.
            crop_fraction=float(config.get("crop_pct") or 0.875),
            interpolation=config.get("interpolation", "bilinear"),
        )
    # timm has ways to resize that are not known here: then the family's holds.
    except (PreprocessingError, UnknownNameError):
        return None
