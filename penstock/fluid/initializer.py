"""`fluid.initializer`: for `ParamAttr(initializer=)`; each gives `(key, shape, dtype) -> array`.

Weights are `[..., inputs, outputs]`, as penstock's layers have them.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import jax
from jax.nn import initializers

from penstock._program.frame import Initializer


def Constant(value: float = 0.0) -> Initializer:
    """Return an initializer that fills with `value`.

    >>> Constant(2.0)(jax.random.key(0), (2,), "float32").tolist()
    [2.0, 2.0]
    """
    return initializers.constant(value)


def Uniform(low: float = -1.0, high: float = 1.0) -> Initializer:
    """Return an initializer that draws uniformly from `low` to `high`.

    >>> bool(Uniform(2.0, 3.0)(jax.random.key(0), (9,), "float32").min() >= 2)
    True
    """
    return lambda key, shape, dtype="float32": jax.random.uniform(key, shape, dtype, low, high)


def Normal(loc: float = 0.0, scale: float = 1.0) -> Initializer:
    """Return a normal initializer with mean `loc` and standard deviation `scale`.

    >>> Normal(5.0, 0.0)(jax.random.key(0), (2,), "float32").tolist()
    [5.0, 5.0]
    """
    draw = initializers.normal(scale, "float32")
    return lambda key, shape, dtype="float32": loc + draw(key, shape, dtype)


def Xavier(uniform: bool = True) -> Initializer:
    """Return Glorot and Bengio's initializer: variance `2 / (fan_in + fan_out)`.

    >>> Xavier()(jax.random.key(0), (3, 4), "float32").shape
    (3, 4)
    """
    # The mean of both fans is half of their sum: 1 over it is 2 over the sum.
    return _scale_variance(1.0, "fan_avg", uniform)


def MSRA(uniform: bool = True) -> Initializer:
    """Return He et al.'s initializer: variance `2 / fan_in`.

    >>> MSRA(uniform=False)(jax.random.key(0), (3, 4), "float32").shape
    (3, 4)
    """
    return _scale_variance(2.0, "fan_in", uniform)


def _scale_variance(scale: float, mode: Literal["fan_in", "fan_avg"], uniform: bool) -> Initializer:
    draw = initializers.variance_scaling(scale, mode, "uniform" if uniform else "normal")

    def initialize(key: jax.Array, shape: Any, dtype: Any = "float32") -> jax.Array:
        if len(shape) != 1:
            return draw(key, shape, dtype)
        # A bias: Fluid takes its size for both fans.
        deviation = math.sqrt(scale / max(shape[0], 1))
        limit = math.sqrt(3) * deviation
        one_axis = Uniform(-limit, limit) if uniform else Normal(0.0, deviation)
        return one_axis(key, shape, dtype)

    return initialize


# Fluid has long names for the same.
ConstantInitializer = Constant
UniformInitializer = Uniform
NormalInitializer = Normal
XavierInitializer = Xavier
MSRAInitializer = MSRA
