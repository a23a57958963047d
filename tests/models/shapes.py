"""The shapes of what a network computes and of what it learns, found without computing anything."""

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
import pytest

import penstock as ps
from penstock import layers, models
from penstock.models.report import build_forward
from tests.models.reference import PUBLISHED

# Tracing one of these takes 2 to 9 s of processor time, of the others well under one. `make test`
# sees a smaller network of the same functions.
LARGE = {
    "inception_resnet_v2",
    "inception_v4",
    *("resnet_v1_101", "resnet_v1_152", "resnet_v1_200"),
    *("resnet_v2_101", "resnet_v2_152", "resnet_v2_200"),
    *("keras_resnet_v2_101", "keras_resnet_v2_152"),
    *("nasnet_cifar", "nasnet_mobile", "nasnet_large"),
    *("keras_nasnet_mobile", "keras_nasnet_large"),
    *("pnasnet_mobile", "pnasnet_large"),
}

# Other widths and depths of functions that are tried whole: what they keep to is read off a trace.
VARIANTS = {
    *("mobilenet_v1_050", "mobilenet_v1_075", "mobilenet_v2_140"),
    *("mobilenet_v3_large_minimalistic", "resnet_cifar10", "vgg_a", "vgg_19"),
    *(f"{kind}_{depth}" for kind in ("resnet_v1", "resnet_v2") for depth in (101, 152, 200)),
    *("keras_resnet_v2_101", "keras_resnet_v2_152"),
    *("nasnet_large", "keras_nasnet_large", "pnasnet_large"),
}


def slow_if_large(names: Iterable[str]) -> list[Any]:
    """Return names of networks as parameters of a test: the large ones are slow."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in names]


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Shapes without their batch axis: of the output, end points by name, parameters by path."""

    output: tuple[int, ...]
    points: dict[str, tuple[int, ...]]
    parameters: dict[str, tuple[int, ...]]
    trained: dict[str, tuple[int, ...]]


OWN = -1
"""The number of classes with which a network is published."""


def shapes_of(model, image_size: int | None = None, num_classes: int | None = OWN):
    """Return the shapes of a network, given by its name or as a function of images and classes.

    Arguments:
      image_size: by default the network's own.
    """
    if num_classes == OWN:
        num_classes = PUBLISHED[model].num_classes if model in PUBLISHED else 1000
    return _trace_shapes(model, image_size, num_classes)


@functools.cache
def _trace_shapes(model, image_size: int | None, num_classes: int | None) -> Shapes:
    network, size, num_channels = model, [image_size] * 2, 3
    if isinstance(model, str):
        network = models.get(model)
        size, num_channels = [image_size or network.default_image_size] * 2, network.num_channels
    points, outputs = {}, []

    def program():
        output, made = network(layers.data("image", [*size, num_channels]), num_classes)
        points.update({name: point.shape[1:] for name, point in made.items()})
        outputs.append(output.shape[1:])
        return output

    table = ps.ProgramBuilder(infer_func=program, place=jax.devices()[:1]).parameter_table()
    parameters = {row.name: row.shape for row in table}
    trained = {row.name: row.shape for row in table if row.is_trainable}
    return Shapes(outputs[-1], points, parameters, trained)


def count(shapes: dict[str, tuple[int, ...]]) -> int:
    """Return the number of elements of parameters."""
    return sum(map(math.prod, shapes.values()))


def changed(model, **settings):
    """Return a network with some of its settings changed."""
    return models.get(model, models.Settings(**settings))


def drawn(name, num_classes=3):
    """Return random values for every parameter and statistic of a network, by our names."""
    rng = np.random.default_rng(0)
    rows = build_forward(models.get(name), num_classes).parameter_table()
    return {row.name: rng.uniform(0.5, 1.5, row.shape).astype(np.float32) for row in rows}


def ones_for(builder):
    """Return variables that are 1 throughout, as numpy arrays: drawing them takes its time."""
    variables = {"params": {}, "batch_stats": {}}
    for row in builder.parameter_table():
        *scopes, leaf = row.name.split("/")
        node = variables[row.collection]
        for scope in scopes:
            node = node.setdefault(scope, {})
        node[leaf] = np.ones(row.shape, np.float32)
    return variables
