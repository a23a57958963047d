"""All-reduces of a step: one where devices can compute apart, and the numbers of the longer way."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import lax

import penstock as ps
from benchmarks import calls
from penstock import _mesh, layers, models
from penstock._tracing import probe
from tests.networks import assert_close, classifier_program, host, linear_program
from tests.program_builder.test_dependence import DATA, SAME, builder_of

RNG = np.random.default_rng(0)
COLLECTIVES = r" (all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)(?:-start)?\("


def count_collectives(text):
    return len(re.findall(COLLECTIVES, text))


def builder_on(function, num_devices, **options):
    place = jax.devices()[:num_devices]
    if function is gan:  # its objectives have optimizers of their own
        return ps.ProgramBuilder(gan(), place=place, **options)
    optimizer = options.pop("optimizer", None) or optax.sgd(0.1, momentum=0.9)
    return ps.ProgramBuilder(function, optimizer, place=place, **options)


def count_in(function, mode="train", **options):
    """Return the number of collectives in a program that is compiled for two devices."""
    inspection = builder_on(function, 2, **options).inspect(mode, batch_size=16)
    return count_collectives(inspection.compiled_text)


def classify(hidden):
    prediction = layers.fc(hidden, 3, act="softmax")
    label = layers.data("y", [1], "int32")
    loss = layers.mean(layers.cross_entropy(prediction, label))
    return loss, layers.accuracy(prediction, label), prediction


def perceptron():
    hidden = layers.fc(layers.data("x", [6, 6, 1]), 8, act="tanh")
    return classify(layers.dropout(hidden, 0.3))


def conv_net():
    image = layers.data("x", [6, 6, 1])
    hidden = layers.conv2d(image, num_filters=4, filter_size=3, bias_attr=False)
    hidden = layers.batch_norm(hidden, act="relu", momentum_warmup=True)
    return classify(layers.dropout(layers.pool2d(hidden, 2, pool_stride=2), 0.3))


def decayed():
    """Return a loss of means, a penalty in it, and parameters with attributes of their own."""
    attr = layers.ParamAttr
    hidden = layers.fc(layers.data("x", [6, 6, 1]), 8, param_attr=attr(learning_rate=0.5))
    slow = layers.fc(hidden, 8, param_attr=attr(regularizer=layers.L2Decay(0.2)))
    loss, accuracy, _ = classify(slow)
    fixed = layers.fc(hidden, 1, param_attr=attr(trainable=False))
    loss = 0.5 * loss + layers.mean(fixed**2) + 1e-3 * jnp.sum(jnp.ones(3) ** 2)
    return {"loss": loss, "accuracy": accuracy, "columns": layers.reduce_mean(hidden, dim=0)}


def vector_loss():
    prediction = layers.fc(layers.data("x", [6, 6, 1]), 1)
    return layers.square_error_cost(prediction, layers.data("y", [1], "int32") * 1.0)


@layers.scope("generator")
def generate():
    x = layers.data("x", [6, 6, 1])
    noise = layers.gaussian_random_batch_size_like(x, [-1, 3], name="noise")
    return layers.fc(layers.batch_norm(layers.fc(noise, 8, bias_attr=False), act="relu"), 36)


@layers.scope("discriminator")
def discriminate(x):
    return layers.fc(layers.fc(x, 8, act="relu"), 1)


def discriminator_program():
    real, fake = discriminate(layers.data("x", [6, 6, 1])), discriminate(generate())
    return layers.mean(jax.nn.softplus(-real) + jax.nn.softplus(fake))


def generator_program():
    return layers.mean(jax.nn.softplus(-discriminate(generate())))


def gan():
    return {
        "d": ps.Objective(discriminator_program, optax.sgd(0.05), updates="discriminator"),
        "g": ps.Objective(generator_program, optax.sgd(0.05), updates="generator"),
    }


def wide():
    """Return a classifier with arrays that are sent by themselves."""
    hidden = layers.fc(layers.data("x", [6, 6, 1]), 512, act="relu")
    return classify(layers.fc(hidden, 64, act="relu"))


APART = {
    "wide": wide,
    "perceptron": perceptron,
    "conv net": conv_net,
    "decayed": decayed,
    "vector loss": vector_loss,
    "objectives": gan,
}


NETWORKS = [function for function in APART.values() if function is not gan]
WITH_STATISTICS = [conv_net, gan]  # of each device's share, so that they differ by their number

# One all-reduce.


@pytest.mark.parametrize(
    "function",
    [calls.small, calls.digits, linear_program, classifier_program, *NETWORKS],
    ids=lambda function: function.__name__,
)
@pytest.mark.parametrize("mode", ["train", "test"])
def test_step_of_a_network_has_one_all_reduce(function, mode):
    assert count_in(function, mode) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_accumulation_steps": 2},
        {"precision": "bfloat16"},
        {"precision": "float16"},
        {"optimizer": optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.01))},
    ],
    ids=["micro-batches", "bfloat16", "float16", "norm of all gradients"],
)
def test_options_of_a_step_add_no_all_reduce(options):
    assert count_in(conv_net, **options) == 1


@pytest.mark.slow  # 10 s to compile 300 layers
def test_step_with_more_large_arrays_than_xla_joins_has_one_all_reduce(monkeypatch):
    def deep():
        hidden = layers.data("x", [6, 6, 1])
        for _ in range(300):
            hidden = layers.fc(hidden, 4)
        return layers.mean(hidden**2)

    monkeypatch.setattr(_mesh, "_LARGE", 4)
    assert count_in(deep) == 1


@pytest.mark.parametrize("objective", ["d", "g"])
def test_update_of_each_objective_has_one_all_reduce(objective):
    builder = builder_on(gan, 2)
    text = builder.inspect("train", batch_size=16, objective=objective).compiled_text
    assert count_collectives(text) == 1


def test_loop_over_steps_has_one_all_reduce_in_its_body():
    builder = builder_on(perceptron, 2)
    programs, leaves = builder.programs, jax.tree.leaves(builder.init())
    batch = programs.place("train", [batch_of(16)] * 3)
    number = programs.states.num_changed
    jitted = programs.train_program(("train",), 3).jitted
    lowered = jitted.lower(leaves[:number], leaves[number:], batch.feed, batch.weights)
    text = str(lowered.compile().as_text())
    assert " while(" in text
    assert count_collectives(text) == 1


def family(name, size):
    marks = [] if name in ("lenet", "cifarnet") else [pytest.mark.slow]  # 4 to 60 s to compile
    return pytest.param(name, size, id=name, marks=marks)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        family("lenet", 28),
        family("cifarnet", 32),
        family("alexnet_v2", 128),
        family("inception_v1", 32),
        family("inception_v3", 75),
        family("mobilenet_v1_025", 32),
        family("mobilenet_v2_035", 32),
        family("mobilenet_v3_small", 32),
        family("resnet_v1_50", 32),
        family("resnet_v2_50", 32),
        family("vgg_bn_drop", 32),
    ],
)
def test_train_step_of_each_family_has_one_all_reduce(name, size):
    network = models.classifier(models.get(name), 3, image_size=size)
    assert count_in(network.train_program) == 1


@pytest.mark.slow  # 5 s each to trace; to compile they take minutes
@pytest.mark.parametrize(
    ("name", "size"),
    [("inception_v4", 75), ("nasnet_cifar", 32), ("overfeat", 231), ("pnasnet_mobile", 32)],
)
def test_devices_compute_apart_in_a_family_that_compiles_for_minutes(name, size):
    network = models.classifier(models.get(name), 3, image_size=size)
    probes = builder_on(network.train_program, 2).programs.network
    assert all(each["train"].program.reduces_once for each in (probes.train, probes.test))


# More than one, where a loss needs what the others have before there are gradients.


def root_of_mean():
    return jnp.sqrt(vector_loss_mean())


def vector_loss_mean():
    return layers.mean(vector_loss())


def worst():
    error = vector_loss()
    return layers.mean(error) + layers.reduce_max(error)


def summed():
    return 1e-2 * layers.reduce_sum(vector_loss())


def before_norm():
    # Without a bias, whose gradient would be rounding alone.
    return layers.fc(layers.data("x", [6, 6, 1]), 8, bias_attr=False)


def synchronised():
    return classify(layers.batch_norm(before_norm()))


def of_flax():
    return classify(nn.BatchNorm(use_running_average=not layers.is_training())(before_norm()))


NNX_NORM = nnx.BatchNorm(8, rngs=nnx.Rngs(0))


def of_nnx():
    return classify(layers.nnx_module(NNX_NORM)(before_norm()))


def own_collective():
    error = vector_loss()
    total = lax.psum(jnp.sum(error * layers.example_weights()[:, None]), "data")
    return total / lax.psum(jnp.sum(layers.example_weights()), "data")


def printed():
    loss = vector_loss_mean()
    jax.debug.callback(lambda x: None, loss)
    return loss


NOT_APART = {
    "root of a mean": (root_of_mean, 3),
    "maximum": (worst, 6),
    # Its gradients wait for the number of examples of all devices, and for nothing else.
    "sum": (summed, 2),
    "sync batch norm": (synchronised, 6),
    "batch norm of flax": (of_flax, 8),
    "batch norm of nnx": (of_nnx, 8),
    "collective of one's own": (own_collective, 4),
    "callback": (printed, 4),
}


@pytest.mark.parametrize(("function", "number"), NOT_APART.values(), ids=NOT_APART)
def test_step_that_cannot_wait_has_the_documented_number_of_all_reduces(function, number):
    assert count_in(function) == number


# The same numbers.


def batch_of(size, shape=(6, 6, 1)):
    x = RNG.normal(size=(size, *shape)).astype(np.float32)
    return {"x": x, "y": RNG.integers(0, 3, size=(size, 1)).astype(np.int32)}


# On eight devices the last leaves two of them with padding alone, the one before most of them.
BATCHES = [batch_of(size) for size in (16, 16, 3, 11)]


def run(function, num_devices, batches=BATCHES, **options):
    """Return what each step, and a test after the last, returned, and the variables."""
    builder = builder_on(function, num_devices, **options)
    state, returned, tested = builder.init(seed=1), [], None
    for batch in batches:
        batch = {name: batch[name] for name in builder.feed_specs}
        for name in builder.objectives:
            state, values = builder.train(state, batch, name)
            returned.append(host(values))
            tested = host(builder.test(state, batch, name))
    return returned, tested, host(state.variables), builder.mean_metrics(state)


@pytest.fixture
def longer_way(monkeypatch):
    """Have several devices meet as often as those programs that cannot wait."""

    def choose():
        monkeypatch.setattr(probe, "_follow_apart", lambda *_: None)

    return choose


@pytest.mark.quick("8-conv net", "8-decayed", "3-perceptron")
@pytest.mark.parametrize("function", APART.values(), ids=APART)
@pytest.mark.parametrize("num_devices", [3, 8])
def test_devices_apart_give_the_numbers_of_the_longer_way(function, num_devices, longer_way):
    found = run(function, num_devices)
    longer_way()
    assert_close(found, run(function, num_devices), rtol=2e-6)


@pytest.mark.parametrize("function", [f for f in APART.values() if f not in WITH_STATISTICS])
def test_devices_apart_give_the_numbers_of_one(function):
    assert_close(run(function, 8), run(function, 1), rtol=5e-6)


@pytest.mark.parametrize(("function", "number"), NOT_APART.values(), ids=NOT_APART)
def test_devices_that_meet_give_the_numbers_of_one(function, number):
    # Not the batch of three: divided by their deviation, rounding grows.
    batches = BATCHES[:2] + BATCHES[3:]
    assert_close(run(function, 8, batches), run(function, 1, batches), rtol=2e-5)


# The values of `test_dependence.py` that need the other devices before the end.
MEET = {
    *("collective of one's own", "gathered", "root of layers.mean", "centred", "share by sums"),
    *("chosen by what is the same", "reduce_any", "reduce_all", "reduce_max", "reduce_min"),
    *("reduce_prod", "reduce_std", "reduce_var", "reduce_median"),
}


def is_apart(functions):
    network = builder_of(functions, 3).programs.network
    return [each["train"].program.reduces_once for each in (network.train, network.test)]


@pytest.mark.parametrize("name", SAME)
def test_value_is_known_to_need_the_other_devices_or_not(name):
    assert is_apart({name: SAME[name]}) == 2 * [name not in MEET]


@functools.cache
def results_of(num_devices, count):
    """Return what programs of the values that need no others return of a batch, and the state."""
    functions = {name: SAME[name] for name in SAME if name not in MEET}
    if count < 24:  # of these each leaves padding out
        kept = ("layers.", "reduce_", "rows", "vmap", "map", "parameter", "labels set")
        functions = {name: f for name, f in functions.items() if name.startswith(kept)}
    assert all(is_apart(functions))
    builder = builder_of(functions, num_devices)
    builder.programs.fit_batches({"train": 24, "test": 24})
    batch = {name: value[:count] for name, value in DATA.items()}
    state = builder.init()
    tested = builder.test(state, batch)
    state, trained = builder.train(state, batch)
    return tested, trained, state.variables, builder.mean_metrics(state)


@pytest.mark.quick("3-24", "8-11")
@pytest.mark.parametrize("count", [24, 11])
@pytest.mark.parametrize("num_devices", [3, 8])
def test_values_that_need_no_other_devices_are_those_of_one(num_devices, count):
    assert_close(results_of(num_devices, count), results_of(1, count))


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_other_precisions_give_the_numbers_of_the_longer_way(precision, longer_way):
    # Shares of powers of two: the other way's gradients are these times one, and round alike.
    found = run(conv_net, 2, BATCHES[:2], precision=precision)
    longer_way()
    assert_close(found, run(conv_net, 2, BATCHES[:2], precision=precision), rtol=2e-6)
