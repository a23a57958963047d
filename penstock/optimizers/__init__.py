"""Optimizers and learning rate schedules by name, with TensorFlow 1's rules and FastNN's flags.

`get("rmsprop", learning_rate)` is an optax transformation, `schedule(options, num_steps=...)` a
learning rate for it. `averaged_params` and `learning_rate` read what the optimizer state holds.
"""

from penstock.optimizers._moving_average import MovingAverageState as MovingAverageState
from penstock.optimizers._moving_average import SlowParamsState as SlowParamsState
from penstock.optimizers._moving_average import averaged_params as averaged_params
from penstock.optimizers._moving_average import with_moving_average as with_moving_average
from penstock.optimizers._registry import OptimizerOptions as OptimizerOptions
from penstock.optimizers._registry import get as get
from penstock.optimizers._registry import names as names
from penstock.optimizers._schedules import LearningRate as LearningRate
from penstock.optimizers._schedules import ScheduleOptions as ScheduleOptions
from penstock.optimizers._schedules import describe_schedule as describe_schedule
from penstock.optimizers._schedules import learning_rate as learning_rate
from penstock.optimizers._schedules import schedule as schedule
