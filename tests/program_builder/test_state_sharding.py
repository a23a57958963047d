"""State split over devices, and parameters over a second axis: the losses are those of one."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers, models
from tests.networks import Recorder, assert_same_bits, eight_devices

NUM_STEPS, BATCH = 12, 21


def mlp():
    label = layers.data("label", shape=[1], dtype="int32")
    x = layers.fc(layers.data("x", shape=[64]), size=128, bias_attr=False)
    x = layers.dropout(layers.batch_norm(x, act="relu"), 0.25)
    return layers.mean(layers.cross_entropy(layers.fc(x, size=16, act="softmax"), label))


def flax_mlp():
    from flax import linen as nn

    label = layers.data("label", shape=[1], dtype="int32")
    x = nn.relu(nn.Dense(128)(layers.data("x", shape=[64])))
    return layers.mean(layers.softmax_with_cross_entropy(nn.Dense(16)(x), label))


def lstm():
    label = layers.data("label", shape=[1], dtype="int32")
    words = layers.data("words", shape=[1], dtype="int32", lod_level=1, buckets=[8])
    x = layers.fc(layers.embedding(words, size=[128, 64]), size=256)
    x = layers.sequence_pool(layers.dynamic_lstm(x, size=256)[0], "max")
    return layers.mean(layers.cross_entropy(layers.fc(x, size=16, act="softmax"), label))


def transformer():
    label = layers.data("label", shape=[1], dtype="int32")
    x = layers.embedding(layers.data("ids", shape=[8], dtype="int32"), size=[128, 64])
    # Not relu: a hidden value next to 0 makes a gradient of a last digit, 1e-5 in 12 steps of Adam.
    x = layers.transformer_encoder(
        x, num_layers=2, num_heads=4, ffn_size=128, dropout_rate=0.1, act="gelu"
    )
    logits = layers.fc(x[:, 0], size=16)
    return layers.mean(layers.softmax_with_cross_entropy(logits, label))


def resnet():
    label = layers.data("label", shape=[1], dtype="int32")
    images = layers.data("image", shape=[16, 16, 3])
    logits, _ = models.get("resnet_cifar10_8")(images, 16)
    return layers.mean(layers.softmax_with_cross_entropy(logits, label))


@layers.scope("generator")
def generator():
    return layers.fc(layers.fc(layers.data("noise", shape=[32]), size=128, act="relu"), size=64)


@layers.scope("judge")
def judge(x):
    return layers.fc(layers.fc(x, size=128, act="relu"), size=1)


def fool():
    return layers.mean(jax.nn.softplus(-judge(generator())))


def tell():
    true, false = judge(layers.data("x", shape=[64])), judge(generator())
    return layers.mean(jax.nn.softplus(-true) + jax.nn.softplus(false))


def batches():
    random = np.random.default_rng(0)
    for _ in range(NUM_STEPS):
        label = random.integers(0, 16, size=(BATCH, 1)).astype(np.int32)
        lengths = random.integers(1, 9, size=BATCH)
        yield {
            "label": label,
            "x": random.normal(size=(BATCH, 64)).astype(np.float32) + label / 8,
            "noise": random.normal(size=(BATCH, 32)).astype(np.float32),
            "ids": random.integers(0, 128, size=(BATCH, 8)).astype(np.int32),
            "words": [random.integers(0, 128, size=n).astype(np.int32) for n in lengths],
            "image": random.normal(size=(BATCH, 16, 16, 3)).astype(np.float32),
        }


OPTIMIZERS = {
    "sgd": lambda: optax.sgd(0.05),
    "momentum": lambda: optax.sgd(0.02, momentum=0.9),
    "adamw": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
    "lamb": lambda: optax.lamb(1e-3),
    "lars": lambda: optax.lars(0.1),
    "adafactor": lambda: optax.adafactor(1e-3),
    "muon": lambda: optax.contrib.muon(1e-3),
    "multi_transform": lambda: optax.multi_transform(
        {"matrix": optax.adam(1e-3), "other": optax.sgd(0.05)},
        lambda params: jax.tree.map(lambda x: "matrix" if x.ndim > 1 else "other", params),
    ),
}
LAYOUTS = {
    "optimizer": lambda: {"state_sharding": "optimizer"},
    "full": lambda: {"state_sharding": "full"},
    "model 2": lambda: {"place": ps.mesh(data=-1, model=2)},
    "model 4": lambda: {"place": ps.mesh(data=2, model=4)},
    "model 4, full": lambda: {"place": ps.mesh(data=2, model=4), "state_sharding": "full"},
}
NETWORKS = {
    "mlp": mlp,
    "flax": flax_mlp,
    "lstm": lstm,
    "transformer": transformer,
    "resnet": resnet,
}


def make_trainer(network, optimizer="adamw", **options):
    make = OPTIMIZERS[optimizer]
    if network == "gan":
        objectives = {
            "generator": ps.Objective(fool, make(), updates=["generator"]),
            "judge": ps.Objective(tell, make(), updates=["judge"]),
        }
        return ps.Trainer(objectives, infer_func=generator, **options)
    return ps.Trainer(NETWORKS[network], make(), **options)


def train(network, optimizer="adamw", **options):
    """Return a trainer, and the losses of its steps."""
    trainer, recorder = make_trainer(network, optimizer, **options), Recorder()
    trainer.train(batches, recorder)
    return trainer, [jax.tree.leaves(event.metrics) for event in recorder.of(ps.EndStep)]


def count_bytes(trainer):
    """Return the bytes of the state on one device."""
    leaves = jax.tree.leaves(trainer._engine.state)
    return sum(leaf.addressable_data(0).nbytes for leaf in leaves)


def assert_steps_are_alike(
    program, optimizer, options, *, num_examples=BATCH, num_steps=1, atol=1e-5, **common
):
    """Train on one device and by other options; each parameter must come out alike."""
    stepped = []
    for layout in ({"place": jax.devices()[0]}, options):
        builder = ps.ProgramBuilder(program, optimizer, **layout, **common)
        state = builder.init()
        for batch in itertools.islice(batches(), num_steps):
            state, _ = builder.train(state, {"x": batch["x"][:num_examples]})
        stepped.append(jax.device_get(state.variables["params"]))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=atol), *stepped)


def variants():
    """Yield every network with every optimizer, and each of the two in every layout."""
    for i, network in enumerate((*NETWORKS, "gan")):
        for j, optimizer in enumerate(OPTIMIZERS):
            yield network, optimizer, list(LAYOUTS)[(i + j - 1) % len(LAYOUTS)]


@pytest.mark.quick("mlp-adamw-full")
@pytest.mark.parametrize(("network", "optimizer", "layout"), list(variants()))
def test_losses_are_those_of_a_state_that_every_device_holds(network, optimizer, layout):
    trainer, expected = train(network, optimizer)
    num_bytes = count_bytes(trainer)
    trainer, losses = train(network, optimizer, **LAYOUTS[layout]())
    # Its seven batch norms make 1e-4 of a last digit in 12 steps: so far is one device from eight.
    rtol = 2e-4 if network == "resnet" else 5e-6
    np.testing.assert_allclose(losses, expected, rtol=rtol, atol=5e-6)
    # Without momentum there is no state of the optimizer, and flax's layers choose no axes.
    has_parts = layout != "optimizer" or optimizer != "sgd"
    if has_parts and (network != "flax" or "full" in layout):
        assert count_bytes(trainer) < num_bytes


def test_full_leaves_each_of_eight_devices_an_eighth_of_what_is_large():
    trainer = make_trainer("mlp", state_sharding="full")
    state = trainer._engine.state
    weights = state.variables["params"]["fc_0"]["w"]
    assert weights.sharding.shard_shape(weights.shape) == (64, 16)
    moments = [x for x in jax.tree.leaves(state.opt_state) if x.shape == weights.shape]
    assert len(moments) == 2
    assert all(x.sharding == weights.sharding for x in moments)
    # 2,048 numbers, of which a device would save less than a message costs.
    assert state.variables["params"]["fc_1"]["w"].is_fully_replicated


def test_optimizer_leaves_parameters_whole():
    state = make_trainer("mlp", state_sharding="optimizer")._engine.state
    weights = state.variables["params"]["fc_0"]["w"]
    assert weights.is_fully_replicated
    moments = [x for x in jax.tree.leaves(state.opt_state) if x.shape == weights.shape]
    assert not any(x.is_fully_replicated for x in moments)


def test_blocks_of_a_transformer_are_split_in_pairs():
    trainer = make_trainer("transformer", place=ps.mesh(data=2, model=4))
    specs = trainer.builder.programs.network.used_specs
    block = ("transformer_encoder_0", "layer_0")
    assert specs[*block, "ffn", "in_w"] == specs[*block, "self_attention", "query_w"]
    assert tuple(specs[*block, "ffn", "in_w"]) == (None, "model")
    assert tuple(specs[*block, "ffn", "in_b"]) == ("model",)
    assert tuple(specs[*block, "ffn", "out_w"]) == ("model", None)
    assert tuple(specs[*block, "self_attention", "out_w"]) == ("model", None)
    assert tuple(specs["embedding_0", "w"]) == ("model", None)


def test_rules_of_the_user_come_before_those_of_layers():
    rules = [("fc_0/w", ("model", None)), ("fc_*/w", ())]
    trainer = make_trainer("mlp", place=ps.mesh(data=2, model=4), parameter_sharding=rules)
    specs = trainer.builder.programs.network.used_specs
    assert tuple(specs["fc_0", "w"]) == ("model", None)
    assert tuple(specs["fc_1", "w"]) == ()
    assert tuple(specs["fc_1", "b"]) == ("model",)


def running(of_flax, dtype):
    from flax import linen as nn

    x = layers.data("x", shape=[64])
    hidden = nn.Dense(64)(x) if of_flax else layers.fc(x, size=64)
    running_over = (10 * hidden).astype(dtype)
    kinds = jnp.cumsum(running_over, axis=1), jax.lax.cummax(running_over, axis=1)
    loss = layers.mean(layers.fc(hidden, size=1) ** 2)
    return loss, *(layers.mean(jax.lax.stop_gradient(kind) * 1.0) for kind in kinds)


@pytest.mark.quick("True-float32", "int32")
@pytest.mark.parametrize(
    ("of_flax", "dtype"), [(False, jnp.float32), (True, jnp.float32), (False, jnp.int32)]
)
def test_operations_along_split_features_have_the_numbers_of_one_device(of_flax, dtype):
    rules = [("Dense_0/kernel", (None, "model"))] if of_flax else []
    split = {"place": ps.mesh(data=-1, model=2), "parameter_sharding": rules}
    x = np.random.default_rng(0).normal(size=(24, 64)).astype(np.float32)
    shown = []
    for layout in ({"place": jax.devices()[0]}, split):
        program = functools.partial(running, of_flax, dtype)
        trainer, recorder = ps.Trainer(program, optax.sgd(0.1), **layout), Recorder()
        trainer.train([{"x": x}] * 3, recorder)
        shown.append([*recorder.of(ps.EndStep)[-1].metrics, *trainer.test([{"x": x}])])
    np.testing.assert_allclose(shown[1], shown[0], rtol=1e-5)


def take_windows(hidden):
    return jax.lax.reduce_window(hidden, -jnp.inf, jax.lax.max, (1, 5), (1, 1), "SAME")


def take_windows_of_words(hidden):
    words = hidden.reshape(-1, 8, 16)
    return jax.lax.reduce_window(words, -jnp.inf, jax.lax.max, (1, 3, 1), (1, 1, 1), "SAME")


def spread_without_the_first(hidden):
    return jax.lax.pad(hidden, 0.0, ((0, 0, 0), (-3, 2, 1)))


def mean_behind(transform):
    """Return a loss of a second layer behind what is done to the features of a first."""

    def program():
        hidden = transform(layers.fc(layers.data("x", shape=[64]), size=128))
        hidden = layers.flatten(jnp.tanh(hidden))
        return layers.mean(layers.fc(hidden, size=16) ** 2)

    return program


def draw():
    """Return the loss of a convolution over an image made of features."""
    image = layers.fc(layers.data("x", shape=[64]), size=1024, name="f").reshape(-1, 8, 8, 16)
    return layers.mean(jnp.tanh(layers.conv2d(image, 8, 3, padding=1, name="c")) ** 2)


def convolve(network):
    def program():
        image = layers.data("x", shape=[64]).reshape(-1, 4, 4, 4).repeat(2, 1).repeat(2, 2)
        return layers.mean(jnp.tanh(network(image)) ** 2)

    return program


def generate(image):
    del image
    made = layers.fc(layers.data("x", shape=[64]), size=128).reshape(-1, 8, 8, 2)
    return layers.conv2d(made, 4, 3, stride=2, padding=1)


def flatten(image):
    convolved = layers.conv2d(jnp.tanh(layers.conv2d(image, 8, 3, padding=1)), 2, 3)
    return layers.fc(layers.flatten(convolved), 8, name="head")


def convolve_in_groups(image):
    kernel = layers.create_parameter([3, 3, 1, 4], "float32", name="kernel")
    numbers = jax.lax.conv_dimension_numbers(image.shape, kernel.shape, ("NHWC", "HWIO", "NHWC"))
    options = {"dimension_numbers": numbers, "feature_group_count": 4}
    return jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME", **options)


TWO_BY_FOUR, ONE_BY_EIGHT = {"data": 2, "model": 4}, {"data": 1, "model": 8}
SPLIT_ROWS = ("model", None)
SECOND_ROWS = [("fc_0/*", ()), ("fc_1/w", SPLIT_ROWS)]
# The program, the axes of the mesh, which rules split parameters, batch size and micro-batches.
BESIDE_A_SECOND_AXIS = {
    "maximum over windows": (mean_behind(take_windows), TWO_BY_FOUR, [], 20, 1),
    "fft": (mean_behind(lambda hidden: jnp.fft.fft(hidden).real), TWO_BY_FOUR, [], 20, 1),
    "windows of words": (mean_behind(take_windows_of_words), TWO_BY_FOUR, [], 20, 1),
    "maximum before split rows": (
        *(mean_behind(take_windows_of_words), TWO_BY_FOUR, SECOND_ROWS, 20, 1),
    ),
    "pad": (mean_behind(spread_without_the_first), TWO_BY_FOUR, [], 20, 1),
    # Some devices hold the same part of the image.
    "image of features": (draw, TWO_BY_FOUR, [], 21, 1),
    # Of 20 rows in three parts the last has as many as the devices divide.
    "image of features in parts": (draw, TWO_BY_FOUR, [], 20, 3),
    "image of features, three axes": (draw, {"data": 2, "model": 2, "x": 2}, [], 24, 1),
    "features that make an image": (convolve(generate), ONE_BY_EIGHT, [], 20, 1),
    "features made of an image": (
        *(convolve(flatten), ONE_BY_EIGHT, [("head/w", SPLIT_ROWS)], 20, 1),
    ),
    "groups": (convolve(convolve_in_groups), TWO_BY_FOUR, [], 20, 1),
}


@pytest.mark.quick("fft", "windows of words", "in parts", "that make an image", "groups")
@pytest.mark.parametrize("what", BESIDE_A_SECOND_AXIS)
def test_operation_beside_a_second_axis_has_the_gradients_of_one_device(what):
    program, axes, rules, num_examples, num_parts = BESIDE_A_SECOND_AXIS[what]
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(*axes.values()), tuple(axes))
    assert_steps_are_alike(
        program,
        optax.sgd(1.0),
        {"place": mesh, "parameter_sharding": rules},
        num_examples=num_examples,
        gradient_accumulation_steps=num_parts,
    )


def test_batch_that_another_objective_has_whole_steps_as_on_one_device():
    """The first one's cumulative operations have the batch whole, beside a generator's kernel."""

    def ranked():
        h = layers.fc(layers.data("x", shape=[64]), size=8, name="ranked")
        return layers.mean(jnp.cumsum(h, axis=0) * jnp.tanh(jax.lax.cummax(h)))

    scopes = {"a": layers.scope("a")(ranked), "b": layers.scope("b")(draw)}
    stepped, feed = [], {"x": next(batches())["x"][:24]}
    for place in (jax.devices()[0], ps.mesh(data=2, model=4)):
        objectives = {n: ps.Objective(f, optax.sgd(1.0), updates=n) for n, f in scopes.items()}
        trainer = ps.Trainer(objectives, place=place)
        trainer.train([feed])
        stepped.append(np.asarray(trainer.parameters["b/c/w"]))
    np.testing.assert_allclose(*stepped, rtol=1e-4, atol=1e-5)


def test_positions_and_transformers_leave_parameters_split(caplog):
    def positions():
        ids = layers.data("ids", shape=[8], dtype="int32")
        places = jnp.cumsum((ids > 0).astype(jnp.int32), axis=1)
        x = layers.embedding(ids, size=[128, 64]) + layers.embedding(places, size=[16, 64])
        return layers.mean(layers.transformer_encoder(x, num_layers=1, num_heads=4, ffn_size=128))

    ps.ProgramBuilder(positions, optax.sgd(0.1), place=ps.mesh(data=2, model=4))
    assert not caplog.text


WRONG_RULES = {
    "parameter_sharding got 'fc_9/w', expected": ("fc_9/w", ("model",)),
    r"got \(None, 'modle'\) for 'fc_0/w' of shape \[64, 128\], expected for each dimension": (
        *("fc_0/w", (None, "modle")),
    ),
    "state_sharding splits over 'data'": ("fc_0/w", (None, "data")),
    "of shape .16., expected for each dimension": ("fc_1/b", (None, "model")),
    "dimension 0 to be a multiple of the 3 devices along 'model'": ("fc_0/w", ("model",)),
}


@pytest.mark.parametrize("text", WRONG_RULES)
def test_wrong_rule_is_refused(text):
    place = ps.mesh(data=2, model=4)
    if "3 devices" in text:
        place = jax.sharding.Mesh(np.asarray(jax.devices()[:3]).reshape(1, 3), ("data", "model"))
    error = ps.UnknownNameError if "fc_9" in text else ps.ProgramError
    with pytest.raises(error, match=text):
        make_trainer("mlp", place=place, parameter_sharding=[WRONG_RULES[text]])


def test_wrong_way_to_split_a_state_is_refused():
    with pytest.raises(ps.ProgramError, match="state_sharding='ful', expected one of"):
        make_trainer("mlp", place=ps.mesh(data=2, model=4), state_sharding="ful")


@pytest.mark.parametrize("axes", [{"model": 3}, {"data": 3, "model": 2}, {"data": -1, "model": -1}])
def test_mesh_that_does_not_take_all_devices_is_refused(axes):
    with pytest.raises(ValueError, match="expected sizes whose product is the number of devices"):
        ps.mesh(**axes)


OPTIONS = {
    "accumulation": {"gradient_accumulation_steps": 4},
    "float16": {"precision": "float16"},
    "skip": {"on_non_finite": "skip"},
    "freeze": {"freeze": "fc_0"},
    "steps_per_call": {"steps_per_call": 3},
}


@pytest.mark.quick("freeze")
@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_a_trainer_hold_with_a_split_state(name):
    network = "mlp" if name != "float16" else "flax"
    _, expected = train(network, **OPTIONS[name])
    _, losses = train(network, **OPTIONS[name], state_sharding="full")
    # In float16 the gradients of devices are added up in another order.
    np.testing.assert_allclose(losses, expected, rtol=5e-6 if name != "float16" else 2e-3)


def weigh_by_rank_and_sum(gradients, params):
    def weigh(gradient, param):
        sums = jax.lax.cummax(gradient, axis=0) + jnp.cumsum(gradient, axis=0)
        step = gradient * jnp.tanh(sums + jax.lax.cumlogsumexp(gradient, axis=0))
        return -0.1 * (step if step.ndim == param.ndim else step.sum(axis=0))

    return jax.tree.map(weigh, gradients, params)


def weigh_examples(gradients, params):
    if gradients["w"].ndim == params["w"].ndim:
        raise ValueError("expected a gradient for each example")
    return weigh_by_rank_and_sum(gradients, params)


@pytest.mark.quick("sum-full", "weigh_examples")
@pytest.mark.parametrize(
    ("update", "state_sharding"),
    [
        (weigh_by_rank_and_sum, "optimizer"),
        (weigh_by_rank_and_sum, "full"),
        (weigh_examples, None),
    ],
)
def test_optimizer_that_xla_splits_wrongly_steps_as_on_one_device(update, state_sharding, caplog):
    def program():
        w = layers.create_parameter((64, 64), name="w")
        return layers.mean((layers.data("x", shape=[64]) @ w - 1) ** 2)

    options = {"place": eight_devices(), "state_sharding": state_sharding}
    assert_steps_are_alike(program, optax.stateless(update), options, atol=1e-6)
    assert caplog.text.count("is computed whole on every device") == 1


def rank(gradient):
    sums = jax.lax.cummax(gradient, axis=0) + jnp.cumsum(gradient, axis=0)
    return jnp.tanh(sums + jax.lax.cumlogsumexp(gradient, axis=0))


def of_second_layer():
    rule = optax.stateless(lambda gradients, _: jax.tree.map(lambda g: -g * rank(g), gradients))
    label = lambda params: {name: {"w": name} for name in params}  # noqa: E731
    return optax.partition({"fc_0": optax.sgd(0.1), "fc_1": rule}, label)


def of_gradients_before():
    def update(gradients, state, params=None):
        return jax.tree.map(
            lambda g, before: -0.1 * g * (1 + rank(before)), gradients, state
        ), gradients

    return optax.GradientTransformation(lambda params: jax.tree.map(jnp.zeros_like, params), update)


def of_first_parameters():
    def update(gradients, state, params=None):
        return jax.tree.map(lambda g, first: -0.1 * g * (1 + first), gradients, state), state

    return optax.GradientTransformation(lambda params: jax.tree.map(rank, params), update)


def as_one_vector():
    return optax.flatten(of_gradients_before())


def two_layers(size):
    x = layers.data("x", shape=[64])
    x = jnp.tanh(layers.fc(x, size=size, bias_attr=False))
    return layers.mean((layers.fc(x, size=64, bias_attr=False) - 1) ** 2)


# A layer of 40 has fewer numbers than are split, and the vector of both layers more.
@pytest.mark.quick("of_gradients_before")
@pytest.mark.parametrize(
    ("make", "size"), [(of_second_layer, 64), (of_gradients_before, 64), (as_one_vector, 40)]
)
def test_what_an_optimizer_does_to_some_parameters_or_its_state_is_as_on_one_device(make, size):
    options = {"place": eight_devices(), "state_sharding": "full"}
    assert_steps_are_alike(functools.partial(two_layers, size), make(), options, num_steps=3)


@pytest.mark.quick("True")
@pytest.mark.parametrize("is_frozen", [True, False])
def test_state_that_begins_again_in_training_is_that_of_one_device(is_frozen):
    states = []
    for place, sharding in ((eight_devices()[:1], None), (eight_devices(), "full")):
        options = {"place": place, "state_sharding": sharding}
        freeze = ["fc_0"] if is_frozen else []
        trainer = ps.Trainer(
            functools.partial(two_layers, 64), of_first_parameters(), freeze=freeze, **options
        )
        if is_frozen:
            trainer.unfreeze()
        else:
            trainer.parameters["fc_0/w"] = np.random.default_rng(0).normal(size=(64, 64))
        states.append(jax.device_get(trainer._engine.state.opt_state))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), *states)


def draw_ranked(key, shape, dtype):
    w = jax.random.normal(key, shape, dtype)
    return jnp.tanh(jnp.cumsum(w, axis=0) * jax.lax.cummax(w, axis=0))


# Of so many shapes they are drawn by programs of their own.
@pytest.mark.parametrize("num_shapes", [1, 8])
def test_initializer_that_xla_splits_wrongly_draws_as_on_one_device(num_shapes, caplog):
    def program():
        shapes = [(64, 64 + 8 * number) for number in range(num_shapes)]
        attr = layers.ParamAttr(initializer=draw_ranked)
        ws = [layers.create_parameter(shape, attr=attr) for shape in shapes]
        return layers.mean(layers.data("x", shape=[64]) @ jnp.concatenate(ws, axis=1))

    drawn = []
    for place, sharding in ((eight_devices()[:1], None), (eight_devices(), "full")):
        builder = ps.ProgramBuilder(program, optax.adam(0.1), place=place, state_sharding=sharding)
        state = builder.init()
        assert caplog.text.count("are made whole on every device") == (len(place) > 1)
        drawn.append(jax.device_get(state.variables["params"]))
    assert not jax.tree.leaves(state.variables["params"])[0].is_fully_replicated
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), *drawn)


def find_highest(w):
    return jax.lax.reduce_window(w, -jnp.inf, jax.lax.max, (3, 1), (1, 1), "SAME")


def regularized():
    regularizer = jax.grad(lambda w: jnp.sum(find_highest(w) ** 2))
    w = layers.create_parameter((64, 64), attr=layers.ParamAttr(name="w", regularizer=regularizer))
    return layers.mean((layers.data("x", shape=[64]) @ w - 1) ** 2)


def of_a_module():
    from flax import linen as nn

    class Highest(nn.Module):
        @nn.compact
        def __call__(self, x):
            return x @ find_highest(self.param("w", nn.initializers.normal(1.0), (64, 64)))

    return layers.mean((Highest(name="net")(layers.data("x", shape=[64])) - 1) ** 2)


@pytest.mark.parametrize(
    ("program", "state_sharding"), [(regularized, "full"), (of_a_module, "optimizer")]
)
def test_windows_over_a_parameter_have_the_gradient_of_one_device(program, state_sharding):
    options = {"place": eight_devices(), "state_sharding": state_sharding}
    assert_steps_are_alike(program, optax.sgd(1.0), options)


def test_parameters_are_read_written_saved_and_loaded_whole(tmp_path):
    trainer, _ = train("gan", state_sharding="full")
    weights = trainer.parameters["generator/fc_0/w"]
    assert weights.shape == (32, 128)
    trainer.save_params(tmp_path / "params")
    plain = make_trainer("gan", param_path=tmp_path / "params", place=eight_devices()[:1])
    np.testing.assert_array_equal(plain.parameters["generator/fc_0/w"], weights)
    trainer.parameters["generator/fc_0/w"] = 0 * weights
    assert not trainer.parameters["generator/fc_0/w"].any()
    params = trainer._engine.state.variables["params"]
    assert not params["generator"]["fc_0"]["w"].is_fully_replicated
    trainer.load_params(tmp_path / "params")
    noise = {"noise": np.ones((5, 32), np.float32)}
    np.testing.assert_allclose(trainer.infer(noise), plain.infer(noise), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_average_and_freeze_keep_the_layout():
    averaging = ps.optimizers.with_moving_average(optax.adam(1e-3), decay=0.9)
    trainer = ps.Trainer(mlp, averaging, state_sharding="full")
    trainer.train(batches)
    average = trainer.builder.averaged(trainer._engine.state)
    assert not average.variables["params"]["fc_0"]["w"].is_fully_replicated
    trainer.freeze("fc_1")
    trainer.train(batches)
    trainer.unfreeze("fc_1")
    trainer.train(batches)
    state = trainer._engine.state
    assert not state.variables["params"]["fc_0"]["w"].is_fully_replicated


def test_snapshot_of_a_split_state_is_of_what_is_trained_now():
    trainer = ps.Trainer(mlp, optax.adam(1e-3), state_sharding="full", freeze="fc_1")
    for change in (lambda: None, trainer.unfreeze, lambda: trainer.freeze("fc_0")):
        change()
        copied = trainer._engine.snapshot()
        assert_same_bits(trainer._engine.snapshot(copied), trainer._engine.leaves)


@pytest.mark.quick("8")
@pytest.mark.parametrize(
    ("num_devices", "before"), [(8, {}), (3, {"state_sharding": "full"}), (1, {})]
)
def test_checkpoint_of_a_layout_goes_on_in_another(tmp_path, num_devices, before):
    data = list(batches())
    first = make_trainer("mlp", checkpoint=tmp_path, **before)
    first.train(lambda: iter(data))
    state = jax.device_get(first._engine.leaves)
    after = {} if before else {"state_sharding": "full"}
    for options in ({"state_sharding": "full"}, after):
        place = jax.devices()[:num_devices]
        resumed = make_trainer("mlp", checkpoint=tmp_path, place=place, **options)
        assert resumed.global_step == NUM_STEPS
        assert_same_bits(jax.device_get(resumed._engine.leaves), state)
