"""What every network of the library keeps to, whatever it computes."""

import contextlib
import dataclasses
import functools

import jax
import numpy as np
import optax
import pytest
import scipy.special as sp

import penstock as ps
from penstock import layers, models
from penstock.layers import _convolution
from tests import compiling
from tests.models.reference import FASTNN, PUBLISHED
from tests.models.shapes import VARIANTS, shapes_of, slow_if_large

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
NAMES = models.names()
NASNETS = {name for name in NAMES if "nasnet" in name}


def size_of(name):
    """Return a small image size for a network."""
    sizes = [size for prefix, size in SIZES.items() if name.startswith(prefix)]
    return SMALL.get(name) or min([*sizes, models.get(name).default_image_size])


def test_every_network_of_fastnn_is_there_and_in_the_table():
    assert len(FASTNN) == 32
    assert set(PUBLISHED) <= set(NAMES)


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
@pytest.mark.parametrize("name", sorted(set(NAMES) - VARIANTS))
def test_class_count_changes_the_last_layers_alone(name):
    # Its own number has been traced before.
    numbers = (7, PUBLISHED[name].num_classes if name in PUBLISHED else 1000)
    base, shapes = (shapes_of(name, None, number).parameters for number in numbers)
    changed = [path for path in base if shapes.get(path) != base[path]]
    assert set(shapes) == set(base)
    assert 1 <= len(changed) <= 4  # the last layer's kernel and bias; the auxiliary head's too
    assert all((base[path][-1], shapes[path][-1]) == numbers for path in changed)
    features = shapes_of(name, None, None)
    assert set(features.parameters) <= set(base) - set(changed)
    assert not any("aux" in path.lower() for path in features.parameters)
    assert (shapes_of(name, None, 7).output, len(features.output)) == ((7,), 1)


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


def infer_program_of(model, size):
    """Return a program function of logits for four classes, and end points."""

    def infer_program():
        logits, end_points = model(layers.data("image", [size, size, model.num_channels]), 4)
        return {"logits": logits} | {f"at {key}": point for key, point in end_points.items()}

    return infer_program


def builder_of(name, **changes):
    """Return a builder of a network that trains without dropout, and infers as it is published.

    Arguments:
      changes: what to pass to the network's function besides.
    """
    settings = models.Settings(dropout=0.0, drop_path=0.0, batch_norm_decay=0.5)
    own, trained = (
        dataclasses.replace(model, function=functools.partial(model.function, **changes))
        for model in (models.get(name), models.get(name, settings))
    )
    size = TRAINING_SIZES.get(name) or size_of(name)
    return ps.ProgramBuilder(
        models.classifier(trained, 4, image_size=size).train_program,
        optax.adam(RATES.get(name, 1e-4)),
        infer_func=infer_program_of(own, size),
        place=jax.devices()[:1],
    )


def names_in(builder):
    """Return the names of a builder's parameters and statistics."""
    return {row.name for row in builder.parameter_table()}


def check_outputs(outputs):
    """Look at what a network infers of four images: logits and end points."""
    assert outputs["logits"].shape == (4, 4)
    assert np.ptp(outputs["logits"]) > 0
    assert len(outputs) > 1
    assert all(len(values) == 4 and np.isfinite(values).all() for values in outputs.values())
    if "at Predictions" in outputs:
        np.testing.assert_allclose(outputs["at Predictions"].sum(-1), 1, rtol=1e-5)


def loss_of(model, outputs, params):
    """Return the loss of what was inferred, where an image's class is its place, written out."""
    loss = 0.0
    for point, share in {"logits": 1.0, "at AuxLogits": 0.4}.items():
        if point in outputs:
            log_probabilities = sp.log_softmax(outputs[point].astype(np.float64), -1)
            loss -= share * np.trace(log_probabilities) / 4
    squares = [
        np.sum(np.square(values, dtype=np.float64))
        for path, values in jax.tree_util.tree_leaves_with_path(params)
        if model.decays(jax.tree_util.keystr(path, simple=True, separator="/"))
    ]
    return loss + model.settings.weight_decay / 2 * sum(squares)


def check_half(name, state, images):
    """Infer in bfloat16: the logits are finite float32."""
    program, place = infer_program_of(models.get(name), images.shape[1]), jax.devices()[:1]
    half = ps.ProgramBuilder(infer_func=program, place=place, precision="bfloat16")
    logits = half.infer(state, {"image": images})["logits"]
    assert logits.dtype == np.float32
    assert np.isfinite(logits).all()


# Unoptimized, a step of their hundred million weights takes longer than all that compiles.
DENSE = ("alexnet", "oneflow_alexnet", "overfeat", "vgg")


def check_network(name, **changes):
    """Infer, test, and train on one batch until its loss falls, soon; everything stays finite."""
    builder = builder_of(name, **changes)
    # Inception v3's auxiliary head is named after the size of its kernel, which images decide.
    own = {n for n in shapes_of(name).parameters if not n.startswith("AuxLogits/Conv2d_2a_")}
    assert changes or names_in(builder) >= own
    state, shape = builder.init(), builder.feed_specs["image"].shape
    images = np.random.default_rng(0).uniform(-1, 1, [4, *shape]).astype(np.float32)
    batch = {"image": images, "label": np.arange(4)[:, None]}
    outputs = builder.infer(state, {"image": images})
    check_outputs(outputs)
    expected = loss_of(models.get(name), outputs, jax.device_get(state.variables["params"]))
    assert float(builder.test(state, batch)["loss"]) == pytest.approx(expected, rel=1e-4)
    if name in SMALL and not changes:
        check_half(name, state, images)
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


# Seven seconds: it compiles a whole step.
@pytest.mark.quick("lenet")
@pytest.mark.parametrize("name", sorted(set(NAMES) - VARIANTS - NASNETS))
def test_network_infers_tests_as_it_infers_and_trains(name):
    check_network(name)


# Of few blocks: those of the others are the same, and compile for minutes. TF-Slim's NASNet for
# ImageNet trains in test_nasnet.py.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("resnet_cifar10", {"depth": 8}),
        ("nasnet_cifar", {"num_cells": 3}),
        ("keras_nasnet_mobile", {"num_cells": 3}),
        ("pnasnet_mobile", {"num_cells": 3}),
    ],
)
def test_network_of_few_blocks_infers_tests_as_it_infers_and_trains(name, changes, monkeypatch):
    # By taps depthwise convolutions compile twice as long.
    monkeypatch.setattr(_convolution, "_MOST_TAPS", 0)
    check_network(name, **changes)


@pytest.mark.quick("mobilenet_v1_025")
@pytest.mark.parametrize("name", sorted({"mobilenet_v1_025", *NASNETS}))
def test_training_is_traced(name):
    assert names_in(builder_of(name)) >= set(shapes_of(name).parameters)
