"""The Inception networks: modules, auxiliary heads, stems, and the names of their layers."""

import jax
import numpy as np
import pytest

import penstock as ps
from penstock import layers, models
from penstock.models._inception import Conv, Fork, Pool, apply_branches, name_convs
from penstock.models._style import Style
from penstock.models._weight_maps import FAMILIES
from penstock.models._weight_maps import inception as names
from penstock.models._weight_names import number_keras_variables, renumber_keras_layers
from tests.models.shapes import shapes_of, slow_if_large

NAMES = ("inception_v1", "inception_v2", "inception_v3", "inception_v4", "inception_resnet_v2")
SETTINGS = models.get("inception_v3").settings

# One end point for each size and width that a network goes through, its own image size given.
POINTS = {
    "inception_v1": {
        "Conv2d_1a_7x7": (112, 112, 64),
        "MaxPool_3a_3x3": (28, 28, 192),
        "Mixed_3c": (28, 28, 480),
        "MaxPool_4a_3x3": (14, 14, 480),
        "Mixed_4f": (14, 14, 832),
        "MaxPool_5a_2x2": (7, 7, 832),
        "Mixed_5c": (7, 7, 1024),
        "global_pool": (1024,),
    },
    "inception_v2": {
        "Conv2d_1a_7x7": (112, 112, 64),
        "Mixed_3c": (28, 28, 320),
        "Mixed_4a": (14, 14, 576),
        "Mixed_4e": (14, 14, 576),
        "Mixed_5a": (7, 7, 1024),
        "Mixed_5c": (7, 7, 1024),
    },
    "inception_v3": {
        "Conv2d_1a_3x3": (149, 149, 32),
        "Conv2d_2b_3x3": (147, 147, 64),
        "MaxPool_3a_3x3": (73, 73, 64),
        "Conv2d_4a_3x3": (71, 71, 192),
        "MaxPool_5a_3x3": (35, 35, 192),
        "Mixed_5b": (35, 35, 256),
        "Mixed_5d": (35, 35, 288),
        "Mixed_6e": (17, 17, 768),
        "Mixed_7a": (8, 8, 1280),
        "Mixed_7c": (8, 8, 2048),
        "AuxLogits": (10,),
        "PreLogits": (2048,),
    },
    "inception_v4": {
        "Mixed_3a": (73, 73, 160),
        "Mixed_4a": (71, 71, 192),
        "Mixed_5a": (35, 35, 384),
        "Mixed_5e": (35, 35, 384),
        "Mixed_6h": (17, 17, 1024),
        "Mixed_7d": (8, 8, 1536),
        "AuxLogits": (10,),
        "PreLogitsFlatten": (1536,),
    },
    "inception_resnet_v2": {
        "MaxPool_5a_3x3": (35, 35, 192),
        "Mixed_5b": (35, 35, 320),
        "Mixed_6a": (17, 17, 1088),
        "PreAuxLogits": (17, 17, 1088),
        "Mixed_7a": (8, 8, 2080),
        "Conv2d_7b_1x1": (8, 8, 1536),
        "AuxLogits": (10,),
    },
}


@pytest.mark.quick("inception_v1")
@pytest.mark.parametrize("name", slow_if_large(NAMES))
def test_inception_end_points_have_tf_slims_names_and_shapes(name):
    points = shapes_of(name, models.get(name).default_image_size).points
    assert {point: points.get(point) for point in POINTS[name]} == POINTS[name]
    assert points["Logits"] == points["Predictions"] == (10,)


@pytest.mark.slow
def test_inception_v1_and_v2_have_no_auxiliary_head():
    for name in NAMES[:2]:
        assert "AuxLogits" not in shapes_of(name, 32).points


@pytest.mark.quick("inception_v3")
@pytest.mark.parametrize(
    ("name", "image_size", "layer", "extent"),
    [
        ("inception_v3", 299, "Conv2d_2a_5x5", 5),
        pytest.param("inception_v3", 107, "Conv2d_2a_1x1", 1, marks=pytest.mark.slow),
        ("inception_v3", 75, "Conv2d_2a_1x1", 1),
        pytest.param("inception_v3", 395, "Conv2d_2a_5x5", 5, marks=pytest.mark.slow),
        pytest.param("inception_v4", 299, "Conv2d_2a", 5, marks=pytest.mark.slow),
        ("inception_v4", 75, "Conv2d_2a", 1),
        pytest.param("inception_v4", 395, "Conv2d_2a", 7, marks=pytest.mark.slow),
        pytest.param("inception_resnet_v2", 299, "Conv2d_2a_5x5", 5, marks=pytest.mark.slow),
        pytest.param("inception_resnet_v2", 75, "Conv2d_2a_5x5", 1, marks=pytest.mark.slow),
    ],
)
def test_auxiliary_heads_largest_kernel_follows_the_image(name, image_size, layer, extent):
    found = shapes_of(name, image_size)
    kernel = found.parameters[f"AuxLogits/{layer}/conv/w"]
    assert kernel == (extent, extent, 128, 768)
    assert found.points["AuxLogits"] == (10,)


@pytest.mark.parametrize("name", slow_if_large(NAMES[2:]))
def test_features_come_without_an_auxiliary_head(name):
    found = shapes_of(name, 75, num_classes=None)
    assert not any(path.startswith(("AuxLogits", "Logits")) for path in found.parameters)
    assert found.points["global_pool"] == ((2048 if name == "inception_v3" else 1536),)


@pytest.mark.parametrize("name", slow_if_large(["inception_v3", "inception_v4"]))
def test_image_too_small_for_valid_padding_is_an_error(name):
    with pytest.raises(
        ps.ProgramError, match=r"conv2d got an input of shape \[?.*at least \(3, 3\)"
    ):
        shapes_of(name, 70)


def test_inception_settings_are_tf_slims():
    assert all(models.get(name).settings == SETTINGS for name in NAMES)
    assert (
        models.Settings(
            batch_norm_decay=0.9997,
            batch_norm_epsilon=0.001,
            unbiased_running_variance=True,
            dropout=0.2,
            weight_decay=4e-5,
        )
        == SETTINGS
    )


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
    builder = ps.ProgramBuilder(
        infer_func=lambda: model(layers.data("image", [32, 32, 3]), 10)[0], place=jax.devices()[:1]
    )
    params = builder.init(seed=0).variables["params"]
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


@pytest.mark.quick("inception_v1")
@pytest.mark.parametrize(
    ("model", "example"),
    [
        ("inception_v1", "InceptionV1/Mixed_5b/Branch_2/Conv2d_0a_3x3/weights"),
        ("inception_v1", "InceptionV1/Logits/Conv2d_0c_1x1/biases"),
        ("inception_v2", "InceptionV2/Conv2d_1a_7x7/depthwise_weights"),
        ("inception_v2", "InceptionV2/Conv2d_1a_7x7/pointwise_weights"),
        ("inception_v3", "InceptionV3/Mixed_5c/Branch_1/Conv_1_0c_5x5/BatchNorm/beta"),
        ("inception_v3", "InceptionV3/Mixed_6a/Branch_0/Conv2d_1a_1x1/weights"),
        ("inception_v3", "InceptionV3/Mixed_7b/Branch_1/Conv2d_0b_3x1/weights"),
        ("inception_v3", "InceptionV3/Mixed_7c/Branch_1/Conv2d_0c_3x1/weights"),
        ("inception_v3", "InceptionV3/AuxLogits/Conv2d_2b_1x1/weights"),
        pytest.param(
            "inception_v4",
            "InceptionV4/AuxLogits/Aux_logits/weights",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "inception_v4",
            "InceptionV4/Mixed_3a/Branch_1/Conv2d_0a_3x3/weights",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "inception_resnet_v2",
            "InceptionResnetV2/Block8/Conv2d_1x1/biases",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "inception_resnet_v2",
            "InceptionResnetV2/Repeat_1/block17_20/Branch_1/Conv2d_0c_7x1/BatchNorm/moving_mean",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_inception_names_are_those_of_tf_slim(model, example):
    paths = shapes_of(model, models.get(model).default_image_size).parameters
    tf_slim = FAMILIES[model].tf_slim
    slim = [tf_slim(model, path) for path in paths]
    assert len(slim) == len(set(slim))
    assert example in slim


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "model", "examples"),
    [
        (
            names.keras_v3,
            "inception_v3",
            {
                "Conv2d_1a_3x3/conv/w": "conv2d/kernel",
                "Mixed_7c/Branch_3/Conv2d_0b_1x1/norm/mean": "batch_normalization_93/moving_mean",
            },
        ),
        (
            names.keras_resnet_v2,
            "inception_resnet_v2",
            {
                "Block8/Conv2d_1x1/conv/b": "block8_10_conv/bias",
                "Block8/Branch_1/Conv2d_0c_3x1/conv/w": "conv2d_202/kernel",
                "Conv2d_7b_1x1/norm/bias": "conv_7b_bn/beta",
            },
        ),
        (
            names.torch_v4,
            "inception_v4",
            {
                "Mixed_3a/Branch_1/Conv2d_0a_3x3/conv/w": "features.3.conv.conv.weight",
                "Mixed_7d/Branch_2/Conv2d_0e_3x1/norm/bias": "features.21.branch2_3b.bn.bias",
            },
        ),
        pytest.param(
            names.torch_resnet_v2,
            "inception_resnet_v2",
            {
                "Repeat/block35_10/Branch_0/Conv2d_1x1/conv/w": "repeat.9.branch0.conv.weight",
                "Repeat_2/block8_9/Conv2d_1x1/conv/b": "repeat_2.8.conv2d.bias",
            },
        ),
    ],
)
def test_inception_name_map_has_every_path_but_the_auxiliary_heads_once(source, model, examples):
    theirs = source(model)
    paths = shapes_of(model, 75).parameters
    assert set(theirs) == {path for path in paths if not path.startswith("AuxLogits/")}
    assert len(set(theirs.values())) == len(theirs)
    assert {path: theirs[path] for path in examples} == examples


@pytest.mark.parametrize("model", ["inception_v4", "inception_resnet_v2"])
def test_every_batch_norm_of_timm_has_a_scale_to_be_checked(model):
    names = FAMILIES[model]
    norms = [name for name in names.torch[0](model).values() if name.endswith(".bn.bias")]
    assert {name.replace(".bias", ".weight") for name in norms} == set(names.torch_ones(model))


@pytest.mark.parametrize(("first", "suffix"), [(0, ""), (1, "_1"), (94, "_94")])
def test_keras_numbers_count_from_the_first_layer_of_a_file(first, suffix):
    ours = {"a": "conv2d/kernel", "b": "conv2d_1/kernel", "c": "block8_10_conv/bias"}
    file = [f"conv2d_{first + 1}/kernel", f"conv2d{suffix}/kernel", "block8_10_conv/bias"]
    assert renumber_keras_layers(ours, file) == {
        "a": f"conv2d{suffix}/kernel",
        "b": f"conv2d_{first + 1}/kernel",
        "c": "block8_10_conv/bias",
    }


def test_variables_that_keras_numbers_are_those_that_the_network_has_in_keras_order():
    ours = names.keras_v3("inception_v3")
    in_order = ("beta", "moving_mean", "moving_variance")
    theirs = {
        f"{layer}/{in_order.index(variable)}" if variable in in_order else name
        for name in ours.values()
        for layer, _, variable in [name.rpartition("/")]
    }
    renamed = number_keras_variables(ours, theirs)
    assert set(renamed.values()) == theirs
    norm = "Conv2d_1a_3x3/norm"
    found = [renamed[f"{norm}/{leaf}"].rpartition("/")[2] for leaf in ("bias", "mean", "variance")]
    assert found == ["0", "1", "2"]


@pytest.mark.parametrize("found", [{"bn/0", "bn/1", "bn/2", "bn/3"}, {"bn/beta", "bn/0"}, set()])
def test_variables_of_another_count_or_with_names_keep_their_names(found):
    ours = {"a": "bn/beta", "b": "bn/moving_mean", "c": "bn/moving_variance"}
    renamed = number_keras_variables(ours, found)
    assert renamed["a"] == "bn/beta"
    assert set(renamed.values()) & found <= {"bn/beta"}
