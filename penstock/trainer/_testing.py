"""The mean of the metrics over a reader, in test mode."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from penstock import _batches, _metrics
from penstock._device_batches import DeviceBatch
from penstock._errors import ReaderError
from penstock._in_flight import max_in_flight
from penstock._interrupts import Interrupts
from penstock._program.requests import Feed
from penstock.program_builder import State
from penstock.program_builder.programs import Programs
from penstock.trainer._shared_batches import OnUnequal, SharedBatches, is_first_time

_LOGGER = logging.getLogger("penstock")


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
        for batch, shares in _read(programs, reader, fields, on_unequal):
            placed = programs.place("test", [batch], shares)
            programs.group.advance()
            for name in sums:
                # Added up on the device: nothing is fetched before the end.
                sums[name], values = programs.test(state, sums[name], placed, name)
                _look_at_means(programs, state, placed, name, values)
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
    tests = {name: programs.network.test[name].program for name in sums}
    means = {
        name: _metrics.compute_means(each, tests[name].structure, tests[name].shapes)
        for name, each in sums.items()
    }
    return next(iter(means.values())) if len(means) == 1 else means


def _read(
    programs: Programs, reader: _batches.ReaderLike, fields: _batches.Fields, on_unequal: OnUnequal
) -> Iterator[tuple[Feed, tuple[int, ...] | None]]:
    """Yield the batches of a pass: of several processes as many on each, and their shares."""
    # Always the same pass: a test depends on no test before it, and takes none from training.
    feeds = iter(_batches.Pass(reader, fields, 0))
    if programs.group.count == 1:
        yield from ((feed, None) for feed in feeds)
        return
    shared = SharedBatches(programs, "test", steps=1, on_unequal=on_unequal)
    yield from ((each.feeds[0], each.shares) for each in shared.level(feeds))


def _look_at_means(
    programs: Programs,
    state: State,
    batch: DeviceBatch,
    objective: str,
    values: Sequence[_metrics.Value],
) -> None:
    """Warn once of single numbers that are no means over examples, by the halves of a batch.

    What `test` shows of them is a mean over batches, which depends on the batch size. Of the means
    that layers take it is known what they are. Collective.
    """
    program = programs.network.test[objective].program
    structure, key = program.structure, f"means of {objective}"
    doubted = structure.list_doubted()
    # An odd batch has no halves of one size, and no mean of them.
    if not doubted or batch.rows.num_examples % 2 or not is_first_time(programs, key):
        return
    whole = jax.device_get([values[number] for number in doubted])
    halves = programs.test_halves(state, batch, objective)
    tolerance = 1e-4 if program.options.precision.compute_dtype is None else 2e-2
    for number, value, parts in zip(doubted, whole, halves.T, strict=True):
        mean, shown = float(parts.mean()), structure.label(number)
        if abs(mean - float(value)) > tolerance * (abs(parts).max() + 1e-6):
            _LOGGER.warning(
                "%s has %s, which is no mean over examples: %.6g for a batch, and %.6g the mean of "
                "its halves. What a test or an epoch shows of it is the mean over batches, and "
                "depends on the batch size. Return a penstock.metrics.Metric: its sums are exact.",
                program.name,
                shown,
                value,
                mean,
            )
