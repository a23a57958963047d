"""What devices tell each other in a program: the collectives in its compiled text."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_OPERATION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\((.*?)\)(.*)$")
_KINDS = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
_CALLS = re.compile(r"(?:calls|body|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
# What a device does for a while, and may do while a message is on its way.
_WORK = re.compile(r" (?:fusion|custom-call|convolution|dot|while|call)\(")


@dataclasses.dataclass(frozen=True, kw_only=True)
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


@dataclasses.dataclass(frozen=True)
class _Message:
    kind: str
    num_bytes: int
    is_overlapped: bool
    times: int


def find_collectives(text: str) -> tuple[Collective, ...]:
    """Return the collectives of a compiled program by kind.

    Arguments:
      text: as XLA writes a program that it has compiled and put in order.
    """
    computations, entry = _split(text)
    messages: dict[str, _Message] = {}
    _visit(entry, 1, computations, messages)
    found: list[Collective] = []
    for kind in sorted({message.kind for message in messages.values()}):
        mine = [message for message in messages.values() if message.kind == kind]
        over = [message for message in mine if message.is_overlapped]
        found.append(
            Collective(
                kind=kind,
                number=sum(message.times for message in mine),
                num_bytes=sum(message.times * message.num_bytes for message in mine),
                number_overlapped=sum(message.times for message in over),
                bytes_overlapped=sum(message.times * message.num_bytes for message in over),
            )
        )
    return tuple(found)


def _split(text: str) -> tuple[dict[str, list[str]], str]:
    """Return the lines of each computation by its name, and the name of the first to run."""
    computations: dict[str, list[str]] = {}
    entry = name = ""
    for line in text.splitlines():
        if match := _COMPUTATION.match(line):
            name = match[2]
            computations[name] = []
            entry = name if match[1] else entry
        elif name:
            computations[name].append(line)
    return computations, entry


def _visit(
    name: str, times: int, computations: Mapping[str, Sequence[str]], messages: dict[str, _Message]
) -> None:
    sizes: dict[str, int] = {}
    lines = computations.get(name, ())
    for place, line in enumerate(lines):
        match = _OPERATION.match(line)
        if match is None:
            continue
        own, shape, operation, operands, rest = match.groups()
        sizes[own] = _count_bytes(shape)
        kind = operation.removesuffix("-start")
        if kind in _KINDS:
            passed = sum(sizes.get(word, 0) for word in re.findall(r"%([\w.\-]+)", operands))
            # Of one that starts there, the result has the operands beside what will be.
            is_pair = operation != kind and shape.startswith("(")
            result = sizes[own] - passed * is_pair
            # XLA's TPU compiler writes a scatter of sums so.
            kind = "reduce-scatter" if name.startswith("all-reduce-scatter") else kind
            # One that is fused with work has a part in each of several computations.
            key = channel[1] if (channel := re.search(r"channel_id=(\d+)", rest)) else own
            over = "async_collective_fusion_config" in rest or (
                operation != kind and _has_work(lines[place + 1 :], own)
            )
            messages[key] = _Message(kind, max(result, passed), over, times)
        for called in _CALLS.findall(rest):
            turns = _count_turns(rest, computations) if operation == "while" else 1
            _visit(called, times * turns, computations, messages)
        for branches in re.findall(r"branch_computations=\{(.*?)\}", rest):
            for called in re.findall(r"%?([\w.\-]+)", branches):
                _visit(called, times, computations, messages)


def _has_work(lines: Sequence[str], start: str) -> bool:
    """Return whether there is work before the operation that waits for one that has started."""
    for line in lines:
        if re.search(rf"-done\(%?{re.escape(start)}[,)]", line):
            return False
        if _WORK.search(line):
            return True
    return False


def _count_turns(rest: str, computations: Mapping[str, Sequence[str]]) -> int:
    """Return how often the body of a loop runs, 1 where the text does not say."""
    if known := _TRIPS.search(rest):
        return int(known[1])
    # TPU's compiler leaves it to the condition, which compares with a constant.
    condition = re.search(r"condition=%?([\w.\-]+)", rest)
    lines = computations.get(condition[1], ()) if condition else ()
    limits = re.findall(r" constant\((\d+)\)", "\n".join(lines))
    return int(limits[0]) if len(limits) == 1 else 1


def _count_bytes(shape: str) -> int:
    """Return the bytes of an array, or of several.

    >>> _count_bytes("(bf16[128,1024]{1,0}, f32[])")
    262148
    """
    total = 0
    for dtype, sizes in re.findall(r"(\w+)\[([\d,]*)\]", shape):
        bits = re.search(r"\d+", dtype)
        number = math.prod(int(size) for size in sizes.split(",") if size)
        total += number * (int(bits[0]) if bits else 8) // 8
    return total
