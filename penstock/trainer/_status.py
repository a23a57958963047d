"""How far a trainer has come, and with it its handlers and its reader: what a resume takes up."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

import jax

from penstock import _metrics
from penstock._checkpoint import Contents, Position, check_fits
from penstock._errors import ProgramError, UnknownNameError
from penstock._state_bytes import decode_bytes, encode_bytes
from penstock.distributed.group import Group
from penstock.events import HandlerState
from penstock.program_builder.engine import Engine, States

_LOGGER = logging.getLogger("penstock")

FREEZE = "freeze"
"""Where a checkpoint says what was frozen."""


@dataclasses.dataclass
class Status:
    """Where training is; owned by the trainer, advanced by its runs.

    Attributes:
      step, num_examples: those of the epoch that runs.
      reader_state: the reader's position after them; between epochs that of the last one.
      call: calls of `train` before this one, which began in epoch `first_epoch`.
      is_stop_wanted: whether this process wants that, which all must agree on.
      bad_steps: the range of global steps that the last bad loss lies in, first and last.
      resumed: where the checkpoint was written that this process began with.
      freeze: what the script wants frozen; a resumed state may be of a later stage.
    """

    epoch: int = 0
    global_step: int = 0
    step: int = 0
    num_examples: int = 0
    reader_state: object = None
    call: int = 0
    first_epoch: int = 0
    is_in_epoch: bool = False
    is_running: bool = False
    is_stopping: bool = False
    is_stop_wanted: bool = False
    bad_steps: tuple[int, int] | None = None
    resumed: Position | None = None
    freeze: tuple[str, ...] = ()

    def position(self, reader_state: list[object]) -> Position:
        names = [field.name for field in dataclasses.fields(Position)]
        own = {name: getattr(self, name) for name in names}
        return Position(**{**own, "reader_state": reader_state})

    def resume(self, position: Position, reader_state: object) -> None:
        """Stand where a checkpoint was written."""
        for field in dataclasses.fields(Position):
            # The calls before this one are this script's own.
            if field.name != "call":
                setattr(self, field.name, getattr(position, field.name))
        self.reader_state, self.resumed = reader_state, position
        # A checkpoint between epochs has step 0, and the next one has not begun.
        self.is_in_epoch = position.step > 0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Be the one run of the trainer inside the `with` block."""
        if self.is_running:
            raise RuntimeError(
                "train got called while it runs, in a handler or another thread, expected one run "
                "at a time: a trainer has one state. Make a second Trainer, or call train again "
                "when this run has ended."
            )
        self.is_running, self.is_stopping, self.is_stop_wanted = True, False, False
        try:
            yield
        finally:
            self.is_running = False

    @property
    def is_replayed(self) -> bool:
        """Whether a resumed script has not come past the call in which it was saved."""
        return self.resumed is not None and self.call <= self.resumed.call

    @property
    def is_over(self) -> bool:
        """Whether this call of `train` had ended before the checkpoint was written."""
        return self.resumed is not None and self.call < self.resumed.call

    def begin_call(self) -> int:
        """Return the epoch in which this call began, in this process or in the resumed run."""
        self.first_epoch = self.epoch
        # A resumed call ends where it would have, not its number of epochs later.
        if self.resumed is not None and self.call == self.resumed.call:
            self.first_epoch = self.resumed.first_epoch
        return self.first_epoch

    def count_epochs(self, num_epochs: int) -> int:
        """Return how many of this call's epochs still run, in whole or in part."""
        # A call that the run had not begun when its checkpoint was written runs all of them.
        if self.resumed is None or self.call > self.resumed.call:
            return num_epochs
        # A call that was over before the checkpoint runs none of them again.
        return 0 if self.is_over else max(self.resumed.first_epoch + num_epochs - self.epoch, 0)

    def leave_epoch(self) -> None:
        """Count an epoch that was left in the middle as over: a further call begins the next."""
        # An epoch that ended by itself was counted at its end.
        if self.is_in_epoch:
            self.epoch += 1
        self.step = self.num_examples = 0
        self.is_in_epoch = False


class SavedState(TypedDict):
    """A handler's state in a checkpoint: the name of its class, and what `get_state` returned."""

    name: str
    state: HandlerState


class HandlerStates:
    """The states of those handlers that have `get_state` and `set_state`."""

    def __init__(self) -> None:
        self._handlers: list[Any] = []
        self._resumed: list[SavedState] = []

    def resume(self, states: Sequence[SavedState]) -> None:
        """Keep what a checkpoint holds until the handlers are known."""
        self._resumed = list(states)

    def restore_to(self, event_handler: Any) -> None:
        """Keep the handlers of a call of `train`, and give them the states of a resumed run."""
        is_many = isinstance(event_handler, Sequence)
        handlers = list(event_handler) if is_many else [event_handler]
        self._handlers = [
            h for h in handlers if hasattr(h, "get_state") and hasattr(h, "set_state")
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
        return [{"name": type(h).__name__, "state": h.get_state()} for h in self._handlers]


def gather_states(group: Group, state: object) -> list[object]:
    """Return a reader's state for JSON, one for each process; bytes as base64. Collective.

    On process 0, which writes them; on the others nothing.
    """
    encoded = encode_bytes(state)
    try:
        json.dumps(encoded)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the reader's get_state() got {type(state).__name__} that JSON cannot hold ({error}), "
            "expected dicts, lists, strings and Python's own numbers, or bytes. Convert it there."
        ) from error
    return group.gather("a checkpoint", encoded)


def pick_state(group: Group, states: list[object] | None) -> object:
    """Return this process's state out of what a checkpoint holds; None where it holds none."""
    if not states or len(states) != group.count:
        # Our readers' states do not depend on the process that took them.
        states = (states or [None])[:1] * group.count
    return decode_bytes(states[group.index])


def restore(engine: Engine, contents: Contents, where: str) -> None:
    """Take the state of a checkpoint, and of its optimizers what the engine's `freeze` trains."""
    states, leaves = find_states(engine, contents), dict(contents.leaves)
    for objective, structure in engine.programs.structures.items():
        name = f"metrics.{objective}.scalars"
        if name in leaves:
            leaves[name] = _metrics.add_counts(leaves[name], structure)
    contents = dataclasses.replace(contents, leaves=leaves)
    abstract = jax.tree.leaves(states.abstract_state)
    # Before anything is put on devices: a refusal leaves the engine as it was.
    check_fits(contents, states.leaf_names, abstract, where)
    engine.restore(contents.leaves, states)


def find_states(engine: Engine, contents: Contents) -> States:
    """Return the states of the engine's network with the `freeze` of a checkpoint."""
    own = engine.programs.states
    # A checkpoint of another network is refused with all that differs, not with a pattern.
    with contextlib.suppress(UnknownNameError, ProgramError):
        freeze = contents.extra.get(FREEZE, own.network.options.freeze)
        network = own.network.with_freeze(freeze)
        return own if network is own.network else States(network)
    return own
