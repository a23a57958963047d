"""The Inception networks: modules, auxiliary heads, stems, and the names of their layers."""

import jax
import numpy as np
import pytest

import penstock as ps
from penstock import layers, models
from penstock.models._inception import Conv, Fork, Pool, apply_branches, name_convs
from penstock.models._style import Style
from tests.layers.programs import initial
from tests.models.shapes import shapes_of

NAMES = ("inception_v1", "inception_v2", "inception_v3", "inception_v4", "inception_resnet_v2")
SETTINGS = models.get("inception_v3").settings


@pytest.mark.quick("inception_v3-75")
@pytest.mark.parametrize(
    ("name", "image_size", "layer", "extent"),
    [
        ("inception_v3", 299, "Conv2d_2a_5x5", 5),
        ("inception_v3", 107, "Conv2d_2a_1x1", 1),
        ("inception_v3", 75, "Conv2d_2a_1x1", 1),
        ("inception_v3", 395, "Conv2d_2a_5x5", 5),
        ("inception_v4", 299, "Conv2d_2a", 5),
        ("inception_v4", 75, "Conv2d_2a", 1),
        ("inception_v4", 395, "Conv2d_2a", 7),
        ("inception_resnet_v2", 299, "Conv2d_2a_5x5", 5),
        ("inception_resnet_v2", 75, "Conv2d_2a_5x5", 1),
    ],
)
def test_auxiliary_heads_largest_kernel_follows_the_image(name, image_size, layer, extent):
    shapes = shapes_of(name, image_size)
    kernel = shapes.parameters[f"AuxLogits/{layer}/conv/w"]
    assert kernel == (extent, extent, 128, 768)
    assert shapes.points["AuxLogits"] == (1000,)


def test_inception_settings_are_tf_slims():
    published = models.Settings(
        batch_norm_decay=0.9997,
        batch_norm_epsilon=0.001,
        unbiased_running_variance=True,
        dropout=0.2,
        weight_decay=4e-5,
    )
    assert all(models.get(name).settings == published for name in NAMES)


@pytest.mark.slow
def test_weight_decay_leaves_out_the_separable_stem_of_v2():
    trained = shapes_of("inception_v2", 32).trained
    kept = {path for path in trained if not models.get("inception_v2").decays(path)}
    stem = {path for path in trained if path.startswith("Conv2d_1a_7x7/")}
    assert stem == {f"Conv2d_1a_7x7/conv/{leaf}" for leaf in ("depthwise", "w", "b")}
    assert kept == stem | {path for path in trained if path.endswith(("/bias", "/b"))}


@pytest.mark.slow
def test_weight_decay_of_inception_resnet_takes_biases_and_leaves_batch_norm():
    trained = shapes_of("inception_resnet_v2", 75).trained
    decays = models.get("inception_resnet_v2").decays
    assert {path for path in trained if not decays(path)} == {
        path for path in trained if path.endswith("/norm/bias")
    }
    assert decays("Repeat/block35_1/Conv2d_1x1/conv/b")


@pytest.mark.slow
def test_inception_v2_starts_from_the_deviations_of_tf_slim():
    # The truncated normal's own deviation is 0.88 times what it is called.
    model = models.get("inception_v2")
    params = initial(lambda: model(layers.data("image", [32, 32, 3]), 10)[0])["params"]
    module = params["Mixed_4d"]
    expected = [
        (params["Conv2d_1a_7x7"]["conv"]["depthwise"], 1.0),
        (params["Conv2d_1a_7x7"]["conv"]["w"], 1.0),
        (params["Conv2d_2b_1x1"]["conv"]["w"], 0.1),
        (module["Branch_0"]["Conv2d_0a_1x1"]["conv"]["w"], (2.6 / 576) ** 0.5),
        (module["Branch_1"]["Conv2d_0a_1x1"]["conv"]["w"], 0.09),
        (module["Branch_2"]["Conv2d_0c_3x3"]["conv"]["w"], (2.6 / (9 * 160)) ** 0.5),
        (module["Branch_3"]["Conv2d_0b_1x1"]["conv"]["w"], 0.1),
        (params["Logits"]["Conv2d_1c_1x1"]["fc"]["w"], (2.6 / 1024) ** 0.5),
    ]
    for kernel, deviation in expected:
        assert np.std(kernel) == pytest.approx(0.88 * deviation, rel=0.05)
        assert np.abs(kernel).max() <= 2 * deviation


def run_branches(branches, image):
    """Return what branches give, and the paths of their parameters."""
    style = Style(settings=SETTINGS)
    builder = ps.ProgramBuilder(
        infer_func=lambda: apply_branches(layers.data("image", image.shape[1:]), branches, style),
        place=jax.devices()[:1],
    )
    paths = [row.name for row in builder.parameter_table()]
    return np.asarray(builder.infer(builder.init(), {"image": image})), paths


def test_pooling_in_a_branch_leaves_the_padding_out():
    image = -np.ones([1, 4, 5, 2], np.float32)
    result, _ = run_branches([[Pool("avg")], [Pool("max")]], image)
    np.testing.assert_allclose(result, -np.ones([1, 4, 5, 4]), rtol=1e-6)


def test_branches_and_forks_stand_side_by_side_in_order():
    fork = Fork((Conv("0b", 4, (1, 3)), Conv("0c", 5, (3, 1))))
    branches = [[Pool("max")], [Conv("0a", 3, 1), fork], [Pool("avg"), Conv("", 2, 1)]]
    result, paths = run_branches(branches, np.full([2, 4, 4, 1], 7, np.float32))
    assert result.shape == (2, 4, 4, 1 + 4 + 5 + 2)
    assert (result[..., 0] == 7).all()
    kernels = [path.removesuffix("/conv/w") for path in paths if path.endswith("/w")]
    assert kernels == [
        "Branch_1/Conv2d_0a_1x1",
        "Branch_1/Conv2d_0b_1x3",
        "Branch_1/Conv2d_0c_3x1",
        "Branch_2/Conv2d_1x1",
    ]
    assert list(name_convs(branches, "m")) == [f"m/{kernel}" for kernel in kernels]
