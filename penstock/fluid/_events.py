"""Events whose metrics are lists of arrays, for handlers written for Fluid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.events import EndEpoch, EndStep


def with_metrics(event: Any, form: Callable[[Any], Any]) -> Any:
    """Return the event with its metrics in another form, still fetched when they are first read.

    >>> with_metrics(EndStep(0, 3, 3, read=lambda: 0.5), lambda metrics: [metrics]).metrics
    [0.5]
    """
    if isinstance(event, EndStep):
        return EndStep(
            event.epoch,
            event.step,
            event.global_step,
            event.num_examples,
            read=lambda: form(event.metrics),
            read_rate=lambda: event.learning_rate,
        )
    if isinstance(event, EndEpoch):
        return EndEpoch(
            event.epoch,
            event.global_step,
            event.num_steps,
            event.num_examples,
            read=lambda: form(event.metrics),
            data_wait=event.data_wait,
        )
    return event
