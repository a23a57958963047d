"""A run made of flags: data, network, trainer, handlers, folder."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TypedDict

import jax
import optax
from jax.experimental import multihost_utils

from penstock import CheckpointConfig, Trainer, _mesh, models, optimizers, preprocessing
from penstock.commands._failures import split_words
from penstock.commands._flags import TrainFlags
from penstock.commands._run.data import Data, open_data, resolve_flags
from penstock.commands._run.handlers import RunHandlers, TimedReader, make_handlers
from penstock.commands._run.network import (
    Weights,
    find_last_layers,
    load_weights,
    make_network,
    make_precision,
    name_smallest_size,
    read_weights,
)
from penstock.commands._run.plan import Plan, make_plan
from penstock.commands._run.preparation import describe_weights
from penstock.commands._run.processes import is_writing_process
from penstock.commands._run_folder.folder import (
    Facts,
    RunFolder,
    check_apart,
    check_usable,
    choose_folder,
    describe_differences,
    find_differences,
    find_weights,
    list_steps,
)
from penstock.commands._run_folder.replacement import hold, set_aside
from penstock.readers import Shard


class ScheduleArguments(TypedDict):
    """The arguments of `optimizers.schedule`."""

    options: optimizers.ScheduleOptions
    num_steps: int
    steps_per_epoch: float
    fastnn_compat: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run that is ready to train.

    Arguments:
      flags: with what data and network decide in the place of None.
      schedule: the arguments of `optimizers.schedule`.
      start: sentences about what it starts from.
    """

    flags: TrainFlags
    data: Data
    plan: Plan
    folder: RunFolder
    network: models.Classifier
    trainer: Trainer
    handlers: RunHandlers
    schedule: ScheduleArguments
    start: list[str]

    @property
    def is_averaged(self) -> bool:
        """Whether the moving average of the parameters is evaluated and saved."""
        return self.flags.optimizer.moving_average_decay is not None

    @property
    def saves_checkpoints(self) -> bool:
        """Whether it can be resumed."""
        return saves_checkpoints(self.flags)


def assemble(flags: TrainFlags, held: contextlib.ExitStack) -> Run:
    """Open the data, build network and optimizer, and resume or load the weights to start from.

    Arguments:
      held: takes the lock of the run's folder, on the process that writes, until the run is over.

    Raises:
      OSError: files are not there, or the folder cannot be written.
      ValueError: flags do not fit each other or the data, or weights are of another network.
      FolderInUseError: another run is at work in the folder.
    """
    place = choose_place(flags)
    num_devices = len(_mesh.find_devices(place))
    data = open_data(
        flags, batch_size=flags.model.batch_size * num_devices, shard=_choose_shard(flags)
    )
    # FastNN's way to measure speed: what the reader takes of it is told beside.
    if flags.dataset.dataset_name == "mock":
        data = dataclasses.replace(data, train=TimedReader(data.train))
    flags = resolve_flags(flags, data)
    plan = make_plan(flags, data.steps_per_epoch)
    facts = describe_data(data)
    folder, passed = choose_folder(flags, facts)
    check_apart(folder, flags.dataset)
    network = make_network(flags, data.shape)
    size = data.shape.image_shape[0]
    schedule = choose_schedule(flags, data, plan)
    # Weights and trainer build the network, and so find out that images are too small for it.
    with name_smallest_size(network.model, size):
        # Before the folder is taken: where there are no weights, no other run is moved aside.
        weights = _read_weights(flags, folder, network.model, size)
        notes = passed + _take_folder(folder, flags, facts, plan.num_steps, held)
        trainer = _trainer(flags, network, schedule, folder, place)
    # Saved with the parameters too, which may be copied elsewhere without the run's folder.
    if data.preparation is not None:
        trainer.about = describe_weights(data.preparation.preprocessing)
    return Run(
        flags=flags,
        data=data,
        plan=plan,
        folder=folder,
        network=network,
        trainer=trainer,
        handlers=make_handlers(flags, data, plan, folder),
        schedule=schedule,
        start=[*_load_start(flags, data, network, trainer, folder, weights), *notes],
    )


def _read_weights(
    flags: TrainFlags, folder: RunFolder, model: models.Model, size: int
) -> Weights | None:
    """Return the weights that a fine-tuning starts from.

    None of a training from initial values, and of one that goes on: they may be gone by then.

    Raises:
      FileNotFoundError: there are none.
    """
    goes_on = list_steps(folder.checkpoints) and not flags.logging.overwrite
    if flags.model.task_type == "pretrain" or (goes_on and saves_checkpoints(flags)):
        return None
    path = find_weights(flags.model.model_dir, flags.model.ckpt_file_name)
    return read_weights(path, model, size)


def _take_folder(
    folder: RunFolder,
    flags: TrainFlags,
    facts: Facts,
    num_steps: int,
    held: contextlib.ExitStack,
) -> list[str]:
    """Lock the folder for this run and move another run in it aside; return sentences about it.

    Raises:
      FolderInUseError: another run is at work there.
      ValueError: it is another run's, which is not to be replaced.
    """
    notes: list[str] = []
    if is_writing_process():
        # Held from here to the end of the run, so that no other run looks at a folder half moved.
        if held.enter_context(hold(folder)):
            notes.append("the run before this one, which was to be replaced, is back")
        check_usable(folder, flags, facts, num_steps)
        notes += describe_differences(find_differences(folder, flags))
        is_resumed = list_steps(folder.checkpoints) and not flags.logging.overwrite
        if folder.find_weights() is not None and not is_resumed:
            set_aside(folder)
            notes.append(f"the run before is in {folder.replaced} until this one is over")
    # The other processes read the folder only when it is in order.
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("penstock run folder")
    return notes


def describe_data(data: Data) -> Facts:
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
    )


def saves_checkpoints(flags: TrainFlags) -> bool:
    """Return whether a run with these flags can be resumed."""
    return flags.logging.has_hook("CheckpointSaverHook")


def _choose_shard(flags: TrainFlags) -> Shard:
    """Return which part of the data this process reads; whole files, as FastNN does it."""
    # The mock has no files to divide.
    is_by_file = flags.fastnn_compat and jax.process_count() > 1
    rule = "files_round_robin" if is_by_file and flags.dataset.dataset_name != "mock" else "records"
    return Shard(jax.process_index(), jax.process_count(), rule)


def choose_place(flags: TrainFlags) -> _mesh.Place:
    """Return the run's place, as `Trainer` takes it: all devices, or one.

    Raises:
      ValueError: there is no such device.
    """
    place = flags.performance.place
    devices = _mesh.find_devices(place)
    if flags.performance.enable_paisoar:
        return place
    return [next(d for d in devices if d.process_index == jax.process_index())]


def choose_schedule(flags: TrainFlags, data: Data, plan: Plan) -> ScheduleArguments:
    """Return the arguments of `optimizers.schedule`."""
    # FastNN's schedule lasts until --stop_at_step, also where the epochs end earlier.
    num_steps = flags.logging.stop_at_step or plan.num_steps
    return {
        "options": flags.learning_rate,
        "num_steps": num_steps if flags.fastnn_compat else plan.num_steps,
        "steps_per_epoch": data.schedule_steps_per_epoch,
        "fastnn_compat": flags.fastnn_compat,
    }


def make_optimizer(flags: TrainFlags, schedule: ScheduleArguments) -> optax.GradientTransformation:
    """Return the optimizer that the flags ask for."""
    return optimizers.get(
        flags.optimizer.optimizer,
        optimizers.schedule(**schedule),
        options=flags.optimizer,
        max_gradient_norm=flags.model.max_gradient_norm,
        moving_average_decay=flags.optimizer.moving_average_decay,
    )


def _trainer(
    flags: TrainFlags,
    network: models.Classifier,
    schedule: ScheduleArguments,
    folder: RunFolder,
    place: _mesh.Place,
) -> Trainer:
    config = CheckpointConfig(
        directory=folder.checkpoints,
        save_interval_steps=flags.logging.save_checkpoints_steps,
        save_interval_secs=flags.logging.save_checkpoints_secs or None,
    )
    return Trainer(
        network.train_program,
        make_optimizer(flags, schedule),
        infer_func=network.infer_program,
        place=place,
        seed=flags.performance.seed,
        checkpoint=config if saves_checkpoints(flags) else None,
        precision=make_precision(flags.performance),
        gradient_accumulation_steps=flags.model.gradient_accumulation_steps,
        freeze=split_words(flags.model.freeze),
    )


def _load_start(
    flags: TrainFlags,
    data: Data,
    network: models.Classifier,
    trainer: Trainer,
    folder: RunFolder,
    weights: Weights | None,
) -> list[str]:
    """Load the weights of a fine-tuning; return sentences about what the run starts from."""
    if trainer.global_step:
        return [f"at step {trainer.global_step}, resumed from {folder.checkpoints}"]
    if weights is None:
        return ["from initial values"]
    lines, _ = load_weights(
        trainer,
        weights,
        flags.model,
        model=network.model,
        find_last_layers=lambda: find_last_layers(flags, data.shape, trainer),
    )
    return lines
