"""What the parameters of NASNet and PNASNet are called in TF-Slim, Keras and timm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from penstock.models._weight_maps._layer_names import KERAS_NORM, KERNEL, NORM, keras, torch
from penstock.models.nasnet import NORMAL, PROGRESSIVE, REDUCTION, Cell

_LAST = "final_layer/FC/fc"
# Normal cells in all.
_KERAS_NUM_CELLS = {"keras_nasnet_mobile": 12, "keras_nasnet_large": 18}
# Keras's names of the terms that have layers, left and right of each sum.
_KERAS_TERMS = {
    "normal": ("left1", "right1", "left2", "right2", "", "", "", "", "left5", ""),
    "reduction": ("left1", "right1", "", "right2", "", "right3", "", "", "left4", ""),
}


class PlacedCell(NamedTuple):
    """A cell of a network.

    Arguments:
      second_input: how it is fitted to the first: not at all, by a convolution of 1x1, or by one
        that halves it.
    """

    name: str
    cell: Cell
    second_input: Literal["as it is", "projected", "halved"]


class Separable(NamedTuple):
    """One of a term's two separable convolutions; paths of it and its batch norm in the cell."""

    term: str
    number: int
    conv: str
    norm: str


def slim_name(model_name: str, path: str) -> str:
    """Return TF-Slim's name of the parameter or statistic at `path`; the network has no scope."""
    *layer, leaf = path.split("/")
    if leaf in KERAS_NORM:
        leaf = KERAS_NORM[leaf]
    elif leaf == "depthwise":
        leaf = "depthwise_weights"
    elif layer[-1].startswith("separable_"):
        leaf = "pointwise_weights"
    else:
        leaf = {"w": "weights", "b": "biases"}[leaf]
    return "/".join([*(name for name in layer if name != "fc"), leaf])


# `nasnet_*` have the same parameters as Keras's networks and other logits with them: in reduction
# cells Keras pools over borders of zeros, which TF-Slim leaves out, although Keras's files were
# made from TF-Slim's checkpoints. So Keras's files belong to `keras_nasnet_*`.
def keras_nasnet(model_name: str) -> dict[str, str]:
    """Return path -> `<layer>/<variable>` of keras.applications' NASNetMobile and NASNetLarge."""
    names = keras("conv0", "stem_conv1", KERNEL) | keras("conv0_bn", "stem_bn1", NORM)
    num_cells = _KERAS_NUM_CELLS[model_name]
    for placed in _place_nasnet_cells(num_cells):
        block = _number_keras_block(placed.name, num_cells // 3)
        names |= _keras_cell(placed, block)
    return names | keras(_LAST, "predictions")


# With the same weights timm's logits differ: the averages of its reduction cells count the padding.
def torch_nasnet(model_name: str) -> dict[str, str]:
    """Return path -> name in timm's `nasnetalarge`: nasnet_large without its auxiliary head."""
    num_cells = {"nasnet_large": 18}[model_name]
    names = _timm_ends("conv0")
    for placed in _place_nasnet_cells(num_cells):
        names |= _timm_cell(placed, "")
    return names


def torch_pnasnet(model_name: str) -> dict[str, str]:
    """Return path -> name in timm's `pnasnet5large`: pnasnet_large without its auxiliary head."""
    num_cells = {"pnasnet_large": 12}[model_name]
    names = _timm_ends("conv_0")
    cells = [PlacedCell("cell_stem_0", PROGRESSIVE, "as it is")]
    cells.append(PlacedCell("cell_stem_1", PROGRESSIVE, "halved"))
    reductions = (num_cells // 3, 2 * num_cells // 3)
    for index in range(num_cells):
        is_after_reduction = index == 0 or index - 1 in reductions
        second_input = "halved" if is_after_reduction else "projected"
        cells.append(PlacedCell(f"cell_{index}", PROGRESSIVE, second_input))
    for placed in cells:
        names |= _timm_cell(placed, "conv_prev_1x1.")
    # Where the cell has a stride, the branch without an operation needs a convolution; in the very
    # first cell the branch that pools a second input of another width does.
    strided = ["cell_stem_0", "cell_stem_1", *(f"cell_{index}" for index in reductions)]
    for cell, index in [("cell_stem_0", 0), *((cell, 4) for cell in strided)]:
        layer = f"{cell}.comb_iter_{index}_right"
        names |= torch(f"{cell}/comb_iter_{index}/right/1x1", f"{layer}.conv", KERNEL)
        names |= torch(f"{cell}/comb_iter_{index}/right/bn_1", f"{layer}.bn", NORM)
    return names


def _place_nasnet_cells(num_cells: int) -> Iterator[PlacedCell]:
    yield PlacedCell("cell_stem_0", REDUCTION, "as it is")
    yield PlacedCell("cell_stem_1", REDUCTION, "halved")
    for index in range(num_cells):
        stack, place = divmod(index, num_cells // 3)
        if stack and not place:
            yield PlacedCell(f"reduction_cell_{stack - 1}", REDUCTION, "projected")
        yield PlacedCell(f"cell_{index}", NORMAL, "projected" if place else "halved")


def _list_separables(cell: Cell) -> Iterator[Separable]:
    """Yield the separable convolutions of a cell, two for each term that has them."""
    for index, terms in enumerate(cell.sums):
        for side, ((kind, window), _) in zip(("left", "right"), terms, strict=True):
            for number in (1, 2) if kind == "separable" else ():
                path, name = f"comb_iter_{index}/{side}", f"{window}x{window}_{number}"
                conv, norm = f"{path}/separable_{name}", f"{path}/bn_sep_{name}"
                yield Separable(f"comb_iter_{index}_{side}", number, conv, norm)


def _number_keras_block(cell: str, num_cells_per_stack: int) -> str:
    """Return what Keras's names of a cell's layers end with; it counts reduction cells too."""
    number = int(cell.rsplit("_", 1)[1])
    if cell.startswith("cell_stem"):
        return f"stem_{number + 1}"
    if cell.startswith("reduction"):
        return f"reduce_{(number + 1) * num_cells_per_stack}"
    return str(number + (number >= num_cells_per_stack))


def _keras_cell(placed: PlacedCell, block: str) -> dict[str, str]:
    here, kind = placed.name, "reduction" if placed.cell is REDUCTION else "normal"
    names = keras(f"{here}/1x1", f"{kind}_conv_1_{block}", KERNEL)
    names |= keras(f"{here}/beginning_bn", f"{kind}_bn_1_{block}", NORM)
    if placed.second_input == "projected":
        names |= keras(f"{here}/prev_1x1", f"adjust_conv_projection_{block}", KERNEL)
        names |= keras(f"{here}/prev_bn", f"adjust_bn_{block}", NORM)
    elif placed.second_input == "halved":
        for number in (1, 2):
            names |= keras(f"{here}/path{number}_conv", f"adjust_conv_{number}_{block}", KERNEL)
        names |= keras(f"{here}/final_path_bn", f"adjust_bn_{block}", NORM)
    terms = [f"comb_iter_{index}_{side}" for index in range(5) for side in ("left", "right")]
    suffixes = dict(zip(terms, _KERAS_TERMS[kind], strict=True))
    for separable in _list_separables(placed.cell):
        layer, number = f"{kind}_{suffixes[separable.term]}_{block}", separable.number
        conv = f"separable_conv_{number}_{layer}"
        names[f"{here}/{separable.conv}/depthwise"] = f"{conv}/depthwise_kernel"
        names[f"{here}/{separable.conv}/w"] = f"{conv}/pointwise_kernel"
        names |= keras(f"{here}/{separable.norm}", f"separable_conv_{number}_bn_{layer}", NORM)
    return names


def _timm_cell(placed: PlacedCell, halving: str) -> dict[str, str]:
    """Return timm's names of a cell; `halving` is where the layers are that halve its input."""
    cell = placed.name
    names = torch(f"{cell}/1x1", f"{cell}.conv_1x1.conv", KERNEL)
    names |= torch(f"{cell}/beginning_bn", f"{cell}.conv_1x1.bn", NORM)
    if placed.second_input == "projected":
        names |= torch(f"{cell}/prev_1x1", f"{cell}.conv_prev_1x1.conv", KERNEL)
        names |= torch(f"{cell}/prev_bn", f"{cell}.conv_prev_1x1.bn", NORM)
    elif placed.second_input == "halved":
        for number in (1, 2):
            conv = f"{cell}.{halving}path_{number}.conv"
            names |= torch(f"{cell}/path{number}_conv", conv, KERNEL)
        names |= torch(f"{cell}/final_path_bn", f"{cell}.{halving}final_path_bn", NORM)
    for separable in _list_separables(placed.cell):
        conv = f"{cell}.{separable.term}.separable_{separable.number}"
        names[f"{cell}/{separable.conv}/depthwise"] = f"{conv}.depthwise_conv2d.weight"
        names |= torch(f"{cell}/{separable.conv}", f"{conv}.pointwise_conv2d", KERNEL)
        names |= torch(
            f"{cell}/{separable.norm}", f"{cell}.{separable.term}.bn_sep_{separable.number}", NORM
        )
    return names


def _timm_ends(stem: str) -> dict[str, str]:
    first = torch("conv0", f"{stem}.conv", KERNEL) | torch("conv0_bn", f"{stem}.bn", NORM)
    return first | torch(_LAST, "last_linear")
