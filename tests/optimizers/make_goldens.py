"""Write `goldens.npz`: where TensorFlow 1's optimizers are after up to 1000 steps, in float64.

    python -m tests.optimizers.make_goldens

needs TensorFlow.
"""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.optimizers.problem import CASES, START, STEPS, gradient, learning_rate

PATH = Path(__file__).with_name("goldens.npz")
v1 = tf.compat.v1

MAKERS = {
    "sgd": lambda rate, o: v1.train.GradientDescentOptimizer(rate),
    "momentum": lambda rate, o: v1.train.MomentumOptimizer(rate, o.momentum),
    "rmsprop": lambda rate, o: v1.train.RMSPropOptimizer(
        rate, o.rmsprop_decay, o.rmsprop_momentum, o.opt_epsilon
    ),
    "adam": lambda rate, o: v1.train.AdamOptimizer(rate, o.adam_beta1, o.adam_beta2, o.opt_epsilon),
    "adagrad": lambda rate, o: v1.train.AdagradOptimizer(rate, o.adagrad_initial_accumulator_value),
    "adadelta": lambda rate, o: v1.train.AdadeltaOptimizer(rate, o.adadelta_rho, o.opt_epsilon),
    "ftrl": lambda rate, o: v1.train.FtrlOptimizer(
        rate, o.ftrl_learning_rate_power, o.ftrl_initial_accumulator_value, o.ftrl_l1, o.ftrl_l2
    ),
}


def trajectory(name: str, options: Any, *, is_scheduled: bool) -> np.ndarray:
    """Return the parameters `[S, N]` after each of `STEPS`."""
    with tf.Graph().as_default(), v1.Session() as session:
        rate = v1.placeholder(tf.float64, [])
        slope = v1.placeholder(tf.float64, START.shape)
        value = v1.get_variable("w", initializer=START, use_resource=True)
        step = MAKERS[name](rate, options).apply_gradients([(slope, value)])
        session.run(v1.global_variables_initializer())
        rows = []
        for number in range(max(STEPS)):
            slopes = gradient(session.run(value), number)
            session.run(step, {rate: learning_rate(number, is_scheduled), slope: slopes})
            if number + 1 in STEPS:
                rows.append(session.run(value))
        return np.stack(rows)


def main() -> None:
    """Write the file."""
    made: dict[str, Any] = {
        case.key: trajectory(case.name, case.options, is_scheduled=case.is_scheduled)
        for case in CASES
        if case.name in MAKERS
    }
    np.savez_compressed(PATH, **made)


if __name__ == "__main__":
    main()
