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


@module()
class LayerAndGroupNorms(nn.Module):
    @nn.compact
    def __call__(self, image, y):
        h = nn.GroupNorm(num_groups=2)(nn.Conv(4, (3, 3))(image))
        h = nn.LayerNorm()(h.reshape(h.shape[0], -1))
        h = nn.RMSNorm()(nn.Dense(6)(h)) + nn.InstanceNorm()(nn.Dense(6)(h)[..., None])[..., 0]
        return fit(nn.Dense(1)(h), y), h


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
class RunningMaximum(nn.Module):
    @nn.compact
    def __call__(self, x, y, train):
        h = nn.Dense(4)(x)
        peak = self.variable("batch_stats", "peak", lambda: jnp.full((4,), 0.1))
        if train:
            peak.value = jnp.maximum(peak.value, jnp.abs(h).max(axis=0))
        return fit(nn.Dense(1)(h / lax.stop_gradient(peak.value)), y)


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


@module()
class CodebookByStatistics(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        z = nn.Dense(2)(x)
        draw = jax.nn.initializers.normal(1.0)
        codes = self.variable("batch_stats", "codes", draw, jax.random.key(7), (4, 2))
        sizes = self.variable("batch_stats", "sizes", jnp.ones, (4,))
        nearest = jnp.argmin(jnp.sum((z[:, None] - codes.value) ** 2, axis=-1), axis=1)
        chosen = nn.one_hot(nearest, 4)
        quantized = codes.value[nearest]
        if train and not self.is_initializing():
            sizes.value = 0.9 * sizes.value + 0.1 * chosen.sum(axis=0)
            moved = 0.9 * codes.value + 0.1 * chosen.T @ lax.stop_gradient(z)
            codes.value = moved / (sizes.value[:, None] + 0.1)
        through = z + lax.stop_gradient(quantized - z)
        return fit(nn.Dense(6)(through), x) + 0.25 * jnp.mean((z - quantized) ** 2), nearest


@module(sizes=(24, 19))  # a queue of 12 takes batches of any size but 1, whose std is 0
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
class SwitchTransformerLayer(nn.Module):
    @nn.compact
    def __call__(self, x, y, train):
        gates = nn.softmax(nn.Dense(4)(x))
        expert = jnp.argmax(gates, axis=1)
        chosen = nn.one_hot(expert, 4)
        balance = 4 * jnp.sum(chosen.mean(axis=0) * gates.mean(axis=0))
        capacity = max(1, int(1.25 * len(x) / 4))
        place = jnp.cumsum(chosen, axis=0) * chosen - chosen
        kept = chosen * (place < capacity)
        dispatch = kept[:, :, None] * nn.one_hot(place.sum(1).astype("int32"), capacity)[:, None]
        packed = jnp.einsum("bec,bd->ecd", dispatch, x)
        bank = self.param("experts", nn.initializers.lecun_normal(), (4, 6, 6))
        done = nn.relu(jnp.einsum("ecd,edf->ecf", packed, bank))
        out = jnp.einsum("bec,ecf->bf", dispatch, done) * gates.max(axis=1, keepdims=True)
        return fit(nn.Dense(1)(x + out), y) + 0.01 * balance, kept.sum(axis=0)


@module()
class SoftMixtureWithImportance(nn.Module):
    @nn.compact
    def __call__(self, x, y):
        experts = nn.vmap(
            nn.Dense,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=None,
            axis_size=3,
        )(2)
        gates = nn.softmax(nn.Dense(3)(x))
        importance = gates.sum(axis=0)
        variation = importance.var() / (importance.mean() ** 2 + 1e-6)
        mixed = jnp.einsum("be,ebd->bd", gates, experts(x))
        return fit(nn.Dense(1)(nn.tanh(mixed)), y) + 0.1 * variation


@module()
class RecurrentCells(nn.Module):
    @nn.compact
    def __call__(self, tokens, y):
        h = nn.Embed(9, 5)(tokens)
        h = nn.RNN(nn.LSTMCell(4))(h) + nn.RNN(nn.GRUCell(4), reverse=True, keep_order=True)(h)
        return fit(nn.Dense(1)(h[:, -1]), y)


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
