"""The plan of a run: what its flags, its data and its network decide, made once.

Flags stop here: what trains, prints, writes and compares reads the plan.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.experimental import multihost_utils

from penstock import (
    CheckpointConfig,
    Precision,
    ProgramBuilder,
    _mesh,
    handlers,
    models,
    optimizers,
    preprocessing,
)
from penstock._parameter_names import Selection
from penstock._text_tables import scale_bytes
from penstock.commands._failures import split_words
from penstock.commands._flags import PerformanceFlags, TrainFlags, UnusedFlags, to_json
from penstock.commands._run.data import Data, DataPlan, open_data
from penstock.commands._run.handlers import (
    Benchmark,
    DevicePlacement,
    ProfileEvery,
    Record,
    TimedReader,
    evaluate_at_end,
)
from penstock.commands._run.network import (
    NetworkPlan,
    Shape,
    make_network,
    name_smallest_size,
)
from penstock.commands._run.splits import Source
from penstock.commands._run_folder.folder import (
    Facts,
    RunDescription,
    RunFolder,
    check_apart,
    choose_folder,
    find_weights,
    recall_batch_size,
)
from penstock.program_builder import find_largest_batch
from penstock.readers import Shard
from penstock.readers.records import ReadOptions

_DEFAULT_STEPS = 100
_DEFAULT_EPOCHS = 100
# Of a device's memory for the step of `--batch_size=auto`. Of a machine's own, readers and other
# programs take some too.
_SHARE, _SHARES = 0.9, {"cpu": 0.5}
_LOGGER = logging.getLogger("penstock.compilations")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Length:
    """How long a run is.

    Arguments:
      num_epochs: passes over the data, where no step ends the run.
      stop_at: the step that ends the run; None where the epochs do.
      is_explicit: whether a flag says how long it is.
    """

    num_epochs: int
    steps_per_epoch: int
    stop_at: int | None
    is_explicit: bool = True

    @property
    def num_epoch_steps(self) -> int:
        return self.num_epochs * self.steps_per_epoch

    @property
    def num_steps(self) -> int:
        """Steps from the first to the last, however often it is interrupted."""
        steps = self.num_epoch_steps
        return steps if self.stop_at is None else min(steps, self.stop_at)

    def __str__(self) -> str:
        """Say what ends the run."""
        epochs = f"--num_epochs ({self.num_epoch_steps:,} steps)"
        if self.stop_at is None:
            return f"after {epochs}"
        if not self.is_explicit:
            return f"at step {self.num_steps:,}; --num_epochs or --stop_at_step make it longer"
        if self.stop_at <= self.num_epoch_steps:
            passes = self.stop_at / self.steps_per_epoch
            return f"at step {self.stop_at:,} by --stop_at_step, after {passes:.3g} epochs"
        return f"after {epochs}, before --stop_at_step={self.stop_at}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
    """The weights that a fine-tuning starts from.

    Arguments:
      folder: where they are; None for the current folder.
      name: of the file or folder in it; None for that itself.
      ignores_missing: parameters that they lack are left initial.
    """

    folder: str | None
    name: str | None
    selection: Selection
    ignores_missing: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What `penstock train` is about to do: everything is decided, and nothing is begun.

    Arguments:
      preprocessing_name: of the images; None for those that need none.
      schedule: the learning rate in words.
      checkpoint: None where none is written.
      evaluate: the one that tests; None where there is no test data, or no test is wanted.
      is_averaged: the moving average of the parameters is evaluated and saved.
      start: None for initial values.
      description: what the folder says of it.
      is_new_because: a sentence that says how it differs from the run before, or none.
    """

    source: Source
    data: Data
    network: NetworkPlan
    programs: models.Classifier
    preprocessing_name: str | None
    length: Length
    schedule: str
    optimizer: optax.GradientTransformation
    optimizer_name: str
    place: _mesh.Place
    seed: int
    precision: Precision
    num_micro_batches: int
    state_sharding: _mesh.StateSharding
    freeze: Sequence[str]
    checkpoint: CheckpointConfig | None
    handlers: tuple[Any, ...]
    evaluate: handlers.Evaluate | None
    is_averaged: bool
    start: Start | None
    folder: RunFolder
    description: RunDescription
    notes: tuple[str, ...]
    is_new_because: Sequence[str]


def make_plan(flags: TrainFlags) -> Plan:
    """Open the data, and decide what flags leave open."""
    source, place = plan_source(flags), choose_place(flags.performance)
    is_auto = flags.model.batch_size == "auto"
    if is_auto:
        # What the search begins with.
        flags = _set_batch_size(flags, max(32, flags.model.gradient_accumulation_steps))
    weights, shard = find_starting_weights(flags), _choose_shard(flags)
    num_devices = len(_mesh.find_devices(place))
    data = open_data(plan_data(flags), weights, num_devices=num_devices, shard=shard)
    name = flags.preprocessing.preprocessing_name
    name = name if data.preparation is None else data.preparation.name
    auto = None
    if is_auto:
        auto, why = _choose_batch_size(flags, data, place, _resolve_config(flags, data, name))
        flags = _set_batch_size(flags, auto)
        data = open_data(plan_data(flags), weights, num_devices=num_devices, shard=shard)
        note = f"--batch_size=auto: {auto} on each device, {why}"
        data = dataclasses.replace(data, notes=(note, *data.notes))
    # FastNN's way to measure speed: what the reader takes of it is told beside.
    if source.name == "mock":
        data = dataclasses.replace(data, train=TimedReader(data.train))
    length = make_length(flags, data.steps_per_epoch)
    description = RunDescription(
        config=_resolve_config(flags, data, name),
        facts=_describe_data(data, auto),
        num_steps=length.num_steps,
        overwrites=flags.logging.overwrite,
        saves_checkpoints=flags.logging.has_hook("CheckpointSaverHook"),
    )
    if flags.logging.checkpointDir is not None:
        folder, is_new_because = RunFolder(Path(flags.logging.checkpointDir)), []
    else:
        folder, is_new_because = choose_folder(_name_folder(flags), description)
    check_apart(folder, source.folder, has_classes=source.name == "image_folder")
    network = plan_network(flags)
    schedule = choose_schedule(flags, data, length)
    chosen, evaluate = make_handlers(flags, data, length, folder)
    return Plan(
        source=source,
        data=data,
        network=network,
        programs=make_network(network, data.shape),
        preprocessing_name=name,
        length=length,
        schedule=optimizers.describe_schedule(**schedule),
        optimizer=make_optimizer(flags, schedule),
        optimizer_name=flags.optimizer.optimizer,
        place=place,
        seed=flags.performance.seed,
        precision=make_precision(flags.performance),
        num_micro_batches=flags.model.gradient_accumulation_steps,
        state_sharding=flags.performance.state_sharding,
        freeze=split_words(flags.model.freeze),
        checkpoint=_plan_checkpoints(flags, folder),
        handlers=chosen,
        evaluate=evaluate,
        is_averaged=flags.optimizer.moving_average_decay is not None,
        start=_plan_start(flags),
        folder=folder,
        description=description,
        notes=(*data.notes, *describe_unused(flags.unused)),
        is_new_because=is_new_because,
    )


def _set_batch_size(flags: TrainFlags, batch_size: int) -> TrainFlags:
    return dataclasses.replace(flags, model=dataclasses.replace(flags.model, batch_size=batch_size))


def _choose_batch_size(
    flags: TrainFlags, data: Data, place: _mesh.Place, config: Mapping[str, object]
) -> tuple[int, str]:
    """Return how many images of a device `--batch_size=auto` comes to, and why."""
    named = flags.logging.checkpointDir
    overwrites = flags.logging.overwrite
    before = None if overwrites else recall_batch_size(named, _name_folder(flags), config)
    builder = make_builder(flags, data.shape, place)
    device = builder.mesh.local_devices[0]
    own = np.asarray([before or 0, _mesh.find_memory(device)], np.float32)
    # All processes compile for the same sizes, or some would wait for the others.
    known = np.reshape(multihost_utils.process_allgather(own), (-1, 2))
    if known[0, 0]:
        return int(known[0, 0]), "as before"
    memory = float(known[:, 1].min())
    if math.isinf(memory):
        raise ValueError(
            f"--batch_size got 'auto' on {device.device_kind}, expected a number: it does not say "
            "how much memory it has."
        )
    _LOGGER.info("--batch_size=auto compiles the step for a few sizes ...")
    # The mock makes as many as are asked for.
    limit = None if data.preparation is None else -(-data.num_train // builder.mesh.size)
    share = _SHARES.get(device.platform, _SHARE)
    start = data.batch_size // builder.mesh.size
    size = find_largest_batch(builder, start=start, limit=limit, capacity=int(share * memory))
    fits = f"as many as fit into {share:.0%} of {scale_bytes(int(memory))}"
    why = f"as there are {data.num_train:,} images" if size == limit else fits
    # Where none fits, the first launch says what would.
    size = max(size // 8 * 8 if size >= 8 else size, flags.model.gradient_accumulation_steps)
    return size, why


def make_builder(flags: TrainFlags, shape: Shape, place: _mesh.Place = None) -> ProgramBuilder[Any]:
    """Return the builder of a run of any length: the schedule is a number in the program."""
    network = plan_network(flags)
    schedule = {"options": flags.learning_rate, "num_steps": 1000, "steps_per_epoch": 1000}
    with name_smallest_size(network.model, shape.image_shape[0]):
        return ProgramBuilder(
            make_network(network, shape).train_program,
            make_optimizer(flags, schedule),
            place=place,
            precision=make_precision(flags.performance),
            gradient_accumulation_steps=flags.model.gradient_accumulation_steps,
            freeze=split_words(flags.model.freeze),
            state_sharding=flags.performance.state_sharding,
        )


def plan_source(flags: TrainFlags) -> Source:
    dataset, read = flags.dataset, flags.preprocessing
    return Source(
        name=dataset.dataset_name,
        folder=dataset.dataset_dir,
        train_files=split_words(dataset.train_files),
        eval_files=split_words(dataset.eval_files),
        shorter_side=read.cache_image_size,
        on_error="skip" if read.skip_damaged else "raise",
        num_parts=dataset.num_folder_parts,
        split_seed=dataset.split_seed,
        group_pattern=dataset.group_pattern,
    )


def plan_data(flags: TrainFlags) -> DataPlan:
    batch_size, source, read = flags.model.batch_size, plan_source(flags), flags.preprocessing
    assert batch_size != "auto"
    model = models.get(flags.model.model_name)
    # FastNN's flag bounds the images in work, so more workers than that would wait.
    in_flight = read.num_parallel_batches * batch_size
    return DataPlan(
        source=source,
        model=model,
        preprocessing_name=read.preprocessing_name,
        image_size=read.train_image_size or model.default_image_size,
        batch_size=batch_size,
        num_parts=flags.model.gradient_accumulation_steps,
        num_classes=flags.dataset.num_classes,
        samples_per_epoch=flags.dataset.num_sample_per_epoch,
        labels_offset=flags.dataset.labels_offset,
        # All records, whatever the size: a window is what a stream can do, and records are reached
        # by number.
        is_shuffled=read.shuffle_buffer_size > 1,
        options=ReadOptions(
            seed=flags.performance.seed,
            num_workers=min(read.num_preprocessing_threads, in_flight),
            look_ahead=read.prefetch_buffer_size,
            cache_records=read.datasets_use_caching or read.cache_image_size is not None,
            on_error=source.on_error,
        ),
        follows_fastnn=flags.fastnn_compat,
    )


def plan_network(flags: TrainFlags) -> NetworkPlan:
    wanted, is_fastnn = flags.model, flags.fastnn_compat
    assert wanted.batch_size != "auto"
    settings = models.Settings(
        weight_decay=0.0 if is_fastnn else wanted.weight_decay,
        # FastNN never runs the updates of the running statistics.
        batch_norm_decay=1.0 if is_fastnn else wanted.batch_norm_decay,
        # A decay that is named, or FastNN's, holds from the first step: nothing warms up.
        batch_norm_warmup=False if is_fastnn or wanted.batch_norm_decay is not None else None,
        # FastNN's statistics are those of a device's share.
        batch_norm_group_size=wanted.batch_norm_group_size
        or (wanted.batch_size if is_fastnn else None),
    )
    return NetworkPlan(
        model=models.get(wanted.model_name, settings),
        label_smoothing=wanted.label_smoothing,
        has_fastnns_accuracy=is_fastnn and flags.dataset.dataset_name == "mnist",
    )


def make_precision(flags: PerformanceFlags) -> Precision:
    """Return the precision that the flags ask for; only float16 has a loss scale."""
    name = flags.precision_name
    return Precision(name, flags.loss_scale if name == "float16" else None)


def choose_place(flags: PerformanceFlags) -> _mesh.Place:
    """Return the run's place, as `Trainer` takes it: all devices, or one."""
    devices = _mesh.find_devices(flags.place)
    if flags.enable_paisoar:
        return flags.place
    return [next(d for d in devices if d.process_index == jax.process_index())]


def _choose_shard(flags: TrainFlags) -> Shard:
    """Return which part of the data this process reads; whole files, as FastNN does it."""
    # The mock has no files to divide.
    is_by_file = flags.fastnn_compat and jax.process_count() > 1
    rule = "files_round_robin" if is_by_file and flags.dataset.dataset_name != "mock" else "records"
    return Shard(jax.process_index(), jax.process_count(), rule)


def find_starting_weights(flags: TrainFlags) -> Path | None:
    """Return the path of the weights that a fine-tuning starts from; None without any.

    Where they are gone it is the run's own folder: a run goes on without them.
    """
    if flags.model.task_type == "pretrain":
        return None
    try:
        return find_weights(flags.model.model_dir, flags.model.ckpt_file_name)
    except FileNotFoundError:
        path = Path(flags.logging.checkpointDir or _name_folder(flags))
        return path if RunFolder(path).data.exists() else None


def _name_folder(flags: TrainFlags) -> Path:
    name = f"{plan_source(flags).title}_{flags.model.model_name}"
    return Path(flags.logging.output_dir) / "runs" / name


def _plan_start(flags: TrainFlags) -> Start | None:
    if flags.model.task_type == "pretrain":
        return None
    selection = Selection(
        include=split_words(flags.model.checkpoint_include_scopes) or None,
        exclude=split_words(flags.model.checkpoint_exclude_scopes) or None,
    )
    return Start(
        folder=flags.model.model_dir,
        name=flags.model.ckpt_file_name,
        selection=selection,
        ignores_missing=flags.model.ignore_missing_vars,
    )


def make_length(flags: TrainFlags, steps_per_epoch: int) -> Length:
    """Return how long a run is: until a step or for some epochs, whichever comes first.

    The default of one limit does not cut the other; without either it is FastNN's 100 steps.
    """
    epochs, stop_at = flags.model.num_epochs, flags.logging.stop_at_step
    is_explicit = epochs is not None or stop_at is not None
    if not is_explicit:
        stop_at = _DEFAULT_STEPS
    if not stop_at or not flags.logging.has_hook("StopAtStepHook"):
        stop_at = None
    if epochs is None:
        least = 0 if stop_at is None else -(-stop_at // steps_per_epoch)
        epochs = max(least, _DEFAULT_EPOCHS)
    return Length(
        num_epochs=epochs, steps_per_epoch=steps_per_epoch, stop_at=stop_at, is_explicit=is_explicit
    )


def choose_schedule(flags: TrainFlags, data: Data, length: Length) -> dict[str, Any]:
    """Return the arguments of `optimizers.schedule`."""
    # FastNN's schedule lasts until --stop_at_step, also where the epochs end earlier.
    num_steps = flags.logging.stop_at_step or length.num_steps
    return {
        "options": flags.learning_rate,
        "num_steps": num_steps if flags.fastnn_compat else length.num_steps,
        "steps_per_epoch": data.schedule_steps_per_epoch,
        "fastnn_compat": flags.fastnn_compat,
    }


def make_optimizer(flags: TrainFlags, schedule: dict[str, Any]) -> optax.GradientTransformation:
    return optimizers.get(
        flags.optimizer.optimizer,
        optimizers.schedule(**schedule),
        options=flags.optimizer,
        max_gradient_norm=flags.model.max_gradient_norm,
        moving_average_decay=flags.optimizer.moving_average_decay,
    )


def _plan_checkpoints(flags: TrainFlags, folder: RunFolder) -> CheckpointConfig | None:
    if not flags.logging.has_hook("CheckpointSaverHook"):
        return None
    return CheckpointConfig(
        directory=folder.checkpoints,
        save_interval_steps=flags.logging.save_checkpoints_steps,
        save_interval_secs=flags.logging.save_checkpoints_secs or None,
    )


def make_handlers(
    flags: TrainFlags, data: Data, length: Length, folder: RunFolder
) -> tuple[tuple[Any, ...], handlers.Evaluate | None]:
    """Return the handlers that the flags ask for, and that of them which tests."""
    logging = flags.logging
    every = logging.log_loss_every_n_iters
    is_shown = logging.has_hook("LoggingTensorHook") and not jax.process_index()
    shows_lines = is_shown and every > 0
    evaluate = None
    if data.test is not None and logging.eval_every_n_epochs:
        evaluate = handlers.Evaluate(
            data.test,
            every_epochs=logging.eval_every_n_epochs,
            monitor="accuracy",
            mode="max",
            best_path=folder.best,
            averaged=flags.optimizer.moving_average_decay is not None,
            # The progress line has the results of tests beside those of training.
            file=None if shows_lines else io.StringIO(),
        )
    sizes = {
        "num_train": data.num_train,
        "num_test": data.num_test,
        "num_classes": data.shape.num_classes,
        "image_shape": list(data.shape.image_shape),
        "batch_size": data.batch_size,
        "steps_per_epoch": data.steps_per_epoch,
        "num_steps": length.num_steps,
    }
    # Before the tests, which are not to count as steps.
    chosen: list[Any] = [Record(folder.record, sizes)]
    # Tests come next: handlers behind them show and log their results.
    chosen += [] if evaluate is None else [evaluate, evaluate_at_end(evaluate)]
    if shows_lines:
        chosen.append(handlers.Log(every))
    elif is_shown:
        chosen.append(handlers.Progress(test=evaluate, stop_at=length.stop_at))
    chosen.append(handlers.CSVLog(folder.log, every_steps=max(every, 1), test=evaluate))
    if logging.summaryDir is not None:
        chosen.append(handlers.TensorBoard(logging.summaryDir, every_steps=max(every, 1)))
    if logging.print_model_statistics or logging.log_trainable_vars_statistics:
        chosen.append(handlers.Summary())
    if logging.log_device_placement:
        chosen.append(DevicePlacement())
    is_tracing = logging.profile_every_n_iters > 0 and logging.has_hook("ProfilerHook")
    if is_tracing and jax.process_index() == logging.profile_at_task:
        chosen.append(ProfileEvery(folder.profile, logging.profile_every_n_iters))
    if isinstance(data.train, TimedReader):
        chosen.append(Benchmark(data.train, max(every, 1)))
    if length.stop_at is not None:
        chosen.append(handlers.StopAt(step=length.stop_at))
    return tuple(chosen), evaluate


def _resolve_config(
    flags: TrainFlags, data: Data, preprocessing_name: str | None
) -> dict[str, object]:
    """Return the flags for `config.json`: what data and network decide is in the place of None."""
    sections, size = to_json(flags), data.shape.image_shape[0]
    prepared = {"preprocessing_name": preprocessing_name, "train_image_size": size}
    return {
        **sections,
        "dataset": {**sections["dataset"], "num_classes": data.shape.num_classes},
        "preprocessing": {**sections["preprocessing"], **prepared},
        "config": None,
    }


def _describe_data(data: Data, auto_batch_size: int | None) -> Facts:
    """Return the facts about its data that a run's folder keeps."""
    chosen = data.preparation
    return Facts(
        image_shape=data.shape.image_shape,
        stored_shape=data.stored_shape,
        class_names=data.class_names,
        preprocessing=None if chosen is None else preprocessing.describe(chosen.preprocessing),
        # How many the mock has is a matter of the devices.
        num_train=None if chosen is None else data.num_train,
        num_test=None if chosen is None else data.num_test,
        names_digests=data.names_digests,
        auto_batch_size=auto_batch_size,
    )


def describe_unused(flags: UnusedFlags) -> list[str]:
    """Return a line that names the flags that were set and have no effect."""
    defaults = vars(UnusedFlags())
    names = [f"--{name}" for name, value in vars(flags).items() if value != defaults[name]]
    return [f"no effect here: {', '.join(names)}"] if names else []
