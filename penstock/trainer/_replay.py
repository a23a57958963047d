"""Running a step again that made a nan, with JAX's own nan debugging."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from penstock import _batches
from penstock._checkpoint import Contents, Position
from penstock._errors import ReaderError
from penstock.program_builder import ProgramBuilder
from penstock.trainer._saver import decoded, restored


def replayed(
    builder: ProgramBuilder,
    contents: Contents | None,
    seed: int,
    reader: Any,
    fields: _batches.Fields,
    rounds: tuple[str, ...],
    step: int | None,
) -> None:
    """Train from a state until a step is not finite, and run that one under `jax.debug_nans`.

    Arguments:
      contents: the checkpoint to begin with; the initial state of `seed` where it is None.
      step: the global step; the first that is not finite where it is None.

    Raises:
      FloatingPointError: naming the step; its cause shows the operation.
      ReaderError: the reader ended before such a step.
    """
    if contents is None:
        leaves, position = builder.pack(builder.init(seed)), Position()
    else:
        leaves, position = restored(builder, contents, "to replay"), contents.position
    number = position.global_step
    pass_ = _batches.resumed_pass(reader, fields, decoded(position.reader_state), position.step)
    while True:
        num_before = number
        for batch in pass_:
            before = builder.snapshot(leaves)
            leaves, values, _ = builder.launch(leaves, builder.place("train", [batch]), rounds)
            is_bad = not _is_finite(builder, leaves, values)
            if number == step or (step is None and is_bad):
                _explain(builder, before, batch, rounds, number)
                return
            number += 1
        if number == num_before:
            raise ReaderError(f"the reader yielded no batch to replay after global step {number}.")
        leaves = builder.pack(builder.reset_metrics(builder.unpack(leaves)))
        if step is None and number - position.global_step > _MOST_STEPS:
            raise ReaderError(
                f"replay got {number - position.global_step} steps that are all finite. Pass "
                "step=... where the step is known to be later."
            )
        pass_ = _batches.Pass(reader, fields)


_MOST_STEPS = 100_000


def _is_finite(builder: ProgramBuilder, leaves: list[jax.Array], values: Mapping[str, Any]) -> bool:
    losses = [values[name][each.loss_index] for name, each in builder.structures.items()]
    watched = [losses, builder.unpack(leaves).variables["params"]]
    return all(np.all(np.isfinite(x)) for x in jax.tree.leaves(jax.device_get(watched)))


def _explain(
    builder: ProgramBuilder,
    leaves: list[jax.Array],
    batch: Mapping[str, Any],
    rounds: tuple[str, ...],
    number: int,
) -> None:
    where = f"replay of global step {number}"
    try:
        builder.debug(leaves, builder.place("train", [batch]), rounds)
    except FloatingPointError as error:
        raise FloatingPointError(
            f"{where}: {str(error).splitlines()[0]} The traceback above this one ends at the "
            "operation, and shows the line of the program function."
        ) from error
    raise FloatingPointError(
        f"{where} made no nan when its operations ran one by one. Where it made an infinity, JAX's "
        "nan debugging stays silent: look for a division by zero or an overflow."
    )
