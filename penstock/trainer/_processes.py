"""What a trainer's processes do together: compare programs, share batches, stop and save."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import re
import signal
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from penstock import _reader_items
from penstock._errors import ParameterError, ProgramError, ReaderError, listed
from penstock._interrupts import Interrupts
from penstock._padded_batches import Share, list_bytes
from penstock._parameter_names import spell
from penstock._program import sequences
from penstock._program.inputs import Feed, FeedSpec
from penstock._version import __version__
from penstock.distributed.group import Group
from penstock.program_builder.engine import Engine, Programs, copy_to, digest
from penstock.trainer._saver import Saver, Status


class Processes:
    """The processes of a trainer, which stop, save and end alike; one is a group of one.

    A process that left the loop alone would leave the others waiting in a launch for ever.
    """

    def __init__(
        self, engine: Engine, status: Status, saver: Saver, interrupts: Interrupts
    ) -> None:
        self.group: Group = engine.programs.group
        self.engine, self.status = engine, status
        self.saver, self.interrupts = saver, interrupts
        self._is_compared = self.group.count == 1

    @contextlib.contextmanager
    def call(self, name: str) -> Iterator[None]:
        """Be in a call that all processes make: one that is alone in it is told so."""
        with self.group.inside(name):
            self.group.exchange(name)
            yield

    @contextlib.contextmanager
    def run(self, seed: int, arguments: Callable[[], Mapping[str, object]]) -> Iterator[None]:
        """Be in a run, whose wishes and whereabouts the group is told."""
        group, status, saver, interrupts = self.group, self.status, self.saver, self.interrupts

        def wants() -> bool:
            is_due = not group.index and saver.is_time()
            return interrupts.signal is not None or status.is_stop_wanted or is_due

        def describe() -> str:
            return "waits for its reader" if interrupts.is_open else "is in a step or a handler"

        with group.watched(wants, describe, saver.give_up):
            if not self._is_compared:
                compare_processes(group, self.engine, arguments(), seed)
                self._is_compared = True
            yield

    def agree(self) -> None:
        """Stop, save and end as all processes do. Collective."""
        status, interrupts = self.status, self.interrupts
        is_time = not self.group.index and self.saver.is_time()
        wishes = [interrupts.signal, is_time, status.is_stop_wanted]
        rows = self.group.exchange("an agreement to stop or save", wishes)
        status.is_stop_wanted = False
        if rows[0][1]:
            self.saver.save(status)
        stops = [index for index, (_, _, is_stop) in enumerate(rows) if is_stop]
        if stops:
            status.is_stopping = True
            self._log_end("trainer.stop()", stops)
        signals = [index for index, (number, _, _) in enumerate(rows) if number is not None]
        if signals:
            number = rows[signals[0]][0]
            self._log_end(signal.Signals(number).name, signals)
            self.group.leave(signals[0])
            interrupts.agree(number)

    def check_alike(self, variables: Mapping[str, Any]) -> None:
        """Raise unless all processes set the same values in a state that they share. Collective.

        Each puts the part of its devices there, so that of two sets nobody would have the whole.
        """
        if self.group.count == 1 or not self.engine.programs.states.is_split:
            return
        digests = [
            "" if isinstance(x, jax.Array) else hashlib.sha256(np.asarray(x).tobytes()).hexdigest()
            for x in jax.tree.leaves(dict(variables))
        ]
        if not self.group.agree("setting parameters", digests):
            self.group.leave(0)
            raise ParameterError(
                "the processes got different parameters to set, expected the same on all of them: "
                "each holds a part of the state. Can every process read the same param_path?"
            )

    def _log_end(self, cause: str, processes: Sequence[int]) -> None:
        """Have process 0 of several say why all end, and by whom."""
        if self.group.index or self.group.count == 1:
            return
        more = f" and {len(processes) - 1} more" if len(processes) > 1 else ""
        whose = f" on process {processes[0]}{more}" if len(processes) < self.group.count else ""
        step = self.status.global_step
        _LOGGER.warning("%s%s: all processes end after global step %d", cause, whose, step)


_LOGGER = logging.getLogger("penstock")

_ADDRESS = re.compile(r"0x[0-9a-f]+")
_MOST_NAMED = 5


def compare_processes(group: Group, engine: Engine, flags: Mapping[str, object], seed: int) -> None:
    """Raise if the processes run different things; give all the state of process 0. Collective."""
    network = engine.programs.network
    # Functions are written with their addresses, which differ from process to process, and names in
    # colours where one of them has a terminal.
    texts = {
        name: _ADDRESS.sub("", program.trace.pretty_print(use_color=False))
        for name, program in network.train.items()
    }
    facts: dict[str, object] = {
        "versions": {"penstock": __version__, "jax": jax.__version__},
        "arguments of Trainer": dict(flags),
        "inputs": {n: s.declaration for n, s in network.feed_specs.items()},
        "parameters": {spell(p): f"{s} {d}" for (_, p), (s, d) in network.table.items()},
        "programs": {
            name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in texts.items()
        },
    }
    states = engine.programs.states
    layout = zip(states.leaf_names, map(str, states.leaf_specs), strict=True)
    # Of what is split no process has a copy to give to the others.
    facts["split state"] = {"seed": int(seed), **dict(layout)} if states.is_split else {}
    facts = json.loads(json.dumps(facts, default=str))
    if not group.agree("the start of training", facts):
        _raise_differences(group, facts, texts)
    _take_state_of_first(group, engine, seed)


def _raise_differences(group: Group, facts: Mapping[str, Any], texts: Mapping[str, str]) -> None:
    """Raise naming what differs from process 0, on which process. Collective."""
    first, own = group.broadcast("the start of training", facts), list[str]()
    # Of programs their first difference is said, not what stands for them.
    for kind in (kind for kind in first if kind != "programs"):
        for name in {**first[kind], **facts[kind]}:
            mine, other = first[kind].get(name), facts[kind].get(name)
            if mine != other:
                own.append(f"has in its {kind} {name!r} {_show(other)}, process 0 {_show(mine)}")
    if not group.agree("the comparison of programs", facts["programs"]):
        for name, text in group.broadcast("the comparison of programs", texts).items():
            lines = zip(text.splitlines(), texts.get(name, "").splitlines(), strict=False)
            unlike = (f"computes {b.strip()}, process 0 {a.strip()}" for a, b in lines if a != b)
            own += itertools.islice(unlike, 1)
    own = [f"process {group.index} {difference}" for difference in own]
    # Process 0 writes the error: of a thousand that differ each would else hear of all.
    rows = group.gather("the start of training", [own[:_MOST_NAMED], len(own)])
    differences = [line for lines, _ in rows for line in lines][:_MOST_NAMED]
    more = sum(number for _, number in rows) - len(differences)
    text = (
        "the processes got different things to run, expected the same on all of them:\n  "
        + "\n  ".join(differences)
        + (f"\n  and {more} more" if more > 0 else "")
        + "\nStart the same script with the same flags on every process."
    )
    if text := group.broadcast("the start of training", text if differences else ""):
        raise ProgramError(text)


def _show(value: object) -> str:
    return "nothing" if value is None else str(value)


def _take_state_of_first(group: Group, engine: Engine, seed: int) -> None:
    """Give every process the state of process 0, where theirs differ; say in what. Collective."""
    digests = digest(engine)
    name = "the comparison of initial states"
    if group.agree(name, [int(seed), digests]):
        return
    names = list(engine.programs.states.leaf_names)
    first = group.broadcast(name, digests)
    own = [number for number, (a, b) in enumerate(zip(first, digests, strict=True)) if a != b]
    rows = group.gather(name, [int(seed), own])
    numbers = group.broadcast(
        name, sorted({number for _, differing in rows for number in differing})
    )
    if not numbers:
        return
    if not group.index:
        _warn_of_states(names, rows)
    from jax.experimental import multihost_utils

    leaves = jax.device_get([engine.leaves[number].addressable_data(0) for number in numbers])
    values = multihost_utils.broadcast_one_to_all(leaves)
    for number, leaf in zip(numbers, copy_to(values, engine.programs.mesh), strict=True):
        engine.leaves[number] = leaf


def _warn_of_states(names: Sequence[str], rows: Sequence[tuple[int, Sequence[int]]]) -> None:
    """Say which processes began with another state, and in what that of the first differed."""
    differing = {index: numbers for index, (_, numbers) in enumerate(rows) if numbers}
    named = [names[number] for number in next(iter(differing.values()))]
    seeds = dict.fromkeys(str(seed) for seed, _ in rows)
    _LOGGER.warning(
        "process %s began with another state than process 0%s: %s. All processes go on with "
        "that of process 0. Was it another seed, or a param_path that process 0 alone can read?",
        listed(differing, _MOST_NAMED),
        f" (seeds {listed(seeds, _MOST_NAMED)})" if len(seeds) > 1 else "",
        listed(named, _MOST_NAMED),
    )


OnUnequal = Literal["pad", "raise"]
"""What a process does whose reader ends before another's: feed empty batches, or raise."""

_HASHED_BYTES = 1 << 20

_MOST_AHEAD = 16
_MOST_AHEAD_BYTES = 64 << 20
"""What a process reads ahead at most; an exchange of all takes a millisecond."""


class Launch(NamedTuple):
    """The batches of this process for one launch, of as many examples each.

    `shares` are what each process brings to each; None of one that is alone.
    """

    feeds: Sequence[Feed]
    shares: Sequence[Share] | None
    state: object


def share_batches(
    programs: Programs,
    mode: str,
    batches: _reader_items.Pass,
    on_unequal: OnUnequal,
    *,
    steps: int = 1,
    is_tracked: bool = False,
) -> Generator[Launch, None, None]:
    """Yield the batches of a pass by launches, each with batches of all processes. Collective.

    A program is compiled for the examples that each process brings, so all read some batches ahead
    and tell each other how long they are. Whoever has no more brings empty batches. Closes the
    reader at the end.
    """
    group, what, specs = programs.group, f"trainer.{mode}", batches.fields.specs
    get_state = batches.state if is_tracked else type(None)
    is_alone, last, num_before = group.count == 1, get_state(), 0
    with contextlib.closing(iter(batches)) as feeds:
        # With the position: others are read before this batch has run.
        if is_alone and steps == 1:
            for feed in feeds:
                yield Launch((feed,), None, get_state())
            return
        read = ((feed, get_state()) for feed in feeds)
        taken, number = list(itertools.islice(read, 1)), steps
        if not is_alone:
            most = _meet_first(programs, what, specs, [feed for feed, _ in taken])
            number *= max(1, most // steps)
        taken += itertools.islice(read, number - 1)
        # Of sequences all tell each other more in each launch.
        dense = {n: s for n, s in specs.items() if not (is_alone or s.lod_level)}
        while True:
            own = [Share(count_examples(feed, specs), list_bytes(feed, dense)) for feed, _ in taken]
            rows = [own]
            if not is_alone:
                told = group.exchange(f"{what} (its batches)", own)
                rows = [[Share(*share) for share in row] for row in told]
            longest = max(map(len, rows))
            if min(map(len, rows)) < longest and (
                on_unequal == "raise" or programs.is_first_time(f"{what} unequal")
            ):
                _tell_unequal(what, [num_before + len(row) for row in rows], on_unequal)
            last = taken[-1][1] if taken else last
            taken += [(_reader_items.make_empty(specs), last)] * (longest - len(taken))
            yield from _group_alike(taken, rows, steps)
            if longest < number:
                return
            num_before += number
            taken = list(itertools.islice(read, number))


def _group_alike(
    taken: Sequence[tuple[Feed, object]], rows: Sequence[Sequence[Share]], steps: int
) -> Generator[Launch, None, None]:
    """Yield the launches of some batches, each of as many examples in all of its steps."""
    shares = list(itertools.zip_longest(*rows, fillvalue=Share(0)))
    for first in range(0, len(taken), steps):
        places = range(first, min(first + steps, len(taken)))
        is_alike = len(places) == steps and all(shares[n] == shares[first] for n in places)
        # Else one by one: a launch of another number of steps would be one more to compile.
        for some in [places] if is_alike else [(n,) for n in places]:
            feeds = [taken[n][0] for n in some]
            yield Launch(feeds, shares[some[-1]], taken[some[-1]][1])


def _meet_first(
    programs: Programs, what: str, specs: Mapping[str, FeedSpec], first: list[Feed]
) -> int:
    """Return how many batches all read ahead, from their first ones. Collective."""
    inputs = {n: feed[n] for feed in first for n in specs if n in feed}
    size = sum(_as_array(value).nbytes for value in inputs.values())
    rows = programs.group.gather(what, [size, _hash(inputs)])
    hashes = [digest for num_bytes, digest in rows if num_bytes]
    is_same = len(hashes) > 1 and len(set(hashes)) == 1
    if is_same and programs.is_first_time(f"{what} same"):
        _LOGGER.warning(
            "%s got the same first batch on all %d processes, expected a part of the data on "
            "each: every example would count several times. Readers of penstock share the data "
            "by themselves; of a reader of your own yield jax.process_index()'s part.",
            what,
            len(hashes),
        )
    largest = programs.group.broadcast(what, max([num_bytes for num_bytes, _ in rows], default=0))
    return max(1, min(_MOST_AHEAD_BYTES // max(1, largest), _MOST_AHEAD))


def _tell_unequal(what: str, numbers: Sequence[int], on_unequal: OnUnequal) -> None:
    longest = max(numbers)
    counts = ", ".join(
        f"process {index} has {n if n < longest else f'more than {min(numbers)}'}"
        for index, n in enumerate(numbers)
    )
    text = f"{what} got readers of different lengths: of batches {counts}"
    if on_unequal == "raise":
        raise ReaderError(
            f"{text}; expected the same number on every process. Give every process as much, "
            "or pass on_unequal='pad', which feeds empty batches."
        )
    _LOGGER.warning("%s. Those that have no more feed empty batches, which count nothing", text)


def count_examples(feed: Feed, inputs: Iterable[str]) -> int:
    """Return how many examples a feed has; 0 of one that is no feed, which is found later."""
    for value in (feed[name] for name in inputs if name in feed):
        if isinstance(value, (sequences.Sequence, sequences.NestedSequence)):
            return value.lengths.shape[0]
        if isinstance(value, (list, tuple)):
            return len(value)  # of sequences, which may differ in length
        shape: tuple[int, ...] = np.shape(value)
        return shape[0] if shape else 0
    return 1


def _as_array(value: Any) -> np.ndarray:
    """Return an input as one array, what is in lists and sequences end to end."""
    if isinstance(value, np.ndarray):
        return value
    arrays = [np.ravel(part) for part in jax.tree.leaves(value)]
    return np.concatenate(arrays) if arrays else np.zeros(0)


def _hash(feed: Feed) -> int:
    digest = 0
    for _, value in sorted(feed.items()):
        array = np.atleast_1d(_as_array(value))
        if array.dtype != object and array.size:
            # The first examples alone: it is done at the start of every epoch.
            num_rows = max(1, _HASHED_BYTES * len(array) // array.nbytes)
            digest = zlib.crc32(array[:num_rows].tobytes(), digest)
    return digest
