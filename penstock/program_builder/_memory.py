"""Whether a step fits into the memory of the devices, and what helps where it does not."""

from __future__ import annotations

import math
import re
from typing import Any, NoReturn

import jax

from penstock import _mesh
from penstock._program.inputs import DeviceFeed
from penstock._program.precision import ProgramOptions
from penstock._text_tables import scale_bytes
from penstock.program_builder._step import State

_SAFETY = 0.9
"""Of the batch that fits by a line."""

_UNITS = {"M": 2**20, "G": 2**30, "T": 2**40}


def count_bytes(tree: Any) -> int:
    """Return the bytes that arrays take on one device, or descriptions of them with shardings."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )


def read_refusal(error: Exception) -> int | None:
    """Return the bytes that a compiler says a program would take; None for any other error."""
    if "RESOURCE_EXHAUSTED" not in str(error):
        return None
    amounts = re.findall(r"\((\d+(?:\.\d+)?)([MGT])\)", str(error))
    return max([int(float(n) * _UNITS[unit]) for n, unit in amounts], default=0)


def refuse(
    total: float,
    state: State,
    feed: DeviceFeed,
    batch_size: int,
    options: ProgramOptions,
) -> NoReturn:
    """Raise that a step takes more than a device has."""
    mesh, device = options.mesh, options.mesh.local_devices[0]
    capacity = _mesh.find_memory(device)
    kept, parts = count_bytes(state), _mesh.count_parts(mesh)
    # But for the state, and gradients and updates as large as parameters, all grows with the batch.
    gradients = count_bytes(state.variables["params"])
    fixed = kept + 2 * gradients
    grows = max(total - fixed, 1)
    helps: list[str] = []

    def fit(room: float) -> int:
        """Return how many examples go into so many bytes."""
        return int(_SAFETY * batch_size * room / grows) // parts * parts

    if (fitting := fit(capacity - fixed)) > 0:
        helps.append(f"a batch of {fitting} examples")
    if (fitting := fit(capacity - fixed - gradients)) > 0:
        accumulated = options.num_micro_batches * -(-batch_size // fitting)
        helps.append(f"gradient_accumulation_steps={accumulated}")
    if options.precision.compute_dtype is None and fixed + grows // 2 <= capacity:
        helps.append(f'precision="bfloat16" ({scale_bytes(fixed + grows // 2)})')
    # What must be there however much is computed again. XLA's CPU backend computes nothing again.
    least = fixed + sum(x.nbytes for x in jax.tree.leaves(feed)) // parts
    if not _mesh.is_on_cpu(mesh) and least <= capacity:
        helps.append(f"layers.remat around its blocks (from {scale_bytes(least)} on)")
    split = fixed // parts + grows
    if options.state_sharding != "full" and parts > 1 and split <= capacity:
        helps.append(f'state_sharding="full" ({scale_bytes(split)})')
    remedy = " or ".join(helps) if helps else "more devices, with state_sharding='full'"
    raise MemoryError(
        f"a training step on {batch_size} examples got {scale_bytes(total)} of memory on each "
        f"device, {scale_bytes(kept)} of it the training state, expected at most "
        f"{scale_bytes(capacity)}, what {device} has. By estimate this fits: {remedy}."
    )
