"""What is published about each network: sizes, parameters, tensors, multiply-adds, end points.

Counts at 1000 classes (CifarNet, LeNet and NASNet-CIFAR at 10) with auxiliary heads; multiply-adds
in billions for one image, without auxiliary heads. Source: the definitions of TF-Slim, built and
counted; those of the last block follow from the definitions of OneFlow-Benchmark (torchvision) and
of Fluid's book.
"""

from typing import NamedTuple


class Published(NamedTuple):
    """One row of the table; `with_statistics` counts moving means and variances too."""

    image_size: int
    num_params: int
    with_statistics: int
    num_tensors: int
    gmacs: float
    num_classes: int = 1000
    num_channels: int = 3


PUBLISHED = {
    "alexnet_v2": Published(224, 50_303_912, 50_303_912, 16, 0.737),
    "cifarnet": Published(32, 1_756_426, 1_756_426, 10, 0.033, 10),
    "overfeat": Published(231, 145_704_424, 145_704_424, 16, 2.647),
    "vgg_a": Published(224, 132_863_336, 132_863_336, 22, 7.609),
    "vgg_16": Published(224, 138_357_544, 138_357_544, 32, 15.470),
    "vgg_19": Published(224, 143_667_240, 143_667_240, 38, 19.632),
    "inception_v1": Published(224, 6_617_624, 6_632_184, 116, 1.498),
    "inception_v2": Published(224, 11_178_336, 11_198_112, 141, 1.935),
    "inception_v3": Published(299, 27_143_152, 27_179_376, 196, 5.713),
    "inception_v4": Published(299, 46_006_800, 46_071_760, 306, 12.254),
    "inception_resnet_v2": Published(299, 59_179_952, 59_242_288, 496, 13.156),
    "lenet": Published(28, 3_274_634, 3_274_634, 8, 0.016, 10, 1),
    "resnet_v1_50": Published(224, 25_557_032, 25_610_152, 161, 3.482),
    "resnet_v1_101": Published(224, 44_549_160, 44_654_504, 314, 7.195),
    "resnet_v1_152": Published(224, 60_192_808, 60_344_232, 467, 10.907),
    "resnet_v1_200": Published(224, 64_673_832, 64_849_832, 611, 14.401),
    "resnet_v2_50": Published(224, 25_568_360, 25_613_800, 174, 3.482),
    "resnet_v2_101": Published(224, 44_577_896, 44_675_560, 344, 7.195),
    "resnet_v2_152": Published(224, 60_236_904, 60_380_648, 514, 10.907),
    "resnet_v2_200": Published(224, 64_726_120, 64_894_440, 674, 14.401),
    "mobilenet_v1": Published(224, 4_231_976, 4_253_864, 83, 0.569),
    "mobilenet_v1_075": Published(224, 2_585_560, 2_601_976, 83, 0.325),
    "mobilenet_v1_050": Published(224, 1_331_592, 1_342_536, 83, 0.150),
    "mobilenet_v1_025": Published(224, 470_072, 475_544, 83, 0.041),
    "mobilenet_v2": Published(224, 3_504_872, 3_538_984, 158, 0.301),
    "mobilenet_v2_140": Published(224, 6_108_776, 6_156_712, 158, 0.582),
    "mobilenet_v2_035": Published(224, 1_677_128, 1_691_208, 158, 0.059),
    "mobilenet_v3_large": Published(224, 5_483_032, 5_507_432, 174, 0.217),
    "mobilenet_v3_small": Published(224, 2_542_856, 2_554_968, 142, 0.057),
    "mobilenet_v3_large_minimalistic": Published(224, 3_924_288, 3_948_688, 142, 0.209),
    "mobilenet_v3_small_minimalistic": Published(224, 2_044_736, 2_056_848, 106, 0.052),
    # Counted as 5,017,075 where the others come from: an odd number of means and variances.
    "nasnet_cifar": Published(32, 4_978_036, 5_017_076, 944, 0.545, 10),
    "nasnet_mobile": Published(224, 7_701_218, 7_739_748, 750, 0.564),
    "nasnet_large": Published(331, 93_320_934, 93_519_394, 1026, 23.78),
    "pnasnet_large": Published(331, 90_643_884, 90_822_664, 785, 24.94),
    "pnasnet_mobile": Published(224, 7_477_263, 7_512_719, 623, 0.587),
    # As torchvision counts them.
    "resnet50": Published(224, 25_557_032, 25_610_152, 161, 4.089),
    "resnext50": Published(224, 25_028_904, 25_097_128, 161, 4.230),
    "vgg_16_bn": Published(224, 138_365_992, 138_374_440, 58, 15.470),
}

_NOT_FASTNN = ("mobilenet_v3", "resnet50", "resnext50", "vgg_16_bn")
FASTNN = [name for name in PUBLISHED if not name.startswith(_NOT_FASTNN)]
