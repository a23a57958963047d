"""Auto-encoders, flows, diffusion, and networks that play against each other."""

import jax
import jax.numpy as jnp
from jax import lax

from penstock import layers
from tests.battery.harness import body, objectives

CODER = {"w": (6, 4), "v": (2, 6)}


@body(**CODER)
def variational_auto_encoder(x, key, w, v):
    mean, log_var = jnp.split(x @ w, 2, axis=1)
    z = mean + jnp.exp(0.5 * log_var) * jax.random.normal(key, mean.shape)
    kl = -0.5 * jnp.sum(1 + log_var - mean**2 - jnp.exp(log_var), axis=1)
    return jnp.mean(jnp.sum((z @ v - x) ** 2, axis=1) + kl), z


@body(w=(6, 2), v=(2, 6), codes=(5, 2))
def vq_vae_with_straight_through(x, w, v, codes):
    z = x @ w
    nearest = jnp.argmin(jnp.sum((z[:, None] - codes[None]) ** 2, -1), axis=1)
    chosen = codes[nearest]
    through = z + lax.stop_gradient(chosen - z)
    commitment = jnp.mean((z - lax.stop_gradient(chosen)) ** 2)
    used = jax.nn.one_hot(nearest, 5).mean(axis=0)
    loss = jnp.mean((through @ v - x) ** 2) + jnp.mean((lax.stop_gradient(z) - chosen) ** 2)
    return loss + 0.25 * commitment, jnp.exp(-jnp.sum(used * jnp.log(used + 1e-10)))


@body(w=(7, 8), v=(8, 6))
def flow_matching_with_keys_by_example(x, key, w, v):
    def loss(key, x):
        t = jax.random.uniform(key)
        start = jax.random.normal(jax.random.fold_in(key, 1), x.shape)
        at = (1 - t) * start + t * x
        return jnp.sum((jnp.tanh(jnp.append(at, t) @ w) @ v - (x - start)) ** 2)

    return jax.vmap(loss)(jax.random.split(key, len(x)), x).mean()


@body(w=(6, 6), u=(6, 1))
def energy_based_with_langevin_samples(x, key, w, u):
    energy = lambda x: (jnp.tanh(x @ w) @ u)[:, 0] + 0.05 * jnp.sum(x**2, 1)  # noqa: E731
    slope = jax.grad(lambda x: energy(x).sum())

    def step(x, key):
        return x - 0.1 * slope(x) + 0.1 * jax.random.normal(key, x.shape), None

    start = jnp.roll(x, 1, axis=0)
    samples = lax.stop_gradient(lax.scan(step, start, jax.random.split(key, 4))[0])
    return energy(x).mean() - energy(samples).mean() + 0.1 * (energy(x) ** 2).mean()


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
@objectives("x", sizes=(24, 19))
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
