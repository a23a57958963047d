"""Profile: which steps are in the trace, that it ends, and what the table says."""

import contextlib
import gzip
import io
import json

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers, readers
from penstock.events import BeginStep, BeginTraining, EndStep
from penstock.handlers import Profile, profile
from penstock.handlers.profile import Operation, read_operations, table
from tests.handlers.driving import Source, drive, linear_trainer
from tests.networks import linear_reader, one_device


def program():
    hidden = layers.fc(layers.data("x", shape=[64]), size=64, act="tanh")
    return layers.mean(layers.fc(hidden, size=1))


def trained(profile, *, num_batches=12, **options):
    trainer = ps.Trainer(program, optax.sgd(0.01), place=one_device(), **options)
    x = np.ones([num_batches * 8, 64], "float32")
    trainer.train(readers.arrays({"x": x}, batch_size=8), profile)
    return trainer


def folder_of(directory):
    (folder,) = (directory / "plugins" / "profile").iterdir()
    return folder


def num_runs(directory):
    """Return how often the matrix product that ran most often did: once a step."""
    operations = profile.read_operations(folder_of(directory))
    # By either name: where JAX has lowered the same product before, its source is called otherwise.
    dots = [dot for dot in operations if "dot" in dot.source or dot.name.startswith("dot")]
    return max(operation.num_runs for operation in dots)


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """Return the folder of the trace of three steps, and what was printed of it."""
    folder, printed = tmp_path_factory.mktemp("traced"), io.StringIO()
    with contextlib.redirect_stdout(printed):
        trained(Profile(folder, first_step=4, num_steps=3, top=3))
    return folder, printed.getvalue()


def test_window_has_just_its_steps(traced):
    assert num_runs(traced[0]) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("first_step", "num_steps", "runs"), [(0, 1, 4), (3, 4, 4), (4, 5, 8)])
def test_window_of_launches_of_four_steps_is_of_whole_launches(
    tmp_path, capsys, first_step, num_steps, runs
):
    profile = Profile(tmp_path, first_step=first_step, num_steps=num_steps)
    trained(profile, num_batches=16, steps_per_call=4)
    assert num_runs(tmp_path) == runs
    assert f"the operations of {runs} steps" in capsys.readouterr().out


def test_window_waits_for_the_step_before_it_and_its_last(tmp_path):
    source = drive(Profile(tmp_path, first_step=3, num_steps=2), num_steps=10)
    assert source.steps == [2, 4]
    assert source.late == [False, False]


def test_metrics_that_nobody_wants_are_fetched_at_the_edges_alone(tmp_path):
    profile, wanted = Profile(tmp_path, first_step=3, num_steps=2), []
    profile(BeginTraining(0, 1, 0))
    for step in range(8):
        begin = BeginStep(0, step, step, fetch_metrics=False)
        profile(begin)
        wanted.append(begin.fetch_metrics)
        profile(EndStep(0, step, step, 8, Source().step(step) if begin.fetch_metrics else None))
    assert wanted == [False, False, True, True, True, False, False, False]


def test_table_is_printed_and_saved_beside_the_trace(traced):
    folder = folder_of(traced[0])
    text = (folder / "operations.txt").read_text()
    assert traced[1] == f"{text}the trace is in {folder}\n"
    lines = text.splitlines()
    assert lines[0] == "the operations of 3 steps, by the time they took on all devices:"
    assert len(lines) == 1 + 1 + 3 + 1 + 1  # title, header, three, the others, all
    assert "dot" in text


def events_of(directory):
    (trace,) = folder_of(directory).glob("*.trace.json.gz")
    with gzip.open(trace) as file:
        return json.load(file)["traceEvents"]


def test_trace_is_what_tensorboard_and_perfetto_open(traced):
    assert any(event.get("ph") == "X" for event in events_of(traced[0]))
    (space,) = folder_of(traced[0]).glob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(space)).planes
    assert "/host:CPU" in [plane.name for plane in planes]


@pytest.mark.slow
def test_launches_are_marked_with_their_first_step(traced, tmp_path):
    trained(Profile(tmp_path, first_step=4, num_steps=3), steps_per_call=2)
    for directory, steps in ((traced[0], ["4", "5", "6"]), (tmp_path, ["4", "6"])):
        events = [launch for launch in events_of(directory) if launch.get("name") == "train"]
        assert [launch["args"]["step_num"] for launch in events] == steps


@pytest.mark.slow
def test_window_that_training_does_not_reach_the_end_of_ends_with_it(tmp_path, capsys):
    trained(Profile(tmp_path, first_step=10, num_steps=50))
    assert "the operations of 2 steps" in capsys.readouterr().out
    assert num_runs(tmp_path) == 2


@pytest.mark.slow
def test_trace_ends_when_training_fails(tmp_path):
    def fail_in_the_window(event):
        if isinstance(event, EndStep) and event.step == 3:
            raise RuntimeError("a handler's own mistake")

    with pytest.raises(RuntimeError, match="a handler's own mistake"):
        trained([Profile(tmp_path / "a", first_step=2, num_steps=8), fail_in_the_window])
    trained(Profile(tmp_path / "b", first_step=2))  # JAX has one trace at a time
    assert (folder_of(tmp_path / "a") / "operations.txt").exists()


def test_processes_of_a_machine_write_into_folders_of_their_own(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("jax.process_index", lambda: 1)
    profile = Profile(tmp_path, first_step=0, num_steps=1)
    profile(BeginStep(epoch=0, step=0, global_step=0))
    profile(EndStep(epoch=0, step=0, global_step=0))
    assert [path.name for path in tmp_path.iterdir()] == ["process_1"]
    assert len(list(tmp_path.glob("process_1/plugins/profile/*/operations.txt"))) == 1
    assert capsys.readouterr().out == ""


def test_training_shorter_than_the_window_s_beginning_traces_nothing(tmp_path):
    linear_trainer().train(linear_reader(), Profile(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_second_training_is_not_traced_again(tmp_path):
    profile = Profile(tmp_path, first_step=2, num_steps=2)
    trainer = linear_trainer()
    for _ in range(2):
        trainer.train(linear_reader(), profile, num_epochs=2)
    assert len(list((tmp_path / "plugins" / "profile").iterdir())) == 1


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
    return [(op.name, op.num_runs, op.total_ms * 1e3) for op in read_operations(folder)]


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
    operations = read(tmp_path, events)
    assert sorted(operations) == [("add", 1, 40), ("call", 1, 20), ("dot", 3, 36), ("while", 1, 10)]


def test_trace_without_operations_is_an_empty_table(tmp_path):
    assert read(tmp_path, [process(1, "/host:CPU")]) == []
    assert table([], 5).splitlines()[-1].endswith("0 operations")


def test_table_sums_up_what_it_does_not_list():
    operations = [Operation(name, 2, ms) for name, ms in [("a", 5.0), ("b", 3.0), ("c", 2.0)]]
    assert table(operations, 1).splitlines() == [
        "total ms   share  count  operation     from",
        "   5.000   50.0%      2  a",
        "   5.000   50.0%      4  2 others",
        "  10.000  100.0%      6  3 operations",
    ]


def test_operations_of_two_programs_are_told_apart(tmp_path):
    events = [
        event("dot", 0, 10, hlo_op="dot", hlo_module="jit_train"),
        event("dot", 20, 5, hlo_op="dot", hlo_module="jit_test"),
    ]
    assert read(tmp_path, events) == [("dot", 1, 10), ("dot", 1, 5)]


def field(number, content):
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
    last = table([operation], 5).splitlines()[1].split()[-1]
    assert len(last) == profile._MAX_SOURCE_CHARS
    assert last.startswith("...")
    assert last.endswith("/fc_0/dot_general")
