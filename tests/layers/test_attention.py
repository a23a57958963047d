"""Attention against itself written out for each example alone, gradients included."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import penstock as ps
from penstock import layers
from penstock.layers._attending import attend
from tests.layers.programs import infer, normal, train
from tests.networks import assert_close

# As long as sequences of a probe are, so that what a step returns has one shape.
D, LONGEST = 8, 13


LENGTHS = (3, 5, 0, 1, 4)
X = [normal(length, D, seed=i) for i, length in enumerate(LENGTHS)]


def sequence(name, shape, dtype="float32"):
    """Return an input whose padding is full of large numbers."""
    x = layers.data(name, shape, dtype, lod_level=1, buckets=[LONGEST])
    return x.with_values(x.masked(1e9 if dtype == "float32" else 1))


def test_attention_drops_weights_in_training_only():
    def function():
        x = layers.data("x", [5, D])
        multi_head = functools.partial(layers.multi_head_attention, x, num_heads=2, name="a")
        product = functools.partial(layers.scaled_dot_product_attention, x, x, x)
        outs = [(attend(dropout_rate=0.5), attend()) for attend in (multi_head, product)]
        return layers.mean(outs[0][0]), outs

    step = train(function, {"x": normal(3, 5, D)}, is_tested=True)
    for (dropped, whole), tested in zip(step.values[1], step.test_values[1], strict=True):
        np.testing.assert_allclose(*tested, rtol=1e-6)
        assert not np.allclose(dropped, whole, atol=1e-3)


def test_attention_with_a_cache_equals_the_whole_pass():
    def function():
        x = layers.data("x", [6, D])
        options = {"num_heads": 2, "num_kv_heads": 1, "rotary": True, "name": "a"}
        attention = functools.partial(layers.multi_head_attention, **options)

        def step(cache, word):
            out, cache = attention(word[:, None], cache=cache)
            return cache, out[:, 0]

        empty = layers.init_cache(x.shape[0], 6, 1, 4)
        cache, outs = jax.lax.scan(step, empty, x.swapaxes(0, 1)[:4])
        rest, cache = attention(x[:, 4:], cache=cache)
        return attention(x, is_causal=True), outs.swapaxes(0, 1), rest, cache.position

    whole, first, rest, position = infer(function, {"x": normal(4, 6, D)}, num_devices=2)
    np.testing.assert_allclose(first, whole[:, :4], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(rest, whole[:, 4:], rtol=1e-5, atol=1e-6)
    assert position.tolist() == [6] * 4


def test_cache_goes_on_behind_prompts_of_any_length():
    def function():
        x, word = sequence("x", [D]), layers.data("word", [1, D])
        attention = functools.partial(
            layers.multi_head_attention, num_heads=2, rotary=True, name="a"
        )
        # Shorter than what the prompts are padded to.
        empty = layers.init_cache(word.shape[0], 6, 2, 4)
        prompt, cache = attention(x, cache=empty)
        after, cache = attention(word, cache=cache)
        # The word in the place behind the prompt, without a cache.
        places = jnp.arange(LONGEST)[None] == x.lengths[:, None]
        longer = ps.Sequence(jnp.where(places[..., None], word, x.values), x.lengths + 1)
        whole = attention(longer, is_causal=True)
        last = jnp.take_along_axis(whole.values, x.lengths[:, None, None], axis=1)
        return whole.values, prompt.values, last, after, cache.position

    feed = {"x": X, "word": normal(len(X), 1, D, seed=7)}
    whole, prompt, last, after, position = infer(function, feed)
    np.testing.assert_allclose(after, last, rtol=1e-5, atol=1e-6)
    for row, length in enumerate(LENGTHS):
        np.testing.assert_allclose(prompt[row, :length], whole[row, :length], rtol=1e-5, atol=1e-6)
        assert not prompt[row, length:].any()
    assert position.tolist() == [length + 1 for length in LENGTHS]


def test_word_without_room_in_the_cache_is_nan_and_changes_nothing():
    def function():
        x = layers.data("x", [1, D])
        cache = layers.init_cache(x.shape[0], 1, 2, 4)
        first, once = layers.multi_head_attention(x, num_heads=2, cache=cache, name="a")
        second, twice = layers.multi_head_attention(x, num_heads=2, cache=once, name="a")
        return first, second, twice.keys - once.keys

    first, second, change = infer(function, {"x": normal(3, 1, D)})
    assert np.isfinite(first).all()
    assert np.isnan(second).all()
    assert not change.any()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_scores_of_half_precision_are_float32_where_weights_are_dropped(dtype):
    # A score of 115,200 before it is divided by the root of the width.
    large = jnp.full((1, 2, 1, 128), 30, dtype)
    np.testing.assert_array_equal(attend(large, large, large, drop=lambda x: x), large)
    q, k, v = (jnp.asarray(4 * normal(2, 9, 4, 64, seed=seed), dtype) for seed in range(3))
    exact = attend(*(x.astype(jnp.float32) for x in (q, k, v)))
    own = attend(q, k, v, drop=lambda x: x).astype(jnp.float32)
    assert jnp.linalg.norm(own - exact) < 4e-3 * jnp.linalg.norm(exact)


def test_float16_is_attended_on_cpu():
    def program():
        return layers.multi_head_attention(layers.data("x", shape=[5, 8]), num_heads=2)

    wide, narrow = (ps.ProgramBuilder(infer_func=program, precision=p) for p in ("auto", "float16"))
    state, x = wide.init(), np.random.default_rng(0).normal(size=(3, 5, 8))
    assert_close(narrow.infer(state, {"x": x}), wide.infer(state, {"x": x}), 1e-2)
