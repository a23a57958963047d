"""The flags of `penstock train`, a frozen dataclass for each of FastNN's tables of them."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import os
import re
import shlex
import sys
from argparse import ArgumentTypeError
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal

from penstock import optimizers
from penstock._errors import check_known, nearest
from penstock._program.precision import Precision, PrecisionName
from penstock.commands._argument_parser import Flag, FlagValue, list_flags, raise_usage_errors
from penstock.commands._failures import UsageError, check, check_numbers, split_words
from penstock.commands._run_folder.runs import flatten, name_data
from penstock.distributed.environments import split_address
from penstock.optimizers import ScheduleOptions

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def read_config(path: str | os.PathLike[str]) -> dict[str, FlagValue]:
    """Return the values in a file by flag; null means the default, and is left out."""
    values: dict[str, FlagValue] = {}
    for name, value in flatten(_load(Path(path))).items():
        if name not in TRAIN_FLAGS:
            raise UsageError(
                f"{os.fspath(path)!r} got the flag {name!r}, expected flags that "
                f"`penstock train --help_all` lists.{nearest(name, TRAIN_FLAGS)}"
            )
        if value is not None:
            try:
                values[name] = read_value(TRAIN_FLAGS[name], value)
            except ArgumentTypeError as error:
                raise UsageError(f"{os.fspath(path)!r}: {name} {error}") from error
    return values


def read_run_config(path: Path) -> dict[str, FlagValue]:
    """Return the flags of a run by name; one of an earlier release may have what is refused now."""
    config = read_config(path)
    if config.get("task_type", "pretrain") == "pretrain":
        config.pop("ckpt_file_name", None)  # it said nothing
    if config.get("dataset_dir") == "":
        config["dataset_dir"] = "."
    return config


def read_value(flag: Flag, value: object) -> FlagValue:
    """Return a flag's value that is JSON's or YAML's in a file."""
    if value is None:
        return None if NoneType in flag.kinds else flag.default
    return flag.read(write_value(value))


def _load(path: Path) -> Mapping[str, object]:
    import yaml

    where = f"the flags' file got {str(path)!r}, expected"
    try:
        text = path.read_text(encoding="utf-8")
        # JSON by its own parser: YAML reads `1e-3`, which JSON may hold, as text.
        loaded = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except OSError as error:
        raise UsageError(f"{where} a file that can be read ({error.strerror}).") from error
    except (ValueError, yaml.YAMLError) as error:
        what = " ".join(str(error).split())
        if isinstance(error, yaml.MarkedYAMLError):
            mark = error.problem_mark
            what = f"{error.problem}{'' if mark is None else f' in line {mark.line + 1}'}"
        raise UsageError(f"{where} YAML or JSON: {what}. Is it whole?") from error
    if not isinstance(loaded, Mapping):
        raise UsageError(f"{where} flags by name in it, such as `model_name: lenet`.")
    return loaded


def to_json(flags: DataclassInstance) -> dict[str, Any]:
    values = vars(flags).copy()
    for name, value in values.items():
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            values[name] = to_json(value)
        # As text: a mapping in the file would be read as a section.
        elif isinstance(value, Mapping):
            values[name] = write_value(value) or None
    return values


def write_value(value: object) -> str:
    """Return a value as a word of the command line has it."""
    if isinstance(value, list | tuple):
        return ",".join(map(write_value, value))
    if isinstance(value, Mapping):
        return ",".join(f"{name}={write_value(item)}" for name, item in value.items())
    # `repr` of a float reads back as the same float.
    return repr(value) if isinstance(value, bool | float) else str(value)


def import_plugins(plugins: str) -> None:
    """Import modules by name, or files by path: those between commas."""
    # As `python -m` has it: the script's path has no modules of the current folder.
    sys.path.insert(0, "")
    try:
        stems: dict[str, Path] = {}
        for word in split_words(plugins):
            path = Path(word).resolve()
            if word.endswith(".py") and stems.setdefault(path.stem, path) != path:
                raise FileNotFoundError(
                    f"{word!r} has the module's name of {str(stems[path.stem])!r}"
                )
            if word.endswith(".py"):
                _import_file(Path(word))
            # Any folder can be imported, one of photos too, and registers nothing.
            elif getattr(importlib.import_module(word), "__file__", None) is None:
                raise ModuleNotFoundError(f"{word!r} is no file, and no folder with __init__.py")
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise UsageError(
            f"--plugin got {plugins!r}, expected modules that can be imported, by name or as a .py "
            f"file: {error}. Run in their folder, or set PYTHONPATH."
        ) from error
    finally:
        sys.path.remove("")


def _import_file(path: Path) -> None:
    name = path.stem
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) == str(path.resolve()):
        # Imported before: to register its networks twice would be an error.
        return
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    # Before it runs, as Python's own import has it: what it defines is found by the module's name.
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


# An empty path would be the current folder.
_A_NAME = "a name. Is a shell variable not set?"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetFlags:
    """Which images, and their labels.

    Arguments:
      dataset_name: the data: a data set of readers.dataset, such as digits, mnist or cifar10;
        image_folder, which is one folder of images per class in --dataset_dir; mock, which is
        arrays of ones, to measure speed; or another name together with --dataset_dir and
        --train_files, TFRecord files with TF-Slim's keys.
      dataset_dir: the folder that holds the data.
      num_sample_per_epoch: how many samples count as an epoch for the learning-rate schedule; by
        default the data's own number.
      num_classes: how many classes the network distinguishes; by default the data's own number, or
        100 if the data does not say.
      train_files: the TFRecord files in --dataset_dir to train on, separated by commas.
      eval_files: the TFRecord files in --dataset_dir to evaluate on, separated by commas; by
        default the data set's own.
      labels_offset: the number to subtract from each label.
      num_folder_parts: how many parts a folder of images is split into that has no train and test:
        3, to train on, to choose the best network on, and to test it on; 2 to choose and to test on
        one.
      split_seed: the seed of that split.
      group_pattern: a regular expression that finds in an image's path the group it belongs to, by
        the first of its parentheses that match, such as "patient([0-9]+)"; a group is in one part.
    """

    dataset_name: str = "digits"
    dataset_dir: str | None = None
    num_sample_per_epoch: int | None = None
    num_classes: int | None = None
    train_files: str | None = None
    eval_files: str | None = None
    labels_offset: int = 0
    num_folder_parts: int = 3
    split_seed: int = 0
    group_pattern: str | None = None

    @property
    def title(self) -> str:
        """What names the data in a run's folder: of one's own images the name of their folder."""
        return name_data(vars(self))

    def __post_init__(self) -> None:
        check_numbers(self, "split_seed>=0 num_sample_per_epoch>=1 num_classes>=2")
        expected = "2 or 3. A third part is to choose the best network on."
        check(self, "num_folder_parts", self.num_folder_parts in (2, 3), expected)
        check(self, "dataset_dir", self.dataset_dir != "", _A_NAME)
        try:
            re.compile(self.group_pattern or "")
        except re.error as error:
            raise UsageError(
                f"--group_pattern got {self.group_pattern!r}, expected a regular expression: "
                f"{error}. It finds the group of an image in its path."
            ) from error
        if self.dataset_name == "digits" and self.dataset_dir is not None:
            raise UsageError(
                f"--dataset_dir got {self.dataset_dir!r} with --dataset_name=digits, expected "
                "none: the digits come with scikit-learn. For the images in a folder: penstock "
                f"train {shlex.quote(self.dataset_dir)}."
            )
        if self.dataset_name == "image_folder" and self.dataset_dir is None:
            raise UsageError(
                "--dataset_name=image_folder got no folder, expected --dataset_dir=FOLDER as "
                "well: a folder that holds one folder of images per class."
            )
        names = list_datasets()
        if self.dataset_name not in names and self.dataset_dir is None:
            hint = nearest(self.dataset_name.lower(), names)
            if Path(self.dataset_name).is_dir():
                folder = shlex.quote(self.dataset_name)
                hint = f" For a folder: --dataset_name=image_folder --dataset_dir={folder}."
            raise UsageError(
                f"--dataset_name got {self.dataset_name!r}, expected one of: {', '.join(names)}; "
                f"or --dataset_dir as well, with its TFRecord files.{hint}"
            )
        if (self.train_files or self.eval_files) and self.dataset_dir is None:
            raise UsageError(
                "--train_files and --eval_files got no folder, expected --dataset_dir beside them: "
                "they are names of files there."
            )


# Its `SHRT_MAX`, in the functions that warp.
_MAX_IMAGE_SIZE = 32767


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreprocessingFlags:
    """How images are read and prepared.

    Arguments:
      preprocessing_name: the preprocessing of the images; by default that of the weights it starts
        from, or the network's own.
      train_image_size: the height and width in pixels of the images that the network gets; by
        default its own.
      shuffle_buffer_size: a number above 1 shuffles all records in every epoch; 0 and 1 keep the
        order of the files.
      num_parallel_batches: this number times batch_size is the maximum number of images prepared at
        a time.
      prefetch_buffer_size: how many batches to read ahead.
      num_preprocessing_threads: how many threads read and prepare images; with 0 this happens
        between the steps.
      datasets_use_caching: keep the encoded records in memory.
      cache_image_size: keep the images of a folder in memory, scaled down so that their shorter
        side has this many pixels; each file is then decoded once, not once per epoch.
      skip_damaged: leave out images that cannot be read, and name them after each epoch.
    """

    preprocessing_name: str | None = None
    train_image_size: int | None = None
    shuffle_buffer_size: int = 1024
    num_parallel_batches: int = 8
    prefetch_buffer_size: int = 32
    num_preprocessing_threads: int = 16
    datasets_use_caching: bool = False
    cache_image_size: int | None = None
    skip_damaged: bool = False

    @property
    def on_error(self) -> Literal["raise", "skip"]:
        return "skip" if self.skip_damaged else "raise"

    def __post_init__(self) -> None:
        from penstock import preprocessing

        counts = "shuffle_buffer_size>=0 prefetch_buffer_size>=0 num_preprocessing_threads>=0"
        sizes = "train_image_size>=1 cache_image_size>=1 num_parallel_batches>=1"
        check_numbers(self, f"{sizes} {counts}")
        expected = f"{_MAX_IMAGE_SIZE} or less. OpenCV makes no larger images."
        check(self, "train_image_size", (self.train_image_size or 0) <= _MAX_IMAGE_SIZE, expected)
        if self.preprocessing_name is not None:
            check_known("--preprocessing_name", self.preprocessing_name, preprocessing.names())


def list_datasets() -> list[str]:
    """Return the names that --dataset_name takes without --train_files."""
    from penstock import readers

    return sorted({*readers.dataset_names(), "image_folder"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """Which network, for how long, and what it starts from.

    Arguments:
      task_type: start from initial values (pretrain), or from the weights in --model_dir
        (finetune).
      model_name: the network to train; `penstock models` lists them.
      num_epochs: how many times to pass over the data. Without it, --stop_at_step ends the run;
        without either, the run is 100 steps. --stop_at_step=0 alone means 100 passes.
      weight_decay: the weight decay (L2) coefficient in the loss, in place of the network's own.
      max_gradient_norm: clip the global norm of the gradients to this value; None does not clip.
      batch_size: how many images each device gets per step; auto is as many as fit into its memory.
      model_dir: the folder of the weights to fine-tune: parameters or checkpoints of penstock, a
        run's folder, or published files.
      ckpt_file_name: the file or folder in --model_dir that has the weights; by default --model_dir
        itself.
      checkpoint_include_scopes: load only parameters with these names, separated by commas; a name
        includes everything below it, and globs work.
      checkpoint_exclude_scopes: do not load parameters with these names.
      ignore_missing_vars: keep the initial values of parameters that the weights lack.
      freeze: do not train parameters that match these globs, separated by commas, such as
        conv1,*/norm/*; batch norm there uses its running statistics and does not update them.
      batch_norm_decay: the fraction of its running statistics that batch norm keeps in a step; by
        default (1 + step) / (10 + step) up to the network's own, because TF-Slim's alone would need
        ten thousand steps to settle.
      batch_norm_group_size: batch norm takes its statistics over groups of this many images; 0 is
        the whole batch of all devices.
      label_smoothing: the fraction of a label's probability that is spread over all classes.
      gradient_accumulation_steps: cut each batch into this many micro-batches, which are in memory
        one after the other.
    """

    task_type: Literal["pretrain", "finetune"] = "pretrain"
    model_name: str = "lenet"
    num_epochs: int | None = None
    weight_decay: float = 0.00004
    max_gradient_norm: float | None = None
    batch_size: int | Literal["auto"] = 32
    model_dir: str | None = None
    ckpt_file_name: str | None = None
    checkpoint_include_scopes: str | None = None
    checkpoint_exclude_scopes: str | None = None
    ignore_missing_vars: bool = False
    freeze: str | None = None
    batch_norm_decay: float | None = None
    batch_norm_group_size: int = 0
    label_smoothing: float = 0.0
    gradient_accumulation_steps: int = 1

    @property
    def device_batch_size(self) -> int:
        assert self.batch_size != "auto"  # `make_plan` has chosen a number
        return self.batch_size

    def __post_init__(self) -> None:
        from penstock import models

        models.get(self.model_name)
        rates = "weight_decay>=0 batch_norm_decay>=0<=1 label_smoothing>=0<1 max_gradient_norm>0"
        counts = "num_epochs>=1 batch_size>=1 batch_norm_group_size>=0"
        check_numbers(self, f"{rates} {counts} gradient_accumulation_steps>=1")
        for name in ("model_dir", "ckpt_file_name"):
            if self.task_type == "pretrain" and vars(self)[name]:
                raise UsageError(
                    f"--{name} got {vars(self)[name]!r} without --task_type=finetune, expected it "
                    "beside. Training would begin with initial values."
                )
        if self.task_type == "finetune" and not (self.model_dir or self.ckpt_file_name):
            raise UsageError(
                "--task_type=finetune got no weights, expected --model_dir=FOLDER, and "
                "--ckpt_file_name=NAME for a file in it."
            )


# For Adam and its variants where no flag says it: TensorFlow's epsilon, and the rate of Adam's
# paper. With FastNN's 1 and 0.01, 100 steps get 77 % of the digits right, with these 97 %.
ADAM_EPSILON, ADAM_LEARNING_RATE = 1e-8, 0.001
_ADAMS = ("adam", "nadam", "radam")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerFlags(optimizers.OptimizerOptions):
    """How gradients become an update.

    Arguments:
      optimizer: the optimizer: adadelta, adagrad, adam, adamweightdecay, ftrl, momentum, rmsprop or
        sgd, as in TensorFlow 1; or any optimizer of optax, such as lamb, or optax.adam. With adam
        and its variants, the default --learning_rate is 0.001.
      opt_epsilon: the epsilon of adadelta, adam, adamweightdecay and rmsprop. For adam and
        adamweightdecay, it is 1e-8 unless this or --fastnn_compat says otherwise.
      exclude_from_weight_decay: the parameters that adamweightdecay does not decay: those whose
        path matches one of these regular expressions, separated by commas.
      optax_options: the arguments of an optax optimizer, such as b1=0.95,nesterov=True.
      moving_average_decay: keep a moving average of the parameters with this decay, such as 0.9999,
        and evaluate it.
    """

    optimizer: str = "rmsprop"
    moving_average_decay: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        optimizers.get(self.optimizer, 0.1, options=self)
        check_numbers(self, "moving_average_decay>0<1")


HOOKS = ("StopAtStepHook", "ProfilerHook", "LoggingTensorHook", "CheckpointSaverHook")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoggingFlags:
    """What a run shows, and where it writes.

    Arguments:
      stop_at_step: end after this many steps, unless --num_epochs ends the run first; 0 sets no
        limit. It is 100 if neither is given.
      log_loss_every_n_iters: print a line every N steps; 0 shows a progress bar instead.
      eval_every_n_epochs: evaluate every N epochs, and at the end; 0 never evaluates.
      profile_every_n_iters: trace one step in every N; 0 traces none.
      profile_at_task: the index of the process that traces.
      log_device_placement: print the devices and what is placed on them.
      print_model_statistics: print the table of parameters.
      log_trainable_vars_statistics: do what --print_model_statistics does, under its name in
        FastNN's code.
      hooks: which of StopAtStepHook, ProfilerHook, LoggingTensorHook and CheckpointSaverHook to
        use, separated by commas; those left out do nothing.
      checkpointDir: the run's folder, for checkpoints, parameters, log and configuration; by
        default a folder in OUTPUT_DIR/runs that is named after the data set and the network.
      save_checkpoints_steps: write a checkpoint every N steps, and one at the end.
      save_checkpoints_secs: also write a checkpoint every N seconds; 0 writes none.
      overwrite: start the run again if the folder already holds one. The earlier run is kept in the
        folder, in replaced, until the new one is complete.
      output_dir: the folder for runs; each has its own folder in runs there.
      summaryDir: write curves for TensorBoard to this folder.
    """

    stop_at_step: int | None = None
    log_loss_every_n_iters: int = 10
    eval_every_n_epochs: int = 1
    profile_every_n_iters: int = 0
    profile_at_task: int = 0
    log_device_placement: bool = False
    print_model_statistics: bool = False
    log_trainable_vars_statistics: bool = False
    hooks: str = ",".join(HOOKS)
    checkpointDir: str | None = None
    save_checkpoints_steps: int = 1000
    save_checkpoints_secs: int = 300
    overwrite: bool = False
    output_dir: str = "."
    summaryDir: str | None = None

    def __post_init__(self) -> None:
        intervals = "log_loss_every_n_iters>=0 eval_every_n_epochs>=0 profile_every_n_iters>=0"
        saving = "save_checkpoints_steps>=1 save_checkpoints_secs>=0"
        check_numbers(self, f"{intervals} {saving} stop_at_step>=0 profile_at_task>=0")
        for name in ("checkpointDir", "summaryDir"):
            check(self, name, vars(self)[name] != "", _A_NAME)
        hooks = {name.lower(): name for name in HOOKS}
        for name in split_words(self.hooks):
            if name.lower() not in hooks:
                check_known("--hooks", name, HOOKS)

    def has_hook(self, name: str) -> bool:
        """Return whether a hook of FastNN's is among those asked for; case does not matter."""
        return name.lower() in {hook.lower() for hook in split_words(self.hooks)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PerformanceFlags:
    """How it computes.

    Arguments:
      use_fp16: compute products in bfloat16 if the accelerator supports it, as --precision=auto
        does; False means --precision=float32.
      loss_scale: the loss scale with float16: a number, or dynamic, which adjusts it and skips
        updates that overflow.
      precision: the precision of products, in place of what --use_fp16 says; auto is bfloat16 if
        the accelerator supports it.
      enable_paisoar: use all devices of all processes; False uses one device, as FastNN's local
        runs do.
      place: the kind of device to compute on; by default the best there is.
      state_sharding: split over the devices what the optimizer keeps (optimizer), or the parameters
        too (full); by default each device holds all of it.
      worker_hosts: the processes of a run on several machines, as HOST:PORT separated by commas.
      task_index: the index of this process in --worker_hosts, counted from 0.
      seed: the seed of initial values, shuffling and all other randomness.
    """

    use_fp16: bool = True
    loss_scale: float | Literal["dynamic"] = "dynamic"
    precision: PrecisionName | None = None
    enable_paisoar: bool = True
    place: Literal["cpu", "gpu", "tpu"] | None = None
    state_sharding: Literal["optimizer", "full"] | None = None
    worker_hosts: str | None = None
    task_index: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        check_numbers(self, "loss_scale>0")
        check(self, "seed", 0 <= self.seed < 1 << 63, "from 0 to 2**63 - 1.")
        hosts = split_words(self.worker_hosts)
        for host in hosts:
            split_address(host, "--worker_hosts")
        num_hosts = max(1, len(hosts))
        expected = f"from 0 to {num_hosts - 1}: it counts the processes of --worker_hosts."
        check(self, "task_index", 0 <= self.task_index < num_hosts, expected)

    @property
    def precision_name(self) -> PrecisionName:
        """The precision that the two flags ask for."""
        # FastNN's default of 16 bits is "auto": bfloat16 where the accelerator has it.
        return self.precision or ("auto" if self.use_fp16 else "float32")

    def make_precision(self) -> Precision:
        """Return the precision that the flags ask for; only float16 has a loss scale."""
        name = self.precision_name
        return Precision(name, self.loss_scale if name == "float16" else None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnusedFlags:
    """FastNN's flags that are taken and have no effect; a run names those that were set.

    Arguments:
      protocol: TensorFlow's servers had it; JAX's collectives choose their own.
      tensor_fusion_policy, tensor_fusion_max_bytes: XLA fuses by itself.
      communication_policy: the backend's collectives choose it.
      job_name, ps_hosts, ps_count: there are no parameter servers.
      worker_count: --worker_hosts says how many there are.
      inter_op_parallelism_threads, intra_op_parallelism_threads: TensorFlow's sessions had it.
      colocate_gradients_with_ops: TensorFlow's graphs had it.
      log_optimizer_vars_statistics: FastNN's code fails with it.
      file_pattern, reader: FastNN never reads it either.
      outputs, tables, buckets: Alibaba's platform has it.
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

    @property
    def image_size(self) -> int:
        """The height and width in pixels of what the network gets."""
        from penstock import models

        own = models.get(self.model.model_name).default_image_size
        return self.preprocessing.train_image_size or own


TRAIN_FLAGS = list_flags(TrainFlags)


def choose_flags(*names: str) -> dict[str, Flag]:
    """Return flags of `penstock train` for another command, where a run's own are the defaults."""
    chosen = {
        name: dataclasses.replace(TRAIN_FLAGS[name], default=None, section="training")
        for name in names
    }
    if "batch_size" in chosen:
        # Training alone searches how many fit.
        number: dict[str, Any] = {"kinds": (int,), "choices": (), "metavar": "INT"}
        number["help"] = "How many images each device gets per step."
        chosen["batch_size"] = dataclasses.replace(chosen["batch_size"], **number)
    return chosen


def make_defaults(overrides: Mapping[str, object]) -> TrainFlags:
    """Return the flags where none is given: some defaults follow from flags that are."""
    if overrides.get("fastnn_compat"):
        classes: Any = {"num_classes": 100, "num_sample_per_epoch": 1_000_000}
        return TrainFlags(
            dataset=DatasetFlags(dataset_name="mock", **classes),
            model=ModelFlags(model_name="inception_resnet_v2", num_epochs=100),
            logging=LoggingFlags(stop_at_step=100),
            performance=PerformanceFlags(loss_scale=1.0),
            fastnn_compat=True,
        )
    if str(overrides.get("optimizer")).removeprefix("optax.").startswith(_ADAMS):
        return TrainFlags(
            learning_rate=ScheduleOptions(learning_rate=ADAM_LEARNING_RATE),
            optimizer=OptimizerFlags(opt_epsilon=ADAM_EPSILON),
        )
    return TrainFlags()


def make_train_flags(overrides: Mapping[str, FlagValue]) -> TrainFlags:
    """Return the flags of `penstock train` where some are given, by name."""
    # Before the checks of names, which plugins register.
    import_plugins(str(overrides.get("plugin") or ""))
    with raise_usage_errors():
        default = make_defaults(overrides)
        changes: dict[str, Any] = {}
        for name, section in vars(default).items():
            # Sections first: `learning_rate` is one, and a flag in it.
            if dataclasses.is_dataclass(section) and not isinstance(section, type):
                mine: Any = {flag: overrides[flag] for flag in vars(section) if flag in overrides}
                changes[name] = dataclasses.replace(section, **mine) if mine else section
            elif name in overrides:
                changes[name] = overrides[name]
        return dataclasses.replace(default, **changes)
