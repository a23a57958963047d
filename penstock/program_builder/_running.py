"""One run of a program function with values, on one device's share of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from penstock import _mesh
from penstock.layers import _frame
from penstock.program_builder._evaluation import Evaluated, evaluate
from penstock.program_builder._probe import Probe


def run(
    probe: Probe,
    variables: Mapping[str, Any],
    feed: Mapping[str, jax.Array],
    weights: jax.Array,
    key: jax.Array,
    num_devices: int,
    step: jax.Array | None = None,
    micro_batch: _frame.MicroBatch | None = None,
) -> tuple[Evaluated, _frame.Frame]:
    """Return what a program function returns, and the frame it ran in.

    Values without a batch axis are averaged over the devices, but those of a micro-batch.
    """
    frame = _frame.Frame(
        mode=probe.mode,
        variables=variables,
        feed={name: feed[name] for name in probe.feed_specs},
        weights=weights,
        key=key,
        num_devices=num_devices,
        rows=list(probe.rows),
        module_rows=dict(probe.module_rows),
        step=step,
        compute_dtype=probe.options.precision.compute_dtype,
        micro_batch=micro_batch,
        is_frozen=probe.options.is_frozen,
    )
    result = evaluate(probe.function, frame, probe.sown)
    result.values[:] = [
        value if rows else _mesh.pmean(_as_number(value), frame.num_averaged)
        for value, rows in zip(result.values, probe.structure.rows, strict=True)
    ]
    return result, frame


def _as_number(value: jax.Array) -> jax.Array:
    """Return the value in a floating dtype, in which devices may be averaged, on one device too."""
    is_number = jnp.issubdtype(value.dtype, jnp.inexact)
    return value if is_number else value.astype(jnp.float32)
