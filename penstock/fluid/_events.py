"""Events whose metrics are lists of arrays, for handlers written for Fluid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.events import EndEpoch, EndStep, Handler


class FluidHandler:
    """Call a handler with the same events, the metrics in Fluid's form.

    Everything else about it is the handler's own: its name in messages, its state in checkpoints.
    """

    def __init__(self, handler: Handler, form: Callable[[Any], Any]) -> None:
        self._handler, self._form = handler, form

    def __getattr__(self, name: str) -> Any:
        """Return what the handler has under that name."""
        return getattr(self._handler, name)

    def __call__(self, event: Any) -> None:
        """Hand an event on; its metrics are still fetched when they are first read."""
        form = self._form
        if isinstance(event, EndStep):
            event = EndStep(
                event.epoch,
                event.step,
                event.global_step,
                event.num_examples,
                read=lambda given=event: form(given.metrics),
                read_rate=lambda given=event: given.learning_rate,
            )
        elif isinstance(event, EndEpoch):
            event = EndEpoch(
                event.epoch,
                event.global_step,
                event.num_steps,
                event.num_examples,
                read=lambda given=event: form(given.metrics),
                data_wait=event.data_wait,
            )
        self._handler(event)


def in_fluids_form(event_handler: Any, form: Callable[[Any], Any]) -> Any:
    """Return the handler, or the list of them, called with metrics in another form.

    What cannot be called is returned as it is, for the trainer to name.
    """
    if isinstance(event_handler, Sequence):
        return [in_fluids_form(each, form) for each in event_handler]
    return FluidHandler(event_handler, form) if callable(event_handler) else event_handler
