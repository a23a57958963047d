"""Flags of the learning rate and of the optimizer: FastNN's tables 4.4 and 4.5."""

from __future__ import annotations

import dataclasses

from penstock.commands._flags._checks import UsageError, check_above_zero, words_of
from penstock.optimizers import OptimizerOptions, ScheduleOptions

_OWN = ("optimizer", "moving_average_decay", "optax_options")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearningRateFlags:
    """How fast it learns, from the first step to the last.

    Arguments:
      warmup_steps: steps that lead up to learning_rate.
      warmup_scheme: t2t, by an equal factor a step from a 100th; or linear, from 0.
      decay_scheme: luong234, after 2/3 of the steps 4 times; luong5 and luong10, after 1/2 5 and 10
        times; empty, from the end of the warmup on.
      learning_rate_decay_factor: of exponential.
      learning_rate_decay_type: fixed, exponential, polynomial, cosine or one_cycle.
      learning_rate: the highest.
      end_learning_rate: what polynomial, cosine and one_cycle end at.
      num_epochs_per_decay: of exponential with an empty decay_scheme.
    """

    warmup_steps: int = 0
    warmup_scheme: str = "t2t"
    decay_scheme: str = ""
    learning_rate_decay_factor: float = 0.94
    learning_rate_decay_type: str = "exponential"
    learning_rate: float = 0.01
    end_learning_rate: float = 0.0001
    num_epochs_per_decay: float = 2.0

    def __post_init__(self) -> None:
        """Check the values."""
        self.options()

    def options(self) -> ScheduleOptions:
        """Return what `optimizers.schedule` takes.

        Raises:
          UsageError: a value is wrong.
        """
        try:
            return ScheduleOptions(**dataclasses.asdict(self))
        except (ValueError, KeyError) as error:
            raise UsageError(str(error)) from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerFlags:
    """What makes of gradients an update.

    Arguments:
      optimizer: adadelta, adagrad, adam, adamweightdecay, ftrl, momentum, rmsprop or sgd, as in
        TensorFlow 1; or any optimizer of optax, such as lamb, or optax.adam.
      adadelta_rho: share of the running means that a step keeps, of adadelta.
      adagrad_initial_accumulator_value: of adagrad.
      adam_beta1: share of the first moment that a step keeps, of adam and adamweightdecay.
      adam_beta2: the same of the second moment.
      opt_epsilon: of adadelta, adam, rmsprop and adamweightdecay.
      ftrl_learning_rate_power: of ftrl.
      ftrl_initial_accumulator_value: of ftrl.
      ftrl_l1: of ftrl.
      ftrl_l2: of ftrl.
      momentum: of momentum.
      rmsprop_momentum: of rmsprop.
      rmsprop_decay: share of the mean of squares that a step keeps, of rmsprop.
      weight_decay_rate: of adamweightdecay, apart from the gradient.
      optax_options: arguments of an optimizer of optax, such as b1=0.95,nesterov=True.
      moving_average_decay: keep an average of the parameters, such as 0.9999, and evaluate it.
    """

    optimizer: str = "rmsprop"
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
    optax_options: str | None = None
    moving_average_decay: float | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        from penstock import optimizers

        try:
            optimizers.get(self.optimizer, 0.1, options=self.options())
        except KeyError as error:
            raise UsageError(f"--optimizer got a wrong name: {error}") from error
        except UsageError:
            raise
        except ValueError as error:
            raise UsageError(str(error)) from error
        check_above_zero(moving_average_decay=self.moving_average_decay)
        if self.moving_average_decay is not None and self.moving_average_decay >= 1:
            raise UsageError(
                f"--moving_average_decay got {self.moving_average_decay!r}, expected below 1."
            )

    def options(self) -> OptimizerOptions:
        """Return what `optimizers.get` takes."""
        numbers = {k: v for k, v in dataclasses.asdict(self).items() if k not in _OWN}
        pairs = [_pair(word) for word in words_of(self.optax_options)]
        return OptimizerOptions(**numbers, optax_options=dict(pairs))


def _pair(word: str) -> tuple[str, float | bool | str]:
    name, equals, text = word.partition("=")
    if not equals:
        raise UsageError(
            f"--optax_options got {word!r}, expected NAME=VALUE, several between commas, such as "
            "b1=0.95,nesterov=True."
        )
    if text in ("True", "False"):
        return name, text == "True"
    try:
        return name, float(text)
    except ValueError:
        return name, text
