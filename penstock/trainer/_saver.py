"""Where training stands, and the checkpoints that keep it."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from penstock import _checkpoint, _metrics
from penstock._errors import (
    CheckpointError,
    FolderInUseError,
    ProgramError,
    UnknownNameError,
    listed,
)
from penstock._folder_lock import FolderLock
from penstock._json_values import decode_bytes, encode_bytes
from penstock._parameters import PARAMETER_NAMES
from penstock._version import list_versions
from penstock.distributed.group import Group
from penstock.events import FeedOrder
from penstock.metrics import RowMetric
from penstock.program_builder.engine import Engine, Programs, States, copy_to

_LOGGER = logging.getLogger("penstock")

T = TypeVar("T")

_PIECE = 1 << 16


FREEZE = "freeze"
"""Where a checkpoint says what was frozen."""


@dataclasses.dataclass
class Status:
    """Where training is; owned by the trainer, advanced by its runs.

    Attributes:
      step, num_examples: those of the epoch that runs.
      reader_state: the reader's position after them; between epochs that of the last one.
      feed_order: that of the last call of `train`.
      call: the call of `train` that trains, or trained last; it began in epoch `first_epoch`.
      num_calls: calls of `train` that this script has made.
      secs_beside: seconds in which the trainer tested or saved for its caller.
      is_stop_wanted: whether this process wants that, which all must agree on.
      bad_steps: the range of global steps that the last bad loss lies in, first and last.
      resumed: where the checkpoint was written that this process began with.
      freeze: what the script wants frozen; a resumed state may be of a later stage.
      resumed_leaves: the state of the checkpoint, where the script has set another before `train`.
    """

    epoch: int = 0
    global_step: int = 0
    step: int = 0
    num_examples: int = 0
    reader_state: object = None
    feed_order: FeedOrder | None = None
    call: int = 0
    first_epoch: int = 0
    num_calls: int = 0
    secs_beside: float = 0.0
    is_in_epoch: bool = False
    is_running: bool = False
    is_stopping: bool = False
    is_stop_wanted: bool = False
    bad_steps: tuple[int, int] | None = None
    resumed: _checkpoint.Position | None = None
    freeze: tuple[str, ...] = ()
    resumed_leaves: Sequence[jax.Array] = ()

    def position(self, reader_state: list[object]) -> _checkpoint.Position:
        names = [field.name for field in dataclasses.fields(_checkpoint.Position)]
        own = {name: getattr(self, name) for name in names}
        return _checkpoint.Position(**{**own, "reader_state": reader_state})

    def resume(self, position: _checkpoint.Position, reader_state: object) -> None:
        for field in dataclasses.fields(_checkpoint.Position):
            setattr(self, field.name, getattr(position, field.name))
        self.reader_state, self.resumed = reader_state, position
        # A checkpoint between epochs has step 0, and the next one has not begun.
        self.is_in_epoch = position.step > 0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
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
        return self.resumed is not None and self.num_calls <= self.resumed.call

    @property
    def is_over(self) -> bool:
        """Whether this call of `train` had ended before the checkpoint was written."""
        return self.resumed is not None and self.num_calls < self.resumed.call

    @property
    def is_passed_over(self) -> bool:
        """Whether a resumed script has not come to the call of `train` that goes on."""
        return self.is_over or (self.is_replayed and not self.is_running)

    def begin_call(self) -> int:
        """Return the epoch in which this call began, in this process or in the resumed run."""
        self.call, self.first_epoch = self.num_calls, self.epoch
        # A resumed call ends where it would have, not its number of epochs later.
        if self.resumed is not None and self.call == self.resumed.call:
            self.first_epoch = self.resumed.first_epoch
        return self.first_epoch

    def count_epochs(self, num_epochs: int) -> int:
        """Return how many of this call's epochs still run, in whole or in part."""
        # A call that the run had not begun when its checkpoint was written runs all of them.
        if self.resumed is None or not self.is_replayed:
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


class HandlerStates:
    """The states of those handlers that have `get_state` and `set_state`.

    In a checkpoint each is a `state`, and the `name` of the handler's class.
    """

    def __init__(self) -> None:
        self._handlers: list[Any] = []
        self._resumed: list[dict[str, Any]] = []

    def resume(self, states: Sequence[dict[str, Any]]) -> None:
        """Keep what a checkpoint holds until the handlers are known."""
        self._resumed = list(states)

    def restore_to(self, event_handler: Any) -> None:
        """Keep the handlers of a call of `train`, and give them the states of a resumed run."""
        handlers = event_handler if isinstance(event_handler, Sequence) else [event_handler]
        keeps = lambda h: hasattr(h, "get_state") and hasattr(h, "set_state")  # noqa: E731
        self._handlers = list(filter(keeps, handlers))
        # Given once: a further call of `train` goes on with the handlers as they are.
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
        # Those of a resumed run stay until its call of `train` has given them to the handlers.
        if self._resumed:
            return self._resumed
        return [{"name": type(h).__name__, "state": h.get_state()} for h in self._handlers]


def gather_states(group: Group, state: object) -> list[object]:
    """Return a reader's state for JSON, one for each process, on process 0. Collective."""
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


def restore(engine: Engine, contents: _checkpoint.Contents, where: str) -> None:
    """Take the state of a checkpoint, and of its optimizers what the engine's `freeze` trains."""
    states, own = find_states(engine, contents), engine.programs.states
    leaves = dict(contents.leaves)
    for objective, structure in engine.programs.structures.items():
        name = f"metrics.{objective}.scalars"
        if name in leaves:
            leaves[name] = _metrics.add_counts(leaves[name], structure)
    contents = dataclasses.replace(contents, leaves=leaves)
    abstract = jax.tree.leaves(states.abstract_state)
    # Before anything is put on devices: a refusal leaves the engine as it was.
    _checkpoint.check_fits(contents, states.leaf_names, abstract, where)
    # Into buffers that may be donated.
    arrays = copy_to([leaves[name] for name in states.leaf_names], own.mesh, states.leaf_specs)
    state = states.unpack(arrays)
    engine.state = state if states is own else own.take_over(state)


def find_states(engine: Engine, contents: _checkpoint.Contents) -> States:
    """Return the states of the engine's network with the `freeze` of a checkpoint."""
    own = engine.programs.states
    # A checkpoint of another network is refused with all that differs, not with a pattern.
    with contextlib.suppress(UnknownNameError, ProgramError):
        freeze = contents.extra.get(FREEZE, own.network.options.freeze)
        network = own.network.with_freeze(freeze)
        return own if network is own.network else States(network)
    return own


class Moment(NamedTuple):
    """What a checkpoint is written of; `extra` is what it holds beside state and position."""

    status: Status
    leaves: list[jax.Array]
    extra: dict[str, object]


class Saver:
    """Writes checkpoints at the intervals of a configuration."""

    is_tracking = True  # the reader's position is asked for after each batch
    directory: Path | None

    def __init__(
        self, engine: Engine, store: _checkpoint.Store, *, saves_first: bool = False
    ) -> None:
        self.store, self.directory = store, store.directory
        self.is_resuming = False  # the next pass begins where a checkpoint was written
        self._engine, self._group = engine, engine.programs.group
        self._config, self._handlers = store.config, HandlerStates()
        # Held while something is written and no longer: a notebook makes many trainers.
        self._lock = FolderLock(store.directory)
        self._is_held = False
        self._steps: set[int] | None = None  # checkpoints that were there when it was last held
        self._writer = _checkpoint.Writer(store, is_asynchronous=store.config.is_asynchronous)
        self._clock = time.monotonic
        self._spare: list[jax.Array] = []  # the last snapshot, where its memory is used again
        self._saves_first = saves_first
        self._held: Moment | None = None
        self._saved: _checkpoint.Position | None = None
        self._saved_secs = self._clock()
        # When made: a misspelt metric should not be found at the first save, hours later.
        _check_monitor(store.config, engine.programs.structures)

    def resume(self, status: Status) -> None:
        with self.hold_folder():
            contents = self.newest()
        if contents is None:
            return
        # Before the script has come to where it called `freeze`, if it did.
        self._engine.freeze(find_states(self._engine, contents).network.options.freeze)
        own_key = jax.device_get(self._engine.state.key)
        restore(self._engine, contents, str(self.store.directory))
        is_own = np.array_equal(own_key, jax.device_get(self._engine.state.key))
        self._saved = position = contents.position
        self.is_resuming = True
        status.resume(position, pick_state(self._group, position.reader_state))
        self._handlers.resume(contents.extra.get("handlers", []))
        where = self.store.directory / str(position.global_step)
        steps = f"{position.step} steps into epoch {position.epoch}"
        steps += "" if is_own else ", with the seed of the run that wrote it, which is another"
        _LOGGER.warning("resuming from %s: global step %d, %s", where, position.global_step, steps)

    @contextlib.contextmanager
    def hold_folder(self) -> Iterator[None]:
        """Keep other runs out of the folder, which process 0 holds for all. Collective."""
        if self._is_held:
            yield
            return
        self._is_held, self._held, self.store.is_given_up = True, None, False
        try:
            take = lambda: None if self._group.index else self._take()  # noqa: E731
            name = f"take the folder {str(self.store.directory)!r}"
            failing = f"could not {name}, which it does for all, expected it to"
            attempt(self._group, f"the attempt to {name}", take, failing)
            yield
        finally:
            self._is_held = False
            if self._lock.is_held:
                # What another run adds from here on is found when it is next held.
                self._steps = set(self.store.steps())
                self._lock.release()

    def _take(self) -> None:
        try:
            self._lock.acquire()
        except (OSError, ValueError) as error:
            raise self.store.cannot_write(error) from error
        # A save that a second interrupt abandoned was finished since, and is ours.
        own = {self._saved.global_step} if self._saved else set()
        new = set(self.store.steps()) - self._steps - own if self._steps is not None else set()
        if new:
            self._lock.release()  # what was refused once is not known, and is refused again
            raise FolderInUseError(
                f"the folder {str(self.store.directory)!r} got checkpoints of another run since "
                f"this Trainer last held it, of global step {listed(map(str, sorted(new)))}, "
                "expected none. Going on would delete them. Make a new Trainer, which begins with "
                "the newest, or give this run a folder of its own."
            )
        # The first time only: a trial and a cleaning are for whoever begins here.
        if self._steps is None:
            self.store.try_writing()
            self.store.tidy()

    def begin(self, status: Status, event_handler: object) -> None:
        """Note that a call of `train` begins: the seconds count from here."""
        self._handlers.restore_to(event_handler)
        if not self._group.index:
            self.store.prepare()
        self._saved_secs = self._clock()
        if self._saved is None and self._saves_first:
            self.save(status)

    def hold_moment(self, status: Status) -> None:
        """Write checkpoints of this moment until `after_epoch`, or the end, whatever changes."""
        self._held = self._take_moment(dataclasses.replace(status))

    def _take_moment(self, status: Status) -> Moment:
        programs = self._engine.programs
        extra: dict[str, object] = {
            # Handlers go on while it is written.
            "handlers": copy.deepcopy(self._handlers.as_json()),
            "versions": list_versions(),
            PARAMETER_NAMES: programs.states.variable_paths,
            FREEZE: list(programs.options.freeze),
        }
        return Moment(status, list(self._engine.leaves), extra)

    def after_launch(self, status: Status) -> None:
        config = self._config
        every = config.save_interval_steps
        saved = self._saved.global_step if self._saved else 0
        # Crossed, not met: a launch of several steps may pass over a multiple.
        is_due = every is not None and status.global_step // every > saved // every
        # On several processes their clocks would not agree: the loop asks the first one's.
        if is_due or (self._group.count == 1 and self.is_time()):
            self.save(status)

    def is_time(self) -> bool:
        secs = self._config.save_interval_secs
        # A disk slower than the interval would make each save wait for the last.
        if secs is None or self._writer.is_busy:
            return False
        return self._clock() - self._saved_secs >= secs

    def after_epoch(self, status: Status) -> None:
        self._held = None
        every = self._config.save_interval_epochs
        if every is not None and status.epoch % every == 0:
            self.save(status)

    def at_end(self, status: Status, *, is_good: bool) -> None:
        """Write a last checkpoint of a good state, unless it was lost, and wait for the writer."""
        if is_good and self._engine.is_lost:
            _LOGGER.error("NOT SAVED: the state was lost in a launch that failed")
        elif is_good:
            self._writer.wait()
            position = self._position(status)
            # The interval's checkpoint may have been of just this step.
            is_saved = self._saved == position and not self._writer.has_failed
            # Process 0 alone knows the state of every reader.
            if self._group.broadcast("the last checkpoint", not is_saved):
                self._save(status, position, is_last=True)
        self.finish()

    def give_up(self) -> None:
        self.store.is_given_up = True
        self.finish()

    def finish(self) -> None:
        self._writer.wait()
        # A trainer that is not training holds no second copy of its state.
        self._spare, self._held = [], None

    def raise_failures(self) -> None:
        """Raise if the last checkpoint could not be written; say what was not written before it."""
        failures, self._writer.failures = self._writer.failures, []
        if failures and self._writer.has_failed:
            num_before = len({*failures}) - 1
            more = f", nor were {num_before} before it" if num_before else ""
            raise CheckpointError(
                f"{failures[-1]}. It was not written{more}: {self._describe_newest()}. See to the "
                "cause; the trainer has the state, which trainer.save_checkpoint() writes."
            )
        if failures:
            _LOGGER.warning(
                "%d of the checkpoints could not be written, the last one is: a rerun goes on "
                "from it, and what was lost is the way back to those before",
                len(failures),
            )

    def _describe_newest(self) -> str:
        # A folder that cannot be written may not be readable either.
        steps = []
        with contextlib.suppress(OSError):
            steps = self.store.steps()
        return f"a rerun goes on from global step {steps[-1]}" if steps else "a rerun begins anew"

    def save(self, status: Status, *, is_last: bool = False) -> None:
        """Write a checkpoint of where training stands; returns when a copy of the state is made."""
        self._save(status, self._position(status), is_last=is_last)

    def _save(self, status: Status, position: _checkpoint.Position, *, is_last: bool) -> None:
        programs = self._engine.programs
        moment = self._held or self._take_moment(status)
        extra = moment.extra
        monitor = self._config.monitor
        # In this thread: it may look at what the next step changes.
        asked = float(monitor()) if callable(monitor) else None
        self._writer.wait()  # then nobody reads the last snapshot any more
        self._saved, self._saved_secs = position, self._clock()
        is_shared, part = self._group.count > 1 and programs.states.is_split, self._group.index
        if part and not is_shared:
            return
        # A part that an attempt before has left is none of this one.
        attempt = self._group.broadcast("a checkpoint", uuid.uuid4().hex) if is_shared else ""
        copied, names = self._copy(moment, is_last=is_last), programs.states.leaf_names

        def make() -> _checkpoint.Contents:
            # The lock's file may be another's by now.
            if not part:
                self._lock.check()
            leaves, pieces = _checkpoint.fetch_leaves(names, copied, part)
            copied.clear()  # on an accelerator the memory is free while the disk is waited for
            # On the host and in the thread: the steps pay nothing for it.
            bad = _not_finite(leaves, programs)
            if bad:
                error = CheckpointError(bad)
                self.store.tell_failure(attempt, part, error) if part else None
                raise error
            metric = asked if callable(monitor) or part else self._mean(leaves, monitor)
            return _checkpoint.Contents(
                leaves=leaves,
                position=position,
                extra=extra,
                metric=metric,
                pieces=pieces,
                part=part,
                num_parts=self._group.count if is_shared else 1,
                attempt=attempt,
            )

        self._writer.write(make, step=status.global_step, is_last=is_last)

    def _copy(self, moment: Moment, *, is_last: bool) -> list[jax.Array]:
        if self._writer.waits(is_last=is_last):
            # The loop waits for the disk, and no launch takes them meanwhile.
            return list(moment.leaves)
        copied = self._engine.snapshot(self._spare)  # never of a held moment: those are waited for
        self._spare = list(copied) if self._engine.reuses_snapshots else []
        return copied  # a list of its own: the writer empties it when it has fetched

    def newest(self, *, before: int | None = None) -> _checkpoint.Contents | None:
        """Return the newest checkpoint up to a global step, the same everywhere. Collective."""
        self._writer.wait()
        return read_newest(self._group, self.store, before=before)

    def roll_back(self, last_step: int) -> int | None:
        """Return the engine to the newest checkpoint up to a global step, and say its step."""
        contents = self.newest(before=last_step)
        if contents is None:
            return None
        self._saved, self._writer.failures = contents.position, []
        restore(self._engine, contents, str(self.store.directory))
        # Its sums are of an epoch's beginning that was given up.
        self._engine.reset_metrics()
        return contents.position.global_step

    def _position(self, status: Status) -> _checkpoint.Position:
        status = self._held.status if self._held else status
        return status.position(gather_states(self._group, status.reader_state))

    def _mean(self, leaves: Mapping[str, np.ndarray], monitor: str) -> float | None:
        if not self._config.num_best:
            return None
        programs = self._engine.programs
        try:
            means = programs.states.list_means(programs.states.arrange(leaves))
        except _metrics.NoExamplesError:  # since the epoch began
            return None
        return _metrics.find_monitored(means, monitor, programs.structures)


class NoSaver(Saver):
    """Writes no checkpoints: what a trainer without a directory has."""

    is_tracking = False

    def __init__(self) -> None:
        self.is_resuming, self.directory = False, None

    @contextlib.contextmanager
    def hold_folder(self) -> Iterator[None]:
        yield

    def is_time(self) -> bool:
        return False

    def _do_nothing(self, *_: object, **__: object) -> None:
        pass

    resume = begin = save = after_launch = after_epoch = at_end = _do_nothing
    hold_moment = _do_nothing
    finish = give_up = raise_failures = newest = roll_back = _do_nothing


def _check_monitor(
    config: _checkpoint.CheckpointConfig, structures: Mapping[str, _metrics.Structure]
) -> None:
    if not config.num_best or callable(config.monitor) or not structures:
        return
    # Zeros are enough to look a name up.
    zeros = {
        name: [None if isinstance(item.shape, RowMetric) else 0.0 for item in structure.items]
        for name, structure in structures.items()
    }
    _metrics.find_monitored(zeros, config.monitor, structures)


def _is_finite(array: np.ndarray) -> bool:
    """Return whether every number is; in pieces, whose answers stay in the cache."""
    flat = array.reshape(-1)
    return all(
        np.all(np.isfinite(flat[start : start + _PIECE])) for start in range(0, flat.size, _PIECE)
    )


def _not_finite(leaves: Mapping[str, np.ndarray], programs: Programs) -> str:
    """Return what of a state is not finite, an empty string where all is."""
    bad = [
        name
        for name, value in leaves.items()
        if name.startswith("variables.") and not _is_finite(value)
    ]
    if bad:
        return f"parameters that are not finite are not saved: {listed(bad, 5)}"
    # A loss gone bad may not have reached a parameter yet.
    sums, structures = programs.states.arrange(leaves).metrics, programs.structures
    if all(
        sums[name].scalars is None or np.isfinite(sums[name].loss_sum(structures[name]))
        for name in sums
    ):
        return ""
    return "a state of an epoch with a loss that is not finite is not saved"


def attempt(group: Group, name: str, do: Callable[[], T], failing: str) -> T:
    """Return what a function gives on this process. Collective.

    All of them raise where one fails, or none: one that went on alone would wait for ever. What it
    is that failed is said after `process 1`.
    """
    result, error = None, None
    try:
        result = do()
    except Exception as raised:  # kept until the others know of it
        error = raised
    failures = group.exchange(name, error and f"{type(error).__name__}: {error}")
    if not any(failures):
        return result  # pyright: ignore[reportReturnType]
    index = next(number for number, failure in enumerate(failures) if failure)
    group.leave(index)
    raise error or CheckpointError(f"process {index} {failing}: {failures[index]}")


def read_newest(
    group: Group, store: _checkpoint.Store, *, before: int | None = None
) -> _checkpoint.Contents | None:
    """Return the newest checkpoint that can be read, None where there is none. Collective.

    Only process 0 writes and deletes, so only it knows what is there to stay: it looks, and the
    others read what it has found.
    """
    name, failing = (
        "reading the newest checkpoint",
        (
            f"cannot read the newest checkpoint of {str(store.directory)!r}, expected all of them "
            "to. They must restore the same one. See that every process sees the same folder"
        ),
    )
    search = lambda: None if group.index else store.read_newest(before=before)  # noqa: E731
    contents = attempt(group, name, search, failing)
    # The step alone travels: the files are on a disk that all of them see.
    step = group.broadcast(name, contents and contents.position.global_step)
    read = lambda: store.read(step) if group.index else contents  # noqa: E731
    return contents if step is None else attempt(group, name, read, failing)
