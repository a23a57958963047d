"""What the parameters of NASNet are called elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.models._weight_maps._nasnet import (
    NORM,
    Place,
    separables,
    slim_name,
    timm_cell,
    timm_ends,
)
from penstock.models.nasnet import NORMAL, REDUCTION
from penstock.preprocessing import Preprocessing, Torchvision

_NUM_CELLS = {
    "nasnet_mobile": 12,
    "nasnet_large": 18,
    "keras_nasnet_mobile": 12,
    "keras_nasnet_large": 18,
}
_KERAS_BLOCKS = {
    "normal": ("left1", "right1", "left2", "right2", "", "", "", "", "left5", ""),
    "reduction": ("left1", "right1", "", "right2", "", "right3", "", "", "left4", ""),
}


def tf_slim(model_name: str, path: str) -> str:
    """Return TF-Slim's name of the parameter or statistic at `path`."""
    return slim_name(path)


def keras(model_name: str) -> dict[str, str]:
    """Return path -> `<layer>/<variable>` of keras.applications' NASNetMobile and NASNetLarge.

    They are `keras_nasnet_*`, without an auxiliary head. `nasnet_*` have the same parameters and
    other logits with them: in reduction cells Keras pools over borders of zeros, which TF-Slim,
    from whose checkpoints Keras's files were made, leaves out.

    Raises:
      KeyError: Keras has no such network.
    """
    names = _keras_conv("conv0", "stem_conv1") | _keras_norm("conv0_bn", "stem_bn1")
    for place in _places(model_name):
        names |= _keras_cell(place, _keras_block(model_name, place.name))
    last = "final_layer/FC/fc"
    return names | {f"{last}/w": "predictions/kernel", f"{last}/b": "predictions/bias"}


def torch(model_name: str) -> dict[str, str]:
    """Return path -> name in timm's `nasnetalarge`: nasnet_large without its auxiliary head.

    With the same weights its logits are others than TF-Slim's and ours: the averages of its
    reduction cells count the padding.

    Raises:
      KeyError: torch has no such network.
    """
    names = {"nasnet_large": timm_ends("conv0")}[model_name]
    for place in _places(model_name):
        names |= timm_cell(place, "")
    return names


def torch_preprocessing(model_name: str) -> Preprocessing:
    """Return the preprocessing of timm's weights, which are TF-Slim's."""
    return Torchvision(
        means=(0.5, 0.5, 0.5),
        deviations=(0.5, 0.5, 0.5),
        crop_fraction=0.911,
        interpolation="bicubic",
    )


def _places(model_name: str) -> Iterator[Place]:
    yield Place("cell_stem_0", REDUCTION, "as it is")
    yield Place("cell_stem_1", REDUCTION, "halved")
    num_cells = _NUM_CELLS[model_name]
    for index in range(num_cells):
        stack, place = divmod(index, num_cells // 3)
        if stack and not place:
            yield Place(f"reduction_cell_{stack - 1}", REDUCTION, "projected")
        yield Place(f"cell_{index}", NORMAL, "projected" if place else "halved")


def _keras_block(model_name: str, cell: str) -> str:
    """Return what Keras's names of a cell's layers end with; it counts reduction cells too."""
    number, per_stack = int(cell.rsplit("_", 1)[1]), _NUM_CELLS[model_name] // 3
    if cell.startswith("cell_stem"):
        return f"stem_{number + 1}"
    if cell.startswith("reduction"):
        return f"reduce_{(number + 1) * per_stack}"
    return str(number + (number >= per_stack))


def _keras_cell(place: Place, block: str) -> dict[str, str]:
    here, kind = place.name, "reduction" if place.cell is REDUCTION else "normal"
    names = _keras_conv(f"{here}/1x1", f"{kind}_conv_1_{block}")
    names |= _keras_norm(f"{here}/beginning_bn", f"{kind}_bn_1_{block}")
    if place.second == "projected":
        names |= _keras_conv(f"{here}/prev_1x1", f"adjust_conv_projection_{block}")
        names |= _keras_norm(f"{here}/prev_bn", f"adjust_bn_{block}")
    elif place.second == "halved":
        for number in (1, 2):
            names |= _keras_conv(f"{here}/path{number}_conv", f"adjust_conv_{number}_{block}")
        names |= _keras_norm(f"{here}/final_path_bn", f"adjust_bn_{block}")
    sides = [f"comb_iter_{index}_{side}" for index in range(5) for side in ("left", "right")]
    suffixes = dict(zip(sides, _KERAS_BLOCKS[kind], strict=True))
    for each in separables(place.cell):
        layer, number = f"{kind}_{suffixes[each.side]}_{block}", each.number
        conv = f"separable_conv_{number}_{layer}"
        names[f"{here}/{each.conv}/depthwise"] = f"{conv}/depthwise_kernel"
        names[f"{here}/{each.conv}/w"] = f"{conv}/pointwise_kernel"
        names |= _keras_norm(f"{here}/{each.norm}", f"separable_conv_{number}_bn_{layer}")
    return names


def _keras_conv(path: str, layer: str) -> dict[str, str]:
    return {f"{path}/w": f"{layer}/kernel"}


def _keras_norm(path: str, layer: str) -> dict[str, str]:
    return {f"{path}/{ours}": f"{layer}/{theirs}" for ours, theirs in NORM.items()}
