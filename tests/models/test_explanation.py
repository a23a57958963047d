"""`models.grad_cam`: the heat lies where the class comes from, whatever the network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import penstock as ps
from penstock import layers, models
from tests.layers.programs import infer

TRACED = (
    *("vgg_bn_drop", "resnet_v2_50", "mobilenet_v3_small"),
    *("alexnet_v2", "oneflow_alexnet", "overfeat", "vgg_16", "resnet_v1_50", "resnet50"),
    *("keras_resnet_v2_50", "inception_v2", "inception_v4", "inception_resnet_v2"),
    *("mobilenet_v1_025", "keras_nasnet_mobile", "pnasnet_mobile", "nasnet_cifar"),
    *("cifarnet", "resnet_cifar10", "inception_v1", "inception_v3", "mobilenet_v2_035"),
)


def make_model(function, channels=2):
    return models.Model(
        name="own", function=function, default_image_size=8, num_channels=channels, num_classes=2
    )


def make_builder(model, size=None, num_classes=2):
    size = size or model.default_image_size

    def infer_program():
        image = layers.data("image", shape=[size, size, model.num_channels])
        return models.grad_cam(model, image, num_classes)._asdict()

    return ps.ProgramBuilder(infer_func=infer_program, place=jax.devices()[:1])


def explain(model, images):
    builder = make_builder(model, images.shape[1])
    return builder.infer(builder.init(), {"image": images})


def count_colors(images, num_classes):
    """Say how much there is of each channel; an end point that no logit needs is made later."""
    points = {"image": images, "pool": layers.pool2d(images, 2, "avg", 2)}
    logits = points["Logits"] = jnp.sum(points["pool"], axis=(1, 2))
    points["auxiliary"] = 2.0 * points["pool"]
    return logits, points


def test_heat_lies_in_the_quadrant_that_the_class_comes_from():
    images = np.zeros((2, 8, 8, 2), np.float32)
    # The likelier class is where there is more of its channel.
    images[0, :4, :4, 0], images[0, 4:, 4:, 1] = 3, 1
    images[1, :4, :4, 0], images[1, 4:, 4:, 1] = 1, 3
    outputs = explain(make_model(count_colors), images)
    assert outputs["logits"].argmax(axis=1).tolist() == [0, 1]
    quadrant = np.kron([[1, 0], [0, 0]], np.ones((2, 2)))
    np.testing.assert_allclose(outputs["heat"], [quadrant, quadrant[::-1, ::-1]])


def test_heat_is_the_formula_of_the_paper():
    head = np.random.default_rng(0).normal(size=(4 * 4 * 3, 2)).astype(np.float32)

    def network(images, num_classes):
        net = layers.conv2d(images, 3, 3, padding=1, act="tanh", name="conv")
        net = layers.pool2d(net, 2, "max", 2)
        return layers.flatten(jnp.sin(net)) @ head, {"pool": net}

    images = np.random.default_rng(1).random((3, 8, 8, 2)).astype(np.float32)
    outputs = explain(make_model(network), images)
    features = infer(
        lambda: network(layers.data("image", shape=[8, 8, 2]), 2)[1]["pool"], {"image": images}
    )
    logits = np.sin(features).reshape(3, -1) @ head
    np.testing.assert_allclose(outputs["logits"], logits, rtol=1e-5, atol=1e-6)
    gradient = head.T[logits.argmax(axis=1)].reshape(3, 4, 4, 3) * np.cos(features)
    weights = gradient.mean(axis=(1, 2), keepdims=True)
    heat = np.maximum((weights * features).sum(axis=-1), 0)
    largest = heat.max(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(outputs["heat"], heat / np.where(largest > 0, largest, 1), atol=1e-5)


def test_image_that_speaks_for_nothing_has_no_heat():
    outputs = explain(make_model(count_colors), np.zeros((1, 8, 8, 2), np.float32))
    assert not outputs["heat"].any()


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ({}, "'own' got no end point, expected one"),
        (
            {"pooled": lambda net: net},
            r"got the end points pooled \[1, 1, 2\], expected one \[height, width, channels\] of",
        ),
    ],
)
def test_network_without_a_feature_map_is_an_error_that_says_what_there_is(points, message):
    def network(images, num_classes):
        net = layers.pool2d(images, 8, "avg", 8)
        return net[:, 0, 0], {name: point(net) for name, point in points.items()}

    with pytest.raises(ValueError, match=message):
        make_builder(make_model(network))


def test_explain_program_of_a_classifier_has_its_probabilities():
    made = models.classifier("lenet", 10, preprocess=lambda images: images / 255)
    images = {"image": np.random.default_rng(0).integers(0, 256, (2, 28, 28, 1)).astype("f")}
    outputs, plain = infer(made.explain_program, images), infer(made.infer_program, images)
    np.testing.assert_allclose(outputs["probabilities"], plain, rtol=1e-4)
    assert outputs["heat"].shape == (2, 7, 7)
    assert outputs["heat"].max() == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACED)
def test_every_kind_of_network_can_be_explained_at_its_own_size(name):
    # A trace alone: that there is a feature map, and that it is a late one.
    model = models.get(name)
    builder = make_builder(model, num_classes=model.num_classes)
    leaves = jax.tree.leaves(builder.inspect("infer", batch_size=1).traced.out_info)
    (heat,) = (leaf for leaf in leaves if len(leaf.shape) == 3)
    assert 1 < heat.shape[1] <= model.default_image_size // 4
