"""What the parameters of Inception v4 are called elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.models._weight_maps._common import slim_name, torch_conv
from penstock.models._weight_maps._inception import timm_layers
from penstock.models.inception_v4 import MODULES, STEM
from penstock.preprocessing import Preprocessing, Torchvision


def tf_slim(model_name: str, path: str) -> str:
    """Return TF-Slim's name of the parameter or statistic at `path`."""
    return slim_name("InceptionV4", path)


def torch(model_name: str) -> dict[str, str]:
    """Return path -> name in the state dict of timm's `inception_v4.tf_in1k`.

    It has no auxiliary head. Its batch norms have scales, `torch_ones` of them: where they are all
    1, as where weights come from TF-Slim, they can be left out; else it is another network.
    """
    names: dict[str, str] = {}
    for path, layer in _layers():
        names |= torch_conv(path, f"{layer}.conv", f"{layer}.bn")
    last = "Logits/Logits/fc"
    return names | {f"{last}/w": "last_linear.weight", f"{last}/b": "last_linear.bias"}


def torch_preprocessing(model_name: str) -> Preprocessing:
    """Return the preprocessing of timm's weights, which are TF-Slim's."""
    return Torchvision(
        means=(0.5, 0.5, 0.5),
        deviations=(0.5, 0.5, 0.5),
        interpolation="bicubic",
    )


def torch_ones(model_name: str) -> tuple[str, ...]:
    """Return the names in the state dict whose arrays have to be 1 everywhere."""
    return tuple(f"{layer}.bn.weight" for _, layer in _layers())


def _layers() -> Iterator[tuple[str, str]]:
    """Yield the path of each convolution, and timm's name of it."""
    for index, conv in enumerate(STEM):
        yield conv.name, f"features.{index}"
    for index, (name, branches) in enumerate(MODULES, start=len(STEM)):
        for path, layer in timm_layers(branches, name, f"features.{index}"):
            is_beside_pool = name in ("Mixed_3a", "Mixed_5a")
            yield path, f"features.{index}.conv" if is_beside_pool else layer
