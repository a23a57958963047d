"""Programs compile once, donate their state, and transfer nothing in secret."""

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers, readers
from penstock.distributed import group
from penstock.program_builder import _compilation
from tests.networks import (
    PLACES,
    PLACES_AND_CALLS,
    class_data,
    classifier,
    classifier_program,
    compile_warnings,
    counted_compiles,
    eight_devices,
    linear_data,
    linear_program,
    one_device,
)
from tests.networks import rich_program as program


def ragged_reader():
    """Return a reader of six batches, the last one short."""
    return readers.arrays(class_data(45), batch_size=8)


@pytest.fixture(scope="module")
def make_trainer():
    """Return a function that makes a trainer for a place and a number of steps, each once."""

    @functools.cache
    def make(place, steps_per_call=1):
        options = {"place": place(), "steps_per_call": steps_per_call}
        return ps.Trainer(program, optax.adam(0.01), **options)

    return make


# Compiles.


@pytest.mark.slow
def test_without_jit_a_step_runs_with_values_and_nothing_is_compiled(caplog):
    kinds = []

    def program():
        loss = linear_program()
        kinds.append(isinstance(loss, jax.core.Tracer))
        return loss

    def train():
        trainer = ps.Trainer(program, optax.sgd(0.1), place=one_device())
        kinds.clear()
        trainer.train([linear_data(4)] * 3)
        return trainer

    compiled = train()
    with jax.disable_jit():
        trainer = train()
        trainer.test([linear_data(4)])
    assert kinds[-1:] == [False]  # of the test; a gradient has tracers
    assert not trainer.describe()["compilations"]
    assert not compile_warnings(caplog)
    for name, value in compiled.parameters.items():
        np.testing.assert_allclose(trainer.parameters[name], value, rtol=1e-6)


@PLACES_AND_CALLS
def test_three_ragged_epochs_compile_each_program_once(make_trainer, place, steps_per_call, caplog):
    trainer = make_trainer(place, steps_per_call)
    reader, compiled_after = ragged_reader(), []

    def on_event(event):
        if isinstance(event, ps.EndStep):
            assert len(event.metrics) == 3
        elif isinstance(event, ps.EndEpoch):
            assert len(event.metrics) == len(trainer.test(reader)) == 3
            compiled_after.append(len(compiles))

    with counted_compiles() as compiles:
        trainer.train(reader, on_event, num_epochs=3)
    assert compiled_after == [compiled_after[0]] * 3
    # One for each batch size: that of the reader, and of its last batch.
    programs = {"test": 2, "train": 2, **({"train x4": 1} if steps_per_call == 4 else {})}
    assert trainer.builder.num_compiles == programs
    assert not compile_warnings(caplog)


@PLACES
def test_longer_batch_is_compiled_again_counted_and_logged_with_its_reason(place, caplog):
    builder = ps.ProgramBuilder(linear_program, optax.sgd(0.1), place=place())
    state, _ = builder.train(builder.init(), linear_data(8))
    assert not compile_warnings(caplog)
    state, _ = builder.train(state, linear_data(24))
    assert builder.num_compiles["train"] == 2
    # A second size is that of a short last batch as a rule, and no warning.
    assert not compile_warnings(caplog)
    state, _ = builder.train(state, linear_data(16))
    assert compile_warnings(caplog) == [
        "the train program is compiled again (number 3), because of a batch of 16 examples, after "
        "8 and 24"
    ]
    state, _ = builder.train(state, linear_data(8))
    assert builder.num_compiles["train"] == 3


@PLACES
def test_later_calls_of_the_trainer_and_builder_compile_nothing(make_trainer, place, tmp_path):
    trainer = make_trainer(place)
    builder, reader, data = trainer.builder, ragged_reader(), class_data(5)

    def use():
        trainer.train(reader)
        trainer.test(reader)
        trainer.parameters["fc_1/b"] = np.ones(3)
        trainer.save_params(tmp_path)
        trainer.load_params(tmp_path)
        state = builder.init(seed=1)
        builder.test(state, data)
        builder.train(state, data)

    use()
    with counted_compiles() as compiles:
        use()
    assert compiles == []


# Transfers.


@PLACES_AND_CALLS
def test_training_makes_no_implicit_transfer(make_trainer, place, steps_per_call):
    reader, read = ragged_reader(), []

    def on_event(event):
        if isinstance(event, ps.EndStep | ps.EndEpoch):
            read.append(event.metrics)
        if isinstance(event, ps.EndEpoch):
            read.append(trainer.test(reader))

    with jax.transfer_guard("disallow"):
        trainer = make_trainer(place, steps_per_call)
        trainer.train(reader, on_event, num_epochs=2)
    assert len(read) == 2 * (6 + 2)


@PLACES
def test_builder_makes_no_implicit_transfer(place):
    with jax.transfer_guard("disallow"):
        builder = ps.ProgramBuilder(
            classifier_program, optax.sgd(0.1), infer_func=classifier, place=place()
        )
        state = builder.init()
        for size in (16, 11):
            batch = class_data(size)
            state, metrics = builder.train(state, batch)
            tested = builder.test(state, batch)
            answer = builder.infer(state, {"x": batch["x"]})
        means = builder.mean_metrics(state)
    assert metrics[2].shape == tested[2].shape == answer.shape == (11, 3)
    assert means[2].shape == (3,)


# Donation.

NUM_KEPT = 3
"""Arrays at the end of a state that a step leaves as they are."""


def test_state_is_held_once_in_memory_by_xlas_own_analysis():
    builder = ps.ProgramBuilder(program, optax.adam(0.01), place=eight_devices())
    inspected = builder.inspect("train", batch_size=16)
    state = builder.init()
    num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    # What a step leaves as it is goes in alone.
    kept = sum(leaf.nbytes for leaf in jax.tree.leaves(state)[-NUM_KEPT:])
    assert inspected.memory_bytes["aliased"] >= num_bytes - kept


def aligned_ones(*shape):
    """Return ones at an address from which JAX takes arrays over without a copy."""
    num_bytes = 4 * int(np.prod(shape))
    memory = np.zeros(num_bytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    array = memory[start : start + num_bytes].view(np.float32).reshape(shape)
    array[:] = 1
    return array


def test_adopted_values_from_the_host_are_copied_and_their_buffers_used_again_by_the_step():
    builder = ps.ProgramBuilder(linear_program, optax.sgd(0.1), place=one_device())
    values = {"params": {"fc_0": {"w": aligned_ones(4, 1), "b": aligned_ones(1)}}}
    state = builder.adopt({**values, "batch_stats": {}}, builder.init())
    values["params"]["fc_0"]["w"][:] = 7
    np.testing.assert_array_equal(state.variables["params"]["fc_0"]["w"], np.ones((4, 1)))
    pointer = state.variables["params"]["fc_0"]["w"].unsafe_buffer_pointer()
    state, _ = builder.train(state, linear_data(4))
    assert state.variables["params"]["fc_0"]["w"].unsafe_buffer_pointer() == pointer


@PLACES
def test_batch_on_the_device_survives_the_step(place):
    builder = ps.ProgramBuilder(linear_program, optax.sgd(0.1), place=place())
    batch = {name: jnp.asarray(value) for name, value in linear_data(8).items()}
    state, _ = builder.train(builder.init(), batch)
    state, _ = builder.train(state, batch)
    assert not any(value.is_deleted() for value in batch.values())
    np.testing.assert_array_equal(batch["x"], linear_data(8)["x"])


def test_exception_while_a_program_is_traced_leaves_the_state_whole():
    is_failing = False

    def failing_program():
        if is_failing:
            raise LookupError("while tracing")
        return linear_program()

    builder = ps.ProgramBuilder(failing_program, optax.sgd(0.1), place=one_device())
    state, is_failing = builder.init(), True
    with pytest.raises(LookupError, match="while tracing"):
        builder.train(state, linear_data(4))
    is_failing = False
    state, loss = builder.train(state, linear_data(4))
    assert np.isfinite(float(loss))


SAMPLES = readers.arrays(linear_data(20), None)


@pytest.mark.parametrize(
    ("reader", "expected"),
    [
        pytest.param(readers.arrays(linear_data(20), 8), [0, 2, 2], id="arrays"),
        pytest.param(readers.batch(SAMPLES, 8), [0, 2, 2], id="batch"),
        pytest.param(readers.batch(lambda: iter(SAMPLES), 8), [0, 1, 2], id="batch of a generator"),
        pytest.param(readers.batch(SAMPLES, 8, drop_last=True), [0, 1], id="no rest"),
    ],
)
def test_program_of_the_last_batch_is_traced_after_the_first_step(reader, expected):
    trainer = ps.Trainer(linear_program, optax.sgd(0.1), place=jax.devices()[0])
    numbers = []

    def on_event(event):
        if isinstance(event, ps.BeginStep):
            numbers.append(trainer.builder.num_compiles.get("train", 0))

    trainer.train(reader, on_event)
    assert numbers == expected
    # What is compiled beside training takes none of its time.
    secs = [compilation["secs"] for compilation in trainer.describe()["compilations"]]
    assert secs[1:] == [None] * (expected[-1] - 1)


def test_compiler_options_that_xla_does_not_know_are_left_out():
    options = (("xla_no_such_option", True), ("xla_backend_optimization_level", 1))
    assert _compilation._known_options(options) == {"xla_backend_optimization_level": 1}


def test_compile_is_announced_to_processes_that_joined_after_the_programs_were_made(monkeypatch):
    numbers = []

    def note():
        numbers.append(group.Joined.group.num_compiling)
        return program()

    builder = ps.ProgramBuilder(note, optax.sgd(0.1), place=one_device())
    monkeypatch.setattr(group.Joined, "group", group.Group())
    state = builder.init(0)
    # Again where a batch is of another size.
    batches = list(ragged_reader()())
    for batch, expected in ((batches[0], {1}), (batches[-1], {1}), (batches[0], set())):
        numbers.clear()
        state, _ = builder.train(state, batch)
        assert set(numbers) == expected
        assert group.Joined.group.num_compiling == 0
    assert builder.num_compiles["train"] == 2


def test_launch_of_another_thread_ends_no_compile():
    threads = []

    def answer():
        return builder.infer(state, {"x": linear_data(1)["x"]})

    def infer():
        if threads:
            threads[0].start()
            threads.pop().join(60)
            assert group.Joined.group.num_compiling == 1
        return layers.fc(layers.data("x", shape=[4]), size=1)

    builder = ps.ProgramBuilder(infer_func=infer, place=one_device())
    state = builder.init()
    answer()
    threads.append(threading.Thread(target=answer))
    builder.infer(state, {"x": linear_data(16)["x"]})
    assert not threads
    assert group.Joined.group.num_compiling == 0


def test_interrupted_compile_counts_for_no_later_launch():
    is_interrupted = False

    def interrupted_program():
        if is_interrupted:
            raise KeyboardInterrupt
        return linear_program()

    builder = ps.ProgramBuilder(interrupted_program, optax.sgd(0.1), place=one_device())
    state, _ = builder.train(builder.init(), linear_data(4))
    secs, is_interrupted = builder.programs.compile_time.secs, True
    with pytest.raises(KeyboardInterrupt):
        builder.train(state, linear_data(3))
    builder.train(state, linear_data(4))
    assert builder.programs.compile_time.secs == secs
    assert group.Joined.group.num_compiling == 0
