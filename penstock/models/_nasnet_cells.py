"""What NASNet and PNASNet are built of: cells found by search, the ImageNet stem, the heads.

Zoph et al. 2018, Liu et al. 2018, and TF-Slim's nasnet_utils.py. As there, batch norms have names
beside their convolutions': `cell_0/1x1/w` and `cell_0/beginning_bn/scale`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp

from penstock import layers
from penstock.layers.initializers import he_fan_out
from penstock.models._registry import EndPoints, Outputs, Settings
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
