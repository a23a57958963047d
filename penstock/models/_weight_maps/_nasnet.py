"""What the name maps of NASNet and PNASNet share: the cells' layers, TF-Slim's and timm's names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from penstock.models._nasnet_cells import Cell

NORM = {"scale": "gamma", "bias": "beta", "mean": "moving_mean", "variance": "moving_variance"}
_TORCH_NORM = {
    "scale": "weight",
    "bias": "bias",
    "mean": "running_mean",
    "variance": "running_var",
}


class Place(NamedTuple):
    """A cell of a network.

    Arguments:
      second: how its second input is fitted to the first: not at all, by a convolution of 1x1, or
        by one that halves it.
    """

    name: str
    cell: Cell
    second: Literal["as it is", "projected", "halved"]


class Separable(NamedTuple):
    """One of a pair of separable convolutions: its path in the cell, its batch norm's path."""

    side: str
    number: int
    conv: str
    norm: str


def separables(cell: Cell) -> Iterator[Separable]:
    """Yield the separable convolutions of a cell, of which each term has two."""
    for index, terms in enumerate(cell.sums):
        for side, ((kind, window), _) in zip(("left", "right"), terms, strict=True):
            for number in (1, 2) if kind == "separable" else ():
                path, name = f"comb_iter_{index}/{side}", f"{window}x{window}_{number}"
                yield Separable(
                    f"comb_iter_{index}_{side}",
                    number,
                    f"{path}/separable_{name}",
                    f"{path}/bn_sep_{name}",
                )


def slim_name(path: str) -> str:
    """Return TF-Slim's name of the parameter or statistic at `path`; the network has no scope."""
    *layer, leaf = path.split("/")
    if leaf in NORM:
        leaf = NORM[leaf]
    elif leaf == "depthwise":
        leaf = "depthwise_weights"
    elif layer[-1].startswith("separable_"):
        leaf = "pointwise_weights"
    else:
        leaf = {"w": "weights", "b": "biases"}[leaf]
    return "/".join([*(name for name in layer if name != "fc"), leaf])


def torch_conv(path: str, conv: str) -> dict[str, str]:
    """Return torch's name of a convolution's kernel."""
    return {f"{path}/w": f"{conv}.weight"}


def torch_norm(path: str, norm: str) -> dict[str, str]:
    """Return torch's names of a batch norm."""
    return {f"{path}/{ours}": f"{norm}.{theirs}" for ours, theirs in _TORCH_NORM.items()}


def timm_cell(place: Place, fitting: str) -> dict[str, str]:
    """Return timm's names of a cell's parameters.

    Arguments:
      fitting: where the cell has the layers that halve its second input.
    """
    here, cell = place.name, place.name
    names = torch_conv(f"{here}/1x1", f"{cell}.conv_1x1.conv")
    names |= torch_norm(f"{here}/beginning_bn", f"{cell}.conv_1x1.bn")
    if place.second == "projected":
        names |= torch_conv(f"{here}/prev_1x1", f"{cell}.conv_prev_1x1.conv")
        names |= torch_norm(f"{here}/prev_bn", f"{cell}.conv_prev_1x1.bn")
    elif place.second == "halved":
        for number in (1, 2):
            conv = f"{cell}.{fitting}path_{number}.conv"
            names |= torch_conv(f"{here}/path{number}_conv", conv)
        names |= torch_norm(f"{here}/final_path_bn", f"{cell}.{fitting}final_path_bn")
    for each in separables(place.cell):
        conv = f"{cell}.{each.side}.separable_{each.number}"
        names[f"{here}/{each.conv}/depthwise"] = f"{conv}.depthwise_conv2d.weight"
        names |= torch_conv(f"{here}/{each.conv}", f"{conv}.pointwise_conv2d")
        names |= torch_norm(f"{here}/{each.norm}", f"{cell}.{each.side}.bn_sep_{each.number}")
    return names


def timm_ends(stem: str) -> dict[str, str]:
    """Return timm's names of the first convolution and the last layer."""
    last = {f"final_layer/FC/fc/{ours}": f"last_linear.{theirs}" for ours, theirs in _LAST}
    return torch_conv("conv0", f"{stem}.conv") | torch_norm("conv0_bn", f"{stem}.bn") | last


_LAST = (("w", "weight"), ("b", "bias"))
