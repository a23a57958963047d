"""Intervals of what a test measures, by a bootstrap over its examples."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from penstock import _metrics
from penstock._errors import check_number, listed
from penstock._padded_batches import DeviceBatch
from penstock.metrics import Interval, RowMetric
from penstock.program_builder import State
from penstock.program_builder.engine import Programs
from penstock.trainer._in_flight import max_in_flight

_LOGGER = logging.getLogger("penstock")

NUM_RESAMPLES = 1000

MANY_ROWS = 100_000
"""Of more rows a metric that keeps them is resampled less often, as each time sorts them."""


def check_confidence(confidence: float | None) -> None:
    """Raise unless it is a share between 0 and 1, or None."""
    if confidence is not None:
        why = "0.95 is usual. It is how often such an interval holds the value of all data."
        check_number("confidence", confidence, "(0, 1)", why)


class Resamples:
    """Metrics of resampled data sets, in which each example counts as often as chance has it."""

    def __init__(self, programs: Programs, confidence: float) -> None:
        self._programs, self._confidence = programs, confidence
        self._sums: dict[str, _metrics.Sums] = {}
        self._counts: list[int] = []

    def add(self, state: State, batch: DeviceBatch) -> None:
        """Add a batch of every objective; waits for none, but on several CPU devices."""
        number, programs = len(self._counts), self._programs
        for name in programs.structures:
            sums = self._sums.get(name)
            try:
                self._sums[name] = programs.resample(
                    state, sums, batch, name, number, NUM_RESAMPLES
                )
            except Exception as error:
                error.add_note(
                    "Raised where test(confidence=...) runs the program for each example by "
                    "itself, by jax.vmap. A test without confidence does not."
                )
                raise
            # Two programs at a time may deadlock there.
            if not max_in_flight(programs.mesh):
                jax.block_until_ready(self._sums[name].scalars)
        self._counts.append(batch.rows.num_examples)

    def measure(
        self, objective: str, values: Sequence[Any], rows: Sequence[Sequence[RowMetric]]
    ) -> Any:
        """Return the intervals of an objective, in the structure of its program function.

        `rows` are those that each metric of rows has of each batch.
        """
        structure = self._programs.network.test[objective].structure
        by_resample, spreads = self._compute(structure, objective)
        kept, place, intervals = iter(rows), 0, []
        unlike: list[str] = []
        for number, (value, item) in enumerate(zip(values, structure.items, strict=True)):
            if isinstance(item.shape, RowMetric):
                samples = list(self._resample_rows(next(kept)))
            else:
                samples = [resample[number] for resample in by_resample]
            is_alike = _is_alike(value, samples[0])
            if not is_alike:
                unlike.append(item.label)
            if not is_alike or sum(self._counts) < 2:
                intervals.append(self._find_interval(value, ()))
            elif item.num_scalars == 1 and not item.is_metric and not item.counts_words:
                intervals.append(self._find_mean_interval(value, spreads[place]))
            else:
                intervals.append(self._find_interval(value, samples[1:]))
            place += item.num_scalars
        if unlike:
            _LOGGER.warning(
                "test(confidence=...) got %s, of which it gives no interval: over single examples "
                "it is another number. It depends on the batch or on random numbers, or has more "
                "than %d numbers. Return a metric of penstock.metrics",
                listed(unlike),
                _metrics.MAX_RESAMPLED,
            )
        return structure.build(intervals)

    def _compute(
        self, structure: _metrics.Structure, objective: str
    ) -> tuple[list[list[Any]], np.ndarray]:
        """Return the values of each resample, and the squared distances of all numbers."""
        accumulators = jax.device_get(self._sums[objective])
        # All at once: a thousand times the way of one test's sums would take half of the time.
        scalars, arrays = _metrics.add_halves(accumulators, axis=1)
        whole = _metrics.add_halves(_metrics.zeros(structure, np.zeros)).arrays
        values: list[list[Any]] = []
        for r in range(NUM_RESAMPLES + 1):
            small = iter(arrays)
            # Large ones were left out, and are unlike those of the test.
            parts = [next(small)[r] if _metrics.is_resampled(x) else x for x in whole]
            if scalars[r, -1]:
                sums = _metrics.Sums(scalars[r], tuple(parts))
                values.append(_metrics.compute_values_of(sums, structure))
        return values, np.asarray(scalars[-1])

    def _resample_rows(self, batches: Sequence[RowMetric]) -> Iterator[Any]:
        """Yield a row metric's value of all examples, then of resamples of them."""
        metric = _metrics.join_rows(batches, np)
        yield _metrics.to_plain(metric.compute())
        # An example has as many as its batch was padded to words.
        sizes = np.array([len(jax.tree.leaves(batch)[0]) for batch in batches])
        ends = np.repeat(sizes // self._counts, self._counts).cumsum()
        num_rows, num_examples = int(sizes.sum()), len(ends)
        blocks = np.split(np.arange(num_rows), ends[:-1])
        random = np.random.Generator(np.random.PCG64(0))
        for _ in range(NUM_RESAMPLES if num_rows <= MANY_ROWS else NUM_RESAMPLES // 5):
            rows = random.integers(0, num_examples, num_examples)
            if num_rows != num_examples:
                rows = np.concatenate([blocks[example] for example in rows])
            resampled = jax.tree.map(lambda x, rows=rows: x[rows], metric)
            yield _metrics.to_plain(resampled.compute())

    def _find_mean_interval(self, mean: float, spread: float) -> Interval:
        """Return the interval of a mean by the variance of its examples, Student's."""
        from scipy.special import stdtrit

        count = sum(self._counts)
        error = (spread / (count - 1) / count) ** 0.5
        half = float(stdtrit(count - 1, (1 + self._confidence) / 2) * error)
        return Interval(mean, mean - half, mean + half)

    def _find_interval(self, value: Any, samples: Sequence[Any]) -> Any:
        """Return the interval of a value between quantiles of its resamples, Efron's."""
        if isinstance(value, Mapping):
            return {
                name: self._find_interval(part, [sample[name] for sample in samples])
                for name, part in value.items()
            }
        if not samples:
            return Interval(value, None, None)
        tail = (1 - self._confidence) / 2
        is_none = np.isnan(value)
        numbers = np.where(is_none, 0, np.stack(samples))
        # A resample of few positives may have none, and no area under a curve.
        find = np.nanquantile if np.isnan(numbers).any() else np.quantile
        ends = np.where(is_none, np.nan, find(numbers, [tail, 1 - tail], axis=0))
        return Interval(value, *map(_metrics.to_plain, ends))


def _is_alike(value: Any, other: Any) -> bool:
    """Return whether two values are the same but for rounding."""
    if isinstance(value, Mapping):
        return all(_is_alike(part, other[name]) for name, part in value.items())
    return bool(np.allclose(value, other, rtol=1e-3, atol=1e-6, equal_nan=True))
