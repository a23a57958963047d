"""The mean of the metrics over a reader, in test mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

from penstock import _batches, _metrics
from penstock._errors import ReaderError
from penstock._in_flight import max_in_flight
from penstock._interrupts import Interrupts
from penstock._program.requests import Feed
from penstock.program_builder import State
from penstock.program_builder.programs import Programs
from penstock.trainer._shared_batches import OnUnequal, SharedBatches


def run_test(
    programs: Programs,
    state: State,
    reader: _batches.ReaderLike,
    fields: _batches.Fields,
    interrupts: Interrupts,
    on_unequal: OnUnequal = "pad",
) -> Any:
    """Return the means over every example of `reader`; an interrupt is raised at once.

    Raises:
      ReaderError: the reader yields nothing.
    """
    sums = {name: programs.test_zeros(name) for name in programs.structures}
    running: list[jax.Array] = []
    limit = max_in_flight(programs.mesh)
    num_batches = 0
    with interrupts.open():
        for batch in _read(programs, reader, fields, on_unequal):
            placed = programs.place("test", [batch])
            programs.group.advance()
            for name in sums:
                # Added up on the device: nothing is fetched before the end.
                sums[name], _ = programs.test(state, sums[name], placed, name)
                running.append(sums[name].scalars)
                # The host would otherwise fill the device's memory with batches.
                if len(running) > limit:
                    running.pop(0).block_until_ready()
            num_batches += 1
    if not num_batches:
        raise ReaderError(
            "the reader yielded no batch to test on, expected at least one. Is its data empty, "
            "or is it an iterator that an earlier pass used up?"
        )
    means = {
        name: _metrics.compute_means(each, programs.network.test[name].program.structure)
        for name, each in sums.items()
    }
    return next(iter(means.values())) if len(means) == 1 else means


def _read(
    programs: Programs, reader: _batches.ReaderLike, fields: _batches.Fields, on_unequal: OnUnequal
) -> Iterator[Feed]:
    """Yield the batches of a pass: of several processes as many on each."""
    feeds = iter(_batches.Pass(reader, fields))
    if programs.group.count == 1:
        yield from feeds
        return
    shared = SharedBatches(programs, "test", steps=1, on_unequal=on_unequal)
    yield from (batch.feed for (batch,) in shared.level(feeds))
