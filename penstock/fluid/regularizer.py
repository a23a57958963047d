"""`fluid.regularizer`: for `ParamAttr(regularizer=)` and an optimizer's `regularization=`."""

from __future__ import annotations

from penstock import layers


def L1Decay(regularization_coeff: float = 0.0) -> layers.L1Decay:
    """Return L1 decay, which adds `regularization_coeff * sign(parameter)` to the gradient.

    >>> L1Decay(0.5)
    L1Decay(coefficient=0.5)
    """
    return layers.L1Decay(regularization_coeff)


def L2Decay(regularization_coeff: float = 0.0) -> layers.L2Decay:
    """Return L2 decay, which adds `regularization_coeff * parameter` to the gradient.

    >>> L2Decay(0.5)
    L2Decay(coefficient=0.5)
    """
    return layers.L2Decay(regularization_coeff)


L1DecayRegularizer = L1Decay
L2DecayRegularizer = L2Decay
