"""Event handlers for training runs: progress, logs, curves, tests and early stopping.

Pass one, or a list of them, to `Trainer.train`. Each depends only on the events. They read metrics
one launch late, so that the device never waits; of several processes the first prints and writes.

Metrics of a program function that returns a dict have its keys as names. A single value, and the
values of a tuple or list, have those that a handler gets as `names`, by position; further ones are
called `metric_1`, `metric_2`.
"""

from penstock.handlers.evaluate import Evaluate as Evaluate
from penstock.handlers.gradients import Gradients as Gradients
from penstock.handlers.learning_rate_finder import LearningRateFinder as LearningRateFinder
from penstock.handlers.log import Log as Log
from penstock.handlers.plateaus import EarlyStopping as EarlyStopping
from penstock.handlers.plateaus import ReduceOnPlateau as ReduceOnPlateau
from penstock.handlers.plot import Plot as Plot
from penstock.handlers.profile import Profile as Profile
from penstock.handlers.progress import Progress as Progress
from penstock.handlers.report import Report as Report
from penstock.handlers.row_log import CSVLog as CSVLog
from penstock.handlers.row_log import JSONLog as JSONLog
from penstock.handlers.stop_at import StopAt as StopAt
from penstock.handlers.summary import Summary as Summary
from penstock.handlers.tensorboard import TensorBoard as TensorBoard
from penstock.handlers.trackers import MLflow as MLflow
from penstock.handlers.trackers import WandB as WandB
