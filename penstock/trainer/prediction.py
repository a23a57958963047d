"""`predict`: what a network answers about a whole reader, batch by batch in the reader's order."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
from collections.abc import Generator, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from penstock import _metrics, _reader_items
from penstock._errors import FeedError, ProgramError, check_known, listed
from penstock._interrupts import Interrupts
from penstock._padded_batches import Share
from penstock._program.frame import Variables
from penstock._program.inputs import Feed
from penstock._program.sequences import cut_all
from penstock._sequence_feeds import is_lengths
from penstock.distributed.group import Group
from penstock.program_builder.engine import Answer, Programs
from penstock.trainer._in_flight import LOOK_AHEAD, look_ahead, max_in_flight
from penstock.trainer._processes import Launch, OnUnequal, share_batches

Column = np.ndarray | list[Any]
"""Values of each example; a list where they differ in shape."""


class _Batch(NamedTuple):
    """What a network answers about a batch, sequences padded, and the columns kept beside it."""

    outputs: Any
    kept: dict[str, Column]
    size: int
    shares: Sequence[Share] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """A pass of an infer program over a reader."""

    programs: Programs
    variables: Variables
    reader: _reader_items.ReaderLike
    feed_order: _reader_items.FeedOrder | None
    keep: str | Sequence[str]
    owner: str
    interrupts: Interrupts = dataclasses.field(default_factory=Interrupts)
    on_unequal: OnUnequal = "pad"

    def __post_init__(self) -> None:
        """Check what can be checked before anything is read."""
        if self.programs.network.infer is None:
            raise ProgramError(
                f"{self.owner} got no infer_func, expected one. It says what to predict. Pass "
                "Trainer(..., infer_func=...)."
            )
        _reader_items.check_reader(self.reader, 1)

    def iterate(self) -> Generator[Any, None, None]:
        """Yield the outputs of this process's batches, or with `keep` dicts of columns."""
        for batch in self._run():
            if batch.size:
                yield _as_columns(batch) if self.keep else cut_all(batch.outputs)

    def join(self) -> Any:
        """Return the outputs of all processes' batches, or with `keep` a dict of columns."""
        structure = self.programs.network.infer.structure  # pyright: ignore
        for item in structure.items:
            if not item.rows:
                raise ProgramError(
                    f"{self.owner} has {item.label} without a batch axis, expected rows for each "
                    "example. It belongs to a batch. Use predict, which yields batches."
                )
        batches = list(self._run())
        join = _Join(self.programs.group, self.owner, batches)
        if not self.keep:
            outputs = [batch.outputs for batch in batches]
            return _metrics.map_leaves(lambda *parts: join.columns(map(cut_all, parts)), *outputs)
        columns = [_as_columns(batch) for batch in batches]
        return {
            name: join.columns([part[name] for part in columns if name in part] or [np.zeros(0)])
            for name in dict.fromkeys([*columns[0], *self._kept_names])
        }

    def _run(self) -> Generator[_Batch, None, None]:
        group, programs, is_empty = self.programs.group, self.programs, True
        with contextlib.closing(self._launch()) as launches:
            # The devices compute the next batches while one is fetched and used.
            answers = look_ahead(launches, LOOK_AHEAD, group)
            while True:
                # Not around the yield: what the caller does there is none of ours.
                with group.inside(self.owner), self.interrupts.open():
                    answer, launch = next(answers, (None, None))
                    if answer is None or launch is None:
                        break
                    outputs = programs.fetch_answer(self.variables, answer)
                    kept = self._keep_columns(launch.feeds[0], answer.batch.size)
                is_empty = False
                yield _Batch(outputs, kept, answer.batch.size, launch.shares)
        if is_empty:
            raise _reader_items.refuse_empty(f"{self.owner} got a reader without a batch")

    def _launch(self) -> Generator[tuple[Answer, Launch], None, None]:
        programs, num_rows = self.programs, 0
        inputs = programs.network.inputs["predict"]
        fields = _reader_items.Fields(inputs, self.feed_order)
        must_wait = not max_in_flight(programs.mesh)
        leaves = jax.tree.leaves(self.variables)
        batches = _reader_items.Pass(self.reader, fields, 0)
        for launch in share_batches(programs, "predict", batches, self.on_unequal):
            if any(leaf.is_deleted() for leaf in leaves):
                raise RuntimeError(
                    f"{self.owner} got parameters that a training step has overwritten, expected "
                    "those it began with. Take all before training goes on, or use an Inferencer."
                )
            programs.group.advance()
            # As the largest so far, so that a short last batch compiles nothing.
            feed = launch.feeds[0]
            feed = self._leave_out_kept(feed) if programs.options.strict else feed
            answer = programs.launch_infer(self.variables, feed, launch.shares, num_rows)
            num_rows = max(num_rows, answer.rows.size)
            if must_wait:
                jax.block_until_ready(answer.values)
            yield answer, launch

    @property
    def _kept_names(self) -> Sequence[str]:
        return [self.keep] if isinstance(self.keep, str) else self.keep

    def _leave_out_kept(self, feed: Feed) -> Feed:
        """Return a feed without columns that are kept and no inputs, which are no mistake."""
        inputs = self.programs.network.inputs["predict"]
        kept = [n for n in self._kept_names if n not in inputs and not is_lengths(n, inputs)]
        return {name: value for name, value in feed.items() if name not in kept}

    def _keep_columns(self, feed: Feed, size: int) -> dict[str, Column]:
        kept: dict[str, Column] = {}
        # What fills up for a process without examples has the inputs alone.
        for name in self._kept_names if size else ():
            check_known("keep", name, feed, "They are what the reader yields.", FeedError)
            kept[name] = value = _as_column(feed[name])
            if len(value) != size:
                raise FeedError(
                    f"keep got {name!r} of {len(value)} values in a batch of {size} examples, "
                    "expected one for each. It cannot be put beside the outputs. Leave it out."
                )
        return kept


def _as_column(value: Any) -> Column:
    try:
        return np.atleast_1d(np.asarray(value))
    except ValueError:  # of different lengths
        return list(value)


def _as_columns(batch: _Batch) -> dict[str, Column]:
    """Return outputs under their names and what is kept beside them."""
    columns = {_name(path): cut_all(value) for path, value in _metrics.iterate(batch.outputs, ())}
    if shared := [name for name in batch.kept if name in columns]:
        raise ValueError(
            f"keep got {listed(shared)}, expected names that no output has. The outputs are "
            f"{listed(columns)}. Rename one in the infer function or in the reader."
        )
    return {**columns, **batch.kept}


def _name(path: tuple[Hashable, ...]) -> str:
    if not path:
        return "output"
    return f"output_{path[0]}" if isinstance(path[0], int) else "/".join(map(str, path))


class _Join:
    """Joins what batches gave, of all processes, in the order of the reader. Collective."""

    def __init__(self, group: Group, owner: str, batches: Sequence[_Batch]) -> None:
        self._group, self._owner = group, owner
        self._order: np.ndarray | None = None
        if group.count > 1:
            # [batches, processes]: a global batch is the shares of all side by side.
            shares = np.array([[s.num_examples for s in batch.shares or ()] for batch in batches])
            starts = shares.sum(axis=0).cumsum() - shares.sum(axis=0)
            firsts = starts + shares.cumsum(axis=0) - shares
            ranges = zip(firsts.ravel(), shares.ravel(), strict=True)
            self._order = np.concatenate([np.arange(n, n + count) for n, count in ranges])

    def columns(self, parts: Iterable[Column]) -> Column:
        """Join the parts of a column."""
        parts = list(parts)
        parts = [part for part in parts if len(part)] or parts[:1]
        if (
            all(isinstance(x, np.ndarray) for x in parts)
            and len({np.shape(x)[1:] for x in parts}) == 1
        ):
            own: Column = np.concatenate(parts)
        else:
            own = list(itertools.chain.from_iterable(parts))
        if self._order is None:
            return own
        if isinstance(own, list) or own.dtype.hasobject:
            raise ProgramError(
                f"{self._owner} got a column of Python objects or of rows of several shapes, "
                "expected arrays of numbers or strings. They travel between the processes. Use "
                "predict, which gives each process its own batches."
            )
        whole = np.concatenate(
            [part for part in _gather(self._group, self._owner, own) if len(part)]
        )
        rows = whole.reshape(len(self._order), -1, *whole.shape[1:])
        return rows[self._order].reshape(whole.shape)


def _gather(group: Group, owner: str, own: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the arrays of all processes. Collective."""
    from jax.experimental import multihost_utils

    file = io.BytesIO()
    np.save(file, own, allow_pickle=False)
    sizes = group.exchange(owner, file.tell())
    padded = np.zeros(max(sizes), np.uint8)
    padded[: file.tell()] = np.frombuffer(file.getbuffer(), np.uint8)
    for data, size in zip(multihost_utils.process_allgather(padded), sizes, strict=True):
        part = np.load(io.BytesIO(data[:size].tobytes()), allow_pickle=False)
        # bfloat16 has no name in a file.
        yield part.view(own.dtype) if own.dtype.kind == "V" else part
