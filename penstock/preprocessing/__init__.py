"""Preprocessing: how decoded images become the input of a network of the model library.

`preprocessing.get(name)` gives a `Preprocessing`. A reader crops and resizes each image on the
host: `augment=get("vgg").for_training(224)`. A program function flips, changes colours and
normalises whole batches on the device: `get("vgg").device(images)`. The two together are TF-Slim's
preprocessing, or torchvision's. `names()` lists them, `@register(name)` adds a user's.
"""

from penstock._errors import PreprocessingError
from penstock.preprocessing._base import HostDtype, Preprocessing, SamplePreprocessing
from penstock.preprocessing._registry import describe, get, names, register, restore
from penstock.preprocessing.antialiasing import resize_antialiased
from penstock.preprocessing.cifarnet import Cifarnet
from penstock.preprocessing.colour import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    flip,
    standardize,
)
from penstock.preprocessing.crops import Box, central_box, crop_or_pad, pad, random_box, sample_box
from penstock.preprocessing.inception import Inception
from penstock.preprocessing.plain import Lenet, Plain
from penstock.preprocessing.resizing import resize
from penstock.preprocessing.torchvision import Torchvision
from penstock.preprocessing.vgg import Vgg

__all__ = [
    # By name
    "describe",
    "get",
    "names",
    "register",
    "restore",
    # The library's
    "Cifarnet",
    "Inception",
    "Lenet",
    "Plain",
    "Preprocessing",
    "PreprocessingError",
    "SamplePreprocessing",
    "HostDtype",
    "Torchvision",
    "Vgg",
    # Parts for a user's own: on the host
    "Box",
    "central_box",
    "crop_or_pad",
    "pad",
    "random_box",
    "resize",
    "resize_antialiased",
    "sample_box",
    # and on the device
    "adjust_brightness",
    "adjust_contrast",
    "adjust_hue",
    "adjust_saturation",
    "flip",
    "standardize",
]
