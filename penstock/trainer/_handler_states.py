"""What handlers keep over a resume: early stopping's patience, for one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

_LOGGER = logging.getLogger("penstock")


class HandlerStates:
    """The states of those handlers that have `get_state` and `set_state`."""

    def __init__(self) -> None:
        self._handlers: list[Any] = []
        self._resumed: list[dict[str, Any]] = []

    def resume(self, states: Sequence[dict[str, Any]]) -> None:
        """Keep what a checkpoint holds until the handlers are known."""
        self._resumed = list(states)

    def restore_to(self, event_handler: Any) -> None:
        """Keep the handlers of a call of `train`, and give them the states of a resumed run."""
        is_many = isinstance(event_handler, Sequence)
        handlers = list(event_handler) if is_many else [event_handler]
        self._handlers = [
            each for each in handlers if hasattr(each, "get_state") and hasattr(each, "set_state")
        ]
        resumed, self._resumed = self._resumed, []
        names = [type(handler).__name__ for handler in self._handlers]
        if not resumed:
            return
        if names != [entry["name"] for entry in resumed]:
            _LOGGER.warning(
                "the handlers that keep a state are %s, in the checkpoint %s: they start afresh.",
                names,
                [entry["name"] for entry in resumed],
            )
            return
        for handler, entry in zip(self._handlers, resumed, strict=True):
            handler.set_state(entry["state"])

    def as_json(self) -> list[dict[str, Any]]:
        """Return the states of this call's handlers."""
        return [{"name": type(h).__name__, "state": h.get_state()} for h in self._handlers]
