"""What each parameter of a network is called elsewhere: every path has one name of its own."""

import contextlib

import pytest

from penstock import models
from penstock.models._weight_maps import FAMILIES, inception, nasnet
from penstock.models._weight_names import (
    find_family_names,
    number_keras_variables,
    renumber_keras_layers,
)
from tests.models.shapes import shapes_of, slow_if_large

# A network, where its names are from, and some of ours with theirs.
EXAMPLES = """
vgg_16 slim  conv5/conv5_2/conv/b vgg_16/conv5/conv5_2/biases  fc8/fc/w vgg_16/fc8/weights
vgg_16 keras  conv4/conv4_3/conv/w block4_conv3/kernel
  fc6/conv/b fc1/bias  fc8/fc/w predictions/kernel
vgg_19 keras  conv5/conv5_4/conv/w block5_conv4/kernel
  fc7/conv/b fc2/bias  fc8/fc/w predictions/kernel
vgg_a torch  conv5/conv5_2/conv/w features.18.weight  fc6/conv/w classifier.0.weight
vgg_16 torch  conv5/conv5_3/conv/w features.28.weight  fc7/conv/b classifier.3.bias
vgg_19 torch  conv5/conv5_4/conv/w features.34.weight  fc8/fc/b classifier.6.bias
vgg_16_bn torch  conv5/conv5_3/conv/w features.40.weight
  conv5/conv5_3/norm/variance features.41.running_var
vgg_16 torch_2  conv5/conv5_3/conv/b features.28.bias
  fc6/conv/w pre_logits.fc1.weight  fc8/fc/w head.fc.weight

inception_v1 slim
  Mixed_5b/Branch_2/Conv2d_0a_3x3/conv/w InceptionV1/Mixed_5b/Branch_2/Conv2d_0a_3x3/weights
  Logits/Conv2d_0c_1x1/fc/b InceptionV1/Logits/Conv2d_0c_1x1/biases
inception_v2 slim
  Conv2d_1a_7x7/conv/depthwise InceptionV2/Conv2d_1a_7x7/depthwise_weights
  Conv2d_1a_7x7/conv/w InceptionV2/Conv2d_1a_7x7/pointwise_weights
inception_v3 slim
  Mixed_5c/Branch_1/Conv_1_0c_5x5/norm/bias
    InceptionV3/Mixed_5c/Branch_1/Conv_1_0c_5x5/BatchNorm/beta
  Mixed_6a/Branch_0/Conv2d_1a_1x1/conv/w InceptionV3/Mixed_6a/Branch_0/Conv2d_1a_1x1/weights
  Mixed_7b/Branch_1/Conv2d_0b_3x1/conv/w InceptionV3/Mixed_7b/Branch_1/Conv2d_0b_3x1/weights
  Mixed_7c/Branch_1/Conv2d_0c_3x1/conv/w InceptionV3/Mixed_7c/Branch_1/Conv2d_0c_3x1/weights
  AuxLogits/Conv2d_2b_1x1/fc/w InceptionV3/AuxLogits/Conv2d_2b_1x1/weights
inception_v3 keras
  Conv2d_1a_3x3/conv/w conv2d/kernel
  Mixed_7c/Branch_3/Conv2d_0b_1x1/norm/mean batch_normalization_93/moving_mean
inception_v4 slim
  AuxLogits/Aux_logits/fc/w InceptionV4/AuxLogits/Aux_logits/weights
  Mixed_3a/Branch_1/Conv2d_0a_3x3/conv/w InceptionV4/Mixed_3a/Branch_1/Conv2d_0a_3x3/weights
inception_v4 torch
  Mixed_3a/Branch_1/Conv2d_0a_3x3/conv/w features.3.conv.conv.weight
  Mixed_7d/Branch_2/Conv2d_0e_3x1/norm/bias features.21.branch2_3b.bn.bias
inception_resnet_v2 slim
  Block8/Conv2d_1x1/conv/b InceptionResnetV2/Block8/Conv2d_1x1/biases
  Repeat_1/block17_20/Branch_1/Conv2d_0c_7x1/norm/mean
    InceptionResnetV2/Repeat_1/block17_20/Branch_1/Conv2d_0c_7x1/BatchNorm/moving_mean
inception_resnet_v2 keras
  Block8/Conv2d_1x1/conv/b block8_10_conv/bias
  Block8/Branch_1/Conv2d_0c_3x1/conv/w conv2d_202/kernel
  Conv2d_7b_1x1/norm/bias conv_7b_bn/beta
inception_resnet_v2 torch
  Repeat/block35_10/Branch_0/Conv2d_1x1/conv/w repeat.9.branch0.conv.weight
  Repeat_2/block8_9/Conv2d_1x1/conv/b repeat_2.8.conv2d.bias

resnet_v1_50 slim
  block4/unit_3/bottleneck_v1/conv3/norm/variance
    resnet_v1_50/block4/unit_3/bottleneck_v1/conv3/BatchNorm/moving_variance
  logits/fc/b resnet_v1_50/logits/biases
resnet_v1_101 slim
  block3/unit_23/bottleneck_v1/conv1/conv/w
    resnet_v1_101/block3/unit_23/bottleneck_v1/conv1/weights
  logits/fc/b resnet_v1_101/logits/biases
resnet_v2_50 slim
  block1/unit_1/bottleneck_v2/preact/scale resnet_v2_50/block1/unit_1/bottleneck_v2/preact/gamma
  logits/fc/b resnet_v2_50/logits/biases
resnet_v2_152 slim
  postnorm/mean resnet_v2_152/postnorm/moving_mean  logits/fc/b resnet_v2_152/logits/biases
keras_resnet_v2_50 keras  block4/unit_3/bottleneck_v2/conv3/conv/b conv5_block3_3_conv/bias
keras_resnet_v2_152 keras
  block3/unit_36/bottleneck_v2/preact/mean conv4_block36_preact_bn/moving_mean
resnet50 torch  block4/unit_1/shortcut/norm/mean layer4.0.downsample.1.running_mean
resnext50 torch  block3/unit_6/conv2/conv/w layer3.5.conv2.weight

mobilenet_v1_025 slim
  Conv2d_1_depthwise/conv/depthwise MobilenetV1/Conv2d_1_depthwise/depthwise_weights
mobilenet_v1 keras
  Conv2d_13_pointwise/conv/w conv_pw_13/kernel  Conv2d_2_depthwise/norm/scale conv_dw_2_bn/gamma
mobilenet_v2 slim
  expanded_conv_16/project/norm/variance
    MobilenetV2/expanded_conv_16/project/BatchNorm/moving_variance
mobilenet_v2 keras
  expanded_conv/depthwise/conv/depthwise expanded_conv_depthwise/kernel
  expanded_conv_3/expand/norm/mean block_3_expand_BN/moving_mean
mobilenet_v2 keras_2  Logits/Conv2d_1c_1x1/fc/w Logits/kernel
mobilenet_v3_small slim
  expanded_conv/squeeze_excite/expand/w MobilenetV3/expanded_conv/squeeze_excite/Conv_1/weights
  Conv_2/conv/b MobilenetV3/Conv_2/biases
mobilenet_v3_large slim  Logits/Conv2d_1c_1x1/fc/b MobilenetV3/Logits/Conv2d_1c_1x1/biases
mobilenet_v3_large keras
  expanded_conv_3/squeeze_excite/squeeze/w expanded_conv_3_squeeze_excite_conv/kernel
mobilenet_v3_large keras_2
  expanded_conv_3/squeeze_excite/expand/b expanded_conv_3/squeeze_excite/Conv_1/bias
mobilenet_v3_small keras_2  Conv_1/norm/scale Conv_1/BatchNorm/gamma
mobilenet_v3_small torch
  expanded_conv/project/norm/variance blocks.0.0.bn2.running_var
  Conv_1/conv/w blocks.5.0.conv.weight
mobilenet_v3_large torch
  expanded_conv_7/depthwise/conv/depthwise blocks.3.1.conv_dw.weight

nasnet_cifar slim
  cell_0/beginning_bn/variance cell_0/beginning_bn/moving_variance
  aux_11/aux_logits/FC/fc/b aux_11/aux_logits/FC/biases
nasnet_mobile slim
  cell_0/beginning_bn/variance cell_0/beginning_bn/moving_variance
  cell_stem_1/comb_iter_1/right/separable_7x7_2/depthwise
    cell_stem_1/comb_iter_1/right/separable_7x7_2/depthwise_weights
  cell_3/comb_iter_4/left/separable_3x3_1/w
    cell_3/comb_iter_4/left/separable_3x3_1/pointwise_weights
  aux_7/aux_logits/FC/fc/b aux_7/aux_logits/FC/biases
  final_layer/FC/fc/w final_layer/FC/weights
pnasnet_mobile slim
  cell_stem_0/comb_iter_0/right/bn_1/scale cell_stem_0/comb_iter_0/right/bn_1/gamma
  aux_5/aux_logits/Conv/w aux_5/aux_logits/Conv/weights
keras_nasnet_mobile keras
  reduction_cell_1/comb_iter_4/left/bn_sep_3x3_2/mean
    separable_conv_2_bn_reduction_left4_reduce_8/moving_mean
keras_nasnet_large keras
  cell_17/comb_iter_1/right/separable_3x3_1/w
    separable_conv_1_normal_right2_18/pointwise_kernel
nasnet_large torch
  cell_6/comb_iter_4/left/separable_3x3_2/depthwise
    cell_6.comb_iter_4_left.separable_2.depthwise_conv2d.weight
pnasnet_large torch  cell_5/path2_conv/w cell_5.conv_prev_1x1.path_2.conv.weight
"""


def parse_examples():
    """Return ours and theirs by network and source."""
    examples, pairs = {}, []
    for line in EXAMPLES.splitlines():
        words = line.split()
        if words and not line.startswith(" "):
            pairs = examples[tuple(words[:2])] = []
            words = words[2:]
        pairs += words
    examples = {key: dict(zip(w[::2], w[1::2], strict=True)) for key, w in examples.items()}
    for name in ("alexnet_v2", "overfeat"):  # all there are
        kinds = {**{f"conv{n}": "conv" for n in range(1, 6)}, "fc6": "conv", "fc7": "conv"}
        examples[name, "slim"] = {
            f"{layer}/{kind}/{leaf[0]}": f"{name}/{layer}/{leaf}"
            for layer, kind in {**kinds, "fc8": "fc"}.items()
            for leaf in ("weights", "biases")
        }
    return examples


PARSED = parse_examples()
NETWORKS = dict.fromkeys([*(name for name, _ in PARSED), *models.names("mobilenet*")])


def maps_of(name, paths):
    """Return the names of each path of a network in each place that has it."""
    family, maps = find_family_names(models.get(name)), {}
    if family.tf_slim is not None:
        maps["slim"] = {path: family.tf_slim(name, path) for path in paths}
    for source, makers in (("keras", family.keras), ("torch", family.torch)):
        tables = []
        for make in makers:
            with contextlib.suppress(KeyError):  # the network is not there
                tables.append(make(name))
        maps |= {source if not n else f"{source}_{n + 1}": table for n, table in enumerate(tables)}
    return maps


@pytest.mark.quick(
    *("alexnet_v2", "overfeat", "vgg_", "inception_v1", "resnet_v1_50", "resnet50"),
    *("mobilenet_v1]", "mobilenet_v2]"),
)
@pytest.mark.parametrize("name", slow_if_large(NETWORKS))
def test_every_path_has_a_name_of_its_own_everywhere(name):
    paths = set(shapes_of(name).parameters)
    maps = maps_of(name, paths)
    sources = {source for network, source in PARSED if network == name}
    # Of one with batch norm torchvision alone has weights.
    for source in sources if name == "vgg_16_bn" else sources | set(maps):
        theirs = maps[source]
        # Elsewhere there are no auxiliary heads.
        ours = paths if source == "slim" else {p for p in paths if "aux" not in p.lower()}
        assert set(theirs) == ours
        assert len(set(theirs.values())) == len(theirs)
        examples = PARSED.get((name, source), {})
        assert {path: theirs[path] for path in examples} == examples
        assert len(examples) < 16 or theirs == examples


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
    ours = inception.keras_v3("inception_v3")
    in_order = ("beta", "moving_mean", "moving_variance")
    theirs = {
        f"{layer}/{in_order.index(variable)}" if variable in in_order else name
        for name in ours.values()
        for layer, _, variable in [name.rpartition("/")]
    }
    renamed = number_keras_variables(ours, theirs)
    assert set(renamed.values()) == theirs
    norm = "Conv2d_1a_3x3/norm"
    order = [renamed[f"{norm}/{leaf}"].rpartition("/")[2] for leaf in ("bias", "mean", "variance")]
    assert order == ["0", "1", "2"]


@pytest.mark.parametrize("theirs", [{"bn/beta", "bn/0"}, set()])
def test_variables_with_names_keep_them(theirs):
    ours = {"a": "bn/beta", "b": "bn/moving_mean", "c": "bn/moving_variance"}
    renamed = number_keras_variables(ours, theirs)
    assert renamed["a"] == "bn/beta"
    assert set(renamed.values()) & theirs <= {"bn/beta"}


def test_variable_that_the_network_lacks_alone_is_left_over():
    ours = {"a": "bn/beta", "b": "bn/moving_mean", "c": "bn/moving_variance"}
    renamed = number_keras_variables(ours, {"bn/0", "bn/1", "bn/2", "bn/3"})
    assert renamed == {"a": "bn/1", "b": "bn/2", "c": "bn/3"}


@pytest.mark.parametrize("source", [nasnet.keras_nasnet, nasnet.torch_nasnet, nasnet.torch_pnasnet])
def test_network_that_is_not_there_has_no_names(source):
    with pytest.raises(KeyError, match="elsewhere"):
        source("elsewhere")
