"""Probes: a program function run abstractly, once, to learn what it needs and what it returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.extend.core import jaxprs_in_params
from jax.sharding import Mesh

from penstock import _metrics
from penstock._errors import ProgramError, listed, nearest
from penstock.layers import _frame
from penstock.layers._rows import rows_of, shown
from penstock.program_builder import _sites, _untrained
from penstock.program_builder._dependence import DivergedError, Traces, check_split
from penstock.program_builder._evaluation import owner_of
from penstock.program_builder._kinds import SAME, Kind, Reason, literal_kind
from penstock.program_builder._options import ProgramOptions
from penstock.program_builder._traces import Trace, trace_twice
from penstock.program_builder._tree import Path, flatten


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """What one program function does in one mode.

    Attributes:
      specs: the entries that penstock's layers asked for, by name, in order.
      named: everything with an automatic name, and the user's lines that made it.
      module_shapes: shapes and dtypes of what flax modules asked for, by collection and path.
      feed_specs: the inputs, by name, in the order of their `layers.data` calls.
      structure: how the returned values are arranged.
      shapes: their shapes, with the probe's batch size.
      rows: for each query of a frame, whether an array had a batch axis; replayed by real frames.
      module_rows: the same for the inputs of flax modules, by path.
      counts_padding: labels of returned values that would count the padding of a short batch, and
        what counts it.
      sown: collections of flax modules whose values the function asks for.
      has_convolution: whether there is one anywhere, nested functions included.
      options: of the builder; the precision is one of them.
    """

    function: Callable[[], Any]
    mode: _frame.Mode
    specs: dict[str, _frame.ParameterSpec]
    named: _sites.Named
    module_shapes: dict[str, dict[Path, jax.ShapeDtypeStruct]]
    feed_specs: dict[str, _frame.FeedSpec]
    structure: _metrics.Structure
    shapes: tuple[tuple[int, ...], ...]
    rows: list[int]
    module_rows: dict[Path, int]
    counts_padding: tuple[str, ...]
    sown: frozenset[str]
    has_convolution: bool
    options: ProgramOptions

    def check_padding(self, mode: str, count: int, size: int) -> None:
        """Raise if a batch of `count` examples, padded to `size`, would be averaged with padding.

        Raises:
          ProgramError: naming what does not use the example weights.
        """
        if self.counts_padding:
            raise ProgramError(
                f"{owner_of(self.function, mode)} got a batch of {count} examples padded to "
                f"{size}, expected a full batch: {', '.join(self.counts_padding)} does not use the "
                "example weights and would count the padding. Use layers.mean in place of "
                "jnp.mean, layers.reduce_sum in place of jnp.sum, or leave the rest out: "
                "readers.arrays takes drop_remainder=True, readers.batch drop_last=True."
            )

    def shape_table(self) -> dict[tuple[str, Path], tuple[tuple[int, ...], Any]]:
        """Return shape and dtype of every entry of the tree by collection and path."""
        table: dict[tuple[str, Path], Any] = {
            (spec.collection, spec.path): (spec.shape, spec.dtype) for spec in self.specs.values()
        }
        ours = {spec.path for spec in self.specs.values()}
        for collection, entries in self.module_shapes.items():
            for path, entry in entries.items():
                for prefix in ours.intersection(path[: n + 1] for n in range(len(path))):
                    raise ProgramError(
                        f"a flax module got the name of penstock's own {'/'.join(prefix)!r}. "
                        "Give one of the two another name."
                    )
                table[collection, path] = (entry.shape, entry.dtype)
        return table


def probe(
    function: Callable[[], Any], mode: _frame.Mode, mesh: Mesh, options: ProgramOptions
) -> Probe:
    """Run a program function without values, with two batch sizes: what differs is the batch.

    Raises:
      ProgramError: something that is returned has its batch axis elsewhere than in front, or would
        differ between one device and those of the mesh.
    """
    first, second = trace_twice(function, mode, mesh, options)
    frame, result = first.frame, first.result
    owner = owner_of(function, mode)
    rows = tuple(
        _returned_rows(a, b, f"{owner} has {result.structure.label(number)}")
        for number, (a, b) in enumerate(zip(first.shapes, second.shapes, strict=True))
    )
    is_scalar = tuple(not shape for shape in first.shapes)
    structure = dataclasses.replace(result.structure, rows=rows, is_scalar=is_scalar)
    is_in_parts = mode == "train" and options.num_parts > 1
    kinds = _follow(first, second, is_in_parts)
    if mesh.size > 1 or is_in_parts:
        check_split(kinds, structure, owner, mesh.size)
    if mode == "train":
        _untrained.check_constants(function, first.whole, structure.loss_index, owner)
    padded = (structure.label(n) + f" ({k.padding})" for n, k in enumerate(kinds) if k.padding)
    return Probe(
        function=function,
        mode=mode,
        specs=frame.specs,
        named=_sites.names_of(frame.specs, result.modules),
        module_shapes=_module_shapes(result.module_updates),
        feed_specs=frame.feed_specs,
        structure=structure,
        shapes=first.shapes,
        rows=list(first.answers.answers),
        module_rows=dict(first.answers.module_answers),
        counts_padding=tuple(padded),
        sown=result.sown,
        has_convolution=_has_convolution(first.jaxpr),
        options=options,
    )


def _returned_rows(shape: tuple[int, ...], other: tuple[int, ...], what: str) -> int:
    """Return how many rows of a returned value belong to one example, 0 without a batch axis."""
    rows = rows_of(shape, other)
    if rows is None:
        raise ProgramError(
            f"{what} of shape {shown(shape, other)}, expected the batch axis B first and nowhere "
            "else, or a value without one. Rows are split over devices, and those of padding cut "
            "off, along axis 0. Move the batch axis to the front, e.g. with jnp.moveaxis, or "
            "reduce it with layers.mean."
        )
    return rows


def _follow(first: Trace, second: Trace, is_in_parts: bool) -> list[Kind]:
    """Return what each returned value is to the batch."""
    # Constants of the function come first.
    consts = [
        literal_kind(a, b, _frame.PROBE_BATCH_SIZES)
        if a is not None and b is not None
        else Kind("same" if x.aval.shape == y.aval.shape else "index")
        for a, b, x, y in zip(
            first.constants,
            second.constants,
            first.jaxpr.invars,
            second.jaxpr.invars,
            strict=False,
        )
    ]
    weights = Kind("rows", is_weighted=True, is_weights=True)
    traces = Traces(_frame.PROBE_BATCH_SIZES, is_in_parts)
    try:
        return traces.follow(
            first.jaxpr, second.jaxpr, [*consts, SAME, SAME, Kind("feed"), weights]
        )
    except DivergedError:
        reason = Reason("Python code that does something else for another batch size", "")
        return [Kind("other", why=reason, padding=reason)] * len(first.jaxpr.outvars)


def _has_convolution(jaxpr: Any) -> bool:
    for equation in jaxpr.eqns:
        if equation.primitive.name == "conv_general_dilated":
            return True
        if any(_has_convolution(inner) for inner in jaxprs_in_params(equation.params)):
            return True
    return False


def _module_shapes(variables: Mapping[str, Any]) -> dict[str, dict[Path, jax.ShapeDtypeStruct]]:
    unknown = sorted(set(variables) - {"params", "batch_stats"})
    if unknown:
        raise ProgramError(
            f"a flax module got the variable collections {unknown}, expected 'params' and "
            "'batch_stats' only. A program carries nothing else from step to step. Of what modules "
            f"sow ask for it: layers.sown({unknown[0]!r})."
        )
    return {
        collection: {
            path: jax.ShapeDtypeStruct(value.shape, value.dtype)
            for path, value in flatten(tree).items()
        }
        for collection, tree in variables.items()
    }


def compare(train: Probe, other: Probe) -> None:
    """Raise unless `other` asks for a part of the parameter tree of `train`, under its names.

    Raises:
      ProgramError: naming the first difference.
    """
    owner, expected = owner_of(other.function, other.mode), owner_of(train.function, train.mode)
    ours, theirs = train.shape_table(), other.shape_table()
    _sites.check_modes(train.named, other.named, expected, owner)
    for (collection, path), entry in theirs.items():
        name = "/".join(path)
        if (collection, path) not in ours:
            raise ProgramError(
                f"{owner} got the parameter {name!r}, expected only parameters of {expected}: "
                f"{listed('/'.join(p) for c, p in ours if c == collection)}. All programs share "
                "one parameter tree. Create the same layers in the same order in every mode, or "
                "name them." + nearest(name, ["/".join(p) for _, p in ours])
            )
        if ours[collection, path] != entry:
            raise ProgramError(
                f"{owner} got {name!r} with shape {entry[0]} and dtype {entry[1]}, expected shape "
                f"{ours[collection, path][0]} and dtype {ours[collection, path][1]} as in "
                f"{expected}. A layer that only one of them has shifts automatic names. Give it a "
                "name, create it last, or put it in a layers.scope."
            )
