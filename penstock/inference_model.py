"""`InferenceModel`: a trained model of one file, run with JAX, NumPy and safetensors alone."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
import timeit
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from penstock import _compile_cache, _mesh, _model_file
from penstock._errors import FeedError, FixedAttributes, ModelFileError, check_type, listed
from penstock._files import expand_path
from penstock._mesh import Place
from penstock._model_file import Field, Manifest
from penstock._padded_batches import Feeder, HostBatch, Rows
from penstock._program.inputs import Feed, FeedSpec, Ids
from penstock._program.sequences import NestedSequence, cut_all
from penstock._program.sequences import Sequence as WordSequence

CACHE_ENDING = ".cache"
"""Behind the name of a model's file: the folder of programs that were compiled for it."""


class HostModel(FixedAttributes):
    """What a host knows and does of a model, wherever that runs.

    Attributes:
      manifest: all that the file says of itself.
      name: the model's name.
      version: twelve digits that are others for a file with anything else in it.
      inputs: names, shapes without the batch axis, dtypes and kinds of what it takes.
      outputs: the same of what it answers.
      class_names: the names of classes, where it was saved with them; else None.
      batch_secs: the seconds that a batch takes, by its examples, of the sizes that it is warm for.
    """

    __slots__ = ("batch_secs", "class_names", "inputs", "manifest", "name", "outputs", "version")

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.name, self.version = manifest.name, manifest.checksum
        self.inputs, self.outputs = manifest.inputs, manifest.outputs
        self.class_names = manifest.classes
        self.batch_secs: dict[int, float] = {}

    def infer_columns(self, feed: Feed) -> dict[str, np.ndarray]:
        """Return the outputs by name; sequences as padded values and lengths."""
        raise NotImplementedError

    def prepare(self, examples: Sequence[bytes | str | Path]) -> dict[str, Any]:
        """Return the feed of images or sentences; see `predict`."""
        host = self.manifest.host
        if isinstance(examples, bytes | str | Path):
            examples = [examples]
        examples = list(examples)
        if not examples:
            raise FeedError(f"{self.name} got no example, expected at least 1.")
        if all(isinstance(example, bytes | str | Path) for example in examples):
            if "image" in host:
                make = self._prepare_image
                return {host["image"]["input"]: np.stack([make(x) for x in examples])}
            if "text" in host:
                return {host["text"]["input"]: [self._prepare_text(x) for x in examples]}
        expected = "images, as bytes or paths" if "image" in host else "sentences"
        raise FeedError(
            f"{self.name} got {type(examples[0]).__name__}, expected "
            f"{expected if host else 'arrays'}. Use infer for arrays of "
            f"{listed(field.name for field in self.inputs)}. A model takes images that was saved "
            "with their preprocessing, and sentences with vocabulary=."
        )

    def _prepare_image(self, example: bytes | str | Path) -> np.ndarray:
        from penstock.readers.records.image_decoding import decode_as_stored, read_image

        facts = self.manifest.host["image"]
        is_file = not isinstance(example, bytes)
        name = str(example) if is_file else "the image"
        encoded = read_image(example) if is_file else example
        try:
            height, width, channels = facts["shape"]
            image, _ = decode_as_stored(
                encoded,
                channels=channels,
                stored=facts["stored_shape"],
                shorter_side=facts.get("shorter_side"),  # files of before have none
                name=name,
            )
            return self._preprocessing.host(image, height, width, is_training=False)
        except ValueError as error:
            raise FeedError(str(error)) from error

    @functools.cached_property
    def _preprocessing(self) -> Any:
        from penstock import preprocessing

        return preprocessing.restore(self.manifest.host["image"]["preprocessing"])

    def _prepare_text(self, example: Any) -> np.ndarray:
        expected = "a sentence as text. Its host part makes ids of words."
        check_type(self.name, example, str, expected, FeedError)
        facts = self.manifest.host["text"]
        words = re.findall(facts["pattern"], example.lower() if facts["lowercase"] else example)
        ids = [facts["vocabulary"].get(word, facts["unknown"]) for word in words]
        return np.asarray([n for n in ids if n is not None], np.int32)


class InferenceModel(HostModel):
    """A model that `Trainer.save_inference_model` or `penstock export` wrote.

    It holds the program, so that nothing of the code that trained it is needed. Any thread may call
    it. Answers are those of an `Inferencer` on the same device, bit for bit.

    Load files of people you trust alone: a checksum tells damage, not intent.

    Attributes:
      manifest: all that the file says of itself.

    >>> import tempfile, optax
    >>> import penstock as ps
    >>> from penstock import layers
    >>> def infer_program():
    ...     return layers.fc(layers.data("x", shape=[2]), size=3, act="softmax")
    >>> def train_program():
    ...     label = layers.data("label", shape=[1], dtype="int32")
    ...     return layers.mean(layers.cross_entropy(infer_program(), label))
    >>> trainer = ps.Trainer(train_program, optax.sgd(0.1), infer_func=infer_program)
    >>> path = tempfile.mkdtemp() + "/points.penstock"
    >>> trainer.save_inference_model(path)
    >>> model = ps.InferenceModel.load(path)
    >>> model.infer({"x": [[1.0, 2.0], [3.0, 4.0]]}).shape
    (2, 3)
    """

    __slots__ = (
        "_cache",
        "_device",
        "_feeder",
        "_lock",
        "_programs",
        "_ready",
        "_specs",
        "_weights",
    )

    def __init__(
        self,
        manifest: Manifest,
        weights: Mapping[str, np.ndarray],
        programs: Mapping[str, bytes],
        *,
        place: Place = None,
        source: str = "the model",
        cache: Path | None = None,
    ) -> None:
        super().__init__(manifest)
        self._cache = cache
        mesh = _mesh.make_mesh(_mesh.find_devices(place)[:1])
        self._device = mesh.devices.flat[0]
        self._specs = {field.name: _make_spec(field) for field in manifest.inputs}
        self._feeder = Feeder(mesh, self._specs)
        platform = _name_platform(self._device)
        fitting = [p for p in manifest.programs if platform in p.platforms]
        if not fitting:
            made = dict.fromkeys(name for p in manifest.programs for name in p.platforms)
            raise ModelFileError(
                f"{source} got the device {self._device}, expected one of {listed(made)}. It was "
                "exported for these. Pass place=, or export it for this platform too."
            )
        self._programs = [(p, _deserialize(programs[p.file], source)) for p in fitting]
        self._weights = jax.device_put(dict(weights), self._device)
        self._ready: dict[Any, Any] = {}
        self._lock = threading.Lock()

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, place: Place = None) -> InferenceModel:
        """Return the model of a file.

        A folder `<path>.cache` beside it, which `penstock export --warm` fills, is used for what is
        compiled, unless you have named a folder for that.

        Arguments:
          place: the device to run on, or the name of a platform; by default JAX's first.

        Raises:
          FileNotFoundError: there is no such file.
          ModelFileError: it is damaged, foreign, or of a version that JAX no longer reads.
        """
        manifest, weights, programs = _model_file.read(path)
        cache = choose_cache(path)
        return cls(manifest, weights, programs, place=place, source=str(path), cache=cache)

    def infer(self, feed: Feed) -> Any:
        """Return what the infer function returned, as NumPy arrays in its structure.

        Arguments:
          feed: a dict from input name to array `[B, ...]`, with any B. Where an answer depends on
            its own example alone, B is padded to a power of two and one program is compiled for
            each; otherwise one is compiled for each B.

        Raises:
          FeedError: a name, shape or dtype does not fit the inputs.
        """
        values = [x.item() if x.ndim == 0 else x for x in self._run(feed)]
        return cut_all(_fill(self.manifest.outline, iter(values)))

    def infer_columns(self, feed: Feed) -> dict[str, np.ndarray]:
        """Return the outputs by name, as for `infer`; sequences as padded values and lengths."""
        names = [field.name for field in self.outputs]
        return dict(zip(names, self._run(feed), strict=True))

    def predict(self, examples: Sequence[bytes | str | Path], top_k: int = 5) -> Any:
        """Return what the model answers about images or sentences.

        Arguments:
          examples: encoded images, or paths of their files; or sentences.
          top_k: how many classes to name.

        Returns:
          For each example its likeliest classes, each a dict of `name` and `probability`; without
          names of classes what `infer` returns.

        Raises:
          FeedError: the model takes neither images nor sentences, or one cannot be read.
        """
        feed = self.prepare(examples)
        if self.class_names is None:
            return self.infer(feed)
        return [choose_best(row, self.class_names, top_k) for row in self._run(feed)[0]]

    def warm(self, batch_sizes: Sequence[int] = (1,)) -> None:
        """Compile for batches of these sizes and time them, before the first question comes.

        Sequences are taken to be of the first bucket. See `keep_compiled`, too.
        """
        for size in batch_sizes:
            feed: dict[str, Any] = {}
            for field in self.inputs:
                zeros = np.zeros((size, *field.shape), field.dtype)
                words = [zeros[:1]] * size
                kinds: Any = zeros, words, [[word] for word in words]
                feed[field.name] = kinds[field.lod_level]
            self._compile(*self._place(feed))
            run = functools.partial(self._run, feed)
            runs = [timeit.timeit(run, number=1)]
            # What is done once takes up to a tenth of a second.
            if runs[0] < 0.5:
                runs = timeit.repeat(run, number=1, repeat=3)
            self.batch_secs[size] = min(runs)

    def _run(self, feed: Feed) -> list[np.ndarray]:
        """Return the outputs in order, padding of examples cut off."""
        arrays, batch = self._place(feed)
        values = self._compile(arrays, batch)(self._weights, arrays)
        shown = []
        for field, value in zip(self.outputs, jax.device_get(values), strict=True):
            cut = value[: batch.size * field.rows] if field.rows else value
            shown.append(np.array(cut))
        return shown

    def _place(self, feed: Feed) -> tuple[dict[str, Any], HostBatch]:
        """Return the arrays that the program takes, and the batch that they are of."""
        feeder, batch = self._feeder, self._feeder.prepare([feed])
        rows = Rows(1 << (batch.size - 1).bit_length(), batch.size, ())
        placed: Any = feeder.put(batch, rows if self.manifest.takes_padding else None).feed
        arrays: dict[str, Any] = {}
        for name, spec in self._specs.items():
            arrays.update(spec.split(placed[name]))
            arrays[name] = arrays[name].astype(spec.dtype, copy=False)
        if self._feeder.is_single_cpu:  # nothing was placed, and it may lie on another device
            arrays = jax.device_get(arrays)
        return arrays, batch

    def _compile(self, arrays: Mapping[str, np.ndarray], batch: HostBatch) -> Any:
        key = tuple([x.shape for x in arrays.values()])
        ready = self._ready.get(key)
        if ready is None:
            with self._lock:
                ready = self._ready.get(key) or self._compile_new(arrays, batch)
                self._ready[key] = ready
        return ready

    def _compile_new(self, arrays: Mapping[str, np.ndarray], batch: HostBatch) -> Any:
        lengths = {name: n for name, n in batch.lengths.items() if name in arrays}
        fitting = [pair for pair in self._programs if pair[0].lengths in ({}, lengths)]
        if not fitting:
            made = [str(dict(program.lengths)) for program, _ in self._programs]
            raise FeedError(
                f"{self.name} got sequences padded to {lengths}, expected one of {listed(made)}. "
                "The model was exported for these lengths. Cut longer sequences."
            )
        program, exported = fitting[0]
        with jax.default_device(self._device):  # weights tell it, where there are any
            lowered = jax.jit(exported.call).lower(self._weights, dict(arrays))
        with contextlib.nullcontext() if self._cache is None else _compiling_in(self._cache):
            try:
                return lowered.compile(dict(program.options))
            except jax.errors.JaxRuntimeError:
                # Options come and go with XLA's versions.
                return lowered.compile()

    def __repr__(self) -> str:
        inputs = ", ".join(f"{f.name}: {f.dtype}{list(f.shape)}" for f in self.inputs)
        outputs = ", ".join(f"{f.name}: {f.dtype}{list(f.shape)}" for f in self.outputs)
        return f"<InferenceModel {self.name!r}: {inputs} -> {outputs}>"


def choose_best(row: np.ndarray, names: Sequence[str], top_k: int) -> list[dict[str, Any]]:
    """Return the likeliest classes of probabilities `[classes]`, the likeliest first."""
    # Stable, so that classes of one probability keep their order. The negative of bytes is bytes.
    best = np.argsort(-row.astype(np.float64), kind="stable")[:top_k]
    return [{"name": names[n], "probability": float(row[n])} for n in best]


def keep_compiled(path: str | os.PathLike[str], batch_sizes: Sequence[int] = (1,)) -> Path:
    """Compile the model of a file for batches of these sizes, and keep that beside it.

    Where the folder travels with the file, another process on a machine of this kind, with this
    version of JAX, compiles nothing.

    Returns:
      The folder, `<path>.cache`.
    """
    cache = find_cache(path)
    manifest, weights, programs = _model_file.read(path)
    _compile_cache.try_folder(cache)
    with _compiling_in(cache, least_secs=0):
        InferenceModel(manifest, weights, programs, source=str(path)).warm(batch_sizes)
    return cache


_COMPILING = threading.Lock()


@contextlib.contextmanager
def _compiling_in(folder: Path, least_secs: float | None = None) -> Iterator[None]:
    """Have JAX read and keep in a folder what it compiles inside the `with` block."""
    from jax.experimental.compilation_cache import compilation_cache

    config: Any = jax.config
    names = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"
    # JAX has one folder for all that is compiled, and a process may have several models.
    with _COMPILING:
        before = [getattr(config, name) for name in names]
        if least_secs is None:
            # In an image of a container it is read, and nothing new written.
            least_secs = before[1] if os.access(folder, os.W_OK) else 1e9
        try:
            config.update(names[0], str(folder))
            config.update(names[1], least_secs)
            # JAX keeps the folder that it used first, until it is told.
            compilation_cache.reset_cache()
            yield
        finally:
            for name, value in zip(names, before, strict=True):
                config.update(name, value)
            compilation_cache.reset_cache()


def choose_cache(path: str | os.PathLike[str]) -> Path | None:
    """Return the folder of compiled programs that came with a model's file, where it is used."""
    config: Any = jax.config
    folder, other = find_cache(path), config.jax_compilation_cache_dir
    # That of commands holds what any of them compiles; the file's own what it needs.
    is_used = not other or other == str(_compile_cache.find_folder())
    return folder if is_used and folder.is_dir() else None


def find_cache(path: str | os.PathLike[str]) -> Path:
    """Return the folder of compiled programs that belongs to a model's file."""
    file = expand_path(path)
    return file.with_name(file.name + CACHE_ENDING)


def _name_platform(device: Any) -> str:
    if device.platform != "gpu":
        return device.platform
    return "rocm" if "rocm" in device.client.platform_version.lower() else "cuda"


def _deserialize(data: bytes, source: str) -> Any:
    from jax import export

    try:
        exported = export.deserialize(bytearray(data))
    # flatbuffers and MLIR raise what they please.
    except Exception as error:
        raise ModelFileError(
            f"{source} got a program that JAX {jax.__version__} does not read ({error}), expected "
            "one that was exported in the last six months. JAX promises to read files of that age. "
            "Make it again with `penstock export --renew`, or use the JAX that its manifest names."
        ) from error
    for dtype in dict.fromkeys(aval.dtype for aval in exported.in_avals):
        if (ours := jax.dtypes.canonicalize_dtype(dtype)) != dtype:
            raise ModelFileError(
                f"{source} got a program that takes {str(dtype)!r}, expected one that takes "
                f"{str(ours)!r}. It was made with jax_enable_x64. Set JAX_ENABLE_X64=1 to run it."
            )
    return exported


def _make_spec(field: Field) -> FeedSpec:
    ids = None if field.num_ids is None else Ids(field.num_ids, "the model")
    return FeedSpec(
        name=field.name,
        shape=field.shape,
        dtype=np.dtype(field.dtype),
        lod_level=field.lod_level,
        buckets=field.buckets,
        ids=ids,
    )


def _fill(outline: Any, values: Any) -> Any:
    """Return values arranged as an outline says, see `Manifest.outline`."""
    if outline is None:
        return next(values)
    ((kind, inner),) = outline.items()
    if kind == "dict":
        return {key: _fill(part, values) for key, part in inner.items()}
    if kind == "sequence":
        parts = [next(values) for _ in range(inner)]
        return WordSequence(*parts) if inner == 2 else NestedSequence(*parts)
    made = [_fill(part, values) for part in inner]
    return tuple(made) if kind == "tuple" else made
