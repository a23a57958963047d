"""Before the first step of several processes: do they run the same program, from the same state?"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr

from penstock._errors import ProgramError, listed
from penstock._parameter_names import spell
from penstock._version import __version__
from penstock.distributed.group import Group
from penstock.program_builder.engine import Engine, digest

_LOGGER = logging.getLogger("penstock")

_ADDRESS = re.compile(r"0x[0-9a-f]+")
_MOST_NAMED = 5


def compare_processes(group: Group, engine: Engine, flags: Mapping[str, object], seed: int) -> None:
    """Raise if the processes differ in what they run; give all the state of process 0. Collective.

    Raises:
      ProgramError: naming what differs on which process.
    """
    network = engine.programs.network
    texts = {name: _write_out(each.trace) for name, each in network.train.items()}
    facts: dict[str, object] = {
        "versions": {"penstock": __version__, "jax": jax.__version__},
        "arguments of Trainer": dict(flags),
        "inputs": {n: s.declaration for n, s in network.feed_specs.items()},
        "parameters": {spell(p): f"{s} {d}" for (_, p), (s, d) in network.table.items()},
        "programs": {
            name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in texts.items()
        },
    }
    facts = json.loads(json.dumps(facts, default=str))
    if not group.agree("the start of training", facts):
        _raise_differences(group, facts, texts)
    _take_state_of_first(group, engine, seed)


def _raise_differences(group: Group, facts: Mapping[str, Any], texts: Mapping[str, str]) -> None:
    """Raise naming what differs from process 0, on which process. Collective."""
    own = list(_find_differences(group.broadcast("the start of training", facts), facts))
    if not group.agree("the comparison of programs", facts["programs"]):
        own += _compare_programs(group.broadcast("the comparison of programs", texts), texts)
    own = [f"process {group.index} {its}, process 0 {ours}" for its, ours in own]
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


def _find_differences(ours: Mapping[str, Any], its: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what another process has, and what process 0 has, of each fact that differs."""
    # Of programs their first difference is said, not what stands for them.
    for kind in (each for each in ours if each != "programs"):
        for name in {**ours[kind], **its[kind]}:
            mine, other = ours[kind].get(name), its[kind].get(name)
            if mine != other:
                yield f"has in its {kind} {name!r} {_show(other)}", _show(mine)


def _show(value: object) -> str:
    return "nothing" if value is None else str(value)


def _compare_programs(
    first: Mapping[str, str], texts: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield the first operation in which each program differs from that of process 0."""
    for name, text in first.items():
        for ours, its in zip(text.splitlines(), texts.get(name, "").splitlines(), strict=False):
            if ours != its:
                yield f"computes {its.strip()}", ours.strip()
                break


def _write_out(trace: ClosedJaxpr) -> str:
    # Functions are written with their addresses, which differ from process to process, and names in
    # colours where one of them has a terminal.
    return _ADDRESS.sub("", trace.pretty_print(use_color=False))


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
    numbers = group.broadcast(name, sorted({number for _, its in rows for number in its}))
    if numbers and not group.index:
        _warn_of_states(names, rows)
    if numbers:
        _broadcast(engine, numbers)


def _warn_of_states(names: Sequence[str], rows: Sequence[tuple[int, Sequence[int]]]) -> None:
    """Say which processes began with another state, and in what that of the first differed.

    Arguments:
      rows: of each process its seed, and the numbers of the leaves that differ.
    """
    others = {index: numbers for index, (_, numbers) in enumerate(rows) if numbers}
    named = [names[number] for number in next(iter(others.values()))]
    seeds = {str(seed): None for seed, _ in rows}
    _LOGGER.warning(
        "process %s began with another state than process 0%s: %s%s. All processes go on with "
        "that of process 0. Was it another seed, or a param_path that process 0 alone can read?",
        _join(list(map(str, others)), " and "),
        f" (seeds {_join(list(map(repr, seeds)), ', ')})" if len(seeds) > 1 else "",
        listed(named[:_MOST_NAMED]),
        f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else "",
    )


def _join(words: Sequence[str], between: str) -> str:
    more = len(words) - _MOST_NAMED
    return between.join(words[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _broadcast(engine: Engine, numbers: Sequence[int]) -> None:
    from jax.experimental import multihost_utils

    leaves = [jax.device_get(leaf.addressable_data(0)) for leaf in engine.leaves]
    theirs = multihost_utils.broadcast_one_to_all([leaves[number] for number in numbers])
    for number, value in zip(numbers, theirs, strict=True):
        leaves[number] = value
    engine.restore(dict(zip(engine.programs.states.leaf_names, leaves, strict=True)))
