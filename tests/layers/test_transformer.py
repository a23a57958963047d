"""Transformers and encodings of positions against themselves written out for each example."""

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

LENGTHS, SOURCE_LENGTHS = (3, 5, 0, 1), (2, 0, 3, 4)
D = 8
X = [normal(length, D, seed=i) for i, length in enumerate(LENGTHS)]
Y = [normal(length, D, seed=9 + i) for i, length in enumerate(SOURCE_LENGTHS)]
FEED = {"x": X, "y": Y}

# Whether it is a decoder over a memory, and how each is called.
CASES = {
    "encoder": (False, {}),
    "encoder, rms, rotary": (False, {"norm": "rms", "rotary": True}),
    "encoder, post-norm": (False, {"is_pre_norm": False}),
    "encoder, causal, grouped": (False, {"is_causal": True, "num_kv_heads": 1}),
    "decoder": (True, {"rotary": True}),
    "decoder, post-norm, rms": (True, {"is_pre_norm": False, "norm": "rms"}),
}


def sequence(name):
    """Return an input whose padding is full of large numbers, as long as one of a probe."""
    x = layers.data(name, [D], lod_level=1, buckets=[13])
    return x.with_values(x.masked(1e9))


def call(case, x, y):
    is_decoder, options = CASES[case]
    num_layers = 2 if case == "decoder" else 1
    if is_decoder:
        return layers.transformer_decoder(x, num_layers, 2, 12, y, name=case, **options)
    return layers.transformer_encoder(x, num_layers, 2, 12, name=case, **options)


def randomised(function, scale=0.5):
    """Return initial variables with biases and scales drawn at random too."""
    variables = initial(function)
    leaves, structure = jax.tree.flatten(variables["params"])
    random = [leaf + scale * normal(*leaf.shape, seed=i) for i, leaf in enumerate(leaves)]
    return {**variables, "params": jax.tree.unflatten(structure, random)}


def weigh(rows):
    """Return a number in which every element counts otherwise."""
    waves = jnp.sin(1.0 + jnp.arange(rows.shape[-2])[:, None] * rows.shape[-1])
    return jnp.sum(rows * (waves + jnp.cos(1.0 * jnp.arange(rows.shape[-1]))[None]))


@functools.cache
def measured():
    """Return the parameters and a training step of all cases side by side."""

    def function():
        x, y = sequence("x"), sequence("y")
        outs = {case: call(case, x, y) for case in CASES}
        loss = sum(jax.vmap(weigh)(out.masked()) for out in outs.values())
        return layers.mean(loss), {case: out.values for case, out in outs.items()}

    variables = randomised(function)
    return variables["params"], train(function, FEED, variables=variables)


def reference(case, p, x, y):
    is_decoder, options = CASES[case]
    kept = {k: v for k, v in options.items() if k != "norm"}
    if is_decoder:
        return attention_references.transformer(p, x, y, num_heads=2, is_causal=True, **kept)
    return attention_references.transformer(p, x, num_heads=2, **kept)


@pytest.mark.quick("decoder")
@pytest.mark.parametrize("case", CASES)
def test_transformer_equals_that_of_each_example_alone_with_its_gradients(case):
    params, step = measured()

    def total(p):
        outs = [reference(case, p, x, y) for x, y in zip(X, Y, strict=True)]
        return sum(map(weigh, outs)) / len(X), outs

    gradients, outs = jax.grad(total, has_aux=True)(params[case])
    actual = step.values[1][case]
    assert np.isfinite(actual).all()
    for row, expected in enumerate(outs):
        np.testing.assert_allclose(actual[row, : LENGTHS[row]], expected, rtol=1e-4, atol=1e-5)
    for path, gradient in jax.tree.leaves_with_path(gradients):
        own = functools.reduce(lambda tree, key: tree[key.key], path, step.gradients[case])
        np.testing.assert_allclose(own, gradient, rtol=1e-3, atol=1e-4, err_msg=str(path))


def test_encoder_layer_is_an_encoder_of_one_layer_without_the_last_norm():
    def function():
        x = layers.data("x", [5, D])
        return layers.transformer_encoder_layer(x, 2, 12, act="gelu", name="one")

    x = normal(3, 5, D)
    p = initial(function)["params"]["one"]

    def encoder():
        x = layers.data("x", [5, D])
        return layers.transformer_encoder(x, 1, 2, 12, act="gelu", name="e")

    norm = {"scale": np.ones(D, "f"), "bias": np.zeros(D, "f")}
    whole = infer(encoder, {"x": x}, {"params": {"e": {"layer_0": p, "norm": norm}}})
    one = infer(function, {"x": x}, {"params": {"one": p}})
    expected = np.stack([attention_references.normalise(norm, row) for row in one])
    np.testing.assert_allclose(whole, expected, rtol=1e-4, atol=1e-5)


def test_packed_sequences_equal_each_by_itself():
    ids = np.array([[1, 1, 1, 2, 2, 0]], np.int32)
    x = normal(1, 6, D)

    def function():
        x, ids = layers.data("x", [6, D]), layers.data("ids", [6], "int32")
        x = layers.position_embedding(x, 6, layers.segment_positions(ids), name="p")
        return layers.transformer_decoder(x, 1, 2, 12, segment_ids=ids, name="d")

    def alone():
        x = layers.data("x", [D], lod_level=1, buckets=[6])
        x = layers.position_embedding(x, 6, name="p")
        return layers.transformer_decoder(x, 1, 2, 12, name="d").values

    variables = randomised(function)
    packed = infer(function, {"x": x, "ids": ids}, variables)[0]
    parts = infer(alone, {"x": [x[0, :3], x[0, 3:5]]}, variables)
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

    whole, steps = infer(function, {"x": normal(4, 5, D), "y": Y}, randomised(function))
    np.testing.assert_allclose(steps, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_transformer_drops_in_training_only_and_runs_in_bfloat16():
    def function():
        out = layers.transformer_encoder(sequence("x"), 1, 2, 12, dropout_rate=0.5, name="e")
        return layers.mean(jax.vmap(weigh)(out.masked())), out.values

    results = {}
    for precision in ("float32", "bfloat16"):
        builder = ps.ProgramBuilder(
            function, optax.sgd(0.1), place=jax.devices()[:1], precision=precision
        )
        state = builder.init(seed=0)
        _, tested = builder.test(state, {"x": X})
        state, (_, trained) = builder.train(state, {"x": X})
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.variables))
        assert not np.allclose(tested[0, :3], trained[0, :3], atol=1e-2)
        results[precision] = np.asarray(tested[0, :3], np.float32)
    np.testing.assert_allclose(results["bfloat16"], results["float32"], rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_layers": 0}, r"transformer_decoder got num_layers=0, expected 1 or more"),
        ({"num_heads": 3}, r"transformer_decoder got num_heads=3 for 8 features"),
        ({"norm": "batch"}, r"transformer_decoder got norm='batch'"),
        ({"caches": ()}, r"got 0 caches, expected 2, one for each layer"),
        ({"memory": normal(1, 5, D), "segment_ids": np.ones([1, 5], "i")}, r"expected a pair"),
    ],
)
def test_transformer_with_a_wrong_argument_says_what_it_expects(options, message):
    def function():
        options_now = {"num_layers": 2, "num_heads": 2, "ffn_size": 12, **options}
        return layers.transformer_decoder(layers.data("x", [5, D]), **options_now)

    with pytest.raises(ProgramError, match=message):
        initial(function)


def test_sinusoidal_positions_are_those_of_the_paper():
    table = np.zeros((7, 5))
    for place in range(7):
        for i in range(5):
            angle = place / 10000 ** ((i - i % 2) / 5)
            table[place, i] = np.cos(angle) if i % 2 else np.sin(angle)
    np.testing.assert_allclose(layers.sinusoidal_positions(7, 5), table, rtol=1e-5, atol=1e-6)
    x = normal(2, 7, 5)
    np.testing.assert_allclose(layers.add_positions(x), x + table[None], rtol=1e-5, atol=1e-6)
    places = jnp.array([[3], [6]])
    np.testing.assert_allclose(
        layers.add_positions(x[:, :1], places), x[:, :1] + table[[3, 6]][:, None], atol=1e-6
    )


def test_rotary_products_depend_on_the_distance_alone():
    q, k = (jnp.asarray(normal(1, 1, 1, 6, seed=seed)) for seed in (0, 1))

    def product(at, other):
        turned = [layers.rotary_embedding(x, jnp.array([p])) for x, p in ((q, at), (k, other))]
        return float(jnp.sum(turned[0] * turned[1]))

    assert product(2, 7) == pytest.approx(product(40, 45), rel=1e-4)
    assert product(2, 7) != pytest.approx(product(2, 8), rel=1e-3)
    assert product(3, 3) == pytest.approx(float(jnp.sum(q * k)), rel=1e-5)
    x = normal(1, 4, 1, 6)
    expected = attention_references.turn(x[0, :, 0])
    np.testing.assert_allclose(layers.rotary_embedding(x)[0, :, 0], expected, atol=1e-6)


def test_position_embedding_adds_a_row_for_each_word_and_shows_places_outside():
    def function():
        x = sequence("x")
        return layers.position_embedding(x, 4, name="p").values

    variables = randomised(function)
    out = infer(function, {"x": X}, variables)
    table = variables["params"]["p"]["w"]
    np.testing.assert_allclose(out[0, :3], X[0] + table[:3], rtol=1e-6)
    # The fifth word has none; padding may lie anywhere.
    assert np.isnan(out[1, 4]).all()
    assert np.isfinite(out[:, 5:]).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: layers.sinusoidal_positions(0, 4), r"got length=0 and width=4"),
        (lambda: layers.rotary_embedding(normal(1, 2, 1, 3)), r"expected \[B, T, N, H\] with an"),
        (lambda: layers.add_positions(normal(2, 3)), r"add_positions got an input of shape"),
        (lambda: layers.add_positions(normal(2, 3, 4), jnp.arange(2)), r"positions of shape \(2,"),
        (lambda: layers.segment_positions(jnp.ones([2, 3])), r"segment ids of shape \(2, 3\)"),
        (lambda: layers.init_cache(2, 0, 1, 4), r"got the shape \(2, 0, 1, 4\)"),
    ],
)
def test_positions_with_a_wrong_argument_say_what_they_expect(call, message):
    with pytest.raises(ProgramError, match=message):
        call()


def test_rms_norm_divides_by_the_root_of_the_mean_square():
    def function():
        return layers.rms_norm(sequence("x"), act="tanh", name="n").values

    variables = randomised(function)
    out = infer(function, {"x": X}, variables)
    for row, x in enumerate(X):
        expected = np.tanh(attention_references.normalise(variables["params"]["n"], x))
        np.testing.assert_allclose(out[row, : len(x)], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ProgramError, match=r"rms_norm got an input of shape \[B\]"):
        initial(lambda: layers.rms_norm(layers.data("x", [1])[:, 0]))
