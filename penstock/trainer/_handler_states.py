"""What handlers keep over a resume: early stopping's patience, for one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol, TypedDict

from penstock.events import HandlerState

_LOGGER = logging.getLogger("penstock")


class StatefulHandler(Protocol):
    """A handler that keeps something over a resume."""

    def get_state(self) -> HandlerState:
        """Return what a checkpoint is to hold."""
        ...

    def set_state(self, state: HandlerState, /) -> None:
        """Go on from what a checkpoint holds."""
        ...


class SavedState(TypedDict):
    """A handler's state in a checkpoint: the name of its class, and what `get_state` returned."""

    name: str
    state: HandlerState


class HandlerStates:
    """The states of those handlers that have `get_state` and `set_state`."""

    def __init__(self) -> None:
        self._handlers: list[StatefulHandler] = []
        self._resumed: list[SavedState] = []

    def resume(self, states: Sequence[SavedState]) -> None:
        """Keep what a checkpoint holds until the handlers are known."""
        self._resumed = list(states)

    def restore_to(self, event_handler: Any) -> None:
        """Keep the handlers of a call of `train`, and give them the states of a resumed run."""
        is_many = isinstance(event_handler, Sequence)
        handlers = list(event_handler) if is_many else [event_handler]
        self._handlers = [
            each for each in handlers if hasattr(each, "get_state") and hasattr(each, "set_state")
        ]
        # Given once: a further call of `train` goes on with the handlers as they are.
        resumed, self._resumed = self._resumed, []
        names = [type(handler).__name__ for handler in self._handlers]
        if not resumed:
            return
        # By class and order, since handlers have no names of their own.
        if names != [entry["name"] for entry in resumed]:
            _LOGGER.warning(
                "the handlers that keep a state are %s, in the checkpoint %s: they start afresh.",
                names,
                [entry["name"] for entry in resumed],
            )
            return
        for handler, entry in zip(self._handlers, resumed, strict=True):
            handler.set_state(entry["state"])

    def as_json(self) -> list[SavedState]:
        """Return the states of this call's handlers."""
        return [{"name": type(h).__name__, "state": h.get_state()} for h in self._handlers]
