"""Activations: by function (`layers.relu(x)`) and by name (`act="relu"`).

They need no program and work on any array and sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from penstock._errors import ProgramError, listed, nearest
from penstock._program.frame import V, over_words, remember_logits, traced_once, widen

Activation = Literal[
    "relu",
    "relu6",
    "leaky_relu",
    "elu",
    "selu",
    "gelu",
    "swish",
    "sigmoid",
    "logsigmoid",
    "hard_sigmoid",
    "hard_swish",
    "tanh",
    "softplus",
    "softsign",
    "softmax",
    "log_softmax",
]
"""The names of activations, for `act=`."""


# 49 of a ResNet-50 have 9 shapes, and JAX's own is traced, and its gradient, wherever it is called.
_relu = traced_once(inline=True)(jax.nn.relu)


def relu(x: V) -> V:
    """Return `max(x, 0)`; the gradient at 0 is 0.

    >>> relu(jnp.array([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    return over_words(_relu, x)


def relu6(x: V, threshold: float = 6.0) -> V:
    """Return `min(max(x, 0), threshold)`.

    >>> relu6(jnp.array([-1.0, 2.0, 9.0])).tolist()
    [0.0, 2.0, 6.0]
    """
    return over_words(lambda x: jnp.minimum(jax.nn.relu(x), threshold), x)


def leaky_relu(x: V, alpha: float = 0.02) -> V:
    """Return `x` where positive and `alpha * x` elsewhere; 0.02 is Fluid's slope (JAX: 0.01).

    >>> leaky_relu(jnp.array([-100.0, 2.0])).tolist()
    [-2.0, 2.0]
    """
    return over_words(lambda x: jax.nn.leaky_relu(x, alpha), x)


def elu(x: V, alpha: float = 1.0) -> V:
    """Return `x` where positive and `alpha * (exp(x) - 1)` elsewhere.

    >>> elu(jnp.array([-100.0, 2.0])).tolist()
    [-1.0, 2.0]
    """
    return over_words(lambda x: jax.nn.elu(x, alpha), x)


def selu(x: V) -> V:
    """Return the scaled exponential linear unit (Klambauer et al. 2017).

    >>> print(selu(jnp.array([0.0, 1.0])).round(4))
    [0.     1.0507]
    """
    return over_words(jax.nn.selu, x)


def gelu(x: V, approximate: bool = False) -> V:
    """Return the Gaussian error linear unit, `x` times the normal distribution function of `x`.

    It is exact by default, as in Fluid. The default of `jax.nn.gelu` is the tanh approximation.

    >>> gelu(jnp.array([0.0, 100.0])).tolist()
    [0.0, 100.0]
    """
    return over_words(lambda x: jax.nn.gelu(x, approximate=approximate), x)


def swish(x: V, beta: float = 1.0) -> V:
    """Return `x * sigmoid(beta * x)`, which is also called SiLU when `beta` is 1.

    >>> swish(jnp.array([0.0, 100.0])).tolist()
    [0.0, 100.0]
    """
    return over_words(lambda x: x * jax.nn.sigmoid(beta * x), x)


def sigmoid(x: V) -> V:
    """Return `1 / (1 + exp(-x))`.

    >>> sigmoid(jnp.array([0.0, 100.0])).tolist()
    [0.5, 1.0]
    """
    return over_words(jax.nn.sigmoid, x)


def logsigmoid(x: V) -> V:
    """Return `log(sigmoid(x))`, finite for every finite `x`.

    >>> logsigmoid(jnp.array([-100.0])).tolist()
    [-100.0]
    """
    return over_words(jax.nn.log_sigmoid, x)


def hard_sigmoid(x: V, slope: float = 0.2, offset: float = 0.5) -> V:
    """Return `slope * x + offset` clipped to [0, 1]; the slope is Fluid's (JAX: 1/6).

    >>> hard_sigmoid(jnp.array([-9.0, 0.0, 9.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    return over_words(lambda x: jnp.clip(slope * x + offset, 0.0, 1.0), x)


def hard_swish(x: V, threshold: float = 6.0, scale: float = 6.0, offset: float = 3.0) -> V:
    """Return `x * min(max(x + offset, 0), threshold) / scale` (MobileNetV3).

    >>> hard_swish(jnp.array([-9.0, 0.0, 9.0])).tolist()
    [-0.0, 0.0, 9.0]
    """
    return over_words(lambda x: x * jnp.clip(x + offset, 0.0, threshold) / scale, x)


def tanh(x: V) -> V:
    """Return the hyperbolic tangent.

    >>> tanh(jnp.array([0.0, 100.0])).tolist()
    [0.0, 1.0]
    """
    return over_words(jnp.tanh, x)


def softplus(x: V) -> V:
    """Return `log(1 + exp(x))`, finite for every finite `x`.

    >>> softplus(jnp.array([-200.0, 200.0])).tolist()
    [0.0, 200.0]
    """
    return over_words(jax.nn.softplus, x)


def softsign(x: V) -> V:
    """Return `x / (1 + |x|)`.

    >>> softsign(jnp.array([-1.0, 3.0])).tolist()
    [-0.5, 0.75]
    """
    return over_words(jax.nn.soft_sign, x)


def softmax(input: V, axis: int = -1) -> V:
    """Return the softmax along `axis`, in the input's shape, in float32 or wider.

    Inside a program, `cross_entropy` of a softmax over the last axis is computed from the logits,
    and stays finite.

    >>> softmax(jnp.zeros([1, 2])).tolist()
    [[0.5, 0.5]]
    """
    return over_words(lambda input: _softmax(input, axis), input)


def _softmax(input: jax.Array, axis: int = -1) -> jax.Array:
    # A cross entropy of what comes out finds the logits, and is finite where a probability is 0.
    logits = widen(input)
    probabilities = jax.nn.softmax(logits, axis=axis)
    # A cross entropy is over the last axis.
    if axis in (-1, logits.ndim - 1):
        remember_logits(probabilities, logits)
    return probabilities


def log_softmax(input: V, axis: int = -1) -> V:
    """Return the logarithm of the softmax along `axis`, in the input's shape, in float32 or wider.

    >>> log_softmax(jnp.array([[0.0, -200.0]])).tolist()
    [[0.0, -200.0]]
    """
    return over_words(lambda input: _log_softmax(input, axis), input)


def _log_softmax(input: jax.Array, axis: int = -1) -> jax.Array:
    return jax.nn.log_softmax(widen(input), axis=axis)


ACTIVATIONS: dict[Activation, Callable[[jax.Array], jax.Array]] = {
    "relu": _relu,
    "relu6": relu6,
    "leaky_relu": leaky_relu,
    "elu": elu,
    "selu": jax.nn.selu,
    "gelu": gelu,
    "swish": swish,
    "sigmoid": jax.nn.sigmoid,
    "logsigmoid": jax.nn.log_sigmoid,
    "hard_sigmoid": hard_sigmoid,
    "hard_swish": hard_swish,
    "tanh": jnp.tanh,
    "softplus": jax.nn.softplus,
    "softsign": jax.nn.soft_sign,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
}
"""What `act=` accepts."""


def activate(x: jax.Array, act: Activation | None, layer: str) -> jax.Array:
    """Return `x` after the activation named `act`, or `x` itself for None."""
    if act is None:
        return x
    if not isinstance(act, str) or act not in ACTIVATIONS:
        raise ProgramError(
            f"layers.{layer} got act={act!r}, expected None or one of {listed(ACTIVATIONS)}. "
            "Activations are chosen by name. Apply any other function to what the layer returns."
            + nearest(str(act), ACTIVATIONS)
        )
    return ACTIVATIONS[act](x)
