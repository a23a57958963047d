"""The three networks of the trainer benchmark, written by hand, for penstock and for Keras."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import penstock as ps
from penstock import layers

BATCH_SIZE = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """One network, in the three forms."""

    name: str
    shape: tuple[int, ...]
    is_classifier: bool
    module: Callable[[], nn.Module]
    program: Callable[[], Any]
    keras_layers: Callable[[Any], list[Any]]
    optimizer: Callable[[], optax.GradientTransformation]
    num_batches: int

    def batches(self) -> list[dict[str, np.ndarray]]:
        """Return the batches that every contender sees."""
        rng = np.random.default_rng(0)
        shape = (self.num_batches, BATCH_SIZE, *self.shape)
        x = rng.normal(size=shape).astype(np.float32)
        if self.is_classifier:
            y = rng.integers(0, 10, (self.num_batches, BATCH_SIZE, 1)).astype(np.int32)
        else:
            y = x.reshape(self.num_batches, BATCH_SIZE, -1).sum(-1, keepdims=True)
        return [{"x": a, "y": b} for a, b in zip(x, y, strict=True)]

    def train_program(self) -> Any:
        """Return the loss, and the accuracy where there are classes: the program function."""
        x = layers.data("x", shape=self.shape)
        output = self.program()(x)
        if not self.is_classifier:
            target = layers.data("y", shape=[1])
            return layers.mean(layers.square_error_cost(output, target))
        label = layers.data("y", shape=[1], dtype="int32")
        loss = layers.mean(layers.softmax_with_cross_entropy(output, label))
        return loss, layers.accuracy(output, label)


def bare_step(workload: Workload) -> tuple[Callable[..., Any], Any]:
    """Return the hand-written jitted, donated step and its initial state."""
    module, optimizer = workload.module(), workload.optimizer()
    params = module.init(jax.random.key(0), jnp.zeros((1, *workload.shape)))

    def loss_of(params: Any, batch: Any) -> Any:
        output: Any = module.apply(params, batch["x"])
        if not workload.is_classifier:
            return jnp.mean((output - batch["y"]) ** 2), None
        label = batch["y"][:, 0]
        loss = optax.softmax_cross_entropy_with_integer_labels(output, label).mean()
        return loss, jnp.mean(jnp.argmax(output, -1) == label)

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        (loss, metric), gradients = jax.value_and_grad(loss_of, has_aux=True)(params, batch)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), (loss, metric)

    return step, (params, optimizer.init(params))


class Mlp(nn.Module):
    """784-256-256-10."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return logits."""
        x = nn.relu(nn.Dense(256)(x))
        return nn.Dense(10)(nn.relu(nn.Dense(256)(x)))


class LeNet(nn.Module):
    """Two convolutions of 20 and 50 filters, 5x5, each pooled by 2."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return logits."""
        for filters in (20, 50):
            x = nn.relu(nn.Conv(filters, (5, 5), padding="VALID")(x))
            x = nn.max_pool(x, (2, 2), (2, 2))
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


def _mlp_program() -> Callable[[Any], Any]:
    def forward(x: Any) -> Any:
        x = layers.fc(layers.fc(x, 256, act="relu"), 256, act="relu")
        return layers.fc(x, 10)

    return forward


def _lenet_program() -> Callable[[Any], Any]:
    def forward(x: Any) -> Any:
        for filters in (20, 50):
            x = layers.simple_img_conv_pool(
                x, num_filters=filters, filter_size=5, pool_size=2, pool_stride=2, act="relu"
            )
        return layers.fc(x, 10)

    return forward


def _lenet_keras(k: Any) -> list[Any]:
    made = []
    for filters in (20, 50):
        made += [k.Conv2D(filters, 5, activation="relu"), k.MaxPooling2D(2)]
    return [*made, k.Flatten(), k.Dense(10)]


WORKLOADS = [
    Workload(
        name="regression 13->1",
        shape=(13,),
        is_classifier=False,
        module=lambda: nn.Dense(1),
        program=lambda: lambda x: layers.fc(x, 1),
        keras_layers=lambda k: [k.Dense(1)],
        optimizer=lambda: optax.sgd(1e-3),
        num_batches=1000,
    ),
    Workload(
        name="MLP 784-256-256-10",
        shape=(784,),
        is_classifier=True,
        module=Mlp,
        program=_mlp_program,
        keras_layers=lambda k: [
            k.Dense(256, activation="relu"),
            k.Dense(256, activation="relu"),
            k.Dense(10),
        ],
        optimizer=lambda: optax.adam(1e-3),
        num_batches=500,
    ),
    Workload(
        name="conv net 28x28, 20 and 50 filters",
        shape=(28, 28, 1),
        is_classifier=True,
        module=LeNet,
        program=_lenet_program,
        keras_layers=_lenet_keras,
        optimizer=lambda: optax.adam(1e-3),
        num_batches=40,
    ),
]


def trainer(workload: Workload, steps_per_call: int) -> ps.Trainer:
    """Return penstock's contender, on one device as the hand-written loop is."""
    return ps.Trainer(
        workload.train_program,
        workload.optimizer,
        steps_per_call=steps_per_call,
        place=jax.devices()[0],
    )


def keras_model(workload: Workload, steps_per_execution: int) -> Any:
    """Return the Keras contender, compiled."""
    import keras

    model = keras.Sequential(
        [keras.layers.Input(workload.shape), *workload.keras_layers(keras.layers)]
    )
    is_sgd = not workload.is_classifier
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        optimizer=keras.optimizers.SGD(1e-3) if is_sgd else keras.optimizers.Adam(1e-3),
        loss=loss if workload.is_classifier else "mean_squared_error",
        metrics=["accuracy"] if workload.is_classifier else None,
        steps_per_execution=steps_per_execution,
    )
    return model
