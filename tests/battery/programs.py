"""Whole program functions of penstock's layers, some with jax.numpy between them."""

import jax
import jax.numpy as jnp
import numpy as np

from penstock import layers
from tests.battery.harness import INPUTS, program


def data(name):
    return layers.data(name, *INPUTS[name])


def fit(hidden):
    return layers.mean(layers.square_error_cost(layers.fc(hidden, 1), data("y")))


@program("image", "y")
def convolutions_and_batch_norms():
    h = layers.batch_norm(layers.conv2d(data("image"), 4, 3, padding=1), act="relu")
    h = layers.simple_img_conv_pool(
        h, num_filters=4, filter_size=3, pool_size=2, pool_stride=2, act="relu"
    )
    return fit(layers.batch_norm(layers.fc(h, 5)))


@program("x", "y")
def dropouts_and_drop_paths():
    h = layers.dropout(layers.fc(data("x"), 8, act="relu"), 0.4)
    return fit(h + layers.drop_path(layers.fc(h, 8), 0.3)), h


@program("x", "y")
def noise_of_layers():
    x = data("x")
    x = x + 0.1 * layers.gaussian_random_batch_size_like(x, [-1, 6])
    x = x + layers.uniform_random_batch_size_like(x, [-1, 6], min=-0.1, max=0.1)
    noise = jax.vmap(lambda key: jax.random.gamma(key, 3.0, (6,)))(layers.example_keys())
    return fit(x * noise), noise


@program("x", "label")
def classes_with_accuracy():
    label = data("label")[:, None]
    p = layers.fc(layers.fc(data("x"), 8, act="tanh"), 4, act="softmax")
    return layers.mean(layers.cross_entropy(p, label)), layers.accuracy(p, label), p


@program("x", "y")
def centred_by_reduce_mean():
    h = layers.fc(data("x"), 4)
    h = (h - layers.reduce_mean(h, dim=0)) / (jnp.std(h, axis=0) + 0.1)
    return fit(jnp.tanh(h))


@program("x", "y")
def mean_of_a_matrix_of_the_batch():
    z = layers.l2_normalize(layers.fc(data("x"), 4), axis=1)
    similar = z @ z.T
    return fit(z) + layers.mean(similar**2), layers.mean(jnp.max(similar, axis=1))


@program("x", "y")
def mode_that_changes_what_is_computed():
    h = layers.fc(data("x"), 4)
    if layers.is_training():
        h = h - h.mean(axis=0)
    h = h * jnp.minimum(1.0, layers.global_step() / 2 + 0.5)
    return fit(jnp.tanh(h))


@program("tokens", "y")
def embeddings_and_attention():
    h = layers.embedding(data("tokens"), [9, 8])
    h = h + layers.multi_head_attention(h, h, h, num_heads=2)
    return fit(layers.layer_norm(h, begin_norm_axis=2).mean(axis=1))


@program("x", "y")
def scopes_that_share():
    @layers.scope("tower")
    def tower(x):
        return layers.batch_norm(layers.fc(x, 4), act="tanh")

    a, b = tower(data("x")), tower(-data("x"))
    return fit(a) + layers.mean(layers.square_error_cost(a, b))


@program("x", "y")
def trees_of_parameters():
    random = np.random.default_rng(0)
    values = {"w": random.normal(size=(6, 4)) / 3, "v": random.normal(size=(4, 1)) / 2}
    p = layers.create_parameters(jax.tree.map(np.float32, values), name="net")
    h = jnp.tanh(data("x") @ p["w"])
    return jnp.mean(((h - jnp.median(h, axis=0)) @ p["v"] - data("y")) ** 2), h.max()
