"""What every network of the library keeps to, whatever it computes."""

import contextlib
import dataclasses
import functools

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers, models
from penstock.layers import _convolution
from tests import compiling
from tests.models.reference import FASTNN, PUBLISHED, Published
from tests.models.shapes import LARGE, count, shapes_of, slow_if_large

# One of each family, at the smallest size at which it works and its cells mean something.
SMALL = {
    "alexnet_v2": 67,
    "cifarnet": 32,
    "inception_resnet_v2": 75,
    "inception_v1": 32,
    "inception_v2": 32,
    "inception_v3": 75,
    "inception_v4": 75,
    "lenet": 28,
    "mobilenet_v1_025": 32,
    "mobilenet_v2_035": 32,
    "mobilenet_v3_small": 32,
    "nasnet_cifar": 32,
    "pnasnet_mobile": 32,
    "resnet_v1_50": 32,
    "resnet_v2_50": 32,
    "vgg_16_bn": 64,
}
# What the others take: no smaller, where a network normalises by what is left of four images.
SIZES = {
    "overfeat": 71,
    "vgg": 32,
    "oneflow_alexnet": 67,
    "inception": 75,
    **dict.fromkeys(("mobilenet", "resnet", "keras_resnet", "resnext"), 64),
    **dict.fromkeys(("nasnet", "keras_nasnet", "pnasnet"), 64),
}
# Other widths and depths of functions that are tried whole, in two widths or the deepest of them:
# their parameters, names and shapes are looked at, and their training is traced.
VARIANTS = {
    *("mobilenet_v1_050", "mobilenet_v1_075", "mobilenet_v2_140"),
    *("mobilenet_v3_small_minimalistic", "vgg_a", "vgg_19"),
    *("resnet_v1_101", "resnet_v1_152", "resnet_v2_101", "resnet_v2_152", "keras_resnet_v2_101"),
}
NAMES = models.names()


def size_of(name):
    """Return a small image size for a network."""
    sizes = [size for prefix, size in SIZES.items() if name.startswith(prefix)]
    return SMALL.get(name) or min([*sizes, models.get(name).default_image_size])


def program(name, num_classes, image_size=None, settings=None):
    """Return a program function that gives logits and end points."""
    model = models.get(name, settings)
    size = image_size or model.default_image_size

    def function():
        return model(layers.data("image", [size, size, model.num_channels]), num_classes)

    return function


def images_for(name, num_images=2, seed=0, size=None):
    model, size = models.get(name), size or size_of(name)
    shape = [num_images, size, size, model.num_channels]
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def test_every_network_of_fastnn_is_there_and_in_the_table():
    assert len(FASTNN) == 32
    assert set(PUBLISHED) <= set(NAMES)


# Those that other quick tests trace too.
@pytest.mark.quick(
    *("lenet", "cifarnet", "alexnet_v2", "vgg_16", "inception_v1", "resnet_v1_50"),
    *("mobilenet_v1]", "mobilenet_v2]", "mobilenet_v3_large]", "resnet50", "vgg_16_bn"),
)
@pytest.mark.parametrize("name", slow_if_large(PUBLISHED))
def test_network_has_the_published_parameters_and_tensors(name):
    published: Published = PUBLISHED[name]
    model, shapes = models.get(name), shapes_of(name)
    assert model.default_image_size == published.image_size
    assert model.num_channels == published.num_channels
    counts = (count(shapes.trained), len(shapes.trained))
    assert counts == (published.num_params, published.num_tensors)
    assert count(shapes.parameters) == published.with_statistics


@pytest.mark.quick("lenet", "alexnet_v2", "inception_v1", "resnet_v1_50", "mobilenet_v1]")
@pytest.mark.parametrize("name", slow_if_large(NAMES))
def test_network_has_a_source_and_settings_within_reason(name):
    model = models.get(name)
    assert model.source
    assert model.num_classes in (10, 100, 1000, 1001)
    assert model.settings.weight_decay is not None
    decayed = [path for path in shapes_of(name).trained if model.decays(path)]
    assert decayed or not model.settings.weight_decay
    assert not any(name.endswith(("/scale", "norm/bias")) for name in decayed)


@pytest.mark.quick("alexnet_v2", "cifarnet", "lenet", "overfeat")
@pytest.mark.parametrize("name", NAMES)
def test_class_count_changes_the_last_layers_alone(name):
    # Its own number has been traced before.
    numbers = (7, PUBLISHED[name].num_classes if name in PUBLISHED else 1000)
    base, shapes = (shapes_of(name, None, number).parameters for number in numbers)
    changed = [path for path in base if shapes.get(path) != base[path]]
    assert set(shapes) == set(base)
    assert 1 <= len(changed) <= 4  # the last layer's kernel and bias; the auxiliary head's too
    assert all((base[path][-1], shapes[path][-1]) == numbers for path in changed)
    assert set(shapes_of(name, None, None).parameters) < set(base)


def builder_of(name, *, has_loss=True):
    """Return a builder of a network's loss and logits, and of its logits and end points."""
    forward = program(name, 10, size_of(name))

    def infer_program():
        logits, end_points = forward()
        return {"logits": logits} | {f"at {key}": point for key, point in end_points.items()}

    def train_program():
        logits, _ = forward()
        label = layers.data("label", [1], "int32")
        return layers.mean(layers.softmax_with_cross_entropy(logits, label)), logits

    trained = (train_program, optax.sgd(0.0)) if has_loss else ()
    return ps.ProgramBuilder(*trained, infer_func=infer_program, place=jax.devices()[:1])


def check_logits(name, builder, state):
    """Return the logits of two images, after a look at them and at the end points."""
    images = images_for(name)
    end_points = builder.infer(state, {"image": images})
    logits = end_points.pop("logits")
    assert logits.shape == (2, 10)
    assert np.isfinite(logits).all()
    assert np.ptp(logits) > 0
    assert end_points
    assert all(point.shape[0] == 2 and np.isfinite(point).all() for point in end_points.values())
    if "at Predictions" in end_points:
        np.testing.assert_allclose(end_points["at Predictions"].sum(-1), 1, rtol=1e-5)
    return logits


def _part(state, names):
    """Return the state with those of its variables alone whose paths are in `names`."""

    def kept(tree, path=()):
        below = {
            key: kept(value, (*path, key)) if isinstance(value, dict) else value
            for key, value in tree.items()
            if isinstance(value, dict) or "/".join((*path, key)) in names
        }
        return {key: value for key, value in below.items() if not isinstance(value, dict) or value}

    return {name: kept(tree) for name, tree in state.variables.items()}


# What a network compiles to grows with its layers: this one takes 4 s, the next family 20 s.
@pytest.mark.quick("cifarnet")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in LARGE | VARIANTS])
def test_logits_end_points_and_features_are_finite_and_infer_equals_test(name):
    images, size, place = images_for(name), size_of(name), jax.devices()[:1]
    builder = builder_of(name)
    state = builder.init()
    logits = check_logits(name, builder, state)
    label = np.zeros([2, 1], np.int32)
    _, tested = builder.test(state, {"image": images, "label": label})
    np.testing.assert_allclose(tested, logits, rtol=1e-4, atol=1e-5)
    half = ps.ProgramBuilder(
        infer_func=lambda: program(name, 10, size)()[0], place=place, precision="bfloat16"
    ).infer(state, {"image": images})
    assert half.dtype == np.float32
    assert np.isfinite(half).all()
    features = ps.ProgramBuilder(infer_func=lambda: program(name, None, size)()[0], place=place)
    assert features.infer(_part(state, names_in(features)), {"image": images}).ndim == 2


@pytest.fixture
def plain_depthwise(monkeypatch):
    """Leave depthwise convolutions to XLA: by taps those of a NASNet compile twice as long."""
    monkeypatch.setattr(_convolution, "_MOST_TAPS", 0)


# A minute of compiling each, four times that for all that is asked of a smaller network of the
# same functions. A mobile one trains below, and here the large one of its function is computed.
@pytest.mark.slow
@pytest.mark.usefixtures("plain_depthwise")
@pytest.mark.parametrize("name", sorted(n for n in LARGE - VARIANTS if "mobile" not in n))
def test_forward_pass_of_the_largest(name):
    builder = builder_of(name, has_loss=False)
    check_logits(name, builder, builder.init())


# Adam moves each weight by the rate, however small its gradient. At 1e-4 two networks overshoot:
# one adds up thousands of inputs in dense layers without batch norm; of the other's four images
# four pixels are left, by which its last layers normalise.
RATES = {"oneflow_alexnet": 1e-5, "mobilenet_v2_035": 1e-5}

# At their small sizes one pixel is left of each image: four numbers, which the last layers
# normalise. One part in a million of the images then moves Inception v4's gradients by two thirds
# of their norm, and PNASNet's loss after two steps by 3 of 32; of ResNet v2 other last digits of
# the initial values, by 2.4e-7, move the loss after two steps by 0.5: what it is then is chance.
# At these it moves the loss after three steps by less than 0.06.
TRAINING_SIZES = {"inception_v4": 139, "pnasnet_mobile": 64, "resnet_v2_50": 64}


def training_builder(name, **changes):
    """Return a builder of a network's training on four classes.

    Arguments:
      changes: what to pass to the network's function besides.
    """
    model = models.get(name, models.Settings(dropout=0.0, drop_path=0.0, batch_norm_decay=0.5))
    model = dataclasses.replace(model, function=functools.partial(model.function, **changes))
    size = TRAINING_SIZES.get(name) or size_of(name)
    chosen = models.classifier(model, 4, image_size=size)
    optimizer = optax.adam(RATES.get(name, 1e-4))
    return ps.ProgramBuilder(chosen.train_program, optimizer, place=jax.devices()[:1])


def names_in(builder):
    """Return the names of a builder's parameters and statistics."""
    return {row.name for row in builder.parameter_table()}


# Unoptimized, a step of their hundred million weights takes longer than all that compiles.
DENSE = ("alexnet", "oneflow_alexnet", "overfeat", "vgg")


def check_training(name, **changes):
    """Train on one batch until its loss falls, soon; everything stays finite."""
    builder = training_builder(name, **changes)
    # Inception v3's auxiliary head is named after the size of its kernel, which images decide.
    own = {n for n in shapes_of(name).parameters if not n.startswith("AuxLogits/Conv2d_2a_")}
    assert changes or names_in(builder) >= own
    state = builder.init()
    images = images_for(name, 4, size=TRAINING_SIZES.get(name))
    batch = {"image": images, "label": np.arange(4)[:, None] % 4}
    losses = []
    for _ in range(4):
        with compiling.as_users_do() if name.startswith(DENSE) else contextlib.nullcontext():
            state, metrics = builder.train(state, batch)
        losses.append(float(metrics["loss"]))
        if losses[-1] < losses[0]:
            break
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.variables))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("resnet_cifar10", {"depth": 8}),
        ("nasnet_cifar", {"num_cells": 3}),
        ("keras_nasnet_mobile", {"num_cells": 3}),  # by its depth it is nasnet_mobile
    ],
)
def test_a_step_of_training_lowers_the_loss_of_shallower_networks(name, changes):
    check_training(name, **changes)


# The deeper and wider of those whose functions a smaller one trains: minutes of compiling each.
DEEPEST = {
    *("resnet_v1_200", "resnet_v2_200", "keras_resnet_v2_152"),
    *("nasnet_cifar", "nasnet_large", "pnasnet_large"),
    *("keras_nasnet_mobile", "keras_nasnet_large"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("plain_depthwise")
@pytest.mark.parametrize("name", sorted(LARGE - DEEPEST - VARIANTS))
def test_a_step_of_training_lowers_the_loss_of_large_networks(name):
    check_training(name)


@pytest.mark.quick("mobilenet_v1_025")
@pytest.mark.parametrize("name", sorted({"mobilenet_v1_025", *DEEPEST, *VARIANTS}))
def test_training_is_traced(name):
    assert names_in(training_builder(name)) >= set(shapes_of(name).parameters)


# Seven seconds: it compiles a whole step.
@pytest.mark.quick("lenet")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in LARGE | VARIANTS])
def test_a_step_of_training_lowers_the_loss(name):
    check_training(name)
