"""An infer program as `jax.export` keeps it: for any batch, several platforms, and without us."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np

from penstock import _mesh, _model_file
from penstock._errors import ProgramError, check_known, listed
from penstock._model_file import SCALE, Field, Manifest
from penstock._padded_batches import Rows
from penstock._parameter_names import flatten_variables, nest_variables, spell
from penstock._program.frame import Variables
from penstock._program.inputs import LEAST_BUCKET, LEAST_COUNT, FeedSpec
from penstock._program.user_lines import find_raising_frame
from penstock._tracing.probe import Probe
from penstock.program_builder import _step
from penstock.program_builder._compilation import choose_options
from penstock.program_builder.engine import Programs

WeightDtype = Literal["float32", "bfloat16", "int8"]
"""How a model file keeps weights: as they are, halved, or quartered with a scale a channel."""

PLATFORMS = ("cpu", "cuda", "tpu")
_PLATFORMS = (*PLATFORMS, "rocm")

Arrays: TypeAlias = Mapping[str, Any]

# Where a program cannot be made for every length.
_LENGTHS = (16, 32, 64, 128, 256, 512)
_MOST_PROGRAMS = 64


class Export(NamedTuple):
    """What a model file is written of: see `_model_file.write`."""

    manifest: Manifest
    weights: dict[str, np.ndarray]
    programs: dict[str, bytes]


def export(
    programs: Programs,
    variables: Variables,
    *,
    name: str,
    weights: WeightDtype = "float32",
    platforms: Sequence[str] = PLATFORMS,
) -> Export:
    """Return the infer program and what it needs, for a model file."""
    probe = programs.infer_probe
    check_known("weights", weights, get_args(WeightDtype), error=ValueError)
    if isinstance(platforms, str) or not platforms or not set(platforms) <= {*_PLATFORMS}:
        raise ValueError(f"platforms got {platforms!r}, expected some of {listed(_PLATFORMS)}.")
    if metrics := [item.label for item in probe.structure.items if item.is_metric]:
        raise ProgramError(
            f"{probe.name} has a metric as {metrics[0]}, expected arrays. A metric is of a data "
            "set. Return what it is computed of."
        )
    kept = pack(probe, variables, weights)
    made = [
        (kinds, lengths, program)
        for form, kinds in _list_forms(probe, platforms)
        for lengths, program in _export_lengths(form, kept, kinds)
    ]
    arrays = make_arrays(probe.feed_specs, LEAST_BUCKET)
    # What padding does to examples is tried with random numbers.
    tried = {n: spec.join(arrays) for n, spec in probe.feed_specs.items()}
    options = dict(choose_options(programs.network.largest_kernel))
    members = [
        _model_file.Program(
            file=f"programs/{number}.stablehlo",
            platforms=tuple(kinds),
            lengths=lengths,
            options=options if "cpu" in kinds else {},
        )
        for number, (kinds, lengths, _) in enumerate(made)
    ]
    described = [describe_outputs(probe, program.out_avals) for *_, program in made]
    outputs = tuple(map(_join_fields, *described))
    for field in outputs:
        if field.dtype not in _model_file.DTYPES.values():
            raise ProgramError(
                f"{probe.name} got the dtype {field.dtype} for the output {field.name!r}, expected "
                f"one of {listed(_model_file.DTYPES.values())}. A model file holds no other. Cast "
                "it in the infer function."
            )
    manifest = Manifest(
        name=name,
        inputs=tuple(map(_describe_input, probe.feed_specs.values())),
        outputs=outputs,
        outline=_model_file.outline(probe.structure.build(range(len(probe.structure.items)))),
        programs=tuple(members),
        takes_padding=programs.takes_padding(variables, tried),
        weights=weights,
    )
    data = [bytes(program.serialize()) for _, _, program in made]
    return Export(manifest, kept, {p.file: x for p, x in zip(members, data, strict=True)})


def pack(
    probe: Probe, variables: Variables, dtype: WeightDtype = "float32"
) -> dict[str, np.ndarray]:
    """Return the entries that the program uses by name, in the dtype that they are kept in."""
    packed: dict[str, np.ndarray] = {}
    whole = flatten_variables(_mesh.fetch_whole(dict(variables)))
    for collection, path in probe.shape_table:
        name, value = spell((collection, *path)), np.asarray(whole[collection, path])
        is_matrix = value.ndim > 1 and jnp.issubdtype(value.dtype, jnp.floating)
        if collection != "params" or not is_matrix or dtype == "float32":
            packed[name] = value
        elif dtype == "bfloat16":
            packed[name] = value.astype(jnp.bfloat16)
        else:
            # A channel is what the last axis counts; of a depthwise kernel the last two.
            num_axes = 1 if value.shape[-1] > 1 else 2
            within = tuple(range(value.ndim - num_axes))
            largest = np.max(np.abs(value), axis=within, keepdims=True, initial=0)
            scale = np.where(largest > 0, largest / 127, 1).astype(np.float32)
            packed[name] = np.rint(value / scale).astype(np.int8)
            packed[name + SCALE] = scale
    return packed


def unpack(weights: Arrays, probe: Probe) -> Variables:
    """Return variables in the dtypes of the program, from how a model file keeps them."""
    entries = {}
    for (collection, path), (_, dtype) in probe.shape_table.items():
        name = spell((collection, *path))
        value, scale = weights[name].astype(dtype), weights.get(name + SCALE)
        entries[collection, path] = value if scale is None else value * scale.astype(dtype)
    return nest_variables(entries)


def _list_forms(probe: Probe, platforms: Sequence[str]) -> list[tuple[Probe, list[str]]]:
    """Return the program for CPUs and that for other platforms; one where they are the same."""
    if not probe.has_convolution:
        return [(probe, list(platforms))]
    forms = {True: ["cpu"], False: [kind for kind in platforms if kind != "cpu"]}
    return [
        (dataclasses.replace(probe, is_on_cpu=on_cpu), kinds)
        for on_cpu, kinds in forms.items()
        if kinds and (not on_cpu or "cpu" in platforms)
    ]


def _export_lengths(
    probe: Probe, weights: Arrays, platforms: Sequence[str]
) -> list[tuple[dict[str, int], Any]]:
    """Return the exported program, or one for each choice of lengths of its sequences."""
    lengths = {n: s.buckets or _LENGTHS for n, s in probe.feed_specs.items() if s.lod_level}
    try:
        # Whatever user code raises that takes a symbolic size for a number; or JAX, for an
        # operation that a platform lacks and for a call back into Python.
        return [({}, _export(probe, weights, platforms, {}))]
    except Exception as error:
        choices = list(itertools.product(*lengths.values()))
        if not lengths or len(choices) > _MOST_PROGRAMS:
            raise _explain(probe, error, platforms) from error
    made = []
    for choice in choices:
        chosen = dict(zip(lengths, choice, strict=True))
        try:
            made.append((chosen, _export(probe, weights, platforms, chosen)))
        except Exception as error:
            raise _explain(probe, error, platforms) from error
    return made


def _export(
    probe: Probe, weights: Arrays, platforms: Sequence[str], lengths: Mapping[str, int]
) -> Any:
    feed = describe_feed(probe.feed_specs, lengths)
    shapes = {n: jax.ShapeDtypeStruct(value.shape, value.dtype) for n, value in weights.items()}
    return jax.export.export(make_answer(probe), platforms=platforms)(shapes, feed)


def make_answer(probe: Probe) -> Any:
    """Return the infer program as a function that is compiled when it is called.

    It takes what `pack` returns, and inputs as `describe_feed` has them.
    """
    alone = probe.on_one_device()

    def answer(weights: Arrays, feed: Arrays) -> tuple[Any, ...]:
        sizes = [x.shape[0] for x in feed.values()] or [1]
        rows = Rows(sizes[0], sizes[0], ((0, sizes[0]),))
        fed = {name: spec.join(feed) for name, spec in probe.feed_specs.items()}
        return tuple(_step.infer_step(alone, unpack(weights, probe), fed, rows))

    return jax.jit(answer)


def describe_feed(
    specs: Mapping[str, FeedSpec], lengths: Mapping[str, int]
) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the inputs as flat arrays: the batch of any size, and lengths that are not given."""
    names, constraints = ["b"], list_constraints(specs, lengths)
    for number, (name, spec) in enumerate(specs.items()):
        if spec.lod_level and name not in lengths:
            names.append(f"t{number}")
        if spec.lod_level == 2:
            names.append(f"c{number}")
    symbols = jax.export.symbolic_shape(", ".join(names), constraints=constraints)
    sizes = dict(zip(names, symbols, strict=True))
    feed: dict[str, jax.ShapeDtypeStruct] = {}
    for number, (name, spec) in enumerate(specs.items()):
        length = lengths.get(name, sizes.get(f"t{number}"))
        shape: Any = (sizes["b"], sizes.get(f"c{number}"), length)
        feed.update(spec.split(spec.build(shape, jax.ShapeDtypeStruct)))
    return feed


def list_constraints(specs: Mapping[str, FeedSpec], lengths: Mapping[str, int]) -> list[str]:
    """Return the least batch and the least lengths that `describe_feed` allows, as JAX has them."""
    least = [
        f"t{number} >= {min(spec.buckets or (LEAST_BUCKET,))}"
        for number, (name, spec) in enumerate(specs.items())
        if spec.lod_level and name not in lengths
    ]
    return ["b >= 1", *least]


def _explain(probe: Probe, error: Exception, platforms: Sequence[str]) -> ProgramError:
    # What JAX lowers after the trace has the user's line in a cause that JAX adds.
    frame = find_raising_frame(error) or (error.__cause__ and find_raising_frame(error.__cause__))
    where = "" if frame is None else f" at {frame.filename}:{frame.lineno}"
    return ProgramError(
        f"{probe.name} got what cannot be exported{where} ({type(error).__name__}: "
        f"{str(error).splitlines()[0]}), expected operations of JAX on a batch of any size, for "
        f"{listed(platforms)}. A file holds no Python: no callback, and no branch on a size. Write "
        "x.shape[0] for len(x), take the others out of the infer function, or leave out a platform "
        "that lacks an operation."
    )


def _describe_input(spec: FeedSpec) -> Field:
    return Field(
        name=spec.name,
        shape=tuple(spec.shape),
        dtype=str(spec.dtype),
        kind=("array", "sequence", "nested")[spec.lod_level],
        buckets=tuple(spec.buckets),
        num_ids=None if spec.ids is None else spec.ids.num_rows,
    )


def describe_outputs(probe: Probe, shapes: Iterable[Any]) -> list[Field]:
    """Return names and shapes of what the program returns; `shapes` have the batch axis."""
    fields: dict[str, Field] = {}
    for item, aval in zip(probe.structure.items, shapes, strict=True):
        name = "output" if item.key is None else str(item.key)
        if isinstance(item.key, int) and not item.is_nested:
            name = f"output_{name}"
        if not name:
            raise ProgramError(
                f"{probe.name} got an output of the name '', expected one that is not empty. A "
                "file of a model names its outputs. Give the value another key."
            )
        if name in fields:
            raise ProgramError(
                f"{probe.name} got two outputs of the name {name!r}, expected different names. "
                "Slashes join the keys of nested dicts. Rename one of them."
            )
        shape = aval.shape[1:] if item.rows else aval.shape
        fields[name] = Field(
            name=name,
            shape=tuple([n if isinstance(n, int) else -1 for n in shape]),
            dtype=str(aval.dtype),
            rows=item.rows,
        )
    return list(fields.values())


def _join_fields(*fields: Field) -> Field:
    """Return an output of several programs, each for lengths of its own, as one."""
    axes = zip(*[field.shape for field in fields], strict=True)
    return dataclasses.replace(
        fields[0], shape=tuple([sizes[0] if len({*sizes}) == 1 else -1 for sizes in axes])
    )


def make_arrays(specs: Mapping[str, FeedSpec], length: int) -> dict[str, np.ndarray]:
    """Return three examples of random numbers as `describe_feed` has them, padded to a length."""
    random, feed = np.random.default_rng(0), {}
    for name, spec in specs.items():
        empty = spec.build((3, LEAST_COUNT, length), np.zeros)
        for part, array in spec.split(empty).items():
            if jnp.issubdtype(array.dtype, jnp.floating):
                feed[part] = random.normal(size=array.shape).astype(array.dtype)
                continue
            low, high = 0, 2 if spec.ids is None else spec.ids.num_rows
            # Of lengths none is 0, and every sequence of sequences is full.
            if part != name:
                low, high = (LEAST_COUNT,) * 2 if part.endswith("_count") else (1, length)
                high += 1
            feed[part] = random.integers(low, high, size=array.shape).astype(array.dtype)
    return feed
