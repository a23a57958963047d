"""The update rules that optax has in another form or not at all."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import KeyPath


def scale_by_adam(
    beta1: float, beta2: float, epsilon: float, *, corrects_bias: bool = True
) -> optax.GradientTransformation:
    """Return Adam's step as TensorFlow 1 and Fluid take it, without the learning rate.

    They add `epsilon` to the root of the uncorrected second moment, the paper and `optax.adam` to
    that of the corrected one: with an epsilon of 1 that is another optimizer. BERT corrects
    neither moment. Source: the end of section 2 of Kingma and Ba 2015.

    >>> rule = scale_by_adam(0.9, 0.999, 1.0)
    >>> one = jax.numpy.float32(1.0)
    >>> update, _ = rule.update(one, rule.init(one))
    >>> round(float(update), 4)
    0.0307
    """

    def init(params: optax.Params) -> optax.ScaleByAdamState:
        mu, nu = optax.tree.zeros_like(params), optax.tree.zeros_like(params)
        return optax.ScaleByAdamState(count=jnp.zeros((), jnp.int32), mu=mu, nu=nu)

    def update(
        updates: optax.Updates, state: Any, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.ScaleByAdamState]:
        del params
        count: Any = optax.safe_increment(state.count)
        mu = optax.tree.update_moment(updates, state.mu, beta1, 1)
        nu = optax.tree.update_moment(updates, state.nu, beta2, 2)
        size: Any = 1.0
        if corrects_bias:
            size = jnp.sqrt(_one_minus_power(beta2, count)) / _one_minus_power(beta1, count)
        steps = jax.tree.map(
            lambda m, v: (size * m / (jnp.sqrt(v) + epsilon)).astype(m.dtype), mu, nu
        )
        return steps, optax.ScaleByAdamState(count=count, mu=mu, nu=nu)

    return optax.GradientTransformation(init, update)


def _one_minus_power(decay: float, count: jax.Array) -> jax.Array:
    """Return `1 - decay**count`; taken literally in float32, 1 - 0.999 is 1.3e-5 off."""
    return -jnp.expm1(count * (math.log(decay) if decay else -math.inf))


def adam_weight_decay(
    learning_rate: float | jax.Array,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay_rate: float,
    exclude: Sequence[str],
) -> optax.GradientTransformation:
    """Return BERT's Adam: no correction of the bias, weight decay apart from the gradient.

    Arguments:
      exclude: regular expressions; a parameter in whose path one is found does not decay. The shift
        of a norm, here `bias` without a kernel beside it, is called `beta` in that path, as BERT
        calls it: its patterns are for biases.

    >>> rule = adam_weight_decay(0.1, 0.9, 0.999, 1e-6, 0.01, ["bias"])
    >>> params = {"w": jax.numpy.float32(2.0), "bias": jax.numpy.float32(2.0)}
    >>> zeros = jax.tree.map(jax.numpy.zeros_like, params)
    >>> update, _ = rule.update(zeros, rule.init(params), params)
    >>> {name: round(float(value), 4) for name, value in update.items()}
    {'bias': -0.0, 'w': -0.002}
    """
    # Without patterns, one that matches nothing: an empty one would match all.
    pattern = re.compile("|".join(f"(?:{expression})" for expression in exclude) or r"(?!)")

    def mask_decayed(params: optax.Params) -> optax.Params:
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        # Layers with a kernel: their bias is a bias, not the shift of a norm.
        of_layers = {path[:-1] for path in paths if _format_path(path[-1:]) not in _OF_NORMS}

        def is_decayed(path: KeyPath, _: jax.Array) -> bool:
            layer, name = path[:-1], _format_path(path[-1:])
            is_shift = name == "bias" and layer not in of_layers and len(path) > 1
            text = f"{_format_path(layer)}/beta" if is_shift else _format_path(path)
            return not pattern.search(text)

        return jax.tree_util.tree_map_with_path(is_decayed, params)

    return optax.chain(
        scale_by_adam(beta1, beta2, epsilon, corrects_bias=False),
        optax.add_decayed_weights(weight_decay_rate, mask_decayed),
        optax.scale_by_learning_rate(learning_rate),
    )


_OF_NORMS = ("scale", "bias")


def _format_path(path: KeyPath) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


class FtrlState(NamedTuple):
    """The sums of squared gradients, and the linear terms of the proximal problem."""

    accumulator: Any
    linear: Any


def ftrl(
    learning_rate: float | jax.Array,
    power: float,
    initial_accumulator_value: float,
    l1: float,
    l2: float,
) -> optax.GradientTransformation:
    """Return FTRL-proximal (McMahan et al. 2013) as TensorFlow 1 has it.

    A parameter is the solution of a problem over all gradients so far, so its initial value counts
    for little: the first step shrinks it. Where the learning rate is 0 nothing changes.

    Arguments:
      learning_rate: a number or a scalar array.

    >>> rule = ftrl(0.01, -0.5, 0.1, 0.0, 0.0)
    >>> one = jax.numpy.float32(1.0)
    >>> update, _ = rule.update(one, rule.init(one), one)
    >>> round(float(one + update), 6)
    0.688954
    """

    def init(params: optax.Params) -> FtrlState:
        accumulator = optax.tree.full_like(params, initial_accumulator_value)
        return FtrlState(accumulator, optax.tree.zeros_like(params))

    def update(
        updates: optax.Updates, state: Any, params: optax.Params | None = None
    ) -> tuple[optax.Updates, FtrlState]:
        if params is None:
            raise ValueError(
                "ftrl got no parameters, expected them as the third argument of update. Its step "
                "leads from them to where the sums of gradients say."
            )
        # The rate divides below, and a schedule may begin or end at 0.
        is_moving = jnp.asarray(learning_rate) > 0
        rate = jnp.where(is_moving, learning_rate, 1.0)

        def new_linear(
            z: jax.Array, g: jax.Array, n: jax.Array, n_old: jax.Array, w: jax.Array
        ) -> jax.Array:
            return jnp.where(is_moving, z + g - (n**-power - n_old**-power) / rate * w, z)

        def step(z: jax.Array, n: jax.Array, w: jax.Array) -> jax.Array:
            # Below it the parameter is 0: the sparsity that FTRL is for.
            is_active = jnp.abs(z) > l1
            curvature = jnp.where(is_active, n**-power / rate + 2 * l2, 1.0)
            target = jnp.where(is_active, (jnp.sign(z) * l1 - z) / curvature, 0.0)
            return jnp.where(is_moving, target - w, 0.0).astype(w.dtype)

        old = state.accumulator
        accumulator = jax.tree.map(lambda n, g: jnp.where(is_moving, n + g * g, n), old, updates)
        linear = jax.tree.map(new_linear, state.linear, updates, accumulator, old, params)
        return jax.tree.map(step, linear, accumulator, params), FtrlState(accumulator, linear)

    return optax.GradientTransformation(init, update)
