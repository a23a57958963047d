"""The flags of `penstock train`, a frozen dataclass for each of FastNN's tables of them."""

from penstock.commands._flags._checks import UsageError as UsageError
from penstock.commands._flags._data import DatasetFlags as DatasetFlags
from penstock.commands._flags._data import PreprocessingFlags as PreprocessingFlags
from penstock.commands._flags._file import read_config as read_config
from penstock.commands._flags._file import write_config as write_config
from penstock.commands._flags._learning import LearningRateFlags as LearningRateFlags
from penstock.commands._flags._learning import OptimizerFlags as OptimizerFlags
from penstock.commands._flags._model import ModelFlags as ModelFlags
from penstock.commands._flags._parse import import_plugins as import_plugins
from penstock.commands._flags._parse import parse as parse
from penstock.commands._flags._running import LoggingFlags as LoggingFlags
from penstock.commands._flags._running import PerformanceFlags as PerformanceFlags
from penstock.commands._flags._train import TrainFlags as TrainFlags
from penstock.commands._flags._train import fastnn_defaults as fastnn_defaults
from penstock.commands._flags._unused import UnusedFlags as UnusedFlags
