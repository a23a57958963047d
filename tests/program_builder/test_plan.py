"""`ps.plan`: memory, operations and messages of a train program, for devices here or elsewhere."""

import dataclasses
import importlib.util
import json
import math
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import penstock as ps
from penstock import layers
from penstock.program_builder import Rates, _plan
from tests.source_tree import ROOT

WIDTH, BATCH = 32, 64


def perceptron():
    hidden = layers.fc(layers.data("x", [WIDTH]), WIDTH, act="tanh")
    return layers.mean(layers.square_error_cost(layers.fc(hidden, 1), layers.data("y", [1])))


def repeated():
    """Return the loss of a product that is repeated five times in a loop."""
    weight = layers.create_parameter([WIDTH, WIDTH], name="w")

    def body(hidden, _):
        return jnp.tanh(hidden @ weight), None

    hidden, _ = jax.lax.scan(body, layers.data("x", [WIDTH]), None, length=5)
    return layers.mean(layers.square_error_cost(hidden[:, :1], layers.data("y", [1])))


def build(program=perceptron, number=8, **options):
    return ps.ProgramBuilder(program, optax.adam(0.1), place=jax.devices()[:number], **options)


@pytest.mark.quick("full-8")
@pytest.mark.parametrize(("state_sharding", "number"), [(None, 8), ("full", 8), (None, 1)])
def test_memory_is_that_of_the_program_that_training_compiles(state_sharding, number):
    def wide():
        hidden = layers.fc(layers.data("x", [128]), 128, act="tanh")
        return layers.mean(layers.square_error_cost(layers.fc(hidden, 1), layers.data("y", [1])))

    builder = build(wide, number, state_sharding=state_sharding)
    planned = ps.plan(builder, batch_size=BATCH)
    sizes = builder.inspect("train", batch_size=BATCH).memory_bytes
    assert planned.memory_bytes["temporaries"] == sizes["temporary"]
    assert planned.total_bytes == sum(sizes.values()) - 2 * sizes["aliased"]
    parts = number if state_sharding else 1
    # Biases and the last layer are below the size from which arrays are split.
    assert planned.memory_bytes["parameters"] == 4 * (128 * 128 // parts + 128 + 129)
    assert planned.memory_bytes["optimizer"] == 2 * planned.memory_bytes["parameters"] + 4
    assert planned.memory_bytes["batch"] == 4 * 129 * BATCH // number
    assert planned.fits
    assert planned.num_devices == number


@pytest.mark.quick("perceptron")
@pytest.mark.parametrize(
    ("program", "multiply_adds"),
    [
        # Forward, and for each kernel; and for what the second layer is given.
        (perceptron, 2 * BATCH * (WIDTH * WIDTH + WIDTH) + BATCH * WIDTH),
        # The gradient for the input is computed in each turn: the first one's is of no use.
        (repeated, 5 * 3 * BATCH * WIDTH * WIDTH),
    ],
    ids=["perceptron", "scan"],
)
def test_operations_are_those_counted_by_hand(program, multiply_adds):
    planned = ps.plan(build(program), batch_size=BATCH)
    assert planned.num_operations * planned.num_devices == 2 * multiply_adds


def close_to_targets(hidden):
    return layers.mean(layers.square_error_cost(layers.fc(hidden, 1), layers.data("y", [1])))


def accumulated():
    hidden = layers.fc(layers.data("x", [WIDTH]), WIDTH, act="tanh")
    return close_to_targets(jax.lax.cummax(jnp.cumsum(hidden, axis=0), axis=0))


def product_of_parts():
    """Return a loss whose first product each device computes of its own part of the batch."""
    mesh, split, whole = jax.sharding.Mesh(jax.devices()[:8], ("data",)), P("data"), P()
    multiply = jax.shard_map(jnp.matmul, mesh=mesh, in_specs=(split, whole), out_specs=split)
    weight = layers.create_parameter([WIDTH, WIDTH], name="w")
    return close_to_targets(jnp.tanh(multiply(layers.data("x", [WIDTH]), weight)))


def whole_weights():
    """Return a loss whose weights no axis of a mesh splits."""
    weights = [layers.create_parameter([WIDTH, size], name=f"w{size}") for size in (WIDTH, 1)]
    output = jnp.tanh(layers.data("x", [WIDTH]) @ weights[0]) @ weights[1]
    return layers.mean(layers.square_error_cost(output, layers.data("y", [1])))


@pytest.mark.parametrize(
    ("program", "data", "sharers"),
    [(accumulated, 8, 1), (product_of_parts, 8, 8), (whole_weights, 2, 2), (perceptron, 2, 8)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_operations_are_those_that_one_device_does(program, data, sharers):
    mesh = jax.sharding.Mesh(np.reshape(jax.devices()[:8], (data, -1)), ("data", "model"))
    place = jax.devices()[:8] if data == 8 else mesh
    planned = ps.plan(ps.ProgramBuilder(program, optax.sgd(0.1), place=place), batch_size=BATCH)
    multiply_adds = 2 * BATCH * (WIDTH * WIDTH + WIDTH) + BATCH * WIDTH
    assert planned.num_operations * sharers == 2 * multiply_adds


def test_messages_are_the_gradients_and_the_loss():
    planned = ps.plan(build(), batch_size=BATCH)
    (reduced,) = planned.collectives
    number = WIDTH * WIDTH + WIDTH + WIDTH + 1
    assert reduced.kind == "all-reduce"
    assert 4 * number <= reduced.num_bytes <= 4 * (number + 4)
    assert ps.plan(build(number=1), batch_size=BATCH).collectives == ()


def test_time_is_the_longest_of_computing_and_memory_and_then_the_messages():
    planned = ps.plan(build(), batch_size=BATCH)
    assert math.isnan(planned.step_secs)
    assert planned.as_dict()["step_secs"] is None
    rates = Rates(memory_gib=1, teraflops=1e-6, memory_gb=1e3, link_gb=1e-3)
    plan = ps.Plan(**{**vars(planned), "rates": rates})
    sent = 2 * planned.collectives[0].num_bytes / 1e6
    assert plan.step_secs == pytest.approx(planned.num_operations / 1e6 + sent)
    assert plan.examples_per_sec == pytest.approx(BATCH / plan.step_secs)
    assert f"{plan.examples_per_sec:,.0f}" in str(plan)
    # On a GPU, whose bytes are not known: a network of lookups has no products.
    nothing = ps.Plan(
        **{**vars(plan), "num_operations": 0.0, "num_bytes": math.nan, "collectives": ()}
    )
    assert nothing.as_dict()["examples_per_sec"] is None
    assert nothing.facts["step ms"] == ""


def test_largest_batch_fits_and_a_larger_one_does_not(monkeypatch):
    builder = build(number=2)
    monkeypatch.setattr(_plan, "find_memory", lambda device: 2**20)
    largest = ps.plan(builder, batch_size=8, largest_batch=True).largest_batch
    assert ps.plan(builder, batch_size=largest).fits
    assert not ps.plan(builder, batch_size=largest + largest // 16).fits
    monkeypatch.setattr(_plan, "find_memory", lambda device: 2**10)
    assert ps.plan(builder, batch_size=8, largest_batch=True).largest_batch == 0


def test_largest_batch_is_halved_to_where_a_compiler_tells_no_sizes():
    planned, tried = ps.plan(build(number=1), batch_size=8), []

    def measure(size):
        tried.append(size)
        taken = 100 * size if size <= 20 else 5001  # of what is refused, a byte too many
        return dataclasses.replace(
            planned, batch_size=size, memory_bytes={"rest": taken}, capacity_bytes=5000
        )

    assert _plan._find_largest(measure(1024), measure, build(number=1).mesh) == 20
    assert len(tried) < 16


def test_program_is_laid_out_over_other_devices_with_the_same_second_axis(monkeypatch):
    mesh = jax.sharding.Mesh(np.reshape(jax.devices()[:8], (2, 4)), ("data", "model"))
    builder = ps.ProgramBuilder(perceptron, optax.adam(0.1), place=mesh)
    whole = ps.plan(builder, batch_size=BATCH)
    monkeypatch.setattr(_plan, "describe_devices", lambda topology: jax.devices()[:4])
    moved = ps.plan(builder, batch_size=BATCH, topology="v5e:2x2")
    assert (moved.topology, moved.num_devices) == ("v5e:2x2", 4)
    assert moved.memory_bytes["parameters"] == whole.memory_bytes["parameters"]
    assert moved.memory_bytes["batch"] == 2 * whole.memory_bytes["batch"]
    monkeypatch.setattr(_plan, "describe_devices", lambda topology: jax.devices()[:6])
    with pytest.raises(ValueError, match=r"with 6 devices, expected a multiple of 4, .*'model': 4"):
        ps.plan(builder, batch_size=BATCH, topology="v5e:2x3")


def test_what_is_no_topology_is_refused():
    with pytest.raises(ValueError, match=r"got 'v5f:4x4', expected 'here', .*v5e:1x1 to 16x16"):
        ps.plan(build(), batch_size=8, topology="v5f:4x4")
    with pytest.raises(ValueError, match=r"topology got 'v5e:4xx4'"):
        ps.plan(build(), batch_size=8, topology="v5e:4xx4")
    with pytest.raises(ValueError, match=r"plan\(batch_size\) got 0"):
        ps.plan(build(), batch_size=0)


def test_a_compiler_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "penstock\[tpu\]"'):
        ps.plan(build(), batch_size=8, topology="v5e:4x4")


OF_A_POD = """
import json, optax
import penstock as ps
from penstock import _mesh, layers

def program():
    x = layers.fc(layers.data("x", [1024]), 1024)
    return layers.mean(layers.square_error_cost(layers.fc(x, 1), layers.data("y", [1])))

builder = ps.ProgramBuilder(program, optax.adam(0.1), precision="bfloat16", state_sharding="full")
plans = [ps.plan(builder, batch_size=n, topology="v5e:2x2") for n in (64, 2**27)]
try:
    ps.plan(builder, batch_size=64, topology="v5e:3x5")
except ValueError as error:
    print(error)
print(json.dumps([one.as_dict() for one in plans]))
"""


@pytest.mark.slow
def test_plans_are_made_for_tpus_that_are_not_there():
    is_required = os.environ.get("PENSTOCK_REQUIRE_EXTRAS") == "1"
    if not is_required and importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed")
    # libtpu ends the process at flags of the tests that it does not know.
    own = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "XLA_FLAGS": ""}
    command = [sys.executable, "-c", OF_A_POD]
    done = subprocess.run(
        command, env={**os.environ, **own}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    refused, shown = done.stdout.splitlines()[-2:]
    assert "'v5e:3x5', expected a size of v5e" in refused
    small, large = json.loads(shown)
    assert (small["num_devices"], small["fits"], large["fits"]) == (4, True, False)
    assert small["step_secs"] > 0
    assert {message["kind"] for message in small["collectives"]} >= {"all-gather", "all-reduce"}
    assert large["total_bytes"] > large["capacity_bytes"] == int(15.75 * 2**30)
