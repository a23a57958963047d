"""Preprocessing: how decoded images become the input of a network of the model library.

`preprocessing.get(name)` gives a `Preprocessing`. A reader crops and resizes each image on the
host: `augment=get("vgg").for_training(224)`. A program function flips, changes colours and
normalises whole batches on the device: `get("vgg").device(images)`. The two together are TF-Slim's
preprocessing, or torchvision's. `names()` lists them, `@register(name)` adds a user's.
"""

from types import ModuleType as _ModuleType

from penstock._errors import PreprocessingError as PreprocessingError
from penstock.preprocessing._base import HostDtype as HostDtype
from penstock.preprocessing._base import Preprocessing as Preprocessing
from penstock.preprocessing._base import SamplePreprocessing as SamplePreprocessing
from penstock.preprocessing._registry import describe as describe
from penstock.preprocessing._registry import get as get
from penstock.preprocessing._registry import names as names
from penstock.preprocessing._registry import register as register
from penstock.preprocessing._registry import restore as restore
from penstock.preprocessing.antialiasing import resize_antialiased as resize_antialiased
from penstock.preprocessing.cifarnet import Cifarnet as Cifarnet
from penstock.preprocessing.colour import adjust_brightness as adjust_brightness
from penstock.preprocessing.colour import adjust_contrast as adjust_contrast
from penstock.preprocessing.colour import adjust_hue as adjust_hue
from penstock.preprocessing.colour import adjust_saturation as adjust_saturation
from penstock.preprocessing.colour import flip as flip
from penstock.preprocessing.colour import standardize as standardize
from penstock.preprocessing.crops import Box as Box
from penstock.preprocessing.crops import central_box as central_box
from penstock.preprocessing.crops import crop_or_pad as crop_or_pad
from penstock.preprocessing.crops import pad as pad
from penstock.preprocessing.crops import random_box as random_box
from penstock.preprocessing.crops import sample_box as sample_box
from penstock.preprocessing.inception import Inception as Inception
from penstock.preprocessing.plain import Lenet as Lenet
from penstock.preprocessing.plain import Plain as Plain
from penstock.preprocessing.resizing import resize as resize
from penstock.preprocessing.torchvision import Torchvision as Torchvision
from penstock.preprocessing.vgg import Vgg as Vgg

# What `help(preprocessing)` explains and `import *` takes: no modules.
__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    *(n for n, v in globals().items() if n[0] != "_" and not isinstance(v, _ModuleType))
]
