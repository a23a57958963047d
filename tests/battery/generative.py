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


# One example has no batch to be normalised by: what is 0 but for rounding is divided by itself.
@objectives("x", sizes=(24, 21, 5))
def wasserstein_with_gradient_penalty():
    def critic():
        x = layers.data("x", [6])
        drawn = generate(len(x))
        portion = jax.random.uniform(layers.random_key(), (len(x), 1))
        between = portion * x + (1 - portion) * drawn
        w = layers.create_parameter([6, 8], name="critic_w", default_initializer=XAVIER)
        v = layers.create_parameter([8, 1], name="critic_v", default_initializer=XAVIER)
        score = lambda x: jnp.tanh(x @ w) @ v  # noqa: E731
        slopes = jax.grad(lambda x: score(x).sum())(between)
        penalty = jnp.mean((jnp.sqrt(jnp.sum(slopes**2, axis=1) + 1e-6) - 1) ** 2)
        return jnp.mean(score(drawn)) - jnp.mean(score(x)) + penalty + jnp.mean(judge(x) ** 2)

    def generator():
        return -jnp.mean(judge(generate(len(layers.data("x", [6])))))

    return {"critic": layers.scope("critic")(critic), "generator": generator}


XAVIER = jax.nn.initializers.glorot_uniform()
