"""Transformers and encodings of positions against themselves written out for each example."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import penstock as ps
from penstock import layers
from tests.layers import references
from tests.layers.programs import draw, infer, initial, normal

LENGTHS, SOURCE_LENGTHS = (3, 5, 0, 1), (2, 0, 3, 4)
D = 8
X = [normal(length, D, seed=i) for i, length in enumerate(LENGTHS)]
Y = [normal(length, D, seed=9 + i) for i, length in enumerate(SOURCE_LENGTHS)]


def sequence(name):
    """Return an input whose padding is full of large numbers, as long as one of a probe."""
    x = layers.data(name, [D], lod_level=1, buckets=[13])
    return x.with_values(x.masked(1e9))


def draw_for(function):
    return draw(ps.ProgramBuilder(infer_func=function, place=jax.devices()[:1]), 0.5)


def test_encoder_layer_is_an_encoder_of_one_layer_without_the_last_norm():
    x, norm = normal(3, 5, D), {"scale": np.ones(D, "f"), "bias": np.zeros(D, "f")}
    options = {"num_heads": 2, "ffn_size": 12, "act": "gelu"}

    def program():
        x = layers.data("x", [5, D])
        encoded = layers.transformer_encoder(x, 1, name="e", **options)
        return encoded, layers.transformer_encoder_layer(x, name="one", **options)

    own = draw_for(program)["params"]["one"]
    params = {"one": own, "e": {"layer_0": own, "norm": norm}}
    encoded, one = infer(program, {"x": x}, {"params": params})
    expected = np.stack([references.normalise(norm, row) for row in one])
    np.testing.assert_allclose(encoded, expected, rtol=1e-4, atol=1e-5)


def test_named_attributes_are_shared_by_blocks_and_not_by_their_parts():
    def program():
        # As many hidden features as others: the shapes of all `out_w` are equal.
        x, own = layers.data("x", [5, D]), {"param_attr": "own", "bias_attr": "own"}
        return layers.transformer_decoder(x, 2, 2, ffn_size=D, memory=x, **own)

    projections = ("key", "out", "query", "value")
    parts = {"self_attention": projections, "cross_attention": projections, "ffn": ("in", "out")}
    names = {f"own_{part}_{name}_{leaf}" for part in parts for name in parts[part] for leaf in "wb"}
    assert initial(program)["params"].keys() == {"transformer_decoder_0"} | names


def test_packed_sequences_equal_each_by_itself():
    ids = np.array([[1, 1, 1, 2, 2, 0]], np.int32)
    x = normal(1, 6, D)

    def function():
        x, ids = layers.data("x", [6, D]), layers.data("ids", [6], "int32")
        x = layers.position_embedding(x, 6, layers.segment_positions(ids), name="p")
        return layers.transformer_decoder(x, 1, 2, 12, segment_ids=ids, name="d")

    def apart():
        x = layers.data("x", [D], lod_level=1, buckets=[6])
        x = layers.position_embedding(x, 6, name="p")
        return layers.transformer_decoder(x, 1, 2, 12, name="d").values

    variables = draw_for(function)
    packed = infer(function, {"x": x, "ids": ids}, variables)[0]
    parts = infer(apart, {"x": [x[0, :3], x[0, 3:5]]}, variables)
    np.testing.assert_allclose(packed[:3], parts[0, :3], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(packed[3:5], parts[1, :2], rtol=1e-4, atol=1e-5)


def test_decoder_with_caches_equals_the_whole_pass():
    decoder = functools.partial(
        layers.transformer_decoder, num_layers=2, num_heads=2, ffn_size=12, rotary=True, name="d"
    )

    def function():
        x, memory = layers.data("x", [5, D]), sequence("y")

        def step(caches, word):
            out, caches = decoder(word[:, None], memory=memory, caches=caches)
            return caches, out[:, 0]

        empty = tuple(layers.init_cache(x.shape[0], 5, 2, 4) for _ in range(2))
        _, outs = jax.lax.scan(step, empty, x.swapaxes(0, 1))
        return decoder(x, memory=memory), outs.swapaxes(0, 1)

    whole, steps = infer(function, {"x": normal(4, 5, D), "y": Y}, draw_for(function))
    np.testing.assert_allclose(steps, whole, rtol=1e-5, atol=1e-5)


def test_rotary_products_depend_on_the_distance_alone():
    q, k, x = normal(1, 1, 1, 6), normal(1, 1, 1, 6, seed=1), normal(1, 4, 1, 6)

    @jax.jit
    def run(places):
        def product(at, other):
            turned = [layers.rotary_embedding(x, p[None]) for x, p in ((q, at), (k, other))]
            return jnp.sum(turned[0] * turned[1])

        return jax.vmap(product)(*places), layers.rotary_embedding(x)

    products, turned = run(jnp.array([[2, 40, 2, 3], [7, 45, 8, 3]]))
    near, far, other, same = map(float, products)
    assert near == pytest.approx(far, rel=1e-4)
    assert near != pytest.approx(other, rel=1e-3)
    assert same == pytest.approx(np.sum(q * k), rel=1e-5)
    np.testing.assert_allclose(turned[0, :, 0], references.turn(x[0, :, 0]), atol=1e-6)


def test_position_embedding_adds_a_row_for_each_word_and_shows_places_outside():
    def function():
        x = sequence("x")
        return layers.position_embedding(x, 4, name="p").values

    variables = draw_for(function)
    out = infer(function, {"x": X}, variables)
    table = variables["params"]["p"]["w"]
    np.testing.assert_allclose(out[0, :3], X[0] + table[:3], rtol=1e-6)
    # The fifth word has none; padding may lie anywhere.
    assert np.isnan(out[1, 4]).all()
    assert np.isfinite(out[:, 5:]).all()


def test_place_in_a_byte_is_the_same_place():
    def program():
        x, places = layers.data("x", [3, 2]), layers.data("places", [3], "int8")
        return layers.position_embedding(x, 300, places)[0, :, 0]

    places = np.array([[0, -1, 2]], np.int8)
    out = infer(program, {"x": normal(1, 3, 2), "places": places})
    assert np.isnan(out).tolist() == [False, True, False]
