"""Auto-encoders, flows, diffusion, and networks that play against each other."""

import jax
import jax.numpy as jnp

from penstock import layers
from tests.battery.harness import body, objectives

CODER = {"w": (6, 4), "v": (2, 6)}


@body(**CODER)
def variational_auto_encoder(x, key, w, v):
    mean, log_var = jnp.split(x @ w, 2, axis=1)
    z = mean + jnp.exp(0.5 * log_var) * jax.random.normal(key, mean.shape)
    kl = -0.5 * jnp.sum(1 + log_var - mean**2 - jnp.exp(log_var), axis=1)
    return jnp.mean(jnp.sum((z @ v - x) ** 2, axis=1) + kl), z


@layers.scope("generator")
def generate(size):
    noise = jax.random.normal(layers.random_key(), (size, 3))
    return layers.fc(layers.batch_norm(layers.fc(noise, 8), act="relu"), 6)


@layers.scope("critic")
def judge(x, with_spread=False):
    h = layers.fc(x, 8, act="tanh")
    if with_spread:  # the minibatch's deviation as a feature
        h = jnp.concatenate([h, jnp.full((x.shape[0], 1), jnp.mean(jnp.std(h, axis=0) + 0.1))], 1)
    return layers.fc(h, 1)


@objectives("x")
def generative_adversarial_network():
    def critic():
        x = layers.data("x", [6])
        both = judge(jnp.concatenate([x, generate(len(x))]), with_spread=True)
        real, fake = jnp.split(both, 2)
        return jnp.mean(jax.nn.softplus(-real)) + jnp.mean(jax.nn.softplus(fake))

    def generator():
        return jnp.mean(jax.nn.softplus(-judge(generate(len(layers.data("x", [6]))), True)))

    return {"critic": critic, "generator": generator}
