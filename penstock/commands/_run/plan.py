"""The plan of a run: what its flags, its data and its network decide, made once.

What trains, prints, writes and compares reads the plan.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.experimental import multihost_utils

from penstock import CheckpointConfig, ProgramBuilder, _mesh, handlers, models, optimizers
from penstock._text_tables import scale_bytes
from penstock.commands._failures import UsageError, split_words
from penstock.commands._flags import PerformanceFlags, TrainFlags, UnusedFlags, to_json
from penstock.commands._run import handlers as run_handlers
from penstock.commands._run.data import Data, Shape, open_data
from penstock.commands._run.network import choose_model, make_network, name_smallest_size
from penstock.commands._run_folder import folder as run_folder
from penstock.program_builder import find_largest_batch
from penstock.readers import Shard

_DEFAULT_STEPS = 100
_DEFAULT_EPOCHS = 100
# Of a device's memory for the step of `--batch_size=auto`. Of a machine's own, readers and other
# programs take some too.
_SHARE, _SHARES = 0.9, {"cpu": 0.5}
_LOGGER = logging.getLogger("penstock.compilations")


class Length(NamedTuple):
    """How long a run is."""

    num_epochs: int  # passes over the data, where no step ends the run
    steps_per_epoch: int
    stop_at: int | None  # the step that ends the run; None where the epochs do
    is_explicit: bool  # a flag says how long it is

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
class Plan:
    """What `penstock train` is about to do: everything is decided, and nothing is begun."""

    flags: TrainFlags  # with a number as the batch size
    data: Data
    programs: models.Classifier
    length: Length
    schedule: Mapping[str, Any]  # the arguments of `optimizers.schedule`
    place: _mesh.Place
    checkpoint: CheckpointConfig | None
    handlers: tuple[Any, ...]
    evaluate: handlers.Evaluate | None  # of the handlers the one that tests
    folder: run_folder.RunFolder
    description: run_folder.RunDescription
    notes: tuple[str, ...]
    is_new_because: Sequence[str]  # how it differs from the run before

    @property
    def is_averaged(self) -> bool:
        """Whether the moving average of the parameters is evaluated and saved."""
        return self.flags.optimizer.moving_average_decay is not None


def make_plan(flags: TrainFlags) -> Plan:
    """Open the data, and decide what flags leave open."""
    place, is_auto = choose_place(flags.performance), flags.model.batch_size == "auto"
    if is_auto:
        # What the search begins with.
        flags = _set_batch_size(flags, max(32, flags.model.gradient_accumulation_steps))
    weights, shard = find_starting_weights(flags), _choose_shard(flags)
    num_devices = len(_mesh.find_devices(place))
    data = open_data(flags, weights, num_devices=num_devices, shard=shard)
    auto = None
    if is_auto:
        auto, why = _choose_batch_size(flags, data, place, _resolve_config(flags, data))
        flags = _set_batch_size(flags, auto)
        data = open_data(flags, weights, num_devices=num_devices, shard=shard)
        note = f"--batch_size=auto: {auto} on each device, {why}"
        data = dataclasses.replace(data, notes=(note, *data.notes))
    wanted, logging = flags.dataset, flags.logging
    length = make_length(flags, data.steps_per_epoch)
    description = run_folder.RunDescription(
        config=_resolve_config(flags, data),
        facts=data.facts._replace(auto_batch_size=auto),
        num_steps=length.num_steps,
        overwrites=logging.overwrite,
        saves_checkpoints=logging.has_hook("CheckpointSaverHook"),
    )
    if logging.checkpointDir is not None:
        folder, is_new_because = run_folder.RunFolder(Path(logging.checkpointDir)), []
    else:
        folder, is_new_because = run_folder.choose_folder(_name_folder(flags), description)
    run_folder.check_apart(
        folder, wanted.dataset_dir, has_classes=wanted.dataset_name == "image_folder"
    )
    chosen, evaluate = make_handlers(flags, data, length, folder)
    checkpoint = CheckpointConfig(
        directory=folder.checkpoints,
        save_interval_steps=logging.save_checkpoints_steps,
        save_interval_secs=logging.save_checkpoints_secs or None,
    )
    return Plan(
        flags=flags,
        data=data,
        programs=make_network(flags, data.shape),
        length=length,
        schedule=choose_schedule(flags, data, length),
        place=place,
        checkpoint=checkpoint if description.saves_checkpoints else None,
        handlers=chosen,
        evaluate=evaluate,
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
    before, named = None, flags.logging.checkpointDir
    if not flags.logging.overwrite:
        before = run_folder.recall_batch_size(named, _name_folder(flags), config)
    builder = make_builder(flags, data.shape, place)
    device = builder.mesh.local_devices[0]
    own = np.asarray([before or 0, _mesh.find_memory(device)], np.float32)
    # All processes compile for the same sizes, or some would wait for the others.
    gathered = np.reshape(multihost_utils.process_allgather(own), (-1, 2))
    if gathered[0, 0]:
        return int(gathered[0, 0]), "as before"
    memory = float(gathered[:, 1].min())
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
    schedule = {"options": flags.learning_rate, "num_steps": 1000, "steps_per_epoch": 1000}
    with name_smallest_size(choose_model(flags), shape.image_shape[0]):
        return ProgramBuilder(
            make_network(flags, shape).train_program,
            make_optimizer(flags, schedule),
            place=place,
            **choose_options(flags),
        )


def choose_options(flags: TrainFlags) -> Any:
    """Return what a builder and a trainer take of the flags alike."""
    return {
        "precision": flags.performance.make_precision(),
        "gradient_accumulation_steps": flags.model.gradient_accumulation_steps,
        "freeze": split_words(flags.model.freeze),
        "state_sharding": flags.performance.state_sharding,
    }


def choose_place(flags: PerformanceFlags) -> _mesh.Place:
    """Return the run's place, as `Trainer` takes it: all devices, or one."""
    devices = _mesh.find_devices(flags.place)
    if flags.enable_paisoar:
        return flags.place
    if (count := jax.process_count()) > 1:
        raise UsageError(
            f"--enable_paisoar got False in {count} processes, expected True, or one process. Each "
            "would train a network of its own on its part of the data. Leave the flag out."
        )
    return devices[:1]


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
        return run_folder.find_weights(flags.model.model_dir, flags.model.ckpt_file_name)
    except FileNotFoundError:
        path = Path(flags.logging.checkpointDir or _name_folder(flags))
        return path if run_folder.RunFolder(path).data.exists() else None


def _name_folder(flags: TrainFlags) -> Path:
    name = f"{flags.dataset.title}_{flags.model.model_name}"
    return Path(flags.logging.output_dir) / "runs" / name


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
    return Length(epochs, steps_per_epoch, stop_at, is_explicit)


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


def make_optimizer(flags: TrainFlags, schedule: Mapping[str, Any]) -> optax.GradientTransformation:
    return optimizers.get(
        flags.optimizer.optimizer,
        optimizers.schedule(**schedule),
        options=flags.optimizer,
        max_gradient_norm=flags.model.max_gradient_norm,
        moving_average_decay=flags.optimizer.moving_average_decay,
    )


def make_handlers(
    flags: TrainFlags, data: Data, length: Length, folder: run_folder.RunFolder
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
        "num_test": data.facts.num_test,
        "num_classes": data.shape.num_classes,
        "image_shape": list(data.shape.image_shape),
        "batch_size": data.batch_size,
        "steps_per_epoch": data.steps_per_epoch,
        "num_steps": length.num_steps,
    }
    chosen: list[Any] = [run_handlers.Record(folder.record, sizes)]
    # The line of a step stands above that of the test behind it.
    if shows_lines:
        chosen.append(handlers.Log(every))
    elif is_shown:
        chosen.append(handlers.Progress(test=evaluate, stop_at=length.stop_at))
    if logging.summaryDir is not None:
        chosen.append(handlers.TensorBoard(logging.summaryDir, every_steps=max(every, 1)))
    if evaluate is not None:
        # Before the Evaluate, for which the end of training makes its test one of the past.
        chosen += [functools.partial(run_handlers.evaluate_at_end, evaluate), evaluate]
    chosen.append(handlers.CSVLog(folder.log, every_steps=max(every, 1), test=evaluate))
    if logging.print_model_statistics or logging.log_trainable_vars_statistics:
        chosen.append(handlers.Summary())
    if logging.log_device_placement:
        chosen.append(run_handlers.print_placement)
    is_tracing = logging.profile_every_n_iters > 0 and logging.has_hook("ProfilerHook")
    if is_tracing and jax.process_index() == logging.profile_at_task:
        chosen.append(run_handlers.ProfileEvery(folder.profile, logging.profile_every_n_iters))
    # FastNN's way to measure speed.
    if flags.dataset.dataset_name == "mock":
        chosen.append(run_handlers.Benchmark(max(every, 1)))
    if length.stop_at is not None:
        chosen.append(handlers.StopAt(step=length.stop_at))
    return tuple(chosen), evaluate


def _resolve_config(flags: TrainFlags, data: Data) -> dict[str, object]:
    """Return the flags for `config.json`: what data and network decide is in the place of None."""
    sections = to_json(flags)
    prepared: dict[str, object] = {"train_image_size": data.shape.image_shape[0]}
    if data.preparation is not None:
        prepared["preprocessing_name"] = data.preparation.name
    return {
        **sections,
        "dataset": {**sections["dataset"], "num_classes": data.shape.num_classes},
        "preprocessing": {**sections["preprocessing"], **prepared},
        "config": None,
    }


def describe_unused(flags: UnusedFlags) -> list[str]:
    """Return a line that names the flags that were set and have no effect."""
    defaults = vars(UnusedFlags())
    names = [f"--{name}" for name, value in vars(flags).items() if value != defaults[name]]
    return [f"no effect here: {', '.join(names)}"] if names else []
