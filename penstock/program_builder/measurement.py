"""The sizes of gradients and updates, by a program of their own.

It computes a step and throws its state away. So training's own program is the same with it and
without, bit for bit, and takes as long; a step that is asked about is computed twice.
"""

from __future__ import annotations

import dataclasses
import time

import jax
from jax.sharding import PartitionSpec

from penstock._device_batches import DeviceBatch, Rows
from penstock._mesh import SPLIT, WHOLE
from penstock._parameter_updates import MeasuredSteps, Statistics
from penstock._program.requests import DeviceFeed
from penstock.program_builder._compilation import Program
from penstock.program_builder._step import is_unrolled
from penstock.program_builder.programs import Leaves, Programs


def measure(
    programs: Programs, leaves: Leaves, batch: DeviceBatch, update_order: tuple[str, ...]
) -> MeasuredSteps:
    """Return the sizes of what the launch of a batch will do; takes nothing of the state.

    Waits for the steps before it, and for the sizes. So its own time is known, and no part of
    training's; and of several CPU devices, on which two programs at a time may deadlock, none
    runs another.
    """
    num_steps, network = len(batch.counts), programs.network
    program = programs.keep(
        ("measuring", update_order, num_steps),
        lambda: _make_program(programs, update_order, num_steps),
    )
    jax.block_until_ready(leaves)
    start, compiled = time.perf_counter(), programs.compile_time.secs
    sizes = jax.block_until_ready(program(leaves, batch.feed, batch.rows))
    secs = time.perf_counter() - start - (programs.compile_time.secs - compiled)
    return MeasuredSteps(
        sizes,
        {name: sorted(network.updates[name].trained) for name in sizes},
        is_single=len(network.objectives) == 1,
        has_many_steps=num_steps > 1,
        secs=max(secs, 0.0),
    )


def _make_program(programs: Programs, update_order: tuple[str, ...], num_steps: int) -> Program:
    updates = [
        dataclasses.replace(update, measures=True)
        for update in programs.network.choose_updates(update_order)
    ]
    train = programs.train_function(updates, num_steps)

    def run(leaves: Leaves, feed: DeviceFeed, rows: Rows) -> dict[str, Statistics]:
        number = programs.states.num_changed
        _, launched = train(leaves[:number], leaves[number:], feed, rows)
        return launched.sizes

    split = SPLIT if num_steps == 1 else PartitionSpec(None, *SPLIT)
    return programs.make_program(
        "measuring",
        run,
        in_specs=(WHOLE, split),
        out_specs=WHOLE,
        has_gradients=True,
        saves_memory=num_steps > 1 and is_unrolled(updates),
    )
