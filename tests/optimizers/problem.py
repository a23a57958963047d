"""What the optimizers minimise in these tests, and with which options."""

from typing import NamedTuple

import numpy as np

from penstock.optimizers import OptimizerOptions

# Numbers that float32 holds exactly, and small ones: a thousand roundings stay below 1e-6.
START = np.array([0.25, -0.1875, 0.125, 0.0078125])
CURVATURE = np.array([1.0, 0.25, 2.0, 0.0078125])
STEPS = (1, 2, 3, 4, 5, 10, 100, 1000)
_WAVES = np.sin(0.7 * np.arange(max(STEPS))[:, None] + np.arange(4.0))
DISTURBANCES = (0.125 * _WAVES).astype(np.float32).astype(np.float64)


def gradient(value: np.ndarray, step: int) -> np.ndarray:
    """Return the gradient of a quadratic, disturbed so that it never settles."""
    return CURVATURE * value + DISTURBANCES[step]


def learning_rate(step: int, is_scheduled: bool) -> float:
    """Return 0.01, or with a schedule a rate that changes in every step."""
    return 0.01 / (1 + 0.01 * step) if is_scheduled else 0.01


class Case(NamedTuple):
    """An optimizer, its options, and whether its learning rate changes."""

    name: str
    label: str = "defaults"
    options: OptimizerOptions = OptimizerOptions()
    is_scheduled: bool = False

    @property
    def key(self) -> str:
        """The case's name in the file of goldens."""
        return f"{self.name} {self.label}"


NAMES = ("sgd", "momentum", "rmsprop", "adam", "adagrad", "adadelta", "ftrl", "adamweightdecay")
CASES = [
    *(Case(name) for name in NAMES),
    *(Case(name, "scheduled", is_scheduled=True) for name in NAMES),
    Case("momentum", "slow", OptimizerOptions(momentum=0.5)),
    Case(
        "rmsprop",
        "sharp",
        OptimizerOptions(rmsprop_decay=0.99, rmsprop_momentum=0.0, opt_epsilon=1e-3),
    ),
    Case("adam", "sharp", OptimizerOptions(adam_beta1=0.5, adam_beta2=0.99, opt_epsilon=1e-3)),
    Case("adagrad", "high", OptimizerOptions(adagrad_initial_accumulator_value=1.0)),
    Case("adadelta", "sharp", OptimizerOptions(adadelta_rho=0.9, opt_epsilon=1e-3)),
    Case("ftrl", "sparse", OptimizerOptions(ftrl_l1=0.05, ftrl_l2=0.2)),
    Case(
        "ftrl",
        "flat",
        OptimizerOptions(ftrl_learning_rate_power=-0.25, ftrl_initial_accumulator_value=1.0),
    ),
]
