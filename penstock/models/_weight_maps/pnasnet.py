"""What the parameters of PNASNet are called elsewhere."""

from __future__ import annotations

from penstock.models._weight_maps._nasnet import (
    Place,
    slim_name,
    timm_cell,
    timm_ends,
    torch_conv,
    torch_norm,
)
from penstock.models.pnasnet import CELL
from penstock.preprocessing import Preprocessing, Torchvision

_NUM_CELLS = 12
_REDUCTIONS = (4, 8)


def tf_slim(model_name: str, path: str) -> str:
    """Return TF-Slim's name of the parameter or statistic at `path`."""
    return slim_name(path)


def torch(model_name: str) -> dict[str, str]:
    """Return path -> name in timm's `pnasnet5large`: pnasnet_large without its auxiliary head.

    Raises:
      KeyError: torch has no such network.
    """
    names = {"pnasnet_large": timm_ends("conv_0")}[model_name]
    places = [Place("cell_stem_0", CELL, "as it is"), Place("cell_stem_1", CELL, "halved")]
    for index in range(_NUM_CELLS):
        is_after_reduction = index == 0 or index - 1 in _REDUCTIONS
        places.append(Place(f"cell_{index}", CELL, "halved" if is_after_reduction else "projected"))
    for place in places:
        names |= timm_cell(place, "conv_prev_1x1.")
    # Where the cell has a stride, the branch without an operation needs a convolution; in the very
    # first cell the branch that pools a second input of another width does.
    strided = ["cell_stem_0", "cell_stem_1", *(f"cell_{index}" for index in _REDUCTIONS)]
    for cell, index in [("cell_stem_0", 0), *((cell, 4) for cell in strided)]:
        layer = f"{cell}.comb_iter_{index}_right"
        names |= torch_conv(f"{cell}/comb_iter_{index}/right/1x1", f"{layer}.conv")
        names |= torch_norm(f"{cell}/comb_iter_{index}/right/bn_1", f"{layer}.bn")
    return names


def torch_preprocessing(model_name: str) -> Preprocessing:
    """Return the preprocessing of timm's weights, which are TF-Slim's."""
    return Torchvision(
        means=(0.5, 0.5, 0.5),
        deviations=(0.5, 0.5, 0.5),
        crop_fraction=0.911,
        interpolation="bicubic",
    )
