"""When checkpoints are written during training, and what goes into them."""

from __future__ import annotations

import base64
import copy
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from penstock import _metrics
from penstock._checkpoint import (
    CheckpointConfig,
    Contents,
    Position,
    Store,
    Writer,
    check_fits,
    host_leaves,
    leaf_names,
)
from penstock._errors import UnknownNameError, listed
from penstock.program_builder import ProgramBuilder
from penstock.trainer._status import Status

_LOGGER = logging.getLogger("penstock")


class Saver:
    """Writes no checkpoints: what a trainer without a directory has.

    Attributes:
      is_tracking: whether the reader's position is asked for after each batch.
      is_resuming: whether the next pass over the reader begins where a checkpoint was written.
    """

    is_tracking = False

    def __init__(self) -> None:
        self.is_resuming = False

    def begin(self, status: Status) -> None:
        """Note that a call of `train` begins."""

    def is_time(self) -> bool:
        """Return whether the seconds between two checkpoints have passed."""
        return False

    def save(self, status: Status, *, is_last: bool = False) -> None:
        """Write a checkpoint of where training stands."""

    def after_launch(self, status: Status) -> None:
        """Write a checkpoint if one is due after a launch."""

    def after_epoch(self, status: Status) -> None:
        """Write a checkpoint if one is due at the end of an epoch."""

    def at_end(self, status: Status) -> None:
        """Write a last checkpoint, and wait for it."""

    def wait(self) -> None:
        """Wait until nothing is being written."""

    def failures(self) -> list[str]:
        """Return a line for each checkpoint that could not be written since the last asking."""
        return []

    def good_state(self, last_step: int) -> tuple[list[jax.Array], int] | None:
        """Return the state of the newest checkpoint up to a global step, and its step."""
        return None


class CheckpointSaver(Saver):
    """Writes checkpoints at the intervals of a configuration.

    Arguments:
      extra: what to keep beside the state: asked at each save.
      saves_first: write one before the first step, so that there is one to go back to.
    """

    is_tracking = True

    def __init__(
        self,
        builder: ProgramBuilder,
        store: Store,
        extra: Callable[[], Mapping[str, Any]],
        *,
        saves_first: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.store = store
        if not jax.process_index():
            store.tidy()
        self._builder, self._config, self._extra = builder, store.config, extra
        self._writer = Writer(store, is_asynchronous=store.config.is_asynchronous)
        self._clock, self._names = clock, leaf_names(builder.unpack(builder.abstract_leaves))
        self._saves_first = saves_first
        self._refused: list[str] = []
        self._saved: Position | None = None
        self._saved_secs = clock()
        _check_monitor(store.config, builder)

    def resumed_at(self, position: Position) -> None:
        """Note that a checkpoint exists, and that its position in the reader counts."""
        self._saved, self.is_resuming = position, True

    def begin(self, status: Status) -> None:
        """Note that a call of `train` begins: the seconds count from here."""
        self._saved_secs = self._clock()
        if self._saved is None and self._saves_first:
            self.save(status)

    def after_launch(self, status: Status) -> None:
        """Write a checkpoint if one is due after a launch."""
        config = self._config
        every = config.save_interval_steps
        saved = self._saved.global_step if self._saved else 0
        is_due = every is not None and status.global_step // every > saved // every
        # On several processes their clocks would not agree: the loop asks the first one's.
        if is_due or (jax.process_count() == 1 and self.is_time()):
            self.save(status)

    def is_time(self) -> bool:
        """Return whether the seconds between two checkpoints have passed."""
        secs = self._config.save_interval_secs
        if secs is None or self._writer.is_busy:
            return False
        return self._clock() - self._saved_secs >= secs

    def after_epoch(self, status: Status) -> None:
        """Write a checkpoint if one is due at the end of an epoch."""
        every = self._config.save_interval_epochs
        if every is not None and status.epoch % every == 0:
            self.save(status)

    def at_end(self, status: Status) -> None:
        """Write a last checkpoint, unless the state was lost, and wait for it."""
        if any(leaf.is_deleted() for leaf in status.packed):
            self._writer.failures.append("the state was lost in a launch that failed")
        elif self._saved != self._position(status):
            self.save(status, is_last=True)
        self._writer.wait()
        self.store.close()

    def wait(self) -> None:
        """Wait until nothing is being written."""
        self._writer.wait()

    def failures(self) -> list[str]:
        """Return a line for each checkpoint that could not be written since the last asking."""
        lines, self._writer.failures = self._writer.failures, []
        refused, self._refused = self._refused, []
        return lines + refused

    def save(self, status: Status, *, is_last: bool = False) -> None:
        """Write a checkpoint of where training stands; returns when a copy of the state is made."""
        builder = self._builder
        position = self._position(status)
        extra = copy.deepcopy(dict(self._extra()))  # handlers go on while it is written
        monitor = self._config.monitor
        asked = float(monitor()) if callable(monitor) else None
        self._saved, self._saved_secs = position, self._clock()
        if jax.process_index():
            return
        copied = builder.snapshot(status.packed)

        def make() -> Contents | None:
            leaves = host_leaves(self._names, copied)
            bad = _not_finite(leaves, builder)
            if bad:
                line = f"checkpoint of global step {position.global_step}: {bad}"
                self._refused.append(line)
                _LOGGER.error("NOT SAVED, training goes on: %s", line)
                return None
            metric = asked if callable(monitor) else self._mean(list(leaves.values()), monitor)
            return Contents(leaves=leaves, position=position, extra=extra, metric=metric)

        self._writer.write(make, step=status.global_step, is_last=is_last)

    def good_state(self, last_step: int) -> tuple[list[jax.Array], int] | None:
        """Return the state of the newest checkpoint up to a global step, and its step.

        A state that is not finite, or has met such a loss in its epoch, was never written. That it
        was not is no failure any more.
        """
        self._writer.wait()
        contents = self.store.read_newest(before=last_step)
        if contents is None:
            return None
        self._saved, self._refused = contents.position, []
        builder = self._builder
        leaves = restored(builder, contents, str(self.store.directory))
        state = builder.reset_metrics(builder.unpack(leaves))
        return builder.pack(state), contents.position.global_step

    def _position(self, status: Status) -> Position:
        return status.position(self._builder.batch_sizes, _encoded(status.reader_state))

    def _mean(self, leaves: list[Any], monitor: str) -> float | None:
        if not self._config.num_best:
            return None
        try:
            means = self._builder.mean_metrics(self._builder.unpack(leaves))
        except ValueError:  # no example since the epoch began
            return None
        return monitored(means, monitor, self._builder.structures)


def restored(builder: ProgramBuilder, contents: Contents, where: str) -> list[jax.Array]:
    """Return the packed state of a checkpoint, in buffers of its own that may be donated.

    Raises:
      CheckpointError: it is of another network.
    """
    names = leaf_names(builder.unpack(builder.abstract_leaves))
    check_fits(contents, names, builder.abstract_leaves, where)
    return builder.own([contents.leaves[name] for name in names])


def monitored(
    metrics: Any, monitor: str, structures: Mapping[str, _metrics.Structure]
) -> float | None:
    """Return the metric that a name stands for: `"loss"`, a key, a number, or `objective/name`.

    Raises:
      UnknownNameError: there is no such metric.
    """
    name, structure = monitor, next(iter(structures.values()))
    if len(structures) > 1:
        objective, _, name = monitor.partition("/")
        if objective not in structures:
            raise UnknownNameError(
                f"monitor got {monitor!r}, expected 'objective/metric' with one of "
                f"{listed(structures)}."
            )
        metrics, structure = metrics.get(objective), structures[objective]
    keys = structure.keys
    if keys is None:
        values = {"loss": metrics}
    else:
        items = metrics if isinstance(metrics, Mapping) else dict(enumerate(metrics))
        values = {str(key): items[key] for key in keys}
        values.setdefault("loss", items[keys[structure.loss_index]])
    if name not in values:
        raise UnknownNameError(
            f"monitor got {monitor!r}, expected one of {listed(values)}, or a function."
        )
    return float(values[name]) if np.ndim(values[name]) == 0 else None


def _check_monitor(config: CheckpointConfig, builder: ProgramBuilder) -> None:
    if not config.num_best or callable(config.monitor) or not builder.structures:
        return
    means = {
        name: dict.fromkeys(each.keys, 0.0) if each.keys is not None else 0.0
        for name, each in builder.structures.items()
    }
    single = next(iter(means.values()))
    monitored(single if len(means) == 1 else means, config.monitor, builder.structures)


def _not_finite(leaves: Mapping[str, np.ndarray], builder: ProgramBuilder) -> str:
    """Return what of a state is not finite, an empty string where all is."""
    bad = [
        name
        for name, value in leaves.items()
        if name.startswith("variables.") and not np.all(np.isfinite(value))
    ]
    if bad:
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        return f"parameters that are not finite are not saved: {listed(bad[:5])}{more}"
    sums = builder.unpack(list(leaves.values())).metrics
    structures = builder.structures
    if all(np.isfinite(each.loss_sum(structures[name])) for name, each in sums.items()):
        return ""
    return "a state of an epoch with a loss that is not finite is not saved"


def _encoded(state: Any) -> Any:
    """Return a reader's state for JSON, one for each process; bytes as base64."""
    if isinstance(state, bytes):
        state = {"__base64__": base64.b64encode(state).decode()}
    try:
        text = json.dumps(state)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the reader's get_state() got {type(state).__name__} that JSON cannot hold ({error}), "
            "expected dicts, lists, strings and Python's own numbers, or bytes. Convert it there."
        ) from error
    if jax.process_count() == 1:
        return [json.loads(text)]
    from jax.experimental import multihost_utils

    size = int(np.max(multihost_utils.process_allgather(np.int32(len(text)))))
    padded = np.frombuffer(text.encode().ljust(size), np.uint8)
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [json.loads(bytes(row)) for row in rows]


def decoded(states: Any) -> Any:
    """Return this process's state out of what a checkpoint holds; None where it holds none."""
    if not states or len(states) != jax.process_count():
        # Our readers' states do not depend on the process that took them.
        states = (states or [None])[:1] * jax.process_count()
    state = states[jax.process_index()]
    if isinstance(state, Mapping) and set(state) == {"__base64__"}:
        return base64.b64decode(state["__base64__"])
    return state
