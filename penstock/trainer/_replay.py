"""Running a step again that made a nan, with JAX's own nan debugging."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import flax
import jax
import numpy as np
import optax

from penstock import _batches
from penstock._checkpoint import Contents, Position
from penstock._errors import ReaderError
from penstock.program_builder import ProgramBuilder
from penstock.trainer._saver import decoded, restored

_MOST_STEPS = 100_000

_LIBRARIES = tuple(Path(module.__file__).parent for module in (jax, flax, optax, np, _batches))
"""Where the lines of libraries are; those of the program function are elsewhere."""


def replayed(
    builder: ProgramBuilder,
    contents: Contents | None,
    seed: int,
    reader: Any,
    fields: _batches.Fields,
    rounds: tuple[str, ...],
    step: int | None,
) -> None:
    """Train from a state until a step is not finite, and run that one with JAX's nan debugging.

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
    with contextlib.closing(_batches_from(position, reader, fields)) as batches:
        for batch in batches:
            if batch is None:  # an epoch begins
                leaves = builder.pack(builder.reset_metrics(builder.unpack(leaves)))
                continue
            before = builder.snapshot(leaves)
            leaves, values, _ = builder.launch(leaves, builder.place("train", [batch]), rounds)
            if number == step or (step is None and _is_bad(builder, before, leaves, values)):
                _explain(builder, before, batch, rounds, number)
            number += 1
            if step is None and number - position.global_step >= _MOST_STEPS:
                raise ReaderError(
                    f"replay got {_MOST_STEPS} steps that are all finite, expected one that is not."
                    " Pass step=... where the step is known to be later."
                )


def _batches_from(
    position: Position, reader: Any, fields: _batches.Fields
) -> Iterator[Mapping[str, Any] | None]:
    """Yield the batches after a position, epoch after epoch, None between two of them.

    The reader stands afterwards where it stood before: our readers count their epochs.

    Raises:
      ReaderError: it has no batches.
    """
    next_epoch = getattr(reader, "next_epoch", None)
    if next_epoch is not None:
        reader.next_epoch = position.epoch
    try:
        pass_ = _batches.resumed_pass(reader, fields, decoded(position.reader_state), position.step)
        while True:
            num_batches = 0
            with contextlib.closing(iter(pass_)) as batches:
                for num_batches, batch in enumerate(batches, 1):  # noqa: B007
                    yield batch
            if not num_batches and not position.step:
                raise ReaderError(f"the reader yielded no batch to replay, in epoch {epoch}.")
            yield None
            pass_ = _batches.Pass(reader, fields)
    finally:
        if next_epoch is not None:
            reader.next_epoch = next_epoch
