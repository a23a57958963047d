"""All flags of `penstock train` together."""

from __future__ import annotations

import dataclasses

from penstock.commands._flags._data import DatasetFlags, PreprocessingFlags
from penstock.commands._flags._learning import LearningRateFlags, OptimizerFlags
from penstock.commands._flags._model import ModelFlags
from penstock.commands._flags._running import LoggingFlags, PerformanceFlags
from penstock.commands._flags._unused import UnusedFlags

_DATASET = DatasetFlags()
_PREPROCESSING = PreprocessingFlags()
_MODEL = ModelFlags()
_LEARNING_RATE = LearningRateFlags()
_OPTIMIZER = OptimizerFlags()
_LOGGING = LoggingFlags()
_PERFORMANCE = PerformanceFlags()
_UNUSED = UnusedFlags()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """What `penstock train` is asked for.

    Arguments:
      config: a YAML or JSON file of flags, such as a run's config.json; flags beside it win.
      plugin: modules to import first, between commas, by name or as a .py file: they register data
        sets, networks and preprocessings.
      fastnn_compat: FastNN's defaults and its bugs, see docs/fastnn_differences.md.
    """

    dataset: DatasetFlags = _DATASET
    preprocessing: PreprocessingFlags = _PREPROCESSING
    model: ModelFlags = _MODEL
    learning_rate: LearningRateFlags = _LEARNING_RATE
    optimizer: OptimizerFlags = _OPTIMIZER
    logging: LoggingFlags = _LOGGING
    performance: PerformanceFlags = _PERFORMANCE
    unused: UnusedFlags = _UNUSED
    config: str | None = None
    plugin: str | None = None
    fastnn_compat: bool = False


def fastnn_defaults() -> TrainFlags:
    """Return the flags as FastNN has them."""
    return TrainFlags(
        dataset=DatasetFlags(dataset_name="mock", num_classes=100, num_sample_per_epoch=1_000_000),
        model=ModelFlags(model_name="inception_resnet_v2", num_epochs=100),
        logging=LoggingFlags(stop_at_step=100),
        performance=PerformanceFlags(loss_scale=1.0),
        fastnn_compat=True,
    )
