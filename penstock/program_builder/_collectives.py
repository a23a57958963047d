"""What devices tell each other in a program: the collectives in its compiled text."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{\n((?: .*\n|\n)*)\}", re.M)
_OPERATION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\((.*?)\)(.*)$")
_KINDS = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
_CALLED = re.compile(r"(?:calls|body|to_apply|(?:true|false)_computation)=%?([\w.\-]+)")
# What a device does for a while, and may do while a message is on its way.
_WORK = re.compile(r" (?:fusion|custom-call|convolution|dot|while|call)\(")


@dataclasses.dataclass(frozen=True)
class Collective:
    """The messages of one kind in a step.

    Attributes:
      kind: such as `"all-reduce"`.
      number: how many there are; those in a loop count in each turn.
      num_bytes: of the arrays as they are whole, all of them together.
      number_overlapped, bytes_overlapped: of those that are on their way while a device computes.
    """

    kind: str
    number: int
    num_bytes: int
    number_overlapped: int
    bytes_overlapped: int


def find_collectives(text: str) -> tuple[Collective, ...]:
    """Return the collectives of a compiled program by kind."""
    computations = {name: body.splitlines() for name, body in _COMPUTATION.findall(text)}
    entry, found = re.search(r"^ENTRY %?([\w.\-]+)", text, re.M), dict[str, Collective]()
    _visit(entry[1] if entry else "", 1, computations, found)
    by_kind: dict[str, list[tuple[int, ...]]] = {}
    for each in found.values():
        by_kind.setdefault(each.kind, []).append(dataclasses.astuple(each)[1:])
    sums = {kind: map(sum, zip(*by_kind[kind], strict=True)) for kind in sorted(by_kind)}
    return tuple([Collective(kind, *numbers) for kind, numbers in sums.items()])


def _visit(
    name: str, times: int, computations: Mapping[str, Sequence[str]], found: dict[str, Collective]
) -> None:
    """Find the messages of a computation that runs so often, and of those that it calls."""
    sizes: dict[str, int] = {}
    lines = computations.get(name, ())
    for place, line in enumerate(lines):
        if (match := _OPERATION.match(line)) is None:
            continue
        own, shape, operation, operands, rest = match.groups()
        sizes[own] = _count_bytes(shape)
        kind = operation.removesuffix("-start")
        if kind in _KINDS:
            passed = sum(sizes.get(word, 0) for word in re.findall(r"%([\w.\-]+)", operands))
            # Of one that starts there, the result has the operands beside what will be.
            result = sizes[own] - passed * (operation != kind and shape.startswith("("))
            size, over = times * max(result, passed), "async_collective_fusion_config" in rest
            over = over or (operation != kind and _has_work(lines[place + 1 :], own))
            # XLA's TPU compiler writes a scatter of sums so.
            kind = "reduce-scatter" if name.startswith("all-reduce-scatter") else kind
            # One that is fused with work has a part in each of several computations.
            channel = re.search(r"channel_id=\d+", rest)
            found[channel[0] if channel else own] = Collective(
                kind, times, size, times * over, size * over
            )
        turns = _count_turns(rest, computations) if operation == "while" else 1
        branches = re.findall(r"branch_computations=\{(.*?)\}", rest)
        for called in _CALLED.findall(rest) + re.findall(r"[\w.\-]+", " ".join(branches)):
            _visit(called, times * turns, computations, found)


def _has_work(lines: Sequence[str], start: str) -> bool:
    """Return whether there is work before the operation that waits for one that has started."""
    end = re.compile(rf"-done\(%?{re.escape(start)}[,)]")
    first = next((line for line in lines if end.search(line) or _WORK.search(line)), "")
    return end.search(first) is None


def _count_turns(rest: str, computations: Mapping[str, Sequence[str]]) -> int:
    """Return how often the body of a loop runs, 1 where the text does not say."""
    known = re.findall(r'"known_trip_count":\{"n":"(\d+)"', rest)
    # TPU's compiler leaves it to the condition, which compares with a constant.
    condition = re.findall(r"condition=%?([\w.\-]+)", rest)
    lines = [line for name in condition for line in computations.get(name, ())]
    limits = known or re.findall(r" constant\((\d+)\)", "\n".join(lines))
    return int(limits[0]) if len(limits) == 1 else 1


def _count_bytes(shape: str) -> int:
    arrays = re.findall(r"[a-z]+(\d*)\w*\[([\d,]*)\]", shape)
    return sum(
        math.prod(int(size) for size in sizes.split(",") if size) * int(bits or 8) // 8
        for bits, sizes in arrays
    )
