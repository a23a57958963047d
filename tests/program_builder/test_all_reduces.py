"""What devices tell each other in a step: of gradients a message, of each batch norm two."""

import importlib.util
import os
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import _mesh, layers
from tests.source_tree import ROOT


def classify(hidden):
    prediction = layers.fc(hidden, 3, act="softmax")
    label = layers.data("y", [1], "int32")
    loss = layers.mean(layers.cross_entropy(prediction, label))
    return loss, layers.accuracy(prediction, label)


def perceptron():
    hidden = layers.fc(layers.data("x", [36]), 8, act="tanh")
    return classify(layers.dropout(hidden, 0.3))


def conv_net(num_norms, group_size=None):
    hidden = layers.data("x", [12, 12, 1])
    for number in range(2):
        hidden = layers.conv2d(hidden, num_filters=4, filter_size=3)
        if number < num_norms:
            hidden = layers.batch_norm(hidden, act="relu", group_size=group_size)
    return classify(layers.pool2d(hidden, 2, pool_stride=2))


def tagger():
    words = layers.data("x", [1], "int32", lod_level=1)
    hidden = layers.fc(layers.embedding(words, [20, 4]), 16)
    return classify(layers.sequence_pool(layers.dynamic_lstm(hidden, 16)[0], "max"))


@pytest.mark.parametrize(
    ("program", "batch_size", "expected"),
    [
        (perceptron, 64, 1),
        (perceptron, 61, 1),
        (lambda: conv_net(0), 64, 1),
        (lambda: conv_net(1), 64, 3),
        (lambda: conv_net(2), 64, 5),
        (lambda: conv_net(2), 61, 5),
        (lambda: conv_net(2, 8), 64, 1),
        # The loop over 16 words has one in each turn.
        (tagger, 64, 17),
    ],
    ids=["mlp", "mlp short", "conv", "norm", "norms", "norms short", "groups", "lstm"],
)
@pytest.mark.quick("groups")
def test_step_has_a_message_for_gradients_and_two_for_each_batch_norm(
    program, batch_size, expected
):
    builder = ps.ProgramBuilder(program, optax.sgd(0.1, momentum=0.9), place=jax.devices()[:8])
    (collective,) = ps.plan(builder, batch_size=batch_size).collectives
    assert collective.kind == "all-reduce"
    assert collective.number <= expected


def test_on_gpus_the_optimizer_waits_for_all_gradients_and_steps_as_elsewhere(monkeypatch):
    feed = {"x": np.linspace(-1, 1, 64 * 36).reshape(64, 36), "y": np.arange(64)[:, None] % 3}
    feed = {"x": feed["x"].astype("float32"), "y": feed["y"].astype("int32")}
    stepped = []
    for is_on_gpu in (False, True):
        monkeypatch.setattr(_mesh, "is_on_gpu", lambda mesh, answer=is_on_gpu: answer)
        builder = ps.ProgramBuilder(
            perceptron, optax.adam(0.1), place=jax.devices()[:8], precision="bfloat16"
        )
        trace = str(builder.inspect("train", batch_size=64).traced.jaxpr)
        assert ("optimization_barrier" in trace) == is_on_gpu
        state, _ = builder.train(builder.init(seed=0), feed)
        stepped.append(state.variables["params"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-6, 1e-7), *stepped)


OF_GPUS = """
import optax
import penstock as ps
from penstock import layers

def program():
    hidden = layers.data("x", [16, 16, 32])
    for _ in range(4):
        hidden = layers.batch_norm(layers.conv2d(hidden, 64, 1, bias_attr=False), act="relu")
    prediction = layers.fc(layers.pool2d(hidden, 16), 10, act="softmax")
    return layers.mean(layers.cross_entropy(prediction, layers.data("y", [1], "int32")))

builder = ps.ProgramBuilder(program, optax.sgd(0.1, momentum=0.9), precision="bfloat16")
(found,) = ps.plan(builder, batch_size=64, topology="h100:8").collectives
print(found.kind, found.number)
"""


OF_LARGE_PRODUCTS = """
import optax
import penstock as ps
from penstock import layers

def program():
    patches = layers.data("patches", [196, 768])
    encoded = layers.transformer_encoder(patches, 1, 12, 3072)
    return layers.mean(layers.softmax_with_cross_entropy(
        layers.fc(encoded.mean(axis=1), 10), layers.data("y", [1], "int32")
    ))

builder = ps.ProgramBuilder(program, optax.adamw(1e-4), precision="bfloat16")
print("fits", ps.plan(builder, batch_size=128, topology="h100:1").fits)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("jax_plugins") is None, reason="the plugin for CUDA is not installed"
)
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        # Two for each of four batch norms; 12 if an update may wait for its own gradient alone.
        pytest.param(OF_GPUS, "all-reduce 9", id="one message for gradients too"),
        pytest.param(OF_LARGE_PRODUCTS, "fits True", id="products that no GPU is here to tune"),
    ],
)
def test_plan_for_gpus(script, expected):
    own = {"JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "XLA_FLAGS": ""}
    own["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == expected
