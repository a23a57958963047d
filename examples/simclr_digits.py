"""SimCLR on digits: a loss over the whole batch, the same on any number of devices, and no labels.

Two moved and noisy views of each image must be nearest to each other among all views of the batch
(Chen et al. 2020). Then a linear layer on the frozen features tells digits apart.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.nn import log_softmax

import penstock as ps
from penstock import layers, readers

TEMPERATURE = 0.5


def encode(image):
    hidden = layers.conv2d(image, num_filters=32, filter_size=3, act="relu", name="conv")
    hidden = layers.pool2d(hidden, pool_size=2, pool_stride=2)
    return layers.fc(hidden, size=256, act="tanh", name="features")


def view(image):
    def draw(key, x):
        shift, noise = jax.random.split(key)
        moved = jnp.roll(x, jax.random.randint(shift, (2,), -1, 2), axis=(0, 1))
        return moved + 0.1 * jax.random.normal(noise, x.shape)

    return jax.vmap(draw)(layers.example_keys(), image)


def pretrain_program():
    image = layers.data("image", shape=[8, 8, 1])
    views = jnp.concatenate([view(image), view(image)])
    projected = layers.fc(encode(views), size=32, name="projection")
    z = projected / jnp.linalg.norm(projected, axis=1, keepdims=True)
    similar = z @ z.T / TEMPERATURE - 1e9 * jnp.eye(len(z))
    # The partner of row i is the other view of the same image.
    partner = jnp.roll(jnp.arange(len(z)), len(z) // 2)
    loss = -jnp.mean(jnp.take_along_axis(log_softmax(similar), partner[:, None], axis=1))
    return {"loss": loss, "found": jnp.mean(similar.argmax(axis=1) == partner)}


def probe_program():
    prediction = layers.fc(encode(layers.data("image", shape=[8, 8, 1])), 10, act="softmax")
    label = layers.data("label", shape=[1], dtype="int32")
    loss = layers.mean(layers.cross_entropy(prediction, label))
    return {"loss": loss, "accuracy": layers.accuracy(prediction, label)}


def found(event):
    if isinstance(event, ps.EndEpoch) and event.epoch % 5 == 4:
        print(f"epoch {event.epoch}: {event.metrics['found']:.0%} of the views find their partner")


train_reader = readers.dataset("digits", split="train", batch_size=128, shuffle=True)
test_reader = readers.dataset("digits", split="test", batch_size=64)
pretrained = ps.Trainer(pretrain_program, optax.adam(2e-3))
pretrained.train(
    lambda: ({"image": batch["image"]} for batch in train_reader), found, num_epochs=10
)
probe = ps.Trainer(probe_program, optax.adam(5e-2), freeze=["conv", "features"])
features = {n: np.array(v) for n, v in pretrained.parameters.items() if "projection" not in n}
probe.parameters.update(features)
probe.train(train_reader, num_epochs=10)
print(f"a linear layer on the features: {probe.test(test_reader)['accuracy']:.0%} of digits right")
