"""Attention against itself written out for each example alone, gradients included."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from penstock._errors import ProgramError
from tests.layers import attention_references
from tests.layers.programs import infer, initial, normal, train

LENGTHS, SOURCE_LENGTHS = (3, 5, 0, 1, 4), (2, 4, 3, 0, 1)
# As long as sequences of a probe are, so that what a step returns has one shape.
D, LONGEST = 8, 13
X = [normal(length, D, seed=i) for i, length in enumerate(LENGTHS)]
Y = [normal(length, D, seed=9 + i) for i, length in enumerate(SOURCE_LENGTHS)]
X_IDS = [np.array([1, 1, 2, 2, 3], np.int32)[:length] for length in LENGTHS]
Y_IDS = [np.array([2, 1, 4, 2], np.int32)[:length] for length in SOURCE_LENGTHS]
FEED = {"x": X, "y": Y, "x_ids": [i[:, None] for i in X_IDS], "y_ids": [i[:, None] for i in Y_IDS]}

# How attention is called, and whether over another sequence.
CASES = {
    "itself": (False, {}),
    "causal": (False, {"is_causal": True}),
    "grouped": (False, {"num_kv_heads": 2}),
    "rotary": (False, {"rotary": True, "is_causal": True}),
    "sizes": (False, {"head_dim": 6, "size": 5, "bias_attr": False}),
    "packed, causal": (False, {"segment_ids": "own", "is_causal": True}),
    "another": (True, {}),
    "another, causal": (True, {"is_causal": True}),
    "another, packed": (True, {"segment_ids": "both"}),
    "another, packed, causal": (True, {"segment_ids": "both", "is_causal": True}),
    # In training the sum is written out; of so small a rate nothing is dropped.
    "written out": (False, {"num_kv_heads": 2, "is_causal": True, "dropout_rate": 1e-9}),
    "another, written out": (True, {"dropout_rate": 1e-9}),
}


def sequence(name, shape, dtype="float32"):
    """Return an input whose padding is full of large numbers."""
    x = layers.data(name, shape, dtype, lod_level=1, buckets=[LONGEST])
    return x.with_values(x.masked(1e9 if dtype == "float32" else 1))


def call(case, x, y, x_ids, y_ids):
    is_cross, options = CASES[case]
    segments = {"own": x_ids, "both": (x_ids, y_ids), None: None}[options.get("segment_ids")]
    options = {**options, "segment_ids": segments}
    keys = y if is_cross else None
    return layers.multi_head_attention(x, keys, num_heads=4, name=case, **options)


def weighted_sum(out):
    """Return a number an example, in which every element of a word counts otherwise."""
    words = jnp.sum(out.masked() * jnp.cos(1.0 * jnp.arange(out.values.shape[2]))[None, None], 2)
    return jnp.sum(words * jnp.sin(1.0 + jnp.arange(words.shape[1]))[None], axis=1)


def one_weighted_sum(out):
    words = out @ jnp.cos(1.0 * jnp.arange(out.shape[1]))
    return words @ jnp.sin(1.0 + jnp.arange(len(words)))


@functools.cache
def measured():
    """Return what all cases give in one training step, their gradients, and the parameters."""

    def function():
        x, y = sequence("x", [D]), sequence("y", [D])
        ids = sequence("x_ids", [1], "int32"), sequence("y_ids", [1], "int32")
        outs, gradients, loss = {}, {}, 0.0
        for case in CASES:

            def total(values, case=case):
                out = call(case, x.with_values(values[0]), y.with_values(values[1]), *ids)
                return jnp.sum(weighted_sum(out)), out

            gradients[case], outs[case] = jax.grad(total, has_aux=True)((x.values, y.values))
            loss = loss + weighted_sum(outs[case])
        return layers.mean(loss), {k: v.values for k, v in outs.items()}, gradients

    variables = {"params": {}}
    for case, leaves in initial(function)["params"].items():
        random = {name: normal(*w.shape, seed=len(name)) / 2 for name, w in leaves.items()}
        variables["params"][case] = random
    step = train(function, FEED, variables=variables)
    return variables["params"], step


def reference(case, p, row, x, y):
    is_cross, options = CASES[case]
    kinds = {"own": (X_IDS[row],) * 2, "both": (X_IDS[row], Y_IDS[row]), None: None}
    options = {
        "segments": kinds[options.get("segment_ids")],
        **{k: v for k, v in options.items() if k in ("num_kv_heads", "is_causal", "rotary")},
    }
    return attention_references.multi_head(p, x, y if is_cross else x, 4, **options)


@pytest.mark.quick("another")
@pytest.mark.parametrize("case", CASES)
def test_attention_equals_that_of_each_example_alone_with_its_gradients(case):
    params, step = measured()
    _, outs, gradients = step.values
    totals = []
    for row in range(len(X)):
        expected = reference(case, params[case], row, X[row], Y[row])
        np.testing.assert_allclose(outs[case][row, : LENGTHS[row]], expected, rtol=1e-5, atol=1e-5)
        assert np.isfinite(outs[case][row]).all()

        def total(p, x, y, row=row):
            return one_weighted_sum(reference(case, p, row, x, y))

        of_params, of_x, of_y = jax.grad(total, (0, 1, 2))(params[case], X[row], Y[row])
        totals.append(of_params)
        for actual, own in zip(gradients[case], (of_x, of_y), strict=True):
            np.testing.assert_allclose(actual[row, : len(own)], own, rtol=1e-4, atol=1e-5)
            assert not actual[row, len(own) :].any()
    for name, actual in step.gradients[case].items():
        mean = sum(each[name] for each in totals) / len(X)
        np.testing.assert_allclose(actual, mean, rtol=1e-4, atol=1e-5, err_msg=name)


def test_words_without_a_key_get_nothing_whatever_the_bias():
    params, step = measured()
    assert np.abs(params["another"]["out_b"]).min() > 0
    assert not step.values[1]["another"][3].any()
    # The third segment of the last words has no key in the source.
    assert not step.values[1]["another, packed"][1, 4].any()


def test_attention_of_arrays_equals_the_function_of_jax():
    x, y = normal(2, 5, D), normal(2, 7, D, seed=1)

    def function():
        x, y = layers.data("x", [5, D]), layers.data("y", [7, D])
        return layers.multi_head_attention(x, y, num_heads=2, name="a")

    variables = initial(function)
    p = variables["params"]["a"]
    q, k, v = (
        (words @ p[f"{part}_w"]).reshape(2, -1, 2, 4)
        for words, part in ((x, "query"), (y, "key"), (y, "value"))
    )
    expected = jax.nn.dot_product_attention(q, k, v).reshape(2, 5, D) @ p["out_w"]
    actual = infer(function, {"x": x, "y": y}, variables)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_attention_drops_weights_in_training_only():
    def function():
        y = layers.multi_head_attention(layers.data("x", [5, D]), num_heads=2, dropout_rate=0.5)
        return layers.mean(y), y

    feed = {"x": normal(3, 5, D)}
    step = train(function, feed, is_tested=True)
    inferred = infer(lambda: function()[1], feed)
    np.testing.assert_allclose(step.test_values[1], inferred, rtol=1e-5, atol=1e-6)
    assert not np.allclose(step.values[1], step.test_values[1], atol=1e-3)


@pytest.mark.slow
def test_attention_in_bfloat16_is_near_that_in_float32():
    def function():
        x, y = sequence("x", [D]), sequence("y", [D])
        outs = [
            layers.multi_head_attention(x, num_heads=2, is_causal=True),
            layers.multi_head_attention(x, y, num_heads=4, num_kv_heads=2, dropout_rate=1e-9),
        ]
        total = sum(weighted_sum(out) for out in outs)
        return layers.mean(total), [out.values for out in outs]

    steps = []
    for precision in ("float32", "bfloat16"):
        builder = ps.ProgramBuilder(
            function, optax.sgd(1.0), place=jax.devices()[:1], precision=precision
        )
        state = builder.init(seed=0)
        state, (_, outs) = builder.train(state, {"x": X, "y": Y})
        steps.append((outs, state.variables["params"]))
    assert {str(out.dtype) for out in steps[1][0]} == {"bfloat16"}
    for wide, narrow in zip(*map(jax.tree.leaves, steps), strict=True):
        np.testing.assert_allclose(wide, np.asarray(narrow, np.float32), rtol=0.1, atol=0.1)


def decode(num_steps, **options):
    """Return a program that attends in one pass, and again word by word with a cache."""

    def function():
        x = layers.data("x", [6, D])
        attention = functools.partial(layers.multi_head_attention, num_heads=2, name="a", **options)

        def step(cache, word):
            out, cache = attention(word[:, None], cache=cache)
            return cache, out[:, 0]

        num_kv_heads = options.get("num_kv_heads", 2)
        empty = layers.init_cache(x.shape[0], 6, num_kv_heads, 4)
        words = x.swapaxes(0, 1)[:num_steps]
        cache, outs = jax.lax.scan(step, empty, words)
        rest, cache = attention(x[:, num_steps:], cache=cache)
        whole = attention(x, is_causal=True)
        return whole, outs.swapaxes(0, 1), rest, cache.position

    return function


@pytest.mark.parametrize("options", [{}, {"rotary": True, "num_kv_heads": 1}])
@pytest.mark.parametrize("num_devices", [1, 2])
def test_attention_with_a_cache_equals_the_whole_pass(options, num_devices):
    feed = {"x": normal(4, 6, D)}
    whole, first, rest, position = infer(decode(4, **options), feed, num_devices=num_devices)
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


def test_named_attributes_name_each_weight_by_itself():
    def function():
        x = layers.data("x", [3, D])
        attr = layers.ParamAttr(name="shared")
        return [
            layers.multi_head_attention(x, num_heads=2, param_attr=attr, bias_attr=False)
            for _ in range(2)
        ]

    assert sorted(initial(function)["params"]) == [
        f"shared_{part}_w" for part in ("key", "out", "query", "value")
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 3}, r"num_heads=3 for 8 features, expected a divisor"),
        ({"num_heads": 4, "num_kv_heads": 3}, r"num_heads=4 and num_kv_heads=3, expected"),
        ({"keys": normal(7, 5, D), "values": normal(7, 4, D)}, r"and values \(7, 4, 8\)"),
        ({"segment_ids": np.zeros((1, 4), np.int32)}, r"segment ids of shapes \[\(1, 4\)"),
        ({"segment_ids": np.zeros((1, 5), np.float32)}, r"dtype float32, expected integers \[B, T"),
        ({"dropout_rate": 1.5}, r"dropout_prob=1.5, expected a number from 0 to 1"),
        ({"param_attr": 3}, r"param_attr=3, expected a ParamAttr"),
        ({"bias_attr": 3}, r"bias_attr=3, expected a ParamAttr"),
        ({"cache": "of others"}, r"got a cache of shape \[B, 8, 2, 8\] for 5 words, expected"),
        ({"cache": "too short"}, r"for 5 words, expected .* at most 3 words"),
        ({"cache": "with keys"}, r"got a cache and keys, values or segment_ids"),
    ],
)
def test_attention_with_a_wrong_argument_says_what_it_expects(options, message):
    def function():
        x = layers.data("x", [5, D])
        own = dict(options)
        if "cache" in own:
            kind = own.pop("cache")
            size = (3, 1, 8) if kind == "too short" else (8, 2, 8)
            own["cache"] = layers.init_cache(x.shape[0], *size)
            own |= {"keys": x} if kind == "with keys" else {}
        return layers.multi_head_attention(x, **own)

    with pytest.raises(ProgramError, match=message):
        initial(function)


def test_attention_of_ids_asks_for_vectors():
    with pytest.raises(ProgramError, match=r"queries of shape .* int32, expected \[B, T, D\]"):
        initial(lambda: layers.multi_head_attention(layers.data("x", [5, 1], "int32")))


@pytest.mark.quick("2")
@pytest.mark.parametrize("num_heads", [1, 2])
def test_scaled_dot_product_attention_of_sequences_equals_each_example_alone(num_heads):
    def function():
        x, y = sequence("x", [D]), sequence("y", [D])

        def total(values):
            x_now, y_now = x.with_values(values[0]), y.with_values(values[1])
            out = layers.scaled_dot_product_attention(x_now, y_now, y_now, num_heads, name="a")
            return jnp.sum(weighted_sum(out)), out.values

        return jax.grad(total, has_aux=True)((x.values, y.values))

    def alone(p, x, y):
        parts = []
        for words, part in ((x, "query"), (y, "key"), (y, "value")):
            own = p.get(f"a_{part}")
            words = words if own is None else words @ own["w"] + own["b"][None]
            parts.append(jnp.split(words, num_heads, axis=1))
        visible = np.ones((len(x), len(y)), bool)
        heads = [attention_references.attend(*each, visible) for each in zip(*parts, strict=True)]
        return jnp.concatenate(heads, axis=1)

    variables = initial(function)
    gradients, out = infer(function, {"x": X, "y": Y}, variables)
    for row in range(len(X)):
        expected = alone(variables["params"], X[row], Y[row])
        np.testing.assert_allclose(out[row, : LENGTHS[row]], expected, rtol=1e-5, atol=1e-5)
        own = jax.grad(lambda x, y: one_weighted_sum(alone(variables["params"], x, y)), (0, 1))(
            X[row], Y[row]
        )
        for actual, one in zip(gradients, own, strict=True):
            np.testing.assert_allclose(actual[row, : len(one)], one, rtol=1e-4, atol=1e-5)
            assert not actual[row, len(one) :].any()


def test_scaled_dot_product_attention_of_mixed_keys_and_values_says_so():
    def function():
        x = sequence("x", [D])
        return layers.scaled_dot_product_attention(x, x, x.values).values

    with pytest.raises(ProgramError, match=r"keys as Sequence and values as array, expected two"):
        initial(function)
