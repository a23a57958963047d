"""Flax modules: the library's, and people's own with statistics of the batch."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from tests.battery.harness import module


def fit(prediction, y):
    return jnp.mean((prediction - y) ** 2)


@module()
class BatchNorms(nn.Module):
    @nn.compact
    def __call__(self, image, y, train):
        h = nn.Conv(4, (3, 3))(image)
        h = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(h))
        h = nn.avg_pool(h, (2, 2), (2, 2)).reshape(len(image), -1)
        h = nn.BatchNorm(use_running_average=not train)(nn.Dense(5)(h))
        return fit(nn.Dense(1)(nn.tanh(h)), y)


@module(has_keys=True)
class Dropouts(nn.Module):
    @nn.compact
    def __call__(self, x, y, train):
        h = nn.Dropout(0.3, deterministic=not train)(nn.relu(nn.Dense(8)(x)))
        h = nn.Dropout(0.5, broadcast_dims=(0,), deterministic=not train)(h)
        return fit(nn.Dense(1)(h), y), h


@module(has_keys=True)
class NoiseFromItsOwnKeys(nn.Module):
    @nn.compact
    def __call__(self, x, y):
        h = nn.Dense(4)(x)
        h = h + 0.1 * jax.random.normal(self.make_rng("dropout"), h.shape)
        return fit(nn.Dense(1)(h - h.mean(axis=0)), y)


@module()
class SpectralNorms(nn.Module):
    @nn.compact
    def __call__(self, x, y, train):
        h = nn.SpectralNorm(nn.Dense(5))(x, update_stats=train)
        return fit(nn.Dense(1)(nn.leaky_relu(h)), y)


@module()
class AllBehindInitialization(nn.Module):
    @nn.compact
    def __call__(self, x, y, train):
        h = nn.Dense(4)(x)
        mean = self.variable("batch_stats", "mean", jnp.zeros, (4,))
        if not self.is_initializing():
            middle = jnp.median(h, axis=0)
            h = jnp.sort(h - middle, axis=0)
            if train:
                mean.value = 0.5 * mean.value + 0.5 * middle + jnp.cumsum(h, axis=0)[-1]
        return fit(nn.Dense(1)(nn.tanh(h)), y) + 0.1 * jnp.mean((h - mean.value) ** 2)


@module(sizes=(24, 21, 5))  # a queue of 12 takes batches of any size but 1, whose std is 0
class QueueOfNegatives(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        q = nn.Dense(4)(x)
        q = (q - q.mean(0)) / (q.std(0) + 0.1)
        keys = lax.stop_gradient(q + 0.1)
        draw = jax.nn.initializers.normal(1.0)
        queue = self.variable("batch_stats", "queue", draw, jax.random.key(3), (12, 4))
        negative = q @ queue.value.T
        logits = jnp.concatenate([jnp.sum(q * keys, axis=1, keepdims=True), negative], axis=1)
        if train:
            queue.value = jnp.concatenate([keys, queue.value])[:12]
        return -nn.log_softmax(logits / 2)[:, 0].mean()


@module()
class ScannedAndRematerialised(nn.Module):
    @nn.compact
    def __call__(self, x, y):
        class Block(nn.Module):
            @nn.compact
            def __call__(self, h, _):
                return h + jnp.tanh(nn.Dense(6)(h - h.mean(axis=0))), h.max()

        scan = nn.scan(
            nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=3
        )
        h, peaks = scan()(x, None)
        return fit(nn.Dense(1)(h), y), peaks
