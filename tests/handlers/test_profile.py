"""Profile: which steps are in the trace, that it ends, and what the table says."""

import gzip
import json

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers, readers
from penstock.events import BeginStep, BeginTraining, EndStep
from penstock.handlers import Profile, profile
from tests.handlers.driving import Source, drive, linear_trainer
from tests.networks import linear_reader, one_device


def program():
    hidden = layers.fc(layers.data("x", shape=[64]), size=64, act="tanh")
    return layers.mean(layers.fc(hidden, size=1))


def trained(profile, *, num_batches=12, **options):
    """Train a network with two matrix products a step, and return the trainer."""
    trainer = ps.Trainer(program, optax.sgd(0.01), place=one_device(), **options)
    x = np.ones([num_batches * 8, 64], "float32")
    trainer.train(readers.arrays({"x": x}, batch_size=8), profile)
    return trainer


def folder_of(directory):
    """Return the folder of the one trace."""
    (folder,) = (directory / "plugins" / "profile").iterdir()
    return folder


def num_runs(directory):
    """Return how often the matrix product that ran most often did: once a step."""
    operations = profile.read_operations(folder_of(directory))
    # By either name: where JAX has lowered the same product before, its source is called otherwise.
    dots = [each for each in operations if "dot" in each.source or each.name.startswith("dot")]
    return max(operation.num_runs for operation in dots)


def test_window_has_just_its_steps(tmp_path):
    trained(Profile(tmp_path, first_step=4, num_steps=3))
    assert num_runs(tmp_path) == 3


@pytest.mark.quick("3-4-4")
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


def test_table_is_printed_and_saved_beside_the_trace(tmp_path, capsys):
    trained(Profile(tmp_path, first_step=2, num_steps=2, top=3))
    folder = folder_of(tmp_path)
    text = (folder / "operations.txt").read_text()
    assert capsys.readouterr().out == f"{text}the trace is in {folder}\n"
    lines = text.splitlines()
    assert lines[0] == "the operations of 2 steps, by the time they took on all devices:"
    assert len(lines) == 1 + 1 + 3 + 1 + 1  # title, header, three, the others, all
    assert "dot" in text


def test_trace_is_what_tensorboard_and_perfetto_open(tmp_path):
    trained(Profile(tmp_path, first_step=2))
    (trace,) = folder_of(tmp_path).glob("*.trace.json.gz")
    with gzip.open(trace) as file:
        assert any(event.get("ph") == "X" for event in json.load(file)["traceEvents"])
    (space,) = folder_of(tmp_path).glob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(space)).planes
    assert "/host:CPU" in [plane.name for plane in planes]


@pytest.mark.parametrize(("steps_per_call", "steps"), [(1, ["4", "5", "6"]), (2, ["4", "6"])])
def test_launches_are_marked_with_their_first_step(tmp_path, steps_per_call, steps):
    trained(Profile(tmp_path, first_step=4, num_steps=3), steps_per_call=steps_per_call)
    (trace,) = folder_of(tmp_path).glob("*.trace.json.gz")
    with gzip.open(trace) as file:
        events = json.load(file)["traceEvents"]
    assert [e["args"]["step_num"] for e in events if e.get("name") == "train"] == steps


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


@pytest.mark.parametrize("option", [{"first_step": -1}, {"num_steps": 0}, {"top": 0}])
def test_counts_that_are_none_are_refused(option):
    ((name, value),) = option.items()
    with pytest.raises(ValueError, match=f"{name} got {value}, expected an integer of"):
        Profile("runs", **option)
