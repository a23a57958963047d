"""Abstract runs of a program function, with two batch sizes: what differs is the batch."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from penstock import _mesh
from penstock.layers import _frame
from penstock.layers._rows import name_batch
from penstock.program_builder._evaluation import Evaluated, evaluate
from penstock.program_builder._options import ProgramOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trace:
    """One abstract run of a program function: what it asked for, and what it computes.

    Attributes:
      whole: the closed trace, a `shard_map` at its end.
      jaxpr: the trace of the program function in it.
    """

    frame: _frame.Frame
    result: Evaluated
    whole: Any
    jaxpr: Any

    @property
    def answers(self) -> _frame.ProbedRows:
        """What it was told of batch axes."""
        assert self.frame.probed is not None
        return self.frame.probed

    @property
    def constants(self) -> list[Any]:
        """The values of the constants that `jaxpr` takes in front, None where not known."""
        known = dict(zip(self.whole.jaxpr.constvars, self.whole.consts, strict=True))
        call = self.whole.jaxpr.eqns[-1]
        given = call.invars[: len(self.jaxpr.invars) - 4]
        return [v.val if hasattr(v, "val") else known.get(v) for v in given]

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of what was returned."""
        return tuple(value.shape for value in self.result.values)


def trace_twice(
    function: Callable[[], Any], mode: _frame.Mode, mesh: Mesh, options: ProgramOptions
) -> tuple[Trace, Trace]:
    """Return the traces of a program for both batch sizes, with the same answers about rows.

    Raises:
      Exception: of the function; its message names the batch size `B`.
    """
    trace = functools.partial(_trace, function, mode, mesh, options)
    first_size, second_size = _frame.PROBE_BATCH_SIZES
    try:
        first = trace(_frame.ProbedRows(first_size))
    except Exception as error:
        _name_batch(error, lambda: trace(_frame.ProbedRows(second_size)))
        raise
    second = trace(_frame.ProbedRows(second_size, first=first.answers))
    if not second.answers.agrees_with(first.answers):
        first = trace(_frame.ProbedRows(first_size, known=second.answers))
    return first, second


def _trace(
    function: Callable[[], Any],
    mode: _frame.Mode,
    mesh: Mesh,
    options: ProgramOptions,
    probed: _frame.ProbedRows,
) -> Trace:
    seen: dict[str, Any] = {}

    # The key and the step go in, so that what is drawn anew in each step is told from constants.
    def body(
        root: jax.Array, step: jax.Array, anchor: jax.Array, weights: jax.Array
    ) -> list[jax.Array]:
        frame = _frame.Frame(
            mode=mode,
            variables={},
            feed=None,
            weights=weights,
            key=jax.random.wrap_key_data(root),
            num_devices=mesh.size,
            rows=[],
            anchor=anchor,
            step=step,
            probed=probed,
            is_cut_up=mode == "train" and options.num_parts > 1,
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
    whole = jax.make_jaxpr(sharded)(*_inputs(probed.batch_size * mesh.size))
    body_jaxpr = whole.jaxpr.eqns[-1].params["jaxpr"]
    return Trace(frame=seen["frame"], result=seen["result"], whole=whole, jaxpr=body_jaxpr)


def _inputs(size: int) -> list[jax.ShapeDtypeStruct]:
    """Return the shapes of a root key, a step's number, an anchor and example weights."""
    root = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
    step, anchor = (jax.ShapeDtypeStruct((), dtype) for dtype in (jnp.int32, jnp.float32))
    return [root, step, anchor, jax.ShapeDtypeStruct((size,), jnp.float32)]


def _name_batch(error: Exception, rerun: Callable[[], Any]) -> None:
    """Put `B` in place of the probe's batch size in an error's message."""
    try:
        rerun()
    except Exception as other:
        text, its = (each.args[0] if each.args else None for each in (error, other))
        if type(error) is type(other) and isinstance(text, str) and isinstance(its, str):
            error.args = (name_batch(text, its), *error.args[1:])
