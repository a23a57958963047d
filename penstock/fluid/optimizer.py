"""`fluid.optimizer`: Fluid's optimizers with Fluid's defaults, as optax transformations.

`learning_rate` is a number or an optax schedule. `regularization` is a regularizer for every
parameter that has none of its own, e.g. `fluid.regularizer.L2Decay(1e-4)`. Missing: what
optax has with another rule or not at all (Ftrl, DecayedAdagrad, LarsMomentum).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax

from penstock.optimizers import LearningRate
from penstock.optimizers.rules import scale_by_adam

Regularizer = Callable[[jax.Array], jax.Array]


def SGD(
    learning_rate: LearningRate = 0.001, regularization: Regularizer | None = None
) -> optax.GradientTransformation:
    """Return stochastic gradient descent: `p - learning_rate * g`.

    >>> _step_once(SGD(0.1), parameter=1.0, gradient=2.0)
    0.8
    """
    return _regularize(regularization, optax.sgd(learning_rate))


def Momentum(
    learning_rate: LearningRate,
    momentum: float,
    use_nesterov: bool = False,
    regularization: Regularizer | None = None,
) -> optax.GradientTransformation:
    """Return SGD with momentum: steps along `v = momentum * v + g`; Nesterov's `g + momentum * v`.

    >>> _step_once(Momentum(0.1, 0.9, use_nesterov=True), parameter=1.0, gradient=2.0)
    0.62
    """
    return _regularize(regularization, optax.sgd(learning_rate, momentum, use_nesterov))


def Adagrad(
    learning_rate: LearningRate,
    epsilon: float = 1e-6,
    regularization: Regularizer | None = None,
    initial_accumulator_value: float = 0.0,
) -> optax.GradientTransformation:
    """Return Adagrad (Duchi et al. 2011): divide by the root of the sum of squared gradients.

    >>> _step_once(Adagrad(0.1), parameter=1.0, gradient=2.0)
    0.9
    """
    # optax adds its epsilon under the root, Fluid beside it. With its square they differ only for
    # gradients about as small as epsilon.
    transformation = optax.adagrad(learning_rate, initial_accumulator_value, epsilon**2)
    return _regularize(regularization, transformation)


def Adam(
    learning_rate: LearningRate = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    regularization: Regularizer | None = None,
) -> optax.GradientTransformation:
    """Return Adam (Kingma and Ba 2015).

    >>> _step_once(Adam(0.1), parameter=1.0, gradient=2.0)
    0.9
    """
    transformation = optax.chain(
        # Not optax's Adam, whose epsilon is added to the corrected root.
        scale_by_adam(beta1, beta2, epsilon),
        optax.scale_by_learning_rate(learning_rate),
    )
    return _regularize(regularization, transformation)


def Adamax(
    learning_rate: LearningRate = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    regularization: Regularizer | None = None,
) -> optax.GradientTransformation:
    """Return Adamax (Kingma and Ba 2015): Adam with the infinity norm of past gradients.

    Fluid adds `epsilon` to the decayed norm at every step, which so rises to 1e-5 in the end; here
    it is added to the gradient's magnitude alone, and gradients below that make larger steps.

    >>> _step_once(Adamax(0.1), parameter=1.0, gradient=2.0)
    0.9
    """
    return _regularize(regularization, optax.adamax(learning_rate, beta1, beta2, epsilon))


def RMSProp(
    learning_rate: LearningRate,
    rho: float = 0.95,
    epsilon: float = 1e-6,
    momentum: float = 0.0,
    centered: bool = False,
    regularization: Regularizer | None = None,
) -> optax.GradientTransformation:
    """Return RMSProp (Hinton): divide by the root of the running mean of squared gradients.

    `epsilon` is added under the root. Momentum accumulates the scaled steps, not the gradients.

    >>> _step_once(RMSProp(0.1, rho=0.75), parameter=1.0, gradient=2.0)
    0.8
    """
    transformation = optax.rmsprop(
        # optax would keep an array for each parameter for a momentum of 0 too.
        learning_rate,
        rho,
        epsilon,
        centered=centered,
        momentum=momentum or None,
    )
    return _regularize(regularization, transformation)


def Adadelta(
    learning_rate: LearningRate,
    epsilon: float = 1e-6,
    rho: float = 0.95,
    regularization: Regularizer | None = None,
) -> optax.GradientTransformation:
    """Return Adadelta (Zeiler 2012): scale by the running RMS of steps over that of gradients.

    Fluid's kernel ignores `learning_rate`. Here steps are multiplied by it; 1.0 gives Fluid's.

    >>> _step_once(Adadelta(1.0, epsilon=1.0, rho=0.0), parameter=1.0, gradient=0.0)
    1.0
    """
    return _regularize(regularization, optax.adadelta(learning_rate, rho, epsilon))


# Fluid has long names for the same.
SGDOptimizer = SGD
MomentumOptimizer = Momentum
AdagradOptimizer = Adagrad
AdamOptimizer = Adam
AdamaxOptimizer = Adamax
RMSPropOptimizer = RMSProp
AdadeltaOptimizer = Adadelta


def _regularize(
    regularization: Regularizer | None, transformation: optax.GradientTransformation
) -> optax.GradientTransformation:
    if regularization is None:
        return transformation

    def update(
        updates: optax.Updates,
        state: optax.OptState,
        params: optax.Params | None = None,
        *,
        regularized: frozenset[tuple[str, ...]] = frozenset(),
        **_: Any,
    ) -> tuple[optax.Updates, optax.OptState]:
        def add(path: tuple[Any, ...], gradient: jax.Array, parameter: jax.Array) -> jax.Array:
            # A parameter's own regularizer takes the place of the optimizer's.
            is_own = tuple([getattr(key, "key", None) for key in path]) in regularized
            return gradient if is_own else gradient + regularization(parameter)

        return jax.tree.map_with_path(add, updates, params), state

    # First, as in Fluid: the decay is a part of the gradient that momentum and Adam see.
    add_decay = optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
    return optax.chain(add_decay, transformation)


def _step_once(
    transformation: optax.GradientTransformation, parameter: float, gradient: float
) -> float:
    """Return the parameter after one step, to four digits; for the examples here."""
    value, slope = jax.numpy.float32(parameter), jax.numpy.float32(gradient)
    update, _ = transformation.update(slope, transformation.init(value), value)
    return round(float(value + update), 4)  # pyright: ignore[reportOperatorIssue]
