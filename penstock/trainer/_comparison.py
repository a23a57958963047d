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
    rows = group.exchange("the start of training", json.loads(json.dumps(facts, default=str)))
    differences = [
        f"process {index} has {name} {_show(its)}, process 0 {_show(ours)}"
        for index, row in enumerate(rows)
        for name, ours, its in _find_differences(rows[0], row)
    ]
    if any(row["programs"] != rows[0]["programs"] for row in rows):
        differences += _compare_programs(group, texts)
    if differences:
        more = len(differences) - _MOST_NAMED
        raise ProgramError(
            "the processes got different things to run, expected the same on all of them:\n  "
            + "\n  ".join(differences[:_MOST_NAMED])
            + (f"\n  and {more} more" if more > 0 else "")
            + "\nStart the same script with the same flags on every process."
        )
    _take_state_of_first(group, engine, seed)


def _find_differences(
    ours: Mapping[str, Any], its: Mapping[str, Any]
) -> Iterator[tuple[str, object, object]]:
    """Yield name and both values of each fact that differs."""
    # Of programs their first difference is said, not what stands for them.
    for kind in (each for each in ours if each != "programs"):
        for name in {**ours[kind], **its[kind]}:
            mine, other = ours[kind].get(name), its[kind].get(name)
            if mine != other:
                yield f"in its {kind} {name!r}", mine, other


def _show(value: object) -> str:
    return "nothing" if value is None else str(value)


def _compare_programs(group: Group, texts: Mapping[str, str]) -> list[str]:
    """Return the first operation in which each program differs. Collective."""
    rows = group.exchange("the comparison of programs", dict(texts))
    said = []
    for index, row in enumerate(rows):
        for name, text in rows[0].items():
            for ours, its in zip(text.splitlines(), row.get(name, "").splitlines(), strict=False):
                if ours != its:
                    said.append(f"process {index} computes {its.strip()}, process 0 {ours.strip()}")
                    break
    return said


def _write_out(trace: ClosedJaxpr) -> str:
    # Functions are written with their addresses, which differ from process to process, and names in
    # colours where one of them has a terminal.
    return _ADDRESS.sub("", trace.pretty_print(use_color=False))


def _take_state_of_first(group: Group, engine: Engine, seed: int) -> None:
    """Give every process the state of process 0, where theirs differ; say in what. Collective."""
    digests = digest(engine)
    rows = group.exchange("the comparison of initial states", [int(seed), digests])
    first = rows[0][1]
    names = list(engine.programs.states.leaf_names)
    others = {
        index: [name for name, a, b in zip(names, first, row, strict=True) if a != b]
        for index, (_, row) in enumerate(rows)
        if row != first
    }
    if not others:
        return
    differing = sorted({name for each in others.values() for name in each}, key=names.index)
    if not group.index:
        named = next(iter(others.values()))
        seeds = [each for each, _ in rows]
        why = f" (seeds {listed(map(str, seeds))})" if len(set(seeds)) > 1 else ""
        _LOGGER.warning(
            "process %s began with another state than process 0%s: %s%s. All processes go on with "
            "that of process 0. Was it another seed, or a param_path that process 0 alone can "
            "read?",
            " and ".join(map(str, others)),
            why,
            listed(named[:_MOST_NAMED]),
            f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else "",
        )
    _broadcast(engine, [names.index(name) for name in differing])


def _broadcast(engine: Engine, numbers: Sequence[int]) -> None:
    from jax.experimental import multihost_utils

    leaves = [jax.device_get(leaf.addressable_data(0)) for leaf in engine.leaves]
    theirs = multihost_utils.broadcast_one_to_all([leaves[number] for number in numbers])
    for number, value in zip(numbers, theirs, strict=True):
        leaves[number] = value
    engine.restore(dict(zip(engine.programs.states.leaf_names, leaves, strict=True)))
