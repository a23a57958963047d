"""All flags of `penstock train` together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from penstock.commands._argument_parser import Flag, FlagValue, list_flags, raise_usage_errors
from penstock.commands._checks import UsageError
from penstock.commands._flags.config_file import read_config
from penstock.commands._flags.data import DatasetFlags, PreprocessingFlags
from penstock.commands._flags.model import ModelFlags
from penstock.commands._flags.optimizer import (
    ADAM_EPSILON,
    ADAM_LEARNING_RATE,
    OptimizerFlags,
    is_adam,
)
from penstock.commands._flags.run import LoggingFlags, PerformanceFlags
from penstock.commands._plugins import import_plugins
from penstock.optimizers import ScheduleOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnusedFlags:
    """FastNN's flags that are taken and have no effect; a run names those that were set.

    Arguments:
      protocol: TensorFlow's servers had it; JAX's collectives choose their own.
      tensor_fusion_policy: XLA fuses by itself.
      tensor_fusion_max_bytes: XLA fuses by itself.
      communication_policy: the backend's collectives choose it.
      job_name: there are no parameter servers.
      ps_hosts: there are no parameter servers.
      ps_count: there are no parameter servers.
      worker_count: --worker_hosts says how many there are.
      inter_op_parallelism_threads: TensorFlow's sessions had it.
      intra_op_parallelism_threads: TensorFlow's sessions had it.
      colocate_gradients_with_ops: TensorFlow's graphs had it.
      log_optimizer_vars_statistics: FastNN's code fails with it.
      file_pattern: FastNN never reads it either.
      reader: FastNN never reads it either.
      outputs: Alibaba's platform has it.
      tables: Alibaba's platform has it.
      buckets: Alibaba's platform has it.
    """

    protocol: str = "grpc"
    tensor_fusion_policy: str = "default"
    tensor_fusion_max_bytes: int = 8 << 20
    communication_policy: str = "nccl_fullring"
    job_name: str = "worker"
    ps_hosts: str | None = None
    ps_count: int | None = None
    worker_count: int | None = None
    inter_op_parallelism_threads: int = 256
    intra_op_parallelism_threads: int = 96
    colocate_gradients_with_ops: bool = True
    log_optimizer_vars_statistics: bool = False
    file_pattern: str | None = None
    reader: str | None = None
    outputs: str | None = None
    tables: str | None = None
    buckets: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """Train a network of the model library, on handwritten digits unless flags say otherwise.

    Arguments:
      config: read flags from a YAML or JSON file, such as a run's config.json; flags on the command
        line override it.
      plugin: import these modules first, separated by commas, by name or as a .py file: they
        register data sets, networks and preprocessings.
      fastnn_compat: use FastNN's defaults and its bugs, which `penstock docs fastnn_differences`
        lists.
    """

    dataset: DatasetFlags = dataclasses.field(default_factory=DatasetFlags)
    preprocessing: PreprocessingFlags = dataclasses.field(default_factory=PreprocessingFlags)
    model: ModelFlags = dataclasses.field(default_factory=ModelFlags)
    learning_rate: ScheduleOptions = dataclasses.field(default_factory=ScheduleOptions)
    optimizer: OptimizerFlags = dataclasses.field(default_factory=OptimizerFlags)
    logging: LoggingFlags = dataclasses.field(default_factory=LoggingFlags)
    performance: PerformanceFlags = dataclasses.field(default_factory=PerformanceFlags)
    unused: UnusedFlags = dataclasses.field(default_factory=UnusedFlags)
    config: str | None = None
    plugin: str | None = None
    fastnn_compat: bool = False

    def __post_init__(self) -> None:
        """Check what flags of two kinds say together."""
        side, size = self.preprocessing.cache_image_size, self.preprocessing.train_image_size
        if side is None:
            return
        if self.dataset.dataset_name != "image_folder":
            raise UsageError(
                f"--cache_image_size={side} got --dataset_name={self.dataset.dataset_name}, "
                "expected image_folder: other data are small or packed already. "
                "--datasets_use_caching keeps those in memory."
            )
        if size is not None and side < size:
            raise UsageError(
                f"--cache_image_size got {side}, expected --train_image_size={size} or more: the "
                "images would be scaled down and up again. Twice as many leave room for crops."
            )


TRAIN_FLAGS = list_flags(TrainFlags)


def choose_flags(*names: str) -> dict[str, Flag]:
    """Return flags of `penstock train` for another command, where a run's own are the defaults."""
    return {
        name: dataclasses.replace(TRAIN_FLAGS[name], default=None, section="training")
        for name in names
    }


def fastnn_defaults() -> TrainFlags:
    """Return the flags as FastNN has them."""
    return TrainFlags(
        dataset=DatasetFlags(dataset_name="mock", num_classes=100, num_sample_per_epoch=1_000_000),
        model=ModelFlags(model_name="inception_resnet_v2", num_epochs=100),
        logging=LoggingFlags(stop_at_step=100),
        performance=PerformanceFlags(loss_scale=1.0),
        fastnn_compat=True,
    )


def make_defaults(given: Mapping[str, object]) -> TrainFlags:
    """Return the flags where none is given: some defaults follow from flags that are."""
    if given.get("fastnn_compat"):
        return fastnn_defaults()
    if is_adam(str(given.get("optimizer", ""))):
        return TrainFlags(
            learning_rate=ScheduleOptions(learning_rate=ADAM_LEARNING_RATE),
            optimizer=OptimizerFlags(opt_epsilon=ADAM_EPSILON),
        )
    return TrainFlags()


def make_train_flags(given: Mapping[str, FlagValue]) -> TrainFlags:
    """Return the flags of `penstock train` where some are given, by name.

    They win over the file that `config` among them names, and that over the defaults.

    Raises:
      UsageError: a value is refused.
    """
    if (config := given.get("config")) is not None:
        given = {**read_config(str(config), TRAIN_FLAGS), **given}
    # Before the checks of names, which plugins register.
    import_plugins(str(given.get("plugin") or ""))
    # The defaults depend on flags, so flags that were given are told from those that were not.
    with raise_usage_errors():
        return _replace(make_defaults(given), given)


def _replace(default: TrainFlags, given: Mapping[str, FlagValue]) -> TrainFlags:
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(default):
        section = getattr(default, field.name)
        # Sections first: `learning_rate` is one, and a flag in it.
        if dataclasses.is_dataclass(section) and not isinstance(section, type):
            mine = {f.name: given[f.name] for f in dataclasses.fields(section) if f.name in given}
            changes[field.name] = dataclasses.replace(section, **mine)
        elif field.name in given:
            changes[field.name] = given[field.name]
    return dataclasses.replace(default, **changes)
