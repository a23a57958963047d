"""Flags of the optimizer: FastNN's table 4.5."""

from __future__ import annotations

import dataclasses

from penstock import optimizers
from penstock.commands._checks import UsageError, check_above_zero

# TensorFlow's. With FastNN's 1 and a rate of 0.001, adam gets 9 % of the digits right after 100
# steps, and 97 % with this. Adadelta does not learn with TensorFlow's at the default rate.
_EPSILONS = {"adam": 1e-8, "adamweightdecay": 1e-8}
FASTNN_EPSILON = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerFlags(optimizers.OptimizerOptions):
    """How gradients become an update.

    Arguments:
      optimizer: the optimizer: adadelta, adagrad, adam, adamweightdecay, ftrl, momentum, rmsprop or
        sgd, as in TensorFlow 1; or any optimizer of optax, such as lamb, or optax.adam.
      opt_epsilon: the epsilon of adadelta, adam, adamweightdecay and rmsprop. By default, it is
        1e-8 for adam and adamweightdecay, and 1 for the others. With --fastnn_compat, it is 1 for
        all.
      exclude_from_weight_decay: the parameters that adamweightdecay does not decay: those whose
        path matches one of these regular expressions, separated by commas.
      optax_options: the arguments of an optax optimizer, such as b1=0.95,nesterov=True.
      moving_average_decay: keep a moving average of the parameters with this decay, such as 0.9999,
        and evaluate it.
    """

    optimizer: str = "rmsprop"
    moving_average_decay: float | None = None
    # None until the optimizer is known, which the library's options never are without.
    opt_epsilon: float | None = None  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        """Check the values."""
        try:
            optimizers.get(self.optimizer, 0.1, options=self.options)
        except KeyError as error:
            raise UsageError(str(error)) from error
        check_above_zero(moving_average_decay=self.moving_average_decay)
        if self.moving_average_decay is not None and self.moving_average_decay >= 1:
            raise UsageError(
                f"--moving_average_decay got {self.moving_average_decay!r}, expected below 1."
            )

    def resolve(self) -> OptimizerFlags:
        """Return the flags with the epsilon that suits the optimizer in the place of None."""
        return dataclasses.replace(self, opt_epsilon=self.options.opt_epsilon)

    @property
    def options(self) -> optimizers.OptimizerOptions:
        """The options as the library takes them.

        Raises:
          ValueError: an option is outside its range.
        """
        names = [field.name for field in dataclasses.fields(optimizers.OptimizerOptions)]
        values = {name: getattr(self, name) for name in names}
        if self.opt_epsilon is None:
            values["opt_epsilon"] = choose_epsilon(self.optimizer)
        return optimizers.OptimizerOptions(**values)


def choose_epsilon(optimizer: str) -> float:
    """Return the epsilon of an optimizer where no flag says it.

    >>> choose_epsilon("adam"), choose_epsilon("rmsprop")
    (1e-08, 1.0)
    """
    return _EPSILONS.get(optimizer, FASTNN_EPSILON)
