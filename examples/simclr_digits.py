"""SimCLR on digits: a loss over the whole batch, the same on any number of devices, and no labels.

Two moved, noisy views of each image must be nearest to each other (Chen et al. 2020). Run it with
`python examples/simclr_digits.py`; it takes about ten seconds.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import penstock as ps
from penstock import layers, readers


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
    z = layers.fc(encode(jnp.concatenate([view(image), view(image)])), size=32, name="projection")
    z = z / jnp.linalg.norm(z, axis=1, keepdims=True)
    similar = 2 * z @ z.T - 1e9 * jnp.eye(len(z))
    partner = jnp.roll(jnp.arange(len(z)), len(z) // 2)  # the other view of the same image
    loss = optax.softmax_cross_entropy_with_integer_labels(similar, partner).mean()
    return {"loss": loss, "found": jnp.mean(similar.argmax(axis=1) == partner)}


def probe_program():
    prediction = layers.fc(encode(layers.data("image", shape=[8, 8, 1])), 10, act="softmax")
    label = layers.data("label", shape=[1], dtype="int32")
    loss = layers.mean(layers.cross_entropy(prediction, label))
    return {"loss": loss, "accuracy": layers.accuracy(prediction, label)}


def on_event(event):
    if isinstance(event, ps.EndEpoch):
        print(f"epoch {event.epoch}: {event.metrics['found']:.0%} of the views find their partner")


train_reader = readers.dataset("digits", split="train", batch_size=128, shuffle=True)
pretrained = ps.Trainer(pretrain_program, optax.adam(2e-3))
pretrained.train(lambda: ({"image": b["image"]} for b in train_reader), on_event, num_epochs=10)
probe = ps.Trainer(probe_program, optax.adam(5e-2), freeze=["conv", "features"])
features = {n: np.array(v) for n, v in pretrained.parameters.items() if "projection" not in n}
probe.parameters.update(features)
probe.train(train_reader, num_epochs=10)
accuracy = probe.test(readers.dataset("digits", split="test", batch_size=64))["accuracy"]
print(f"a linear layer on the features: {accuracy:.0%} of the digits right")
