"""The mean of the metrics over a reader, in test mode."""

from __future__ import annotations

from typing import Any

import jax

from penstock import _batches, _metrics
from penstock._errors import ReaderError
from penstock._in_flight import max_in_flight
from penstock._interrupts import Interrupts
from penstock.program_builder import State
from penstock.program_builder.programs import Programs


def run_test(
    programs: Programs,
    state: State,
    reader: _batches.ReaderLike,
    fields: _batches.Fields,
    interrupts: Interrupts,
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
        for batch in _batches.read_once(reader, fields):
            placed = programs.place("test", [batch])
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
