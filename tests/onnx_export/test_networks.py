"""Networks of the library, and of layers, give in ONNX Runtime what they give in JAX."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import optax
import pytest

import penstock as ps
from penstock import layers, models
from penstock.onnx_export import save
from penstock.program_builder import exporting
from tests.networks import one_device


def vary(variables: Any) -> Any:
    """Return variables with which a signal passes all layers, and every number counts."""
    random = np.random.default_rng(0)

    def vary_one(path: Any, value: np.ndarray) -> np.ndarray:
        noise = random.normal(size=value.shape).astype(np.float32)
        if "variance" in str(path[-1]) or "scale" in str(path[-1]):
            return 1 + 0.1 * np.abs(noise)
        if value.ndim < 2:
            return 0.1 * noise
        # A kernel's outputs are on its last axis, those of a depthwise one on the last two.
        num_inputs = (
            value.size / value.shape[-1] if value.shape[-1] > 1 else value.size / value.shape[-2]
        )
        return noise * np.float32(np.sqrt(2 / num_inputs))

    return jax.tree_util.tree_map_with_path(vary_one, variables)


def compare(program_function: Callable[[], Any], path: Path) -> float:
    """Save an infer program, and return the largest difference from JAX, of three examples."""
    builder = ps.ProgramBuilder(infer_func=program_function, place=one_device())
    variables = vary(jax.tree.map(np.asarray, builder.init(seed=0).variables))
    parameters = {}
    for tree in variables.values():
        for place, value in jax.tree_util.tree_leaves_with_path(tree):
            parameters[jax.tree_util.keystr(place, simple=True, separator="/")] = value
    difference = save(path, SimpleNamespace(builder=builder, parameters=parameters))
    session = onnxruntime.InferenceSession(path)
    feed = exporting.make_arrays(builder.programs.infer_probe.feed_specs, 16)
    rows = session.run(None, feed)[0]
    assert np.std(rows, axis=0).max() > 1e-3 * np.abs(rows).max()
    alone = session.run(None, {name: value[:1] for name, value in feed.items()})[0]
    np.testing.assert_allclose(alone, rows[:1], rtol=1e-3, atol=1e-5 * np.abs(rows).max())
    return difference


def multilayer_perceptron() -> Any:
    x = layers.fc(layers.data("x", shape=[13]), size=32, act="relu")
    x = layers.fc(layers.dropout(x, 0.5), size=32, act="tanh")
    return layers.fc(x, size=10, act="softmax")


def encoder() -> Any:
    words = layers.data("words", shape=[1], dtype="int32", lod_level=1)
    x = layers.embedding(words, size=[50, 16])
    x = layers.transformer_encoder(x, num_layers=2, num_heads=2, ffn_size=32)
    return layers.fc(layers.sequence_pool(x, "average"), size=5), x.values


def recurrent() -> Any:
    words = layers.data("words", shape=[1], dtype="int32", lod_level=1)
    x = layers.fc(layers.embedding(words, size=[50, 16]), size=32)
    forward, _ = layers.dynamic_lstm(x, size=32)
    backward, _ = layers.dynamic_lstm(x, size=32, is_reverse=True)
    pools = [layers.sequence_pool(forward, "last"), layers.sequence_pool(backward, "max")]
    return layers.fc(jnp.concatenate(pools, axis=1), size=5, act="softmax")


def generator() -> Any:
    x = layers.fc(layers.data("z", shape=[16]), size=4 * 4 * 8, act="relu").reshape(-1, 4, 4, 8)
    x = layers.conv2d_transpose(x, num_filters=6, filter_size=4, stride=2, padding=1)
    x = layers.batch_norm(x, act="relu")
    return layers.conv2d_transpose(x, 3, filter_size=3, stride=2, padding=1, act="tanh")


OF_LAYERS = [multilayer_perceptron, encoder, recurrent, generator]


@pytest.mark.quick("encoder", "multilayer")
@pytest.mark.parametrize("program_function", OF_LAYERS, ids=lambda function: function.__name__)
def test_networks_of_layers_give_in_onnx_what_they_give_in_jax(program_function, tmp_path):
    assert compare(program_function, tmp_path / "model.onnx") < 1e-5


def test_a_trainers_network_is_saved_under_names_of_its_own(tmp_path):
    def infer_program() -> Any:
        x = layers.data("x", shape=[4])
        return {"x": layers.fc(x, 3), "y": jnp.mean(x, axis=1, keepdims=True)}

    def train_program() -> Any:
        return layers.mean(infer_program()["x"])

    trainer = ps.Trainer(
        train_program, optax.sgd(0.1), infer_func=infer_program, place=one_device()
    )
    assert save(tmp_path / "model.onnx", trainer) < 1e-6
    model = onnx.load(tmp_path / "model.onnx")
    assert [value.name for value in model.graph.output] == ["x_output", "y"]
    assert "params/fc_0/w" in [value.name for value in model.graph.initializer]


def classify(name: str, image_size: int) -> Callable[[], Any]:
    """Return the infer program of a network of the library, which returns logits."""
    network = models.get(name)

    def program() -> Any:
        shape = [image_size, image_size, network.num_channels]
        logits = network(layers.data("image", shape=shape), 10)[0]
        return logits, layers.softmax(logits)

    return program


def test_axes_are_moved_once_in_front_and_once_behind_the_convolutions(tmp_path):
    assert compare(classify("lenet", 28), tmp_path / "model.onnx") < 1e-4
    kinds = [node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node]
    assert kinds.count("Transpose") == 2
    assert kinds.count("Conv") == kinds.count("MaxPool") == 2


# The others have no operation, stride or padding that is not in one of these, or in LeNet.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "image_size"),
    [
        *(("resnet_v1_50", 64), ("mobilenet_v3_small", 64), ("inception_v3", 139)),
        ("nasnet_mobile", 64),
    ],
)
def test_networks_of_the_library_give_in_onnx_what_they_give_in_jax(name, image_size, tmp_path):
    assert compare(classify(name, image_size), tmp_path / "model.onnx") < 1e-4
