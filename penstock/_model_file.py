"""The file of a trained model: compiled-for-later programs, weights and a manifest, in one zip.

The members are stored, not compressed, so that other tools map them as they lie: `manifest.json`,
`weights.safetensors` and programs, which are StableHLO as `jax.export` serialises it.
`penstock docs serving` describes them for readers in other languages.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock._errors import ModelFileError, ProgramError, check_known
from penstock._files import expand_path, replacing

MANIFEST, WEIGHTS = "manifest.json", "weights.safetensors"
FORMAT, VERSION = "penstock model", 1
SCALE = "/scale"
"""Behind the name of weights of int8: what each channel is multiplied by."""

_MOST_MANIFEST_BYTES = 64 << 20
# The same bytes for the same model.
_DATE = (1980, 1, 1, 0, 0, 0)
DTYPES = {
    "BOOL": "bool",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}
"""NumPy's names of the dtypes of arrays, by those of safetensors."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """One input or output of a model.

    Attributes:
      shape: without the batch axis; of a sequence that of one word; -1 where a batch decides.
      dtype: NumPy's name.
      kind: `"array"`, `"sequence"` (`lod_level` 1), `"nested"` (2), `"image"` where the host
        decodes and crops pictures, `"text"` where it makes ids of words.
      buckets: the lengths that sequences are padded to, powers of two from 16 if it is empty.
      num_ids: the ids of an input are below it; None where it holds none.
      rows: of an output, how many rows of axis 0 an example has; 0 if it is one value of a batch.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str = "array"
    buckets: tuple[int, ...] = ()
    num_ids: int | None = None
    rows: int = 1

    @property
    def lod_level(self) -> int:
        """How deep sequences are nested, 0 for an array."""
        return {"sequence": 1, "text": 1, "nested": 2}.get(self.kind, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """One exported program.

    Attributes:
      lengths: what the sequences of each input are padded to; any length where it is not named.
      options: of XLA, for the platforms.
    """

    file: str
    platforms: tuple[str, ...]
    lengths: Mapping[str, int] = dataclasses.field(default_factory=dict)
    options: Mapping[str, str | bool] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a model file says of itself.

    Attributes:
      outline: how the outputs are arranged: None in place of each, lists as `{"list": [...]}`,
        tuples as `{"tuple": [...]}`, dicts as `{"dict": {...}}`, sequences as `{"sequence": 2}`.
      takes_padding: whether the rows of an example are the same beside any others, so that batches
        are padded to few sizes.
      weights: the dtype that they are kept in.
      classes: the names of classes, in the order of the last axis of the first output.
      host: what happens to an example before: `{"image": {...}}` or `{"text": {...}}`.
      about: the run, the versions, the time, the accuracies; for people.
      checksum: twelve digits that are others for a file with anything else in it; of one that was
        read.
    """

    name: str
    inputs: tuple[Field, ...]
    outputs: tuple[Field, ...]
    outline: Any
    programs: tuple[Program, ...]
    takes_padding: bool = True
    weights: str = "float32"
    classes: tuple[str, ...] | None = None
    host: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    checksum: str = ""


def write(
    path: str | os.PathLike[str],
    manifest: Manifest,
    weights: Mapping[str, np.ndarray],
    programs: Mapping[str, bytes],
) -> Path:
    """Write a model file, whole or not at all; return where it is.

    Weights are named as in the files of `save_params`, programs by their files.
    """
    from safetensors.numpy import save

    target = expand_path(path)
    _refuse_folder(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"format": f"{FORMAT} {VERSION}"}
    plain = {name: np.asarray(value, order="C") for name, value in weights.items()}
    members = {**programs, WEIGHTS: save(plain, metadata=metadata)}
    checksums = {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}
    description = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(manifest)}
    del description["checksum"]
    text = json.dumps({**description, "sha256": checksums}, indent=1, ensure_ascii=False)
    with (
        replacing(target) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive,
    ):
        for name, data in ((MANIFEST, text.encode()), *members.items()):
            archive.writestr(zipfile.ZipInfo(name, _DATE), data)
    return target


def is_model_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a file begins as a zip does."""
    file = expand_path(path)
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return opened.read(4) == b"PK\x03\x04"


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Return what a model file says of itself; its other members are not read."""
    return _read(path, is_whole=False)[0]


def read(
    path: str | os.PathLike[str],
) -> tuple[Manifest, dict[str, np.ndarray], dict[str, bytes]]:
    """Return the manifest, the weights and the programs of a model file."""
    from safetensors import SafetensorError, deserialize

    manifest, members = _read(path, is_whole=True)
    try:
        # Not `safetensors.numpy.load`, which knows no bfloat16.
        weights = {
            name: np.frombuffer(entry["data"], DTYPES[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in deserialize(members.pop(WEIGHTS))
        }
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise _damaged(path, f"{WEIGHTS}: {error}") from error
    return manifest, weights, members


def _refuse_folder(path: Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(
            f"the model file got {str(path)!r}, which is a folder, expected a file. Of a run "
            f"`penstock export` makes one. Name it, such as {str(path / 'model.penstock')!r}."
        )


def _read(path: str | os.PathLike[str], *, is_whole: bool) -> tuple[Manifest, dict[str, bytes]]:
    file = expand_path(path)
    _refuse_folder(file)
    if not file.exists():
        raise FileNotFoundError(
            f"the model file got {str(file)!r}, expected a file as trainer.save_inference_model "
            "or `penstock export` writes it. There is none of that name."
        )
    try:
        return _read_members(file, is_whole=is_whole)
    except (ModelFileError, MemoryError):
        raise
    # `zipfile` raises what its parts do for a header that lies: struct.error, UnicodeDecodeError,
    # NotImplementedError, RuntimeError, OverflowError.
    except Exception as error:
        # A header that lies of a place leads in front of the file, which is no fault of the disk.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise _damaged(path, f"{type(error).__name__}: {error}") from error


def _read_members(file: Path, *, is_whole: bool) -> tuple[Manifest, dict[str, bytes]]:
    with zipfile.ZipFile(file) as archive:
        infos = {info.filename: info for info in archive.infolist()}
        if len(infos) != len(archive.infolist()):
            raise _damaged(file, "two members of one name")
        # Nothing is unpacked, so nothing small becomes large.
        if any(i.compress_type != zipfile.ZIP_STORED for i in infos.values()):
            raise _damaged(file, "a compressed member")
        if MANIFEST not in infos or infos[MANIFEST].file_size > _MOST_MANIFEST_BYTES:
            raise _damaged(file, f"no {MANIFEST} of a fitting size")
        text = archive.read(MANIFEST)
        manifest, checksums = _parse(file, json.loads(text))
        # It has the checksums of the other members.
        checksum = hashlib.sha256(text).hexdigest()[:12]
        manifest = dataclasses.replace(manifest, checksum=checksum)
        members: dict[str, bytes] = {}
        for name in (WEIGHTS, *(p.file for p in manifest.programs)) if is_whole else ():
            if name not in infos:
                raise _damaged(file, f"no member {name!r}")
            members[name] = archive.read(name)
            if hashlib.sha256(members[name]).hexdigest() != checksums.get(name):
                raise _damaged(file, f"{name} has another checksum")
        return manifest, members


def _parse(file: Path, data: Any) -> tuple[Manifest, Mapping[str, str]]:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise _damaged(file, f"a manifest that does not say {FORMAT!r}")
    remedy = "Use the penstock that wrote it, or export the run again with `penstock export`."
    thing = f"{str(file)!r} got version "
    check_known(thing, data.get("version"), [VERSION], remedy, ModelFileError)
    names = [field.name for field in dataclasses.fields(Manifest)]
    values = {name: data[name] for name in names if name != "checksum"}
    for name, kind in (("inputs", Field), ("outputs", Field), ("programs", Program)):
        values[name] = tuple([kind(**_freeze(entry)) for entry in values[name]])
    if values["classes"] is not None:
        values["classes"] = tuple(values["classes"])
    manifest = Manifest(**values)
    _check(file, manifest)
    return manifest, dict(data["sha256"])


def _freeze(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in entry.items()}


def _check(file: Path, manifest: Manifest) -> None:
    """Raise unless all of a manifest is of the kind that its readers take for granted."""
    texts = [manifest.name, manifest.weights, *(manifest.classes or ())]
    for program in manifest.programs:
        texts += [program.file, *program.platforms, *program.lengths, *program.options]
    numbers: list[Any] = [n for p in manifest.programs for n in p.lengths.values()]
    for field in (*manifest.inputs, *manifest.outputs):
        texts += [field.name, field.kind]
        numbers += [*field.shape, *field.buckets, field.rows]
        numbers += [] if field.num_ids is None else [field.num_ids]
        if field.dtype not in DTYPES.values():
            raise _damaged(file, f"the dtype {field.dtype!r}")
        if math.prod(map(abs, field.shape)) >= 1 << 40:
            raise _damaged(file, f"the shape {field.shape}")
    if not all(isinstance(text, str) for text in texts):
        raise _damaged(file, "a name that is no text")
    if not all(type(number) is int and -1 <= number < 1 << 40 for number in numbers):
        raise _damaged(file, "a size that is no whole number")
    if _count(manifest.outline) != len(manifest.outputs) or not manifest.programs:
        raise _damaged(file, "outputs or programs that do not fit together")
    if not isinstance(manifest.host, dict) or not isinstance(manifest.about, dict):
        raise _damaged(file, "a host or an about that is no object")


def outline(returned: object) -> Any:
    """Return how a program arranges what it returns, see `Manifest.outline`.

    >>> outline({"a": 1.0, "b": (2.0, 3.0)})
    {'dict': {'a': None, 'b': {'tuple': [None, None]}}}
    """
    if isinstance(returned, Mapping):
        if wrong := [key for key in returned if not isinstance(key, str)]:
            raise ProgramError(
                f"the infer program returned a dict with the key {wrong[0]!r}, expected text. "
                "A model file keeps names of outputs as JSON does. Return a list, or text keys."
            )
        return {"dict": {key: outline(value) for key, value in returned.items()}}
    if isinstance(returned, tuple | list):
        kind = "tuple" if isinstance(returned, tuple) else "list"
        return {kind: [outline(value) for value in returned]}
    is_sequence = dataclasses.is_dataclass(returned)
    return {"sequence": len(dataclasses.fields(returned))} if is_sequence else None


def _count(shape: Any) -> int:
    if shape is None:
        return 1
    (kind, inner), *extra = shape.items()
    if extra or kind not in ("dict", "tuple", "list", "sequence"):
        raise ValueError(f"the outline {shape}")
    if kind == "sequence":
        return int(inner)
    return sum(map(_count, inner.values() if kind == "dict" else inner))


def _damaged(file: str | os.PathLike[str], what: str) -> ModelFileError:
    return ModelFileError(
        f"{str(file)!r} got {what}, expected a file as trainer.save_inference_model or `penstock "
        "export` writes it. It is damaged, cut off or of something else. Export it again."
    )
