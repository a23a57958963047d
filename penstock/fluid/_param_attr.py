"""Fluid's `ParamAttr`, which takes its name by position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from penstock import layers

Array = jax.Array


def ParamAttr(
    name: str | None = None,
    initializer: Callable[..., Array] | None = None,
    learning_rate: float = 1.0,
    regularizer: Callable[[Array], Array] | None = None,
    trainable: bool = True,
) -> layers.ParamAttr:
    """Return `penstock.layers.ParamAttr`: how one parameter is named, initialised and trained.

    >>> ParamAttr("shared_w", learning_rate=0.5).name
    'shared_w'
    """
    given: Any = initializer
    return layers.ParamAttr(
        name=name,
        initializer=given,
        learning_rate=learning_rate,
        regularizer=regularizer,
        trainable=trainable,
    )
