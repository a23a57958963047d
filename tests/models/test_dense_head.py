"""The dense layers of AlexNet, OverFeat and VGG: larger and smaller images, dropout."""

import functools

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers, models
from penstock.models._style import Style, dense_head

WIDTH = 256


def head(size, num_classes, dropout=0.0):
    style = Style(settings=models.Settings(dropout=dropout), is_normalized=False)

    def program():
        image = layers.data("image", [size, size, 4])
        widths = (WIDTH, WIDTH)
        head = dense_head(image, num_classes, window=3, widths=widths, style=style, points={})
        return {"output": head[0], **head[1]}

    return program


@functools.cache
def builder_of(size, num_classes: int | None = 5):
    return ps.ProgramBuilder(infer_func=head(size, num_classes), place=jax.devices()[:1])


def run(size, image, variables, num_classes: int | None = 5):
    return builder_of(size, num_classes).infer(variables, {"image": image})


@pytest.fixture(scope="module")
def variables():
    return builder_of(3).init(seed=0).variables


def images(size):
    return np.random.default_rng(0).standard_normal([2, size, size, 4]).astype(np.float32)


def test_larger_image_gives_the_last_layer_the_mean_of_its_windows_features(variables):
    image = images(4)
    points = run(4, image, variables)
    windows = [image[:, row : row + 3, column : column + 3] for row in (0, 1) for column in (0, 1)]
    features = [run(3, window, variables)["global_pool"] for window in windows]
    assert points["fc6"].shape == (2, 2, 2, WIDTH)
    np.testing.assert_allclose(points["global_pool"], np.mean(features, 0), rtol=1e-4, atol=1e-5)
    assert points["output"].shape == (2, 5)


def test_smaller_image_reads_as_one_with_zeros_around_it(variables):
    image = images(2)
    logits = run(2, image, variables)["output"]
    framed = np.pad(image, [(0, 0), (0, 1), (0, 1), (0, 0)])
    np.testing.assert_allclose(logits, run(3, framed, variables)["output"], rtol=1e-5, atol=1e-6)


def test_features_are_what_the_last_layer_gets(variables):
    without_last = {"params": {k: v for k, v in variables["params"].items() if k != "fc8"}}
    features = run(3, images(3), without_last, num_classes=None)["output"]
    points = run(3, images(3), variables)
    np.testing.assert_allclose(features, points["global_pool"], rtol=1e-6)
    last = variables["params"]["fc8"]["fc"]
    expected = features @ np.asarray(last["w"]) + np.asarray(last["b"])
    np.testing.assert_allclose(points["fc8"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_both_dropouts_draw_masks_of_their_own():
    # With ones in and kernels that pass everything on, a quarter gets through two masks of a half.
    program = head(3, WIDTH, dropout=0.5)
    builder = ps.ProgramBuilder(
        lambda: layers.mean(program()["output"] != 0), optax.sgd(0.0), place=jax.devices()[:1]
    )
    identity = np.eye(WIDTH, dtype=np.float32)
    params = {
        "fc6": {"conv": {"w": np.ones([3, 3, 4, WIDTH], np.float32), "b": np.zeros(WIDTH)}},
        "fc7": {"conv": {"w": identity[None, None], "b": np.zeros(WIDTH)}},
        "fc8": {"fc": {"w": identity, "b": np.zeros(WIDTH)}},
    }
    params = jax.tree.map(np.float32, params)
    state = builder.adopt({"params": params, "batch_stats": {}}, builder.init())
    _, share = builder.train(state, {"image": np.ones([8, 3, 3, 4], np.float32)})
    assert 0.2 < float(share) < 0.3
