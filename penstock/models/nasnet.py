"""NASNet-A for CIFAR and ImageNet: Zoph et al. 2018, TF-Slim's nasnet.py."""

from __future__ import annotations

import dataclasses
import functools

import jax

from penstock.models._nasnet_cells import Cell, Cells, decays_all_kernels
from penstock.models._registry import EndPoints, Model
from penstock.models._settings import Settings

_SEPARABLE_3, _SEPARABLE_5, _SEPARABLE_7 = (("separable", size) for size in (3, 5, 7))
_AVERAGE, _MAXIMUM, _IDENTITY = ("avg_pool", 3), ("max_pool", 3), ("identity", 1)

_NORMAL = Cell(
    sums=(
        ((_SEPARABLE_5, 0), (_SEPARABLE_3, 1)),
        ((_SEPARABLE_5, 1), (_SEPARABLE_3, 1)),
        ((_AVERAGE, 0), (_IDENTITY, 1)),
        ((_AVERAGE, 1), (_AVERAGE, 1)),
        ((_SEPARABLE_3, 0), (_IDENTITY, 0)),
    ),
    outputs=(1, 2, 3, 4, 5, 6),
)
_REDUCTION = Cell(
    sums=(
        ((_SEPARABLE_5, 0), (_SEPARABLE_7, 1)),
        ((_MAXIMUM, 0), (_SEPARABLE_7, 1)),
        ((_AVERAGE, 0), (_SEPARABLE_5, 1)),
        ((_IDENTITY, 3), (_AVERAGE, 2)),
        ((_SEPARABLE_3, 2), (_MAXIMUM, 0)),
    ),
    outputs=(3, 4, 5, 6),
)


def nasnet(
    images: jax.Array,
    num_classes: int | None,
    *,
    settings: Settings,
    num_cells: int,
    num_filters: int,
    num_stem_filters: int,
    is_for_imagenet: bool = True,
    reduction_skips_a_cell: bool = False,
) -> tuple[jax.Array, EndPoints]:
    """Build NASNet-A: three stacks of normal cells, with a reduction cell before two of them.

    Arguments:
      num_cells: normal cells in all.
      num_filters: of the first stack; each reduction doubles them.
      is_for_imagenet: begin with a stride of 8, in place of 1.
      reduction_skips_a_cell: the first normal cell after a reduction sees, beside it, what the
        reduction saw beside its own input, in place of that input.
    """
    cells = Cells(settings, num_cells + (4 if is_for_imagenet else 2))
    if is_for_imagenet:
        outputs = cells.imagenet_stem(images, _REDUCTION, num_filters, num_stem_filters)
    else:
        outputs = [cells.conv(images, num_stem_filters, 3, ("l1_stem_3x3", "l1_stem_bn"))]
    points: EndPoints = {"Stem": outputs[-1]}
    reductions = (num_cells // 3, 2 * num_cells // 3)
    for index in range(num_cells):
        reach = 2
        if index in reductions:
            num_filters *= 2
            count = reductions.index(index)
            name = f"reduction_cell_{count}"
            net = cells.cell(_REDUCTION, outputs, name=name, num_filters=num_filters, stride=2)
            outputs.append(net)
            points[f"Reduction_Cell_{count}"] = net
            reach = 3 if reduction_skips_a_cell else 2
        name = f"cell_{index}"
        net = cells.cell(_NORMAL, outputs, name=name, num_filters=num_filters, reach=reach)
        outputs.append(net)
        points[f"Cell_{index}"] = net
        if index == reductions[1] - 1 and num_classes is not None:
            points["AuxLogits"] = cells.auxiliary_head(net, num_classes, name=f"aux_{index}")
    return cells.final_layer(outputs[-1], num_classes, points)


def _settings(weight_decay: float, drop_path: float) -> Settings:
    return Settings(
        batch_norm_decay=0.9997,
        batch_norm_epsilon=1e-3,
        unbiased_running_variance=True,
        dropout=0.5,
        drop_path=drop_path,
        drop_path_steps=250_000,
        weight_decay=weight_decay,
    )


MODELS = (
    Model(
        name="nasnet_cifar",
        function=functools.partial(
            nasnet, num_cells=18, num_filters=32, num_stem_filters=96, is_for_imagenet=False
        ),
        default_image_size=32,
        preprocessing="cifarnet",
        num_classes=10,
        settings=dataclasses.replace(
            _settings(5e-4, 0.4),
            batch_norm_decay=0.9,
            batch_norm_epsilon=1e-5,
            dropout=0.0,
            drop_path_steps=937_500,
        ),
        decays=decays_all_kernels,
        source="TF-Slim's nasnet",
    ),
    Model(
        name="nasnet_mobile",
        function=functools.partial(nasnet, num_cells=12, num_filters=44, num_stem_filters=32),
        default_image_size=224,
        preprocessing="inception",
        num_classes=1001,
        settings=_settings(4e-5, 0.0),
        decays=decays_all_kernels,
        source="TF-Slim's nasnet",
    ),
    Model(
        name="nasnet_large",
        function=functools.partial(
            nasnet,
            num_cells=18,
            num_filters=168,
            num_stem_filters=96,
            reduction_skips_a_cell=True,
        ),
        default_image_size=331,
        preprocessing="inception",
        num_classes=1001,
        settings=_settings(5e-5, 0.3),
        decays=decays_all_kernels,
        source="TF-Slim's nasnet",
    ),
)
