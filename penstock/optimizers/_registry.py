"""Optimizers by name: TensorFlow 1's rules under FastNN's names, and optax's under its own."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Literal

import jax
import optax

from penstock._errors import UnknownNameError, check_known, check_number, listed, nearest
from penstock.optimizers import rules
from penstock.optimizers._moving_average import with_moving_average
from penstock.optimizers._schedules import LearningRate, with_learning_rate

NO_DECAY = ("LayerNorm", "layer_norm", "bias", r"(^|/)b$")
"""What BERT leaves out of weight decay, and `b`, the name of most biases here; see `rules`."""

_SHARES = ("adadelta_rho", "adam_beta1", "adam_beta2", "momentum", "rmsprop_momentum")
_NOT_NEGATIVE = (
    "adagrad_initial_accumulator_value",
    "opt_epsilon",
    "ftrl_initial_accumulator_value",
    "ftrl_l1",
    "ftrl_l2",
    "weight_decay_rate",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """Hold the options of optimizers by name besides the learning rate; each uses only its own.

    Names and defaults are those of FastNN's flags. The default `opt_epsilon` of 1 suits rmsprop on
    Inception. For adam close to its paper, use 1e-8.

    Arguments:
      adadelta_rho: the fraction of its running means that adadelta keeps in a step.
      adagrad_initial_accumulator_value: the initial value of adagrad's sums of squares.
      adam_beta1: the decay of the first moment for adam and adamweightdecay.
      adam_beta2: the decay of the second moment for adam and adamweightdecay.
      opt_epsilon: the epsilon of adadelta, adam, rmsprop and adamweightdecay.
      ftrl_learning_rate_power: the power of its sums of squares by which ftrl scales the learning
        rate, 0 or less.
      ftrl_initial_accumulator_value: the initial value of ftrl's sums of squares.
      ftrl_l1: the L1 coefficient of ftrl; it gives exact zeros.
      ftrl_l2: the L2 coefficient of ftrl.
      momentum: the fraction of its velocity that momentum keeps in a step.
      rmsprop_momentum: the fraction of the last update that rmsprop adds to the next.
      rmsprop_decay: the fraction of its running mean of squares that rmsprop keeps in a step.
      weight_decay_rate: the decoupled weight decay of adamweightdecay.
      exclude_from_weight_decay: regular expressions. adamweightdecay does not decay a parameter if
        one of them is found in its path, such as `encoder/fc_0/b`. The bias of a norm layer,
        `norm/bias`, is matched as `norm/beta`, its name in TensorFlow. By default the biases of
        batch norm therefore decay, as in BERT's rule.
      optax_options: the arguments of an optimizer of optax, by optax's names.

    Raises:
      ValueError: an option is outside its range.

    >>> OptimizerOptions(rmsprop_decay=0.95).opt_epsilon
    1.0
    """

    adadelta_rho: float = 0.95
    adagrad_initial_accumulator_value: float = 0.1
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    opt_epsilon: float = 1.0
    ftrl_learning_rate_power: float = -0.5
    ftrl_initial_accumulator_value: float = 0.1
    ftrl_l1: float = 0.0
    ftrl_l2: float = 0.0
    momentum: float = 0.9
    rmsprop_momentum: float = 0.9
    rmsprop_decay: float = 0.9
    weight_decay_rate: float = 0.01
    exclude_from_weight_decay: tuple[str, ...] = NO_DECAY
    optax_options: Mapping[str, float | bool | str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        ranges = {name: (0 <= getattr(self, name) < 1, "from 0 to below 1") for name in _SHARES}
        # 1 as well: TensorFlow's mean of squares begins at 1, and may stay there.
        ranges["rmsprop_decay"] = (0 <= self.rmsprop_decay <= 1, "from 0 to 1")
        for name in _NOT_NEGATIVE:
            ranges[name] = (0 <= getattr(self, name) < math.inf, "of 0 or more")
        is_falling = -math.inf < self.ftrl_learning_rate_power <= 0
        ranges["ftrl_learning_rate_power"] = (is_falling, "of 0 or less")
        problems = [
            f"{name}={getattr(self, name)!r}, expected a number {wanted}"
            for name, (is_right, wanted) in ranges.items()
            if not is_right
        ]
        problems += [
            f"exclude_from_weight_decay={pattern!r}, expected a regular expression"
            for pattern in self.exclude_from_weight_decay
            if not _is_pattern(pattern)
        ]
        if problems:
            raise ValueError(f"OptimizerOptions got {'; '.join(problems)}.")


def _is_pattern(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


RuleName = Literal[
    "adadelta", "adagrad", "adam", "adamweightdecay", "ftrl", "momentum", "rmsprop", "sgd"
]
"""The optimizers that follow TensorFlow 1."""

Rate = float | jax.Array
"""A learning rate as `optax.inject_hyperparams` hands it to an optimizer: traced, in the step."""

Rule = Callable[[Rate, OptimizerOptions], optax.GradientTransformation]

_DEFAULTS = OptimizerOptions()

# optax's own rules wherever they are exact; Adam with TensorFlow 1's epsilon, BERT's Adam and FTRL
# are in `rules`.
_RULES: Mapping[str, Rule] = {
    "adadelta": lambda rate, o: optax.adadelta(rate, o.adadelta_rho, o.opt_epsilon),
    # TensorFlow 1 adds nothing to the sum of squares; its initial value keeps it above 0.
    "adagrad": lambda rate, o: optax.adagrad(rate, o.adagrad_initial_accumulator_value, eps=0.0),
    "adam": lambda rate, o: optax.chain(
        rules.scale_by_adam(o.adam_beta1, o.adam_beta2, o.opt_epsilon),
        optax.scale_by_learning_rate(rate),
    ),
    "adamweightdecay": lambda rate, o: rules.adam_weight_decay(
        rate,
        o.adam_beta1,
        o.adam_beta2,
        o.opt_epsilon,
        o.weight_decay_rate,
        o.exclude_from_weight_decay,
    ),
    "ftrl": lambda rate, o: rules.ftrl(
        rate,
        o.ftrl_learning_rate_power,
        o.ftrl_initial_accumulator_value,
        o.ftrl_l1,
        o.ftrl_l2,
    ),
    "momentum": lambda rate, o: optax.sgd(rate, o.momentum),
    # TensorFlow 1's mean of squares begins at 1, which keeps the first steps small.
    "rmsprop": lambda rate, o: optax.rmsprop(
        rate, o.rmsprop_decay, o.opt_epsilon, initial_scale=1.0, momentum=o.rmsprop_momentum
    ),
    "sgd": lambda rate, o: optax.sgd(rate),
}

_UNFIT: Mapping[str, str] = {
    "dpsgd": "It needs a random key, a clipping norm and noise.",
    "noisy_sgd": "It needs a random key.",
    "sophia": "Its state holds a random key.",
    "schedule_free_adamw": "It is evaluated with averaged=True, not where it trains.",
    "schedule_free_sgd": "It is evaluated with averaged=True, not where it trains.",
}
"""Optimizers of optax that a name does not stand for, and why."""


def get(
    name: RuleName | str,
    learning_rate: LearningRate,
    *,
    options: OptimizerOptions = _DEFAULTS,
    max_gradient_norm: float | None = None,
    moving_average_decay: float | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Return the optimizer called `name`, as an optax transformation.

    `adadelta`, `adagrad`, `adam`, `adamweightdecay`, `ftrl`, `momentum`, `rmsprop` and `sgd` follow
    TensorFlow 1 (`adamweightdecay`: BERT) and use FastNN's options. The other names, such as
    `lamb` or `muon`, are optimizers of optax with the arguments in `options.optax_options`. The
    prefixes `optax.` and `optax.contrib.` always select optax: `optax.adam` is not TensorFlow's
    `adam`.

    Arguments:
      name: one of `optimizers.names()`, or such a name with a prefix.
      learning_rate: a number, or a schedule such as `optimizers.schedule(...)`. The state holds the
        rate of the last update; see `optimizers.learning_rate`.
      options: the options of all optimizers. Each uses only its own.
      max_gradient_norm: clip the gradients so that their global norm is at most this; None does not
        clip.
      moving_average_decay: keep a moving average of the parameters with this decay, see
        `optimizers.with_moving_average`; None keeps none.

    Raises:
      UnknownNameError: there is no such optimizer, or it has no such option.
      ValueError: a number is outside its range, or `optax_options` was given to an optimizer of
        TensorFlow.

    Source: FastNN's `--optimizer`, with the meaning that its flags have in `tf.train`.

    >>> import jax.numpy as jnp
    >>> optimizer = get("rmsprop", 0.01, max_gradient_norm=5.0)
    >>> params = {"w": jnp.ones(2)}
    >>> update, _ = optimizer.update({"w": jnp.ones(2)}, optimizer.init(params), params)
    >>> (params["w"] + update["w"]).round(6).tolist()
    [0.9929289817810059, 0.9929289817810059]
    """
    make = _find_maker(name, options)
    optimizer = with_learning_rate(make, learning_rate)
    if max_gradient_norm is not None:
        why = "None leaves gradients as they are."
        check_number("max_gradient_norm", max_gradient_norm, "(0, inf]", why)
        # In front: the optimizer, and its moments, see clipped gradients.
        optimizer = optax.chain(optax.clip_by_global_norm(max_gradient_norm), optimizer)
    if moving_average_decay is not None:
        # Around it all: it averages parameters, and needs nothing of what moved them.
        optimizer = with_moving_average(optimizer, moving_average_decay)
    return optax.with_extra_args_support(optimizer)


def names() -> list[str]:
    """Return the names of the optimizers: TensorFlow 1's rules first, then optax's.

    >>> names()[:8]
    ['adadelta', 'adagrad', 'adam', 'adamweightdecay', 'ftrl', 'momentum', 'rmsprop', 'sgd']
    >>> "lamb" in names()
    True
    """
    return [*_RULES, *(name for name in _find_in_optax() if name not in _RULES)]


def _find_maker(
    name: str, options: OptimizerOptions
) -> Callable[[Rate], optax.GradientTransformation]:
    if name in _RULES:
        if options.optax_options:
            raise ValueError(
                f"optimizers.get got optax_options={dict(options.optax_options)!r} for {name!r}, "
                f"expected none. It is TensorFlow's. 'optax.{name}' is optax's, where it has one."
            )
        return lambda rate: _RULES[name](rate, options)
    short = name.removeprefix("optax.").removeprefix("contrib.")
    if short in _UNFIT:
        module = "optax" if short in vars(optax) else "optax.contrib"
        raise UnknownNameError(
            f"optimizers.get got {name!r}, expected one of optimizers.names(). {_UNFIT[short]} "
            f"Give the Trainer what {module}.{short}(...) returns."
        )
    function = _find_in_optax().get(short)
    if function is None:
        raise UnknownNameError(
            f"optimizers.get got {name!r}, expected one of {listed(_RULES)}, or the name of an "
            "optimizer of optax; optimizers.names() has them all." + nearest(short, names())
        )
    # Asked here, to name the nearest; Python would only refuse.
    first, *parameters = inspect.signature(function).parameters
    for option in options.optax_options:
        check_known(f"optimizers.get got for optax's {short!r} the option ", option, parameters)
    return lambda rate: function(**{first: rate}, **options.optax_options)


@functools.cache
def _find_in_optax() -> dict[str, Callable[..., optax.GradientTransformation]]:
    """Return the optimizers of the optax that is installed, by name.

    They are its functions whose first argument is a learning rate.
    """
    optimizers: dict[str, Callable[..., optax.GradientTransformation]] = {}
    # optax's own before contrib's of the same name.
    for module in (optax, optax.contrib):
        for name, value in sorted(vars(module).items()):
            is_function = isinstance(value, FunctionType | functools.partial)
            if not is_function or name.startswith(("_", "scale_by_")) or name in _UNFIT:
                continue
            first = next(iter(inspect.signature(value).parameters), "")
            if first in ("learning_rate", "max_learning_rate"):
                optimizers.setdefault(name, value)
    return optimizers
