"""The step whose loss or gradient was not finite, run again to find what made it so."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import itertools
from collections.abc import Generator, Iterator, Mapping
from typing import Any, NoReturn

import jax
import numpy as np

from penstock import _mesh, _reader_items
from penstock._checkpoint import Contents, Position
from penstock._errors import ReaderError, listed
from penstock._padded_batches import DeviceBatch
from penstock._program.sequences import NestedSequence, Sequence
from penstock._program.user_lines import find_raising_frame
from penstock.program_builder.engine import Engine, Network, Programs
from penstock.trainer._processes import share_batches
from penstock.trainer._saver import pick_state, restore

_MOST_STEPS = 100_000

_MOST_TRIED = 100
"""Different ids of a batch that are tried."""


def replay_step(
    engine: Engine,
    contents: Contents | None,
    reader: _reader_items.ReaderLike,
    fields: _reader_items.Fields,
    step: int | None,
) -> NoReturn:
    """Train from a state until a step is not finite, and run that one with JAX's nan debugging.

    Collective; each process then runs the step of all of them alone, and all raise the same.
    """
    programs, position = engine.programs, Position()
    if contents is not None:
        restore(engine, contents, "to replay")
        position = contents.position
    number = position.global_step
    with contextlib.closing(_batches_from(programs, position, reader, fields)) as batches:
        for batch in batches:
            # As the run does: the flag of a loss is its sum since the epoch began.
            if batch is None:  # an epoch begins
                engine.reset_metrics()
                continue
            # Kept of each step, since only after it is known whether it is the bad one.
            before = engine.copy()
            losses = _run(engine, batch)
            if number == step or (step is None and _is_bad(before, engine, losses)):
                is_infinite = any(np.isinf(loss) for loss in jax.device_get(losses))
                _explain(before, batch, number, is_infinite=is_infinite)
            number += 1
            # Epochs follow without end: a run that is fine would be replayed for ever.
            if step is None and number - position.global_step >= _MOST_STEPS:
                raise ReaderError(
                    f"replay got {_MOST_STEPS} steps that are all finite, expected one that is not."
                    " Pass step=... where the step is known to be later."
                )
    raise AssertionError("batches are yielded until something is raised")


def _run(engine: Engine, batch: DeviceBatch) -> list[jax.Array]:
    values, structures = engine.run(batch).values, engine.programs.structures
    losses: Any = [returned[structures[name].loss_index] for name, returned in values.items()]
    return losses


def _batches_from(
    programs: Programs, position: Position, reader: Any, fields: _reader_items.Fields
) -> Generator[DeviceBatch | None, None, None]:
    """Yield the batches after a position, epoch after epoch, None between two of them."""
    state, num_before = pick_state(programs.group, position.reader_state), position.step
    pass_ = _reader_items.resume_pass(reader, fields, position.epoch, state, num_before)
    for epoch in itertools.count(position.epoch + 1):
        num_batches = num_before
        # Levelled as in the run: another process may have more of them in an epoch.
        with contextlib.closing(share_batches(programs, "replay", pass_, "pad")) as launches:
            for feeds, shares, _ in launches:
                num_batches += 1
                yield programs.place("train", feeds, shares)
        if not num_batches:
            raise _reader_items.refuse_empty("the reader yielded no batch to replay")
        yield None
        pass_, num_before = _reader_items.Pass(reader, fields, epoch), 0


def _is_bad(before: Engine, after: Engine, losses: list[jax.Array]) -> bool:
    """Return whether a loss or a parameter is not finite, or an update was skipped."""
    old, new, options = before.state, after.state, after.programs.options
    # Losses see a bad parameter one step late, so the parameters are looked at too.
    watched = _mesh.fetch_whole([*losses, *jax.tree.leaves(new.variables["params"])])
    skipped = jax.device_get((old.num_skipped, new.num_skipped))
    # A dynamic loss scale leaves updates out too, which is no mistake of the program's.
    is_counted = options.skips_non_finite and not options.precision.is_dynamic
    is_skipped = is_counted and skipped[0] != skipped[1]
    return is_skipped or not all(np.all(np.isfinite(x)) for x in watched)


def _explain(engine: Engine, placed: DeviceBatch, number: int, *, is_infinite: bool) -> NoReturn:
    where = f"replay of global step {number}"
    engine, placed = _run_alone(engine, placed)
    modes = [jax.debug_nans, jax.debug_infs]
    try:
        # An infinite loss makes nan of every gradient: there the first infinity says more.
        for mode in reversed(modes) if is_infinite else modes:
            with _without_repetitions():
                engine.run_eagerly(placed, functools.partial(mode, True))
    except FloatingPointError as error:
        raise FloatingPointError(
            f"{where}: {str(error).splitlines()[0]}. {_list_non_finite(engine, placed)}"
            f"{_find_line(error)}{_find_out_of_range(engine, placed)}"
        ) from error
    raise FloatingPointError(
        f"{where} made neither a nan nor an infinity when its operations ran one by one. Pass "
        "step=... of another step, or see whether the reader yields the batches of the run."
    )


def _run_alone(engine: Engine, placed: DeviceBatch) -> tuple[Engine, DeviceBatch]:
    """Return what runs a step of all devices on one of this process alone. Collective.

    Operation by operation arrays are split evenly or not at all, and one process alone would raise.
    """
    if engine.programs.mesh.size == 1:
        return engine, placed
    feed = dict(placed.feed)
    if engine.programs.group.count == 1:
        feed = jax.device_get(feed)
    else:
        from jax.experimental import multihost_utils

        feed = multihost_utils.process_allgather(feed, tiled=True)
    mesh = _mesh.make_mesh(jax.local_devices()[:1])
    options = dataclasses.replace(
        engine.programs.options, mesh=mesh, state_sharding=None, parameter_sharding=()
    )
    alone = Programs(Network(engine.programs.network.objectives, None, options))
    state = alone.states.unpack(_mesh.fetch_whole(engine.leaves))
    return Engine(alone, state, engine.update_order), placed._replace(feed=feed)


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


def _list_non_finite(engine: Engine, placed: DeviceBatch) -> str:
    feed = jax.device_get(dict(placed.feed))
    leaves = {name: jax.tree.leaves(x) for name, x in feed.items()}
    bad = [name for name, xs in leaves.items() if not all(np.all(np.isfinite(x)) for x in xs)]
    text = f"The batch has values that are not finite, in {listed(bad)}. " if bad else ""
    if lost := engine.find_non_finite():
        some = listed(lost[:5])
        text += f"Before it {some} had such values: pass the step=... of an earlier one. "
    return text


def _find_out_of_range(engine: Engine, placed: DeviceBatch) -> str:
    """Return which ids or labels make the step not finite, found by putting 0 in their place."""
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
        before = engine.copy(_mesh.fetch_whole(engine.leaves))
        after = before.copy()
        tried = placed._replace(feed={**feed, **put})
        return _is_bad(before, after, _run(after, tried))

    if not ids or is_bad({}):
        return ""
    for name, column in ids.items():
        values = np.unique(column)
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
