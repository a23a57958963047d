"""From flags to a run that is ready to train."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import jax
from jax.experimental import multihost_utils

from penstock import CheckpointConfig, Trainer, _mesh, models, optimizers
from penstock.commands._checks import split_words
from penstock.commands._flags import TrainFlags
from penstock.commands._run.benchmark import TimedReader
from penstock.commands._run.data import Data, open_data, resolved
from penstock.commands._run.folder import (
    Facts,
    RunFolder,
    check_apart,
    check_takes,
    differences,
    folder_for,
    list_checkpoint_steps,
)
from penstock.commands._run.handlers import RunHandlers, handlers_of
from penstock.commands._run.network import (
    last_layers,
    name_smallest_size,
    network_of,
    precision_of,
)
from penstock.commands._run.plan import Plan, plan_of
from penstock.commands._run.preparation import about_weights
from penstock.commands._run.replacement import hold, set_aside
from penstock.commands._run.weights import Entries, find_weights, load_weights, read_entries
from penstock.readers import Shard


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run that is ready.

    Arguments:
      flags: with everything decided that was left open.
      start: what it starts from, a line each.
      schedule: the arguments of `optimizers.schedule`.
    """

    flags: TrainFlags
    data: Data
    plan: Plan
    folder: RunFolder
    network: models.Classifier
    trainer: Trainer
    handlers: RunHandlers
    schedule: dict[str, Any]
    start: list[str]

    @property
    def is_averaged(self) -> bool:
        """Whether the moving average of the parameters is what is evaluated and saved."""
        return self.flags.optimizer.moving_average_decay is not None

    @property
    def saves_checkpoints(self) -> bool:
        """Whether it can be resumed."""
        return saves_checkpoints(self.flags)


def assemble(flags: TrainFlags, held: contextlib.ExitStack) -> Run:
    """Open the data, build network and optimizer, and resume or load the weights to start from.

    Arguments:
      held: takes what is held until the run is over: its folder, on the process that writes.

    Raises: what a person may have done wrong, each with one message: files that are not there,
      values that do not fit together, weights of another network.
    """
    _join_processes(flags)
    place = place_of(flags)
    num_devices = len(_mesh.devices_of(place))
    data = open_data(flags, batch_size=flags.model.batch_size * num_devices, shard=_shard(flags))
    if flags.dataset.dataset_name == "mock":
        data = dataclasses.replace(data, train=TimedReader(data.train))
    flags = resolved(flags, data)
    plan = plan_of(flags, data.steps_per_epoch)
    folder = folder_for(flags)
    check_apart(folder, flags.dataset)
    network = network_of(flags, data.shape)
    size = data.shape.image_shape[0]
    schedule = schedule_of(flags, data, plan)
    with name_smallest_size(network.model, size):
        weights = _read_weights(flags, folder, network.model, size)
        notes = _take(folder, flags, held)
        trainer = _trainer(flags, network, schedule, folder, place)
    if data.preparation is not None:  # whoever copies its parameters finds it with them
        trainer.about = about_weights(data.preparation.preprocessing)
    return Run(
        flags=flags,
        data=data,
        plan=plan,
        folder=folder,
        network=network,
        trainer=trainer,
        handlers=handlers_of(flags, data, plan, folder),
        schedule=schedule,
        start=[*_start(flags, data, network, trainer, folder, weights), *notes],
    )


def _read_weights(
    flags: TrainFlags, folder: RunFolder, model: models.Model, size: int
) -> tuple[Path, Entries] | None:
    """Return where the weights of a fine-tuning lie and what they are, before anything is built.

    None of a training from initial values, and of one that goes on: its weights may be gone.

    Raises:
      FileNotFoundError: there are none.
    """
    goes_on = list_checkpoint_steps(folder.checkpoints) and not flags.logging.overwrite
    if flags.model.task_type == "pretrain" or (goes_on and saves_checkpoints(flags)):
        return None
    path = find_weights(flags.model.model_dir, flags.model.ckpt_file_name)
    return path, read_entries(path, model, size)


def is_writer() -> bool:
    """Return whether this process is the one that writes the run's folder."""
    return not jax.process_index()


def _take(folder: RunFolder, flags: TrainFlags, held: contextlib.ExitStack) -> list[str]:
    """Make the folder this run's, another's moved aside in it; return what to say, a line each.

    Raises:
      FolderInUseError: another run is at work there.
      ValueError: it is another run's, which is not to be replaced.
    """
    notes: list[str] = []
    if is_writer():
        if held.enter_context(hold(folder)):
            notes.append("the run before this one, which was to be replaced, is back")
        check_takes(folder, flags)
        changed = differences(folder, flags)
        notes += [f"--{name} was {old}, is {new}" for name, (old, new) in changed.items()]
        is_resumed = list_checkpoint_steps(folder.checkpoints) and not flags.logging.overwrite
        if folder.find_weights() is not None and not is_resumed:
            set_aside(folder)
            notes.append(f"the run before is in {folder.replaced} until this one is over")
    if jax.process_count() > 1:  # the others read the folder only when it is in order
        multihost_utils.sync_global_devices("penstock run folder")
    return notes


def facts_of(run: Run) -> Facts:
    """Return what the run's folder is to say of its data."""
    return Facts(
        image_shape=run.data.shape.image_shape,
        stored_shape=run.data.stored_shape,
        class_names=run.data.class_names,
        preprocessing=run.trainer.about.get("preprocessing"),
    )


def saves_checkpoints(flags: TrainFlags) -> bool:
    """Return whether a run with these flags can be resumed."""
    return flags.logging.has_hook("CheckpointSaverHook")


def _join_processes(flags: TrainFlags) -> None:
    """Become one of the processes of `--worker_hosts`, where there are several."""
    hosts = split_words(flags.performance.worker_hosts)
    if len(hosts) > 1 and not jax.distributed.is_initialized():
        jax.distributed.initialize(hosts[0], len(hosts), flags.performance.task_index)


def _shard(flags: TrainFlags) -> Shard:
    """Return this process's part of the data; FastNN's is whole files."""
    is_by_file = flags.fastnn_compat and jax.process_count() > 1
    rule = "files_round_robin" if is_by_file and flags.dataset.dataset_name != "mock" else "records"
    return Shard(jax.process_index(), jax.process_count(), rule)


def place_of(flags: TrainFlags) -> Any:
    """Return where it runs, as `Trainer` takes it: everywhere, or on one device.

    Raises:
      ValueError: there is no such device.
    """
    place = flags.performance.place
    devices = _mesh.devices_of(place)
    if flags.performance.enable_paisoar:
        return place
    return [next(d for d in devices if d.process_index == jax.process_index())]


def schedule_of(flags: TrainFlags, data: Data, plan: Plan) -> dict[str, Any]:
    """Return the arguments of `optimizers.schedule`."""
    # FastNN counts on --stop_at_step, also where its epochs are over earlier.
    num_steps = flags.logging.stop_at_step or plan.num_steps
    return {
        "options": flags.learning_rate,
        "num_steps": num_steps if flags.fastnn_compat else plan.num_steps,
        "steps_per_epoch": data.epochs_of_schedule,
        "fastnn_compat": flags.fastnn_compat,
    }


def optimizer_of(flags: TrainFlags, schedule: dict[str, Any]) -> Any:
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
    schedule: dict[str, Any],
    folder: RunFolder,
    place: Any,
) -> Trainer:
    config = CheckpointConfig(
        directory=folder.checkpoints,
        save_interval_steps=flags.logging.save_checkpoints_steps,
        save_interval_secs=flags.logging.save_checkpoints_secs or None,
    )
    return Trainer(
        network.train_program,
        optimizer_of(flags, schedule),
        infer_func=network.infer_program,
        place=place,
        seed=flags.performance.seed,
        checkpoint=config if saves_checkpoints(flags) else None,
        precision=precision_of(flags.performance),
        gradient_accumulation_steps=flags.model.gradient_accumulation_steps,
        freeze=split_words(flags.model.freeze),
    )


def _start(
    flags: TrainFlags,
    data: Data,
    network: models.Classifier,
    trainer: Trainer,
    folder: RunFolder,
    weights: tuple[Path, Entries] | None,
) -> list[str]:
    """Load the weights of a fine-tuning; return from what the run starts, a line each."""
    if trainer.global_step:
        return [f"again at step {trainer.global_step}, from {folder.checkpoints}"]
    if weights is None:
        return ["from initial values"]
    path, entries = weights
    return load_weights(
        trainer,
        path,
        flags.model,
        model=network.model,
        image_size=data.shape.image_shape[0],
        last_layers=lambda: last_layers(flags, data.shape, trainer),
        entries=entries,
    )
