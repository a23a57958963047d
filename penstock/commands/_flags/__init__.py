"""The flags of `penstock train`, a frozen dataclass for each of FastNN's tables of them."""

from penstock.commands._flags.config_file import write_config as write_config
from penstock.commands._flags.data import DatasetFlags as DatasetFlags
from penstock.commands._flags.data import PreprocessingFlags as PreprocessingFlags
from penstock.commands._flags.model import ModelFlags as ModelFlags
from penstock.commands._flags.optimizer import OptimizerFlags as OptimizerFlags
from penstock.commands._flags.run import LoggingFlags as LoggingFlags
from penstock.commands._flags.run import PerformanceFlags as PerformanceFlags
from penstock.commands._flags.train import TRAIN_FLAGS as TRAIN_FLAGS
from penstock.commands._flags.train import TrainFlags as TrainFlags
from penstock.commands._flags.train import UnusedFlags as UnusedFlags
from penstock.commands._flags.train import choose_flags as choose_flags
from penstock.commands._flags.train import make_train_flags as make_train_flags
