"""The options of optimizers, under FastNN's flag names."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping

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
