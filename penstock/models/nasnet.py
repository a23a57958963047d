"""NASNet-A and PNASNet-5, of cells found by search, the ImageNet stem and the heads.

Zoph et al. 2018, Liu et al. 2018, and TF-Slim's nasnet.py, pnasnet.py and nasnet_utils.py. As
there, batch norms have names beside their convolutions': `cell_0/1x1/w` and
`cell_0/beginning_bn/scale`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import jax
import jax.numpy as jnp

from penstock import layers
from penstock.layers.initializers import he_fan_out
from penstock.models._registry import EndPoints, Model, Outputs, Settings, slim_model
from penstock.models._style import (
    Padding,
    Size,
    Style,
    avg_pool,
    global_pool,
    max_pool,
    predict,
    scope,
)

Operation = tuple[Literal["separable", "avg_pool", "max_pool", "identity"], int]
"""What is done to a state, and the size of its window."""
SEPARABLE_3: Operation = ("separable", 3)
SEPARABLE_5: Operation = ("separable", 5)
SEPARABLE_7: Operation = ("separable", 7)
AVERAGE: Operation = ("avg_pool", 3)
MAXIMUM: Operation = ("max_pool", 3)
IDENTITY: Operation = ("identity", 1)

Term = tuple[Operation, int]
"""An operation, and the index of the state that it is done to."""

States = list[jax.Array]


def decays_all_kernels(path: str) -> bool:
    """Return whether weight decay applies to a parameter: to kernels, depthwise ones too."""
    return path.endswith(("/w", "/depthwise"))


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell: five sums of two terms each.

    State 0 is the cell's input, 1 the input of the cell before, 2 to 6 are the sums.

    Arguments:
      sums: the two terms of each sum.
      outputs: the states that are concatenated, mostly those that no sum uses.
    """

    sums: Sequence[tuple[Term, Term]]
    outputs: Sequence[int]


@dataclasses.dataclass(frozen=True)
class Cells:
    """Build the cells of one network.

    Arguments:
      num_cells: of the network, with stem and reductions; drop path grows along them.
      has_zero_borders: pad with zeros before pooling with a stride, and count them, as Keras does;
        TF-Slim leaves the border out.
    """

    settings: Settings
    num_cells: int
    has_zero_borders: bool = False

    @property
    def style(self) -> Style:
        """The weights and norms of its layers."""
        return Style(settings=self.settings, weights=he_fan_out, has_scale=True)

    def conv(
        self,
        x: jax.Array,
        num_filters: int,
        size: Size,
        names: tuple[str, str],
        *,
        stride: int = 1,
        padding: Padding = "SAME",
    ) -> jax.Array:
        """Apply a convolution and a batch norm of these names; no activation."""
        x = layers.conv2d(
            x,
            num_filters,
            size,
            stride=stride,
            padding=padding,
            param_attr=he_fan_out,
            bias_attr=False,
            name=names[0],
        )
        return self.norm(x, names[1])

    def norm(self, x: jax.Array, name: str) -> jax.Array:
        """Apply a batch norm of this name."""
        return self.style.batch_norm(x, name=name)

    def cell(
        self,
        cell: Cell,
        before: States,
        *,
        name: str,
        num_filters: int,
        stride: int = 1,
        reach: int = 2,
    ) -> jax.Array:
        """Build one cell.

        Arguments:
          before: the stem's convolution and the cells so far; the last is `[B, H, W, C]`.
          stride: of the operations on states 0 and 1.
          reach: how far back state 1 lies; the first cells reach less far.

        Returns:
          `[B, H / stride, W / stride, num_filters * len(cell.outputs)]`.
        """
        net, previous, number = before[-1], before[-min(reach, len(before))], len(before) - 1
        with scope(name):
            second = self._fit_second_input(previous, net, num_filters)
            first = self.conv(layers.relu(net), num_filters, 1, ("1x1", "beginning_bn"))
            states = [first, second]
            for index, terms in enumerate(cell.sums):
                with scope(f"comb_iter_{index}"):
                    left, right = (
                        self._apply_term(side, states, term, num_filters, stride, number)
                        for side, term in zip(("left", "right"), terms, strict=True)
                    )
                states.append(left + right)
            with scope("cell_output"):
                return self._concatenate(states, cell.outputs)

    def _fit_second_input(self, previous: jax.Array, net: jax.Array, num_filters: int) -> jax.Array:
        """Return state 1 with the size of state 0."""
        # The first cell of a network sees its input twice.
        if previous is net:
            return net
        if previous.shape[2] != net.shape[2]:
            return self._halve(layers.relu(previous), num_filters)
        if previous.shape[3] != num_filters:
            return self.conv(layers.relu(previous), num_filters, 1, ("prev_1x1", "prev_bn"))
        return previous

    def _halve(self, x: jax.Array, num_filters: int) -> jax.Array:
        # Half of the filters see the even pixels, the others the odd ones.
        odd = jax.lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), *[(-1, 1, 0)] * 2, (0, 0, 0)))
        half = num_filters // 2
        paths = [
            layers.conv2d(
                path, width, 1, stride=2, param_attr=he_fan_out, bias_attr=False, name=name
            )
            for path, width, name in (
                (x, half, "path1_conv"),
                (odd, num_filters - half, "path2_conv"),
            )
        ]
        return self.norm(jnp.concatenate(paths, axis=3), "final_path_bn")

    def _apply_term(
        self,
        side: str,
        states: States,
        term: Term,
        num_filters: int,
        stride: int,
        number: int,
    ) -> jax.Array:
        (kind, window), index = term
        # The sums are at the cell's stride already.
        x, stride = states[index], stride if index < 2 else 1
        with scope(side):
            if kind == "identity":
                if stride == 1 and x.shape[3] == num_filters:
                    return x
                # Returned without drop path, as in TF-Slim: only operations are dropped.
                return self.conv(layers.relu(x), num_filters, 1, ("1x1", "bn_1"), stride=stride)
            if kind == "separable":
                x = self._separable_twice(x, num_filters, window, stride)
            else:
                pool = {"avg_pool": avg_pool, "max_pool": max_pool}[kind]
                if self.has_zero_borders and stride > 1:
                    # Windows of 3 with a stride of 2 need zeros around images.
                    edges = [(size % 2, 1) for size in x.shape[1:3]]
                    x = pool(jnp.pad(x, ((0, 0), *edges, (0, 0))), window, stride)
                else:
                    x = pool(x, window, stride, "SAME")
                if x.shape[3] != num_filters:
                    x = self.conv(x, num_filters, 1, ("1x1", "bn_1"))
            return self._drop_path(x, number)

    def _separable_twice(
        self, x: jax.Array, num_filters: int, window: int, stride: int
    ) -> jax.Array:
        for count, step in ((1, stride), (2, 1)):
            kind = f"{window}x{window}_{count}"
            x = layers.separable_conv2d(
                layers.relu(x),
                num_filters,
                window,
                stride=step,
                padding="SAME",
                param_attr=he_fan_out,
                depthwise_attr=he_fan_out,
                bias_attr=False,
                name=f"separable_{kind}",
            )
            x = self.norm(x, f"bn_sep_{kind}")
        return x

    def _drop_path(self, x: jax.Array, number: int) -> jax.Array:
        """Drop the branch for some examples: more of them in later cells and at later steps."""
        share, num_steps = self.settings.drop_path, self.settings.drop_path_steps
        if not share:
            return x
        share *= (number + 1) / self.num_cells
        if num_steps:
            share = share * jnp.minimum(layers.global_step() / num_steps, 1.0)
        return layers.drop_path(x, share, "drop_path")

    def _concatenate(self, states: States, outputs: Sequence[int]) -> jax.Array:
        parts, width = [], states[-1].shape[3]
        for index in outputs:
            state = states[index]
            if state.shape[3] != width:
                with scope(f"reduction_{index}"):
                    state = self.conv(state, width, 1, ("path_conv", "path_bn"))
            parts.append(state)
        return jnp.concatenate(parts, axis=3)

    def imagenet_stem(
        self, images: jax.Array, cell: Cell, num_filters: int, num_stem_filters: int
    ) -> States:
        """Apply a convolution and two cells to images, at strides of 2, 4 and 8.

        Arguments:
          num_filters: of the first cell after the stem.
        """
        names = ("conv0", "conv0_bn")
        outputs = [self.conv(images, num_stem_filters, 3, names, stride=2, padding="VALID")]
        for number, width in enumerate((num_filters // 4, num_filters // 2)):
            name = f"cell_stem_{number}"
            outputs.append(self.cell(cell, outputs, name=name, num_filters=width, stride=2))
        return outputs

    def auxiliary_head(self, net: jax.Array, num_classes: int, *, name: str) -> jax.Array:
        """Return logits `[B, num_classes]` of the features in the middle of the network."""
        with scope(name), scope("aux_logits"):
            # TF-Slim fails on features smaller than 5x5; here they are pooled whole.
            net = avg_pool(layers.relu(net), min(5, *net.shape[1:3]), 3)
            net = layers.relu(self.conv(net, 128, 1, ("proj", "aux_bn0")))
            # A convolution as large as the features is a fully connected layer.
            size = (net.shape[1], net.shape[2])
            net = self.conv(net, 768, size, ("Conv", "aux_bn1"), padding="VALID")
            net = layers.relu(net)
            return self.style.logits(layers.flatten(net), num_classes, name="FC")

    def final_layer(self, net: jax.Array, num_classes: int | None, points: EndPoints) -> Outputs:
        """Return logits `[B, num_classes]`, or the pooled features, and the end points."""
        with scope("final_layer"):
            net = points["global_pool"] = global_pool(layers.relu(net))
            if num_classes is None:
                return net, points
            net = self.style.dropout(net)
            logits = self.style.logits(net, num_classes, name="FC")
        return predict(logits, points)


NORMAL = Cell(
    sums=(
        ((SEPARABLE_5, 0), (SEPARABLE_3, 1)),
        ((SEPARABLE_5, 1), (SEPARABLE_3, 1)),
        ((AVERAGE, 0), (IDENTITY, 1)),
        ((AVERAGE, 1), (AVERAGE, 1)),
        ((SEPARABLE_3, 0), (IDENTITY, 0)),
    ),
    outputs=(1, 2, 3, 4, 5, 6),
)
REDUCTION = Cell(
    sums=(
        ((SEPARABLE_5, 0), (SEPARABLE_7, 1)),
        ((MAXIMUM, 0), (SEPARABLE_7, 1)),
        ((AVERAGE, 0), (SEPARABLE_5, 1)),
        ((IDENTITY, 3), (AVERAGE, 2)),
        ((SEPARABLE_3, 2), (MAXIMUM, 0)),
    ),
    outputs=(3, 4, 5, 6),
)
PROGRESSIVE = Cell(
    sums=(
        ((SEPARABLE_5, 1), (MAXIMUM, 1)),
        ((SEPARABLE_7, 0), (MAXIMUM, 0)),
        ((SEPARABLE_5, 0), (SEPARABLE_3, 0)),
        ((SEPARABLE_3, 4), (MAXIMUM, 0)),
        ((SEPARABLE_3, 1), (IDENTITY, 0)),
    ),
    outputs=(2, 3, 4, 5, 6),
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
    has_zero_borders: bool = False,
) -> Outputs:
    """Build NASNet-A: three stacks of normal cells, with a reduction cell before two of them.

    Arguments:
      num_cells: total number of normal cells.
      num_filters: filters of the first stack; each reduction doubles them.
      is_for_imagenet: begin with a stride of 8 instead of 1.
      reduction_skips_a_cell: the second input of the first normal cell after a reduction is the
        reduction's second input, instead of its first.
      has_zero_borders: reduction cells pad with zeros, and count them, where they pool.
    """
    # Two reduction cells, and the stem's two: drop path grows along all of them.
    cells = Cells(settings, num_cells + (4 if is_for_imagenet else 2), has_zero_borders)
    if is_for_imagenet:
        outputs = cells.imagenet_stem(images, REDUCTION, num_filters, num_stem_filters)
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
            net = cells.cell(REDUCTION, outputs, name=name, num_filters=num_filters, stride=2)
            outputs.append(net)
            points[f"Reduction_Cell_{count}"] = net
            reach = 3 if reduction_skips_a_cell else 2
        name = f"cell_{index}"
        net = cells.cell(NORMAL, outputs, name=name, num_filters=num_filters, reach=reach)
        outputs.append(net)
        points[f"Cell_{index}"] = net
        # TF-Slim makes it in training only. Here all programs share one tree of parameters, and the
        # compiler drops what no output needs.
        if index == reductions[1] - 1 and num_classes is not None:
            points["AuxLogits"] = cells.auxiliary_head(net, num_classes, name=f"aux_{index}")
    return cells.final_layer(outputs[-1], num_classes, points)


def pnasnet(
    images: jax.Array,
    num_classes: int | None,
    *,
    settings: Settings,
    num_cells: int,
    num_filters: int,
    num_stem_filters: int,
) -> Outputs:
    """Build PNASNet-5: three stacks of one kind of cell, the last two begin with a stride of 2.

    Arguments:
      num_cells: number of cells in the stacks.
      num_filters: filters of the first stack; each reduction doubles them.
    """
    cells = Cells(settings, num_cells + 2)
    outputs = cells.imagenet_stem(images, PROGRESSIVE, num_filters, num_stem_filters)
    points: EndPoints = {"Stem": outputs[-1]}
    reductions = (num_cells // 3, 2 * num_cells // 3)
    for index in range(num_cells):
        stride = 2 if index in reductions else 1
        num_filters *= stride
        name = f"cell_{index}"
        net = cells.cell(PROGRESSIVE, outputs, name=name, num_filters=num_filters, stride=stride)
        outputs.append(net)
        points[f"Cell_{index}"] = net
        if index == reductions[1] - 1 and num_classes is not None:
            points["AuxLogits"] = cells.auxiliary_head(net, num_classes, name=f"aux_{index}")
    return cells.final_layer(outputs[-1], num_classes, points)


_IMAGENET = Settings(
    batch_norm_decay=0.9997,
    batch_norm_epsilon=1e-3,
    unbiased_running_variance=True,
    dropout=0.5,
    drop_path=0.0,
    drop_path_steps=250_000,
    weight_decay=4e-5,
)
_CIFAR = Settings(
    batch_norm_decay=0.9,
    batch_norm_epsilon=1e-5,
    unbiased_running_variance=True,
    dropout=0.0,
    drop_path=0.4,
    drop_path_steps=937_500,
    weight_decay=5e-4,
)
_SIZES = {
    "mobile": (224, {"num_cells": 12, "num_filters": 44, "num_stem_filters": 32}),
    "large": (331, {"num_cells": 18, "num_filters": 168, "num_stem_filters": 96}),
}


def _slim(size: str, settings: Settings) -> Model:
    image_size, widths = _SIZES[size]
    network = functools.partial(nasnet, **widths, reduction_skips_a_cell=size == "large")
    return slim_model(f"nasnet_{size}", network, image_size, settings, decays=decays_all_kernels)


def _keras(size: str) -> Model:
    slim = _slim(size, replace(_IMAGENET, dropout=0.0, weight_decay=0.0))
    return replace(
        slim,
        name=f"keras_{slim.name}",
        function=functools.partial(slim.function, has_zero_borders=True),
        num_classes=1000,
        source=f"keras.applications' NASNet{size.title()}",
    )


MODELS = (
    slim_model(
        "nasnet_cifar",
        functools.partial(
            nasnet, num_cells=18, num_filters=32, num_stem_filters=96, is_for_imagenet=False
        ),
        32,
        _CIFAR,
        preprocessing="cifarnet",
        num_classes=10,
        decays=decays_all_kernels,
    ),
    _slim("mobile", _IMAGENET),
    _slim("large", replace(_IMAGENET, drop_path=0.3, weight_decay=5e-5)),
    _keras("mobile"),
    _keras("large"),
    slim_model(
        "pnasnet_large",
        functools.partial(pnasnet, num_cells=12, num_filters=216, num_stem_filters=96),
        331,
        replace(_IMAGENET, drop_path=0.4),
        decays=decays_all_kernels,
    ),
    slim_model(
        "pnasnet_mobile",
        functools.partial(pnasnet, num_cells=9, num_filters=54, num_stem_filters=32),
        224,
        _IMAGENET,
        decays=decays_all_kernels,
    ),
)
