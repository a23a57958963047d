"""What the parameters of each family of networks are called elsewhere: `FAMILIES`.

Names of TF-Slim follow from ours one by one. The maps of Keras and torch are functions of a
network's name, in one module for each kind of network.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType

from penstock.models._weight_maps import inception, mobilenet, nasnet, resnet, vgg
from penstock.models._weight_maps._layer_names import slim_name
from penstock.preprocessing import Preprocessing, Torchvision

MapMaker = Callable[[str], Mapping[str, str]]
"""Takes a network's name, gives our names -> the file's; a KeyError where nobody published it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FamilyNames:
    """What the parameters of one family of networks are called elsewhere.

    Arguments:
      tf_slim: takes a network's name and a path, gives TF-Slim's name.
      keras: maps to `<layer>/<variable>`; a file is read with the one that it has most names of.
      torch: the same, to names in state dicts.
      torch_ones: takes a network's name, gives names in its state dict whose arrays must be ones.
      torch_preprocessing: of timm's and torchvision's weights.
      keras_bgr: paths of kernels whose input channels Keras has as blue, green, red.
    """

    tf_slim: Callable[[str, str], str] | None = None
    keras: tuple[MapMaker, ...] = ()
    torch: tuple[MapMaker, ...] = ()
    torch_ones: Callable[[str], tuple[str, ...]] = lambda model_name: ()
    torch_preprocessing: Preprocessing = dataclasses.field(default_factory=Torchvision)
    keras_bgr: tuple[str, ...] = ()


def _in_scope(scope: str) -> Callable[[str, str], str]:
    """Return the rule for networks that TF-Slim puts below a scope with a name of its own."""
    return lambda model_name, path: slim_name(scope, path)


# timm's files of these networks are TF-Slim's weights, so they take images from -1 to 1.
_minus_one_to_one = functools.partial(
    Torchvision, means=(0.5, 0.5, 0.5), deviations=(0.5, 0.5, 0.5), interpolation="bicubic"
)

# Keras 2 published the weights of MobileNets, under other names.
_V2_IN_KERAS_2 = functools.partial(mobilenet.keras_v2, last="Logits")
_V3_IN_KERAS_2 = functools.partial(
    mobilenet.keras_v3, conv="Conv", last="Logits", below="/", norm="/BatchNorm"
)
# Its weights `tv_in1k` are torchvision's.
_VGG_IN_TIMM = functools.partial(vgg.torch, dense=("pre_logits.fc1", "pre_logits.fc2", "head.fc"))

# Some networks of one name are not the same network, and have no map: torchvision's AlexNet pads
# its first convolution and pools to 6x6; its GoogLeNet pads both sides alike; its and timm's
# Inception v3 count the padding in average pooling; their MobileNets v1 and v2 pad evenly where
# they stride; Keras's ResNet50 strides in a block's first 1x1, with biases.
FAMILIES: Mapping[str, FamilyNames] = MappingProxyType(
    {
        "alexnet": FamilyNames(tf_slim=slim_name),
        "cifarnet": FamilyNames(
            tf_slim=lambda name, path: slim_name("LeNet" if name == "lenet" else "CifarNet", path)
        ),
        "inception_resnet_v2": FamilyNames(
            tf_slim=_in_scope("InceptionResnetV2"),
            keras=(inception.keras_resnet_v2,),
            torch=(inception.torch_resnet_v2,),
            torch_ones=inception.torch_ones,
            torch_preprocessing=_minus_one_to_one(crop_fraction=0.8975),
        ),
        "inception_v1": FamilyNames(tf_slim=_in_scope("InceptionV1")),
        "inception_v2": FamilyNames(tf_slim=inception.slim_name_v2),
        "inception_v3": FamilyNames(tf_slim=_in_scope("InceptionV3"), keras=(inception.keras_v3,)),
        "inception_v4": FamilyNames(
            tf_slim=_in_scope("InceptionV4"),
            torch=(inception.torch_v4,),
            torch_ones=inception.torch_ones,
            torch_preprocessing=_minus_one_to_one(),
        ),
        "mobilenet_v1": FamilyNames(tf_slim=_in_scope("MobilenetV1"), keras=(mobilenet.keras_v1,)),
        "mobilenet_v2": FamilyNames(
            tf_slim=_in_scope("MobilenetV2"), keras=(mobilenet.keras_v2, _V2_IN_KERAS_2)
        ),
        "mobilenet_v3": FamilyNames(
            tf_slim=mobilenet.slim_name_v3,
            keras=(mobilenet.keras_v3, _V3_IN_KERAS_2),
            torch=(mobilenet.torch_v3,),
            torch_preprocessing=_minus_one_to_one(interpolation="bilinear"),
        ),
        "nasnet": FamilyNames(
            tf_slim=nasnet.slim_name,
            keras=(nasnet.keras_nasnet,),
            torch=(nasnet.torch_nasnet, nasnet.torch_pnasnet),
            torch_preprocessing=_minus_one_to_one(crop_fraction=0.911),
        ),
        "resnet": FamilyNames(tf_slim=slim_name, keras=(resnet.keras_v2,)),
        "resnet_v1_5": FamilyNames(torch=(resnet.torch_v1_5,)),
        "vgg": FamilyNames(
            tf_slim=slim_name,
            keras=(vgg.keras,),
            torch=(vgg.torch, _VGG_IN_TIMM),
            # As Caffe's. Keras's first ResNet, its other network with such images, has no
            # counterpart here.
            keras_bgr=("conv1/conv1_1/conv/w",),
        ),
    }
)
