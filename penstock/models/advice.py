"""Which network of a family to take; `penstock models` and `penstock docs models` say it."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Sequence
from typing import NamedTuple


class Advice(NamedTuple):
    """Advice on which of a family's networks to choose.

    Arguments:
      family: the family's common name.
      patterns: glob patterns of its networks' names.
      text: which one to choose, and what the others are for.
    """

    family: str
    patterns: Sequence[str]
    text: str


ADVICE = (
    Advice(
        "ResNet-50",
        ("resnet50", "resnext50", "*resnet_v?_50"),
        "take resnet50, which is what others mean by the name; torchvision and timm publish its "
        "weights. resnet_v1_50 and resnet_v2_50 are for TF-Slim's weights, keras_resnet_v2_50 for "
        "Keras's. resnext50 is a variant with grouped convolutions.",
    ),
    Advice(
        "Deeper ResNets",
        ("*resnet_v?_1??", "*resnet_v?_200"),
        "take resnet_v2_101, if you have much data: it takes twice as long as a ResNet-50. The v1 "
        "ones are for TF-Slim's older weights, the keras_ ones for Keras's.",
    ),
    Advice(
        "MobileNet",
        ("mobilenet_*",),
        "take mobilenet_v2, small and fast on a CPU, for a first try on your own photos. "
        "mobilenet_v3_small has a fifth of its multiply-adds, mobilenet_v3_large two thirds. The "
        "numbers 025 to 140 scale the width; the minimalistic ones use only plain operations.",
    ),
    Advice(
        "Inception",
        ("inception_*",),
        "take inception_v3. inception_v1 is four times cheaper; inception_v4 and "
        "inception_resnet_v2 cost more than twice as much.",
    ),
    Advice(
        "NASNet and PNASNet",
        ("*nasnet_*",),
        "take nasnet_mobile, or nasnet_cifar for images of 32 pixels. The large ones need a large "
        "accelerator; the keras_ ones are for Keras's weights.",
    ),
    Advice(
        "VGG, AlexNet, OverFeat",
        ("vgg_16*", "vgg_19", "vgg_a", "*alexnet*", "overfeat"),
        "take vgg_16_bn if a paper asks for VGG. Otherwise take resnet50, which has a fifth of its "
        "parameters.",
    ),
    Advice(
        "Small images",
        ("lenet", "cifarnet", "resnet_cifar10*", "vgg_bn_drop", "nasnet_cifar"),
        "take lenet for digits, resnet_cifar10 for images of 32 pixels, and resnet_cifar10_8 for a "
        "few hundred of them on a CPU.",
    ),
)


def find_advice(names: Collection[str]) -> list[Advice]:
    """Return the advice for the families that some of the networks belong to.

    >>> [each.family for each in find_advice(["resnet_v1_50", "lenet"])]
    ['ResNet-50', 'Small images']
    """
    return [
        advice
        for advice in ADVICE
        if any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in advice.patterns)
    ]
