"""Networks of the library, and of layers, give in ONNX Runtime what they give in JAX."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import optax
import pytest

import penstock as ps
from penstock import _mesh, layers, models
from penstock._program.frame import make_root, wrap_key
from penstock._tracing.probe import run_program
from penstock.onnx_export import check, convert, save
from tests.networks import one_device


def make_function(program_function: Callable[[], Any]) -> tuple[Callable[..., Any], Any, Any]:
    """Return an infer program as a pure function, its variables, and the specs of its inputs."""
    builder = ps.ProgramBuilder(infer_func=program_function, place=one_device())
    variables = jax.tree.map(np.asarray, builder.init(seed=0).variables)
    # Layers compute some things another way for CPUs, in many more operations.
    program = dataclasses.replace(builder.programs.network.infer, is_on_cpu=False)

    def function(variables: Any, feed: Any) -> tuple[Any, ...]:
        nested = {name: spec.join(feed) for name, spec in program.feed_specs.items()}
        size, mesh = feed[next(iter(nested))].shape[0], _mesh.make_mesh(one_device())
        key = wrap_key(make_root(0))
        result = run_program(program, variables, nested, size, key, mesh)
        return tuple(jax.tree.leaves(result.returned.values))

    return function, vary(variables), program.feed_specs


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


def make_feed(specs: Any, batch_size: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(batch_size)
    feed = {}
    for name, spec in specs.items():
        length = batch_size + 5
        shape = (batch_size, *[length] * spec.lod_level, *spec.shape)
        is_float = spec.dtype == jnp.float32
        feed[name] = random.normal(size=shape) if is_float else random.integers(0, 40, size=shape)
        feed[name] = feed[name].astype(spec.dtype)
        if spec.lod_level:
            lengths = random.integers(1, length + 1, size=batch_size)
            feed[f"{name}_length"] = lengths.astype(np.int32)
    return feed


def compare(program_function: Callable[[], Any]) -> tuple[onnx.ModelProto, float]:
    """Return the model of an infer program and the largest difference, of two batch sizes."""
    function, variables, specs = make_function(program_function)
    feeds = [make_feed(specs, batch_size) for batch_size in (1, 3)]
    inputs = {name: (list(value.shape[1:]), value.dtype) for name, value in feeds[0].items()}
    for name in (name for name, spec in specs.items() if spec.lod_level):
        inputs[name][0][0] = "length"
    count = len(jax.eval_shape(function, variables, feeds[0]))
    model = convert(function, variables, inputs, [f"output_{n}" for n in range(count)])
    compiled = jax.jit(function)
    rows = np.asarray(compiled(variables, feeds[1])[0])
    assert np.std(rows, axis=0).max() > 1e-3 * np.abs(rows).max()
    return model, max(check(model, compiled, variables, feed) for feed in feeds)


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
@pytest.mark.parametrize("program_function", OF_LAYERS, ids=lambda each: each.__name__)
def test_networks_of_layers_give_in_onnx_what_they_give_in_jax(program_function):
    assert compare(program_function)[1] < 1e-5


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
    assert [each.name for each in model.graph.output] == ["x_output", "y"]
    assert "params/fc_0/w" in [each.name for each in model.graph.initializer]


def classify(name: str, image_size: int) -> Callable[[], Any]:
    """Return the infer program of a network of the library, which returns logits."""
    network = models.get(name)

    def program() -> Any:
        shape = [image_size, image_size, network.num_channels]
        logits = network(layers.data("image", shape=shape), 10)[0]
        return logits, layers.softmax(logits)

    return program


def test_convolutions_and_poolings_are_those_of_onnx():
    model, difference = compare(classify("lenet", 28))
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("Conv") == kinds.count("MaxPool") == 2
    assert difference < 1e-4


# The others have no operation, stride or padding that is not in one of these.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "image_size"),
    [
        *(("resnet_v1_50", 64), ("mobilenet_v2", 64), ("mobilenet_v3_large", 64), ("vgg_16", 32)),
        *(("inception_v1", 64), ("inception_v3", 139), ("nasnet_mobile", 64)),
    ],
)
def test_networks_of_the_library_give_in_onnx_what_they_give_in_jax(name, image_size):
    assert compare(classify(name, image_size))[1] < 1e-4
