"""The operations of a trace by the time they took, as text."""

from __future__ import annotations

import collections
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

_MAX_SOURCE_CHARS = 70


TraceEvent = Mapping[str, Any]
"""An event of Chrome's trace format."""


class Operation(NamedTuple):
    """An operation of a compiled program: its time over all runs, and the layer that it is from."""

    name: str
    num_runs: int
    total_ms: float
    source: str = ""


def read_operations(folder: Path) -> list[Operation]:
    """Return the operations in the traces that `jax.profiler` left in a folder, longest first.

    Times are those of the operation itself, without others that run within it (a loop's body), and
    are summed over devices and threads.
    """
    sources: dict[tuple[str, str], str] = {}
    # Read field by field: its protobuf is a part of TensorFlow, which is not needed here.
    for path in folder.glob("*.xplane.pb"):
        sources |= _sources(memoryview(path.read_bytes()))
    times: dict[tuple[str, str], list[float]] = collections.defaultdict(list)
    for path in folder.glob("*.trace.json.gz"):
        with gzip.open(path) as file:
            events = json.load(file)["traceEvents"]
        for event, self_us in _self_times(_operation_events(events)):
            times[_key(event)].append(self_us / 1e3)
    operations = [
        Operation(name, len(each), sum(each), sources.get((module, name), ""))
        for (module, name), each in times.items()
    ]
    return sorted(operations, key=lambda operation: -operation.total_ms)


def table(operations: list[Operation], top: int) -> str:
    """Return the first `top` operations as a table, and the time of all others together.

    >>> print(
    ...     table([Operation("dot.1", 5, 30.0, "fc_0/dot_general"), Operation("add", 5, 10.0)], 9)
    ... )
     total ms  share  count  operation  from
       30.000  75.0%      5  dot.1      fc_0/dot_general
       10.000  25.0%      5  add
       40.000 100.0%     10  2 operations
    """
    total_ms = sum(operation.total_ms for operation in operations)
    shown = operations[:top]
    width = max([len("operation"), *(len(operation.name) for operation in shown)])
    lines = [f"{'total ms':>9} {'share':>6} {'count':>6}  {'operation':<{width}}  from"]

    def add(total: float, count: int, name: str, source: str = "") -> None:
        share = total / total_ms if total_ms else 0.0
        line = f"{total:9.3f} {share:6.1%} {count:6}  {name:<{width}}  {_short(source)}"
        lines.append(line.rstrip())

    for each in shown:
        add(each.total_ms, each.num_runs, each.name, each.source)
    if rest := operations[top:]:
        others_ms = sum(operation.total_ms for operation in rest)
        add(others_ms, sum(operation.num_runs for operation in rest), f"{len(rest)} others")
    num_runs = sum(operation.num_runs for operation in operations)
    add(total_ms, num_runs, f"{len(operations)} operations")
    return "\n".join(lines)


def _short(source: str) -> str:
    return source if len(source) <= _MAX_SOURCE_CHARS else "..." + source[3 - _MAX_SOURCE_CHARS :]


def _key(event: TraceEvent) -> tuple[str, str]:
    args = event.get("args", {})
    return args.get("hlo_module", ""), args.get("hlo_op", event["name"])


def _operation_events(events: Iterable[TraceEvent]) -> Iterator[TraceEvent]:
    """Yield the events that are operations: on an accelerator's streams, else on the CPU's threads.

    An accelerator's other lines repeat them under other names: by module, by step, by source line.
    """
    events = list(events)
    processes, threads = {}, {}
    for event in events:
        if event.get("name") == "process_name":
            processes[event["pid"]] = event["args"]["name"]
        elif event.get("name") == "thread_name":
            threads[event["pid"], event["tid"]] = event["args"]["name"]
    # XLA's CPU backend has no device process: its operations run on the host's threads.
    lines = {key for key in threads if processes.get(key[0], "").startswith("/device:")}
    wanted = {key for key in lines if threads[key].startswith("Stream")} or {
        key for key in lines if threads[key] == "XLA Ops"
    }
    for event in events:
        if event.get("ph") != "X":
            continue
        is_cpu_operation = not wanted and "hlo_op" in event.get("args", {})
        if is_cpu_operation or (event["pid"], event["tid"]) in wanted:
            yield event


def _self_times(
    events: Iterable[TraceEvent],
) -> Iterator[tuple[TraceEvent, float]]:
    """Yield events with the microseconds they took without those that lie within them."""
    lines: dict[tuple[Any, Any], list[TraceEvent]] = collections.defaultdict(list)
    for event in events:
        lines[event["pid"], event["tid"]].append(event)
    for line in lines.values():
        # At one time the longer is the outer one.
        line.sort(key=lambda event: (event["ts"], -event.get("dur", 0)))
        inner = [0.0] * len(line)
        outer: list[int] = []
        for number, event in enumerate(line):
            while outer and _end(line[outer[-1]]) <= event["ts"]:
                outer.pop()
            if outer:
                inner[outer[-1]] += event.get("dur", 0)
            outer.append(number)
        for event, within in zip(line, inner, strict=True):
            # Times are rounded: those inside may add up to a little more.
            yield event, max(event.get("dur", 0) - within, 0.0)


def _end(event: TraceEvent) -> float:
    return event["ts"] + event.get("dur", 0)


def _sources(space: memoryview) -> dict[tuple[str, str], str]:
    """Return the path of layers and JAX operations that each operation comes from.

    The programs lie in the trace as `HloProto` messages. Their fields, by number: XSpace.planes 1;
    XPlane.name 2, .event_metadata 4 (a map: value 2); XEventMetadata.stats 5; XStat.bytes_value 6;
    HloProto.hlo_module 1; HloModuleProto.name 1, .computations 3; HloComputationProto.instructions
    2; HloInstructionProto.name 1, .metadata 7; OpMetadata.op_name 2.
    """
    sources = {}
    for plane in _parts(space, 1):
        # The plane that holds the compiled modules; numbers are those of the messages' fields.
        if bytes(next(_parts(plane, 2), b"")) != b"/host:metadata":
            continue
        for module in _parts(plane, 4, 2, 5, 6, 1):
            name = _text(module, 1)
            for instruction in _parts(module, 3, 2):
                source = next(_parts(instruction, 7, 2), b"")
                # The first parts are the jitted function and its transformations.
                path = [part for part in bytes(source).decode().split("/") if "jit(" not in part]
                sources[name, _text(instruction, 1)] = "/".join(path)
    return sources


def _text(message: memoryview, number: int) -> str:
    return bytes(next(_parts(message, number), b"")).decode()


def _parts(message: memoryview, number: int, *inner: int) -> Iterator[memoryview]:
    """Yield the fields of a protobuf message that have a length and this number; then of those."""
    for found, value in _fields(message):
        if found == number:
            if inner:
                yield from _parts(value, *inner)
            else:
                yield value


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield number and value of the fields that have a length; numbers are passed over."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            _, at = _varint(message, at)
        elif kind == 2:
            size, at = _varint(message, at)
            yield key >> 3, message[at : at + size]
            at += size
        else:
            # Fixed 64 and 32 bits; groups, which the format had once, do not occur.
            at += {1: 8, 5: 4}[kind]


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
