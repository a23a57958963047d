"""Traces: which events are operations, what they took by themselves, and where they are from."""

import gzip
import json

import pytest

from penstock.handlers import profile
from penstock.handlers.profile import Operation, read_operations, table


def process(pid, name):
    return {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}


def thread(pid, tid, name):
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def event(name, start, duration, *, pid=1, tid=1, **args):
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": start, "dur": duration} | (
        {"args": args} if args else {}
    )


def read(folder, events):
    """Return name, number of runs and microseconds of the operations in a trace."""
    with gzip.open(folder / "host.trace.json.gz", "wt") as file:
        json.dump({"traceEvents": events}, file)
    return [(each.name, each.num_runs, each.total_ms * 1e3) for each in read_operations(folder)]


def test_operations_of_a_cpu_are_those_of_the_compiler(tmp_path):
    events = [
        process(1, "/host:CPU"),
        thread(1, 1, "tf_XLA"),
        event("dot.1", 0, 10, hlo_op="dot.1", hlo_module="jit_step"),
        event("dot.1", 20, 5, tid=2, hlo_op="dot.1", hlo_module="jit_step"),
        event("PjitFunction(step)", 0, 100),
        event("wait", 0, 100, run_id="1"),
    ]
    assert read(tmp_path, events) == [("dot.1", 2, 15)]


@pytest.mark.parametrize("line", ["Stream #13(Compute)", "XLA Ops"])
def test_operations_of_an_accelerator_are_those_of_its_own_line(tmp_path, line):
    events = [
        process(1, "/device:GPU:0"),
        process(2, "/host:CPU"),
        thread(1, 1, line),
        thread(1, 2, "XLA Modules"),
        thread(1, 3, "Steps"),
        event("gemm_kernel", 0, 7, hlo_op="fusion.3", hlo_module="jit_step"),
        event("MemcpyH2D", 10, 2),
        event("jit_step", 0, 12, tid=2, hlo_module="jit_step"),
        event("0", 0, 12, tid=3),
        event("dot", 0, 9, pid=2, hlo_op="dot"),
    ]
    assert read(tmp_path, events) == [("fusion.3", 1, 7), ("MemcpyH2D", 1, 2)]


def test_time_of_a_loop_is_without_that_of_its_body(tmp_path):
    events = [
        event("while", 0, 100, hlo_op="while"),
        event("call", 10, 50, hlo_op="call"),
        event("dot", 20, 30, hlo_op="dot"),
        event("add", 60, 40, hlo_op="add"),
        event("dot", 100, 5, hlo_op="dot"),
        event("dot", 0, 1, tid=2, hlo_op="dot"),
    ]
    found = read(tmp_path, events)
    assert sorted(found) == [("add", 1, 40), ("call", 1, 20), ("dot", 3, 36), ("while", 1, 10)]


def test_operations_of_two_programs_are_told_apart(tmp_path):
    events = [
        event("dot", 0, 10, hlo_op="dot", hlo_module="jit_train"),
        event("dot", 20, 5, hlo_op="dot", hlo_module="jit_test"),
    ]
    assert read(tmp_path, events) == [("dot", 1, 10), ("dot", 1, 5)]


def test_trace_without_operations_is_an_empty_table(tmp_path):
    assert read(tmp_path, [process(1, "/host:CPU")]) == []
    assert table([], 5).splitlines()[-1].endswith("0 operations")


def field(number, content):
    """Return a protobuf field with a length."""
    size, length = len(content), b""
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def test_source_is_read_past_fields_of_every_kind(tmp_path):
    path = b"jit(step)/jit(main)/jvp(net)/" + b"fc_0/" * 40 + b"dot_general"
    other = bytes([8, 200, 1]) + bytes([9]) + bytes(8) + bytes([13]) + bytes(4)
    instruction = field(1, b"dot.1") + other + field(7, field(1, b"dot") + field(2, path))
    module = field(1, b"jit_step") + field(3, field(1, b"main") + field(2, instruction))
    plane = other + field(2, b"/host:metadata")
    plane += field(
        4, bytes([8, 1]) + field(2, field(2, b"m") + field(5, field(6, field(1, module))))
    )
    (tmp_path / "host.xplane.pb").write_bytes(field(1, field(2, b"/host:CPU")) + field(1, plane))
    read(tmp_path, [event("dot.1", 0, 1, hlo_op="dot.1", hlo_module="jit_step")])
    (operation,) = read_operations(tmp_path)
    assert operation.source == "jvp(net)/" + "fc_0/" * 40 + "dot_general"
    last = table([operation], 5).splitlines()[1].split("  ")[-1]
    assert len(last) == profile._MAX_SOURCE_CHARS
    assert last.startswith("...")
    assert last.endswith("/fc_0/dot_general")


def test_table_sums_up_what_it_does_not_list():
    operations = [Operation(name, 2, ms) for name, ms in [("a", 5.0), ("b", 3.0), ("c", 2.0)]]
    assert table(operations, 1).splitlines() == [
        " total ms  share  count  operation  from",
        "    5.000  50.0%      2  a",
        "    5.000  50.0%      4  2 others",
        "   10.000 100.0%      6  3 operations",
    ]
