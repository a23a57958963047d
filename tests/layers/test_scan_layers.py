"""`scan_layers`: blocks of a transformer in a scan, with the numbers and names of blocks apart."""

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from tests.networks import assert_close

NUM_LAYERS = 2


def make(place=None, optimizer=None, act="relu", **options):
    names = ("scan_layers", "rematerialize")
    # Biases of keys have no gradient but rounding.
    stack = {name: options.pop(name) for name in names if name in options} | {"bias_attr": False}

    def program():
        label = layers.data("label", shape=[1], dtype="int32")
        words = layers.data("words", shape=[8], dtype="int32")
        source = layers.data("source", shape=[1], dtype="int32", lod_level=1, buckets=[8])
        memory = layers.transformer_encoder(
            layers.embedding(source, [16, 16]), NUM_LAYERS, 2, 32, 0.2, act=act, **stack
        )
        x = layers.embedding(words, size=[16, 16])
        x = layers.transformer_decoder(
            x, NUM_LAYERS, 2, 32, memory, 0.2, norm="rms", is_pre_norm=False, rotary=True, **stack
        )
        loss = layers.mean(layers.softmax_with_cross_entropy(layers.fc(x[:, 0], size=4), label))
        return loss + layers.weight_decay_loss(1e-3)

    optimizer = optax.sgd(0.1) if optimizer is None else optimizer
    return ps.ProgramBuilder(program, optimizer, place=place, **options)


def feed(seed, size=21):
    random = np.random.default_rng(seed)
    return {
        "label": random.integers(0, 4, (size, 1), dtype=np.int32),
        "words": random.integers(0, 16, (size, 8), dtype=np.int32),
        "source": [random.integers(0, 16, n, dtype=np.int32) for n in random.integers(1, 9, size)],
    }


def train(builder, num_steps=3):
    state, losses = builder.init(), []
    for seed in range(num_steps):
        state, loss = builder.train(state, feed(seed))
        losses.append(float(loss))
    return losses, jax.device_get(state.variables), float(builder.test(state, feed(9)))


VARIANTS = [
    {"place": "one", "precision": "float16"},
    {"gradient_accumulation_steps": 2},
    {"place": "mesh", "rematerialize": True, "state_sharding": "full"},
]


@pytest.mark.quick("mesh-True-full")
@pytest.mark.parametrize(
    "options", VARIANTS, ids=lambda options: "-".join(map(str, options.values()))
)
def test_scan_gives_the_numbers_of_blocks_apart(options):
    places = {"one": jax.devices()[:1], "mesh": ps.mesh(data=-1, model=2), None: None}
    place = places[options.get("place")]
    rest = {name: value for name, value in options.items() if name != "place"}
    scanned = train(make(place, scan_layers=True, **rest))
    plain = train(make(place, **{n: v for n, v in rest.items() if n != "rematerialize"}))
    if "precision" in options:
        # What float16 rounds differs: both are 8 % from float32 after three steps, and 1 % apart.
        assert_close(scanned[0], plain[0], 2e-3)
    else:
        assert_close(scanned, plain, 2e-5)


def test_one_block_is_traced_for_all():
    text = {scan: make(scan_layers=scan).inspect("test").lowered_text for scan in (0, 1)}
    assert text[1].count("dot_general") < 0.7 * text[0].count("dot_general")


@pytest.mark.slow
def test_temporaries_of_split_state_stay_small_in_a_scan():
    def program():
        x = layers.data("x", shape=[16, 64])
        x = layers.transformer_encoder(x, 6, 4, 256, scan_layers=True, rematerialize=True)
        return layers.mean(x)

    sizes = [
        ps.ProgramBuilder(program, optax.adam(1e-3), state_sharding=kind)
        .inspect(batch_size=8)
        .memory_bytes["temporary"]
        for kind in (None, "full")
    ]
    assert sizes[1] < 0.4 * sizes[0]


@pytest.mark.slow
def test_each_block_can_be_frozen():
    frozen = ["transformer_encoder_0/layer_1/*"]
    builder = make(scan_layers=True, freeze=frozen)
    before = builder.init()
    first = jax.device_get(before.variables)
    state, _ = builder.train(before, feed(0))
    moved = jax.tree.map(
        lambda a, b: bool((a != np.asarray(b)).any()), first, jax.device_get(state.variables)
    )
    encoder = moved["params"]["transformer_encoder_0"]
    assert not any(jax.tree.leaves(encoder["layer_1"]))
    assert encoder["layer_0"]["ffn"]["in_w"]


def test_decoding_with_caches_reads_the_same_parameters():
    def infer(scan_layers):
        words = layers.data("words", shape=[5, 8])
        caches = tuple(layers.init_cache(words.shape[0], 5, 2, 4) for _ in range(2))
        run = lambda x, **k: layers.transformer_decoder(  # noqa: E731
            x, 2, 2, 16, scan_layers=scan_layers, name="decoder", **k
        )
        whole, (stepped, _) = run(words), run(words, caches=caches)
        return whole, stepped

    builder = ps.ProgramBuilder(infer_func=lambda: infer(True))
    x = np.random.default_rng(0).normal(size=(3, 5, 8)).astype(np.float32)
    whole, stepped = builder.infer(builder.init(), {"words": x})
    assert_close(stepped, whole)


@pytest.mark.slow
def test_layers_inside_act_need_names():
    named = lambda x: layers.fc(x, size=32, num_flatten_dims=2, name="shared")  # noqa: E731
    assert make(act=named, scan_layers=True).inspect("test").lowered_text
    builder = make(act=lambda x: layers.fc(x, 32, num_flatten_dims=2), scan_layers=True)
    with pytest.raises(ps.ProgramError, match=r"scan_layers=True got a block with .*'fc'"):
        _ = builder.inspect("test").lowered_text


@pytest.mark.slow
def test_scan_inside_a_block_leaves_the_blocks_their_own_parameters():
    def program(scan_layers):
        inner = lambda x: layers.transformer_encoder(  # noqa: E731
            x, 2, 2, 16, scan_layers=scan_layers, name="inner"
        )
        x = layers.data("x", shape=[4, 8])
        x = layers.transformer_encoder(x, 2, 2, 16, 0.3, act=inner, scan_layers=scan_layers)
        return layers.mean(x[:, :, 0] ** 3)

    feed, losses = {"x": np.random.default_rng(0).normal(size=(5, 4, 8))}, []
    for scan in (False, True):
        builder = ps.ProgramBuilder(lambda scan=scan: program(scan), optax.sgd(0.1))
        losses.append(builder.train(builder.init(), feed)[1])
    assert_close(losses[1], losses[0])
