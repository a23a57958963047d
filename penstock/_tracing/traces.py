"""Abstract runs of a program function, with two batch sizes: what differs is the batch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jax.sharding import Mesh, PartitionSpec
from jax.typing import ArrayLike

from penstock import _mesh
from penstock._program.examples import PROBE_BATCH_SIZES, RowAnswers, name_batch
from penstock._program.frame import Frame
from penstock._program.options import ProgramOptions
from penstock._program.requests import Mode
from penstock._tracing.evaluation import Evaluated, evaluate
from penstock._tracing.untrained import CONSTANTS


class Trace(NamedTuple):
    """The operations of one abstract run.

    Attributes:
      whole: the closed trace, a `shard_map` at its end.
      jaxpr: the trace of the program function in it.
    """

    whole: ClosedJaxpr
    jaxpr: Jaxpr

    @property
    def constants(self) -> list[ArrayLike | None]:
        """The values of the constants that `jaxpr` takes in front, None where not known."""
        known = dict(zip(self.whole.jaxpr.constvars, self.whole.consts, strict=True))
        call = self.whole.jaxpr.eqns[-1]
        # The last four are the inputs of `_trace`; what is in front was closed over.
        given = call.invars[: len(self.jaxpr.invars) - 4]
        return [v.val if isinstance(v, Literal) else known.get(v) for v in given]

    def find_primitives(self) -> set[str]:
        """Return the names of all operations, nested ones too; `CONSTANTS` where there are any."""
        found = {CONSTANTS} if self.whole.consts else set[str]()
        _add_primitives(self.jaxpr, found)
        return found


class ProbeRun(NamedTuple):
    """One abstract run of a program function: what it asked for, and what it computes.

    Attributes:
      rows: what it was told of batch axes.
      shapes: those of what was returned.
    """

    frame: Frame
    result: Evaluated
    trace: Trace
    rows: RowAnswers
    shapes: tuple[tuple[int, ...], ...]


def _add_primitives(jaxpr: Jaxpr, found: set[str]) -> None:
    for equation in jaxpr.eqns:
        found.add(equation.primitive.name)
        for value in equation.params.values():
            for each in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(each, "eqns"):
                    if getattr(each, "consts", None):
                        found.add(CONSTANTS)
                    _add_primitives(getattr(each, "jaxpr", each), found)


def trace_twice(
    function: Callable[[], object], mode: Mode, mesh: Mesh, options: ProgramOptions
) -> tuple[ProbeRun, ProbeRun]:
    """Return the traces of a program for both batch sizes, with the same answers about rows.

    Raises:
      Exception: of the function; its message names the batch size `B`.
    """
    trace = functools.partial(_trace, function, mode, mesh, options)
    first_size, second_size = PROBE_BATCH_SIZES
    try:
        first = trace(RowAnswers(first_size))
    except Exception as error:
        _name_batch(error, lambda: trace(RowAnswers(second_size)))
        raise
    second = trace(RowAnswers(second_size, first=first.rows))
    # Guessed wrong, for a layer as wide as the first batch: traced again with what is known.
    if not second.rows.agrees_with(first.rows):
        first = trace(RowAnswers(first_size, known=second.rows))
    return first, second


def _trace(
    function: Callable[[], object],
    mode: Mode,
    mesh: Mesh,
    options: ProgramOptions,
    rows: RowAnswers,
) -> ProbeRun:
    seen: dict[str, Any] = {}

    # The key and the step go in, so that what each step draws is told from constants.
    def body(
        root: jax.Array, step: jax.Array, anchor: jax.Array, weights: jax.Array
    ) -> list[jax.Array]:
        frame = Frame(
            mode=mode,
            variables={},
            feed=None,
            weights=weights,
            key=jax.random.wrap_key_data(root),
            num_devices=mesh.size,
            rows=rows,
            anchor=anchor,
            step=step,
            has_micro_batches=mode == "train" and options.num_micro_batches > 1,
            compute_dtype=options.precision.compute_dtype,
            is_frozen=options.is_frozen,
        )
        seen["frame"], seen["result"] = frame, evaluate(function, frame)
        return seen["result"].values

    sharded = jax.shard_map(
        body,
        mesh=mesh,
        in_specs=(*[PartitionSpec()] * 3, PartitionSpec(_mesh.AXIS)),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    # Inside shard_map, as real runs are: collectives of users find their axis.
    whole = jax.make_jaxpr(sharded)(*_inputs(rows.batch_size * mesh.size))
    body_jaxpr = whole.jaxpr.eqns[-1].params["jaxpr"]
    result = seen["result"]
    shapes = tuple([value.shape for value in result.values])
    return ProbeRun(seen["frame"], result, Trace(whole, body_jaxpr), rows, shapes)


def _inputs(size: int) -> list[jax.ShapeDtypeStruct]:
    """Return the shapes of a root key, a step's number, an anchor and example weights."""
    root = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
    step, anchor = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((), jnp.float32)
    return [root, step, anchor, jax.ShapeDtypeStruct((size,), jnp.float32)]


def _name_batch(error: Exception, rerun: Callable[[], object]) -> None:
    """Put `B` in place of the probe's batch size in an error's message."""
    try:
        rerun()
    except Exception as other:
        # Only the same error with other numbers tells which of them is the batch size.
        text, its = (each.args[0] if each.args else None for each in (error, other))
        if type(error) is type(other) and isinstance(text, str) and isinstance(its, str):
            error.args = (name_batch(text, its), *error.args[1:])
