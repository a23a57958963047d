"""A loss or a gradient that is not finite: stop, skip or roll back; and the step run again."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import itertools
import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Literal, NoReturn

import jax
import numpy as np

from penstock import _batches, _mesh, _metrics
from penstock._checkpoint import Contents, Position
from penstock._device_batches import DeviceBatch
from penstock._errors import NonFiniteError, ReaderError, listed
from penstock._program.inputs import Feed
from penstock._program.sequences import NestedSequence, Sequence
from penstock._program.user_lines import find_raising_frame
from penstock._tracing.probe import Probe
from penstock.distributed.group import Group
from penstock.program_builder import ProgramBuilder
from penstock.program_builder.engine import Engine, Programs
from penstock.trainer._status import Status, pick_state, restore

_LOGGER = logging.getLogger("penstock")

OnNonFinite = Literal["stop", "skip", "roll_back"]

MAX_ROLL_BACKS = 10
"""Roll-backs in one call of `train`; a run that needs more is not getting anywhere."""

MIN_STEPS_LOST = 10
"""Steps in a row of which everything was skipped, after which a run that skips is given up."""

_ADVICE = (
    "Look for an id or a label out of range (they give nan), the log of zero or a division by "
    "zero; else lower the learning rate, or clip gradients (optax.clip_by_global_norm). "
    "trainer.replay(reader) runs the step again and shows the line, the id or the label; "
    "Trainer(..., on_non_finite='skip') leaves such updates out."
)


class Guard:
    """Reacts to the flags of launches and to the losses that handlers read.

    Arguments:
      updates_per_step: how many updates a step makes, of all objectives together.
      roll_back: returns the engine to the newest good state up to a global step, and says of
        which step it is, None where there is none.

    Attributes:
      bad_steps: the range of global steps that the last bad loss lies in, first and last.
      forget: drops the flags of launches whose state was given up.
    """

    def __init__(
        self,
        engine: Engine,
        status: Status,
        action: OnNonFinite,
        roll_back: Callable[[int], int | None],
        updates_per_step: int,
    ) -> None:
        self.bad_steps: tuple[int, int] | None = None
        self.forget: Callable[[int], None] = _forget_nothing
        self._engine, self._status, self._action = engine, status, action
        self._roll_back = roll_back
        self._updates_per_step = updates_per_step
        self._num_roll_backs = self._num_skipped = 0
        self._lost_since: int | None = None
        self._first_kept_step = 0

    def begin(self, forget: Callable[[int], None]) -> None:
        self.forget, self._num_roll_backs, self._lost_since = forget, 0, None
        if self._action == "skip":
            self._num_skipped = int(jax.device_get(self._engine.state.num_skipped))

    def end(self) -> None:
        """Let go of the run, which holds this guard: they and the state would be a circle."""
        self.forget = _forget_nothing

    def add_health(self, flag: jax.Array) -> jax.Array:
        """Return what `check_flag` takes, of the flag of the last launch; does not wait."""
        if self._action == "skip":
            return flag
        # The parameters too: a bad gradient reaches the loss one step later, after a checkpoint of
        # it.
        return self._engine.health(flag)

    def check_flag(self, flag: np.ndarray, first: int, last: int) -> None:
        """Look at a flag that stands for the steps `first` to `last`."""
        where = f"at global step {first}" if first == last else f"in global steps {first} to {last}"
        if self._action == "skip":
            # The flag is `[loss sum, updates skipped]` here, `[loss sum, is healthy]` below.
            self._count_skipped(int(flag[1]), where, first, last)
        elif not np.isfinite(flag[0]):
            self._react(f"a loss that is not finite {where}", first, last)
        elif not flag[1]:  # a gradient of the last step, or of a parameter no loss has seen since
            self._react(f"an update that is not finite {where}", first, last)

    def check_read(self, launched: _metrics.LaunchValues, first_step: int) -> None:
        """Look at the losses of a launch that a handler has just read; costs no waiting.

        Not on several processes: where only some of them read, only those would react. The flags
        are looked at by all of them after the same launch.
        """
        if self._action == "skip" or self._engine.programs.group.count > 1:
            return
        if first_step < self._first_kept_step:  # its state was given up since
            return
        for k in range(launched.num_steps):
            for name, loss in launched.losses(k).items():
                if not np.isfinite(loss):
                    of = f" of {name!r}" if len(self._engine.programs.structures) > 1 else ""
                    step = first_step + k
                    self._react(f"a loss{of} of {loss} at global step {step}", step, step)
                    return

    def _count_skipped(self, num_skipped: int, where: str, first: int, last: int) -> None:
        # The device counts from the beginning of the run, this from the last flag.
        new, self._num_skipped = num_skipped - self._num_skipped, num_skipped
        if new:
            self.bad_steps = (first, last)
            _LOGGER.warning(
                "%d update%s skipped, a loss or gradient was not finite %s (%d in all)",
                new,
                " was" if new == 1 else "s were",
                where,
                num_skipped,
            )
        # Fewer than all of them: some update got through, and the run is alive.
        if new < (last - first + 1) * self._updates_per_step:
            self._lost_since = None
            return
        since = self._lost_since = first if self._lost_since is None else self._lost_since
        if last - since + 1 >= MIN_STEPS_LOST:
            self._raise(
                f"no finite loss and gradients in global steps {since} to {last}: every update was "
                "skipped"
            )

    def _react(self, what: str, first: int, last: int) -> None:
        self.bad_steps = (first, last)
        if self._action == "stop":
            self._raise(what)
        # Deterministic runs would fail at the same place for ever.
        if self._num_roll_backs == MAX_ROLL_BACKS:
            self._raise(f"{what}, after {MAX_ROLL_BACKS} roll-backs in this call of train")
        self._num_roll_backs += 1
        step = self._roll_back(last)
        if step is None:
            self._raise(f"{what}, with no checkpoint to roll back to")
        # Launches of the given-up state are still in flight, and handlers may read them.
        self._first_kept_step = self._status.global_step
        self.forget(self._first_kept_step)
        _LOGGER.warning(
            "%s: rolled back to the state of global step %d; training goes on with the next batch "
            "(roll-back %d of at most %d)",
            what,
            step,
            self._num_roll_backs,
            MAX_ROLL_BACKS,
        )

    def _raise(self, what: str) -> NoReturn:
        raise NonFiniteError(
            f"Trainer got {what}, expected a finite one. {self._describe_non_finite()}{_ADVICE}"
        )

    def _describe_non_finite(self) -> str:
        """Return which metrics and parameters are not finite; waits for the device."""
        # A launch that failed took the arrays: there is nothing to look at.
        if self._engine.is_lost:
            return ""
        metrics = [
            label
            for name, sums in self._engine.state.metrics.items()
            for label in _list_bad_metrics(
                jax.device_get(sums),
                self._engine.programs.network.train[name],
                f"{name}/" if len(self._engine.state.metrics) > 1 else "",
            )
        ]
        parameters = self._engine.find_non_finite()
        more = f" and {len(parameters) - 5} more" if len(parameters) > 5 else ""
        train = self._engine.programs.network.train
        tables = {table.layer: table for program in train.values() for table in program.lookups}
        lookups = "".join(
            f"{layer} looks up ids that the program computes, and gives nan for those outside its "
            f"{table.num_rows} rows. "
            for layer, table in tables.items()
        )
        first = f"Metrics of this epoch that are not finite: {listed(metrics)}. " if metrics else ""
        followed = f"followed in {listed(parameters[:5])}{more}" if parameters else "stayed finite"
        return f"{first}The parameters {followed}. {lookups}"


def _forget_nothing(next_step: int) -> None:
    """Do nothing: no launch is in flight."""


def _list_bad_metrics(sums: _metrics.Accumulator, program: Probe, prefix: str) -> list[str]:
    """Return how the metrics are called whose sum is not finite, in the order of the program."""
    # The high halves of the pairs are enough: what is not finite is so in both.
    scalars, arrays = iter(sums.scalars[0]), iter(sums.arrays)
    labels = []
    for item in program.structure.items:
        leaves = _metrics.list_sums(item.shape)
        values = [next(arrays)[0] if x.shape else next(scalars) for x in leaves]
        if not all(np.all(np.isfinite(value)) for value in values):
            labels.append(prefix + ("loss" if item.key is None else str(item.key)))
    return labels


_MOST_STEPS = 100_000

_MOST_TRIED = 100
"""Different ids of a batch that are tried."""


def replay_step(
    programs: Programs,
    contents: Contents | None,
    seed: int,
    reader: _batches.ReaderLike,
    fields: _batches.Fields,
    update_order: tuple[str, ...],
    step: int | None,
) -> NoReturn:
    """Train from a state until a step is not finite, and run that one with JAX's nan debugging.

    Collective; each process then runs the step of all of them alone, and all raise the same.

    Arguments:
      contents: the checkpoint to begin with; the initial state of `seed` where it is None.
      step: the global step; the first that is not finite where it is None.
    """
    # An engine of its own: the trainer's state stays what it is.
    engine, position = Engine(programs, programs.states.init(seed)), Position()
    if contents is not None:
        restore(engine, contents, "to replay")
        position = contents.position
    number = position.global_step
    with contextlib.closing(_batches_from(programs.group, position, reader, fields)) as batches:
        for batch in batches:
            # As the run does: the flag of a loss is its sum since the epoch began.
            if batch is None:  # an epoch begins
                engine.reset_metrics()
                continue
            # Kept of each step, since only after it is known whether it is the bad one.
            before = engine.copy()
            losses = _run(engine, programs.place("train", [batch]), update_order)
            if number == step or (step is None and _is_bad(before, engine, losses)):
                is_infinite = any(np.isinf(loss) for loss in jax.device_get(losses))
                _explain(before, batch, update_order, number, is_infinite=is_infinite)
            number += 1
            # Epochs follow without end: a run that is fine would be replayed for ever.
            if step is None and number - position.global_step >= _MOST_STEPS:
                raise ReaderError(
                    f"replay got {_MOST_STEPS} steps that are all finite, expected one that is not."
                    " Pass step=... where the step is known to be later."
                )
    raise AssertionError("batches are yielded until something is raised")


def _run(engine: Engine, batch: DeviceBatch, update_order: tuple[str, ...]) -> list[jax.Array]:
    values, structures = engine.run(batch, update_order).values, engine.programs.structures
    losses: Any = [returned[structures[name].loss_index] for name, returned in values.items()]
    return losses


def _batches_from(
    group: Group, position: Position, reader: Any, fields: _batches.Fields
) -> Generator[Feed | None, None, None]:
    """Yield the batches after a position, epoch after epoch, None between two of them."""
    state, num_before = pick_state(group, position.reader_state), position.step
    pass_ = _batches.resume_pass(reader, fields, position.epoch, state, num_before)
    for epoch in itertools.count(position.epoch + 1):
        num_batches = num_before
        with contextlib.closing(iter(pass_)) as batches:
            for batch in batches:
                num_batches += 1
                yield batch
        if not num_batches:
            raise ReaderError(
                "the reader yielded no batch to replay, expected those of the run. Is it an "
                "iterator that an earlier pass used up?"
            )
        yield None
        pass_, num_before = _batches.Pass(reader, fields, epoch), 0


def _is_bad(before: Engine, after: Engine, losses: list[jax.Array]) -> bool:
    """Return whether a loss or a parameter is not finite, or an update was skipped."""
    old, new = before.state, after.state
    # Losses see a bad parameter one step late, so the parameters are looked at too.
    watched = _mesh.fetch_whole([*losses, *jax.tree.leaves(new.variables["params"])])
    skipped = jax.device_get((old.num_skipped, new.num_skipped))
    return skipped[0] != skipped[1] or not all(np.all(np.isfinite(x)) for x in watched)


def _explain(
    engine: Engine,
    batch: Feed,
    update_order: tuple[str, ...],
    number: int,
    *,
    is_infinite: bool,
) -> NoReturn:
    where, placed = f"replay of global step {number}", engine.programs.place("train", [batch])
    engine, placed = _run_alone(engine, placed)
    modes = [jax.debug_nans, jax.debug_infs]
    try:
        # An infinite loss makes nan of every gradient: there the first infinity says more.
        for mode in reversed(modes) if is_infinite else modes:
            # JAX prints a line for every compiled function on the way out.
            with _without_repetitions():
                engine.programs.run_eagerly(
                    engine.leaves, placed, update_order, functools.partial(mode, True)
                )
    except FloatingPointError as error:
        raise FloatingPointError(
            f"{where}: {str(error).splitlines()[0]}. {_list_non_finite(engine, placed)}"
            f"{_find_line(error)}{_find_out_of_range(engine, placed, update_order)}"
        ) from error
    raise FloatingPointError(
        f"{where} made neither a nan nor an infinity when its operations ran one by one. Pass "
        "step=... of another step, or see whether the reader yields the batches of the run."
    )


def _run_alone(engine: Engine, placed: DeviceBatch) -> tuple[Engine, DeviceBatch]:
    """Return what runs a step of all devices on one of this process alone. Collective.

    Operation by operation arrays are split evenly or not at all, and of several processes only the
    one whose examples make the nan would raise, while the others waited for it.
    """
    if engine.programs.mesh.size == 1:
        return engine, placed
    feed = dict(placed.feed)
    if engine.programs.group.count == 1:
        feed = jax.device_get(feed)
    else:
        from jax.experimental import multihost_utils

        # Each process holds its own rows of the batch.
        feed = multihost_utils.process_allgather(feed, tiled=True)
    network, options = engine.programs.network, engine.programs.options
    alone = ProgramBuilder(
        dict(network.objectives),
        place=jax.local_devices()[:1],
        skips_non_finite=options.skips_non_finite,
        precision=options.precision,
        gradient_accumulation_steps=options.num_micro_batches,
        freeze=options.freeze,
    )
    state = alone.programs.states.unpack(_mesh.fetch_whole(engine.leaves))
    return Engine(alone.programs, state), placed._replace(feed=feed)


@contextlib.contextmanager
def _without_repetitions() -> Iterator[None]:
    """Print what is printed inside, but for what JAX prints of every call that was nan."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    finally:
        lines = printed.getvalue().splitlines(keepends=True)
        print(*(line for line in lines if "de-optimized" not in line), sep="", end="")


def _is_finite(array: np.ndarray) -> bool:
    return bool(np.all(np.isfinite(array)))


def _list_non_finite(engine: Engine, placed: DeviceBatch) -> str:
    feed = jax.device_get(dict(placed.feed))
    bad = [n for n, x in feed.items() if not all(map(_is_finite, jax.tree.leaves(x)))]
    text = f"The batch has values that are not finite, in {listed(bad)}. " if bad else ""
    lost = engine.find_non_finite()
    if lost:
        text += (
            f"Before it {listed(lost[:5])} had such values: pass the step=... of an earlier one. "
        )
    return text


def _find_out_of_range(engine: Engine, placed: DeviceBatch, update_order: tuple[str, ...]) -> str:
    """Return which ids or labels make the step not finite, found by putting 0 in their place.

    Which of them are valid only the layers know that take them, each in its own way; to try costs
    nothing but a few steps.
    """
    feed = jax.device_get(dict(placed.feed))
    specs = engine.programs.network.feed_specs
    ids = {
        name: np.asarray(x.values if isinstance(x, (Sequence, NestedSequence)) else x)
        for name, x in feed.items()
        if np.issubdtype(specs[name].dtype, np.integer)
    }
    none = {name: np.zeros_like(x) for name, x in ids.items()}

    def is_bad(changed: Mapping[str, np.ndarray]) -> bool:
        put = {
            name: dataclasses.replace(feed[name], values=x)
            if isinstance(feed[name], (Sequence, NestedSequence))
            else x
            for name, x in {**none, **changed}.items()
        }
        before = engine.copy_from(_mesh.fetch_whole(engine.leaves))
        after = before.copy()
        tried = placed._replace(feed={**feed, **put})
        return _is_bad(before, after, _run(after, tried, update_order))

    # With 0 for all of them still bad: no id is to blame.
    if not ids or is_bad({}):
        return ""
    for name, column in ids.items():
        values = np.unique(column)
        # What is out of range is most likely the largest or the smallest.
        from_the_ends = sorted(values, key=lambda value: -abs(float(value) - values.mean()))
        for value in from_the_ends[:_MOST_TRIED]:
            if is_bad({name: np.where(column == value, column, 0)}):
                row, *behind = map(int, np.argwhere(column == value)[0])
                level = {Sequence: 1, NestedSequence: 2}.get(type(feed[name]), 0)
                # Of sequences of sequences the word comes last, and is named first.
                places = reversed([*zip(("sequence", "word")[2 - level :], behind, strict=False)])
                inside = "".join(f"{what} {place} of " for what, place in places)
                return (
                    f" The input {name!r} holds {value} in {inside}row {row} of the batch; with 0 "
                    "there all is finite: it is out of range. Ids and labels count from 0, and are "
                    "less than the number of classes, or of rows of the embedding."
                )
    return ""


def _find_line(error: BaseException) -> str:
    """Return which line of the program function an error of JAX's nan debugging came from."""
    forward = error.__cause__  # JAX gives an operation of a gradient the traceback of its origin
    frame = find_raising_frame(forward or error)
    if frame is None:
        return "The traceback above this one ends at the operation."
    what = "The gradient of this line" if forward else "This line"
    return f"{what} made it: {frame.filename}:{frame.lineno}, in {frame.name}: {frame.line}"
