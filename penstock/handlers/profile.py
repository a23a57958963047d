"""`Profile`: a trace of some steps, and the table of their operations."""

from __future__ import annotations

import collections
import contextlib
import gzip
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from penstock._errors import check_int
from penstock._files import expand_path
from penstock._text_tables import align_rows
from penstock.events import BeginStep, BeginTraining, EndStep, EndTraining, Event
from penstock.handlers._arguments import make_folder

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
    # Read by number: what describes its messages is a part of TensorFlow, which is not needed here.
    for path in folder.glob("*.xplane.pb"):
        sources |= _sources(path.read_bytes())
    times: dict[tuple[str, str], list[float]] = collections.defaultdict(list)
    for path in folder.glob("*.trace.json.gz"):
        with gzip.open(path) as file:
            events = json.load(file)["traceEvents"]
        for event, self_us in _self_times(_operation_events(events)):
            args = event.get("args", {})
            key = args.get("hlo_module", ""), args.get("hlo_op", event["name"])
            times[key].append(self_us / 1e3)
    operations = [
        Operation(name, len(runs), sum(runs), sources.get((module, name), ""))
        for (module, name), runs in times.items()
    ]
    return sorted(operations, key=lambda operation: -operation.total_ms)


def table(operations: list[Operation], top: int) -> str:
    """Return the first `top` operations as a table, and the time of all others together.

    >>> print(
    ...     table([Operation("dot.1", 5, 30.0, "fc_0/dot_general"), Operation("add", 5, 10.0)], 9)
    ... )
    total ms   share  count  operation     from
      30.000   75.0%      5  dot.1         fc_0/dot_general
      10.000   25.0%      5  add
      40.000  100.0%     10  2 operations
    """
    total_ms = sum(operation.total_ms for operation in operations)

    def sum_up(some: Sequence[Operation], name: str, source: str = "") -> tuple[str, ...]:
        ms = sum(operation.total_ms for operation in some)
        num_runs = sum(operation.num_runs for operation in some)
        if len(source) > _MAX_SOURCE_CHARS:
            source = "..." + source[3 - _MAX_SOURCE_CHARS :]
        share = ms / total_ms if total_ms else 0.0
        return f"{ms:.3f}", f"{share:.1%}", str(num_runs), name, source

    rows = [sum_up([operation], operation.name, operation.source) for operation in operations[:top]]
    if rest := operations[top:]:
        rows.append(sum_up(rest, f"{len(rest)} others"))
    rows.append(sum_up(operations, f"{len(operations)} operations"))
    head = ("total ms", "share", "count", "operation", "from")
    return "\n".join(align_rows([head, *rows], right=(0, 1, 2)))


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


def _self_times(events: Iterable[TraceEvent]) -> Iterator[tuple[TraceEvent, float]]:
    """Yield events with the microseconds they took without those that lie within them."""
    lines: dict[tuple[Any, Any], list[TraceEvent]] = collections.defaultdict(list)
    for event in events:
        lines[event["pid"], event["tid"]].append(event)
    for line in lines.values():
        # At one time the longer is the outer one.
        line.sort(key=lambda event: (event["ts"], -event.get("dur", 0)))
        ends = [event["ts"] + event.get("dur", 0) for event in line]
        inner = [0.0] * len(line)
        outer: list[int] = []
        for number, event in enumerate(line):
            while outer and ends[outer[-1]] <= event["ts"]:
                outer.pop()
            if outer:
                inner[outer[-1]] += event.get("dur", 0)
            outer.append(number)
        for event, within in zip(line, inner, strict=True):
            # Times are rounded: those inside may add up to a little more.
            yield event, max(event.get("dur", 0) - within, 0.0)


def _sources(space: bytes) -> dict[tuple[str, str], str]:
    """Return the path of layers and JAX operations that each operation comes from.

    The programs lie in the trace as `HloProto` messages. Their fields, by number: XSpace.planes 1;
    XPlane.name 2, .event_metadata 4 (a map: value 2); XEventMetadata.stats 5; XStat.bytes_value 6;
    HloProto.hlo_module 1; HloModuleProto.name 1, .computations 3; HloComputationProto.instructions
    2; HloInstructionProto.name 1, .metadata 7; OpMetadata.op_name 2.
    """
    sources = {}
    for plane in _parts(space, 1):
        if _text(plane, 2) != "/host:metadata":
            continue
        for module in _parts(plane, 4, 2, 5, 6, 1):
            name = _text(module, 1)
            for instruction in _parts(module, 3, 2):
                source = next(_parts(instruction, 7, 2), b"").decode()
                # The first parts are the jitted function and its transformations.
                path = [part for part in source.split("/") if "jit(" not in part]
                sources[name, _text(instruction, 1)] = "/".join(path)
    return sources


def _text(message: bytes, number: int) -> str:
    return next(_parts(message, number), b"").decode()


def _parts(message: bytes, number: int, *inner: int) -> Iterator[bytes]:
    """Yield the fields of a protobuf message that have a length and this number; then of those."""
    from google.protobuf import empty_pb2, unknown_fields

    for field in unknown_fields.UnknownFieldSet(empty_pb2.Empty.FromString(message)):
        if field.field_number == number and isinstance(field.data, bytes):
            yield from _parts(field.data, *inner) if inner else [field.data]


_LOGGER = logging.getLogger("penstock")


class Profile:
    """Trace a few steps, and print the slowest operations of the device.

    The trace is in JAX's format: view it with `tensorboard --logdir DIRECTORY` and the package
    `xprof`, or open its `.trace.json.gz` at https://ui.perfetto.dev. The printed table is also in
    `operations.txt` beside the trace. It has the names of layers, if the compiler kept them.

    The device is waited for before and after the traced steps, so that the trace holds them and
    nothing else. It consists of whole launches, and ends when training does. Each `Profile` makes
    one trace.

    Arguments:
      directory: the folder. Each trace has its own folder in `plugins/profile`, named by the time.
        If there are several processes, the others write to `process_1`, `process_2`, ...
      first_step: how many steps run before the trace; the first ones compile.
      num_steps: how many steps to trace. Traces grow large: a few steps are enough.
      top: how many operations to list.

    Raises:
      OSError: at `BeginTraining`, if the folder cannot be created.
      RuntimeError: from JAX, if another trace is running.

    >>> import tempfile
    >>> from penstock.events import BeginStep, EndStep, EndTraining
    >>> profile = Profile(tempfile.mkdtemp(), first_step=1, num_steps=2)
    >>> for step in range(3):
    ...     profile(BeginStep(epoch=0, step=step, global_step=step))
    ...     profile(EndStep(epoch=0, step=step, global_step=step))
    the operations of 2 steps, by the time they took on all devices:
    ...
    the trace is in ...
    >>> profile(EndTraining("completed"))
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        first_step: int = 10,
        num_steps: int = 5,
        top: int = 15,
    ) -> None:
        counts = [("first_step", first_step, 0), ("num_steps", num_steps, 1), ("top", top, 1)]
        for argument, value, least in counts:
            check_int(argument, value, least)
        self._directory = expand_path(directory)
        self._first_step, self._num_steps, self._top = first_step, num_steps, top
        self._num_done = self._num_traced = self._first_traced = 0
        self._is_tracing = self._is_done = False
        self._last: EndStep | None = None
        self._mark = contextlib.ExitStack()

    def __call__(self, event: Event) -> None:
        """Start the trace before its first step, and stop it after its last."""
        match event:
            case BeginTraining():
                make_folder("Profile", self._find_directory())
            case BeginStep():
                self._begin_step(event)
            case EndStep():
                self._end_step(event)
            case EndTraining():
                self._last = None
                if self._is_tracing:
                    self._stop()
                elif not self._is_done and event.error is None:
                    _LOGGER.warning(
                        "Profile traced nothing: training ended after %d steps, and the trace "
                        "begins after first_step=%d of them. Train for longer, or pass a smaller "
                        "first_step.",
                        self._num_done,
                        self._first_step,
                    )

    def _begin_step(self, event: BeginStep) -> None:
        # From one step before the window, whose metrics are waited for.
        if self._is_done or self._num_done + 1 < self._first_step:
            return
        event.fetch_metrics = True  # the window's edges wait for them
        if self._num_done >= self._first_step and not self._is_tracing:
            if self._last is not None:
                self._last.metrics  # noqa: B018  # reading waits for the steps before the window
                self._last = None
            self._start()
        if self._is_tracing and self._num_traced == self._num_done - self._first_traced:
            # The launch's first step: TensorBoard takes step times from such marks.
            mark = jax.profiler.StepTraceAnnotation("train", step_num=event.global_step)
            self._mark.enter_context(mark)
        self._num_traced += self._is_tracing

    def _end_step(self, event: EndStep) -> None:
        self._num_done += 1
        self._mark.close()
        if not self._is_tracing:
            self._last = None if self._is_done else event
        elif self._num_done >= self._first_traced + self._num_steps:
            event.metrics  # noqa: B018  # reading waits for the whole launch
            self._stop()

    def _start(self) -> None:
        options = jax.profiler.ProfileOptions()
        # Every call of a Python function would be an event: the file holds a million in all.
        options.python_tracer_level = 0
        jax.profiler.start_trace(os.fspath(self._find_directory()), profiler_options=options)
        self._is_tracing, self._first_traced = True, self._num_done

    def _find_directory(self) -> Path:
        # Files are called by the machine: two processes of one would write into the same.
        number = jax.process_index()
        return self._directory / f"process_{number}" if number else self._directory

    def _stop(self) -> None:
        self._is_tracing, self._is_done = False, True
        self._mark.close()
        jax.profiler.stop_trace()
        # Folders are called by the time: the last one is this trace's.
        folder = max((self._find_directory() / "plugins" / "profile").iterdir())
        operations = read_operations(folder)
        title = f"the operations of {self._num_traced} steps, by the time they took on all devices:"
        text = f"{title}\n{table(operations, self._top)}"
        (folder / "operations.txt").write_text(text + "\n")
        if not jax.process_index():
            print(f"{text}\nthe trace is in {folder}", flush=True)
