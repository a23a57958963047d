"""`penstock train`: train a network of the model library, with FastNN's flags."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

import penstock as ps
from penstock import models, optimizers
from penstock.commands._flags import TrainFlags, fastnn_defaults, parse
from penstock.commands._flags._checks import words_of
from penstock.commands._run import _folder, _weights
from penstock.commands._run._announce import Plan, announce, conclude, plan_of
from penstock.commands._run._benchmark import TimedReader
from penstock.commands._run._data import Data, open_data, resolved
from penstock.commands._run._failures import run_command
from penstock.commands._run._folder import RunFolder
from penstock.commands._run._handlers import handlers_of
from penstock.commands._run._network import last_layers, network_of, precision_of
from penstock.commands._run._pictures import show_digits
from penstock.readers import Shard

PROG = "penstock train"
_EXAMPLES = """examples:
  penstock train
  penstock train --model_name=resnet_v1_50 --dataset_name=cifar10 --dataset_dir=data/cifar10
  penstock train --dataset_name=image_folder --dataset_dir=photos --model_name=mobilenet_v2 \\
      --task_type=finetune --model_dir=weights --ckpt_file_name=mobilenet_v2_1.0_224.ckpt
  penstock train --dataset_name=mock --model_name=resnet_v1_50        # how fast is it?

docs/train_command.md says more."""


def run(argv: list[str]) -> int:
    """Run `penstock train` with the arguments after the command's name.

    Returns:
      The exit status: 0 when the run is over, 1 when it failed, 2 when it was called wrongly; an
      interrupt is raised.
    """
    return run_command("train", lambda: _train(flags_of(argv)))


def flags_of(argv: list[str]) -> TrainFlags:
    """Return the flags that words stand for.

    Raises:
      UsageError: an unknown flag or a wrong value.

    >>> flags_of(["--model_name=vgg_16", "--use_fp16=False"]).model.model_name
    'vgg_16'
    """
    defaults = {"": TrainFlags, "fastnn_compat": fastnn_defaults}
    return parse(TrainFlags, argv, prog=PROG, defaults=defaults, epilog=_EXAMPLES)[0]


def _train(flags: TrainFlags) -> None:
    _join_processes(flags)
    place = None if flags.performance.enable_paisoar else [jax.local_devices()[0]]
    num_devices = jax.device_count() if place is None else len(place)
    data = open_data(flags, batch_size=flags.model.batch_size * num_devices, shard=_shard(flags))
    if flags.dataset.dataset_name == "mock":
        data = dataclasses.replace(data, train=TimedReader(data.train))
    flags = resolved(flags, data)
    plan = plan_of(flags, data)
    folder = _folder.folder_for(flags)
    changed = _folder.differences(folder, flags)
    facts = _folder.Facts(
        image_shape=data.shape.image_shape,
        stored_shape=data.stored_shape,
        class_names=data.class_names,
    )
    _folder.prepare(folder, flags, facts)
    network = network_of(flags, data.shape)
    trainer = _trainer(flags, data, network, plan, folder, place)
    handlers = handlers_of(flags, data, folder)
    start = _start(flags, data, network, trainer, folder, changed)
    announce(
        flags,
        data,
        trainer,
        plan,
        folder=folder,
        schedule=optimizers.describe_schedule(**_schedule(flags, data, plan)),
        start=start,
    )
    if trainer.global_step >= plan.num_steps:
        print("The run is over: these are its results. To go on raise what ends it; to begin anew")
        print("add --overwrite=True.\n", flush=True)
    trainer.train(data.train, handlers.all, num_epochs=flags.model.num_epochs)
    if handlers.evaluate is not None:
        handlers.evaluate()
    trainer.save_params(folder.params, averaged=_is_averaged(flags))
    if flags.dataset.dataset_name == "digits" and not jax.process_index():
        show_digits(trainer.infer, data.test)
    conclude(
        folder, handlers.evaluate, step=trainer.global_step, is_saved=_saves_checkpoints(flags)
    )


def _join_processes(flags: TrainFlags) -> None:
    """Become one of the processes of `--worker_hosts`, where there are several."""
    hosts = words_of(flags.performance.worker_hosts)
    if len(hosts) > 1 and not jax.distributed.is_initialized():
        jax.distributed.initialize(hosts[0], len(hosts), flags.performance.task_index)


def _shard(flags: TrainFlags) -> Shard:
    """Return this process's part of the data; FastNN's is whole files."""
    is_by_file = flags.fastnn_compat and jax.process_count() > 1
    rule = "files_round_robin" if is_by_file and flags.dataset.dataset_name != "mock" else "records"
    return Shard(jax.process_index(), jax.process_count(), rule)


def _schedule(flags: TrainFlags, data: Data, plan: Plan) -> dict[str, Any]:
    """Return the arguments of `optimizers.schedule`."""
    # FastNN counts on --stop_at_step, also where its epochs are over earlier.
    num_steps = flags.logging.stop_at_step or plan.num_steps
    return {
        "options": flags.learning_rate.options(),
        "num_steps": num_steps if flags.fastnn_compat else plan.num_steps,
        "steps_per_epoch": data.epochs_of_schedule,
        "fastnn_compat": flags.fastnn_compat,
    }


def _trainer(
    flags: TrainFlags,
    data: Data,
    network: models.Classifier,
    plan: Plan,
    folder: RunFolder,
    place: Any,
) -> ps.Trainer:
    optimizer = optimizers.get(
        flags.optimizer.optimizer,
        optimizers.schedule(**_schedule(flags, data, plan)),
        options=flags.optimizer.options(),
        max_gradient_norm=flags.model.max_gradient_norm,
        moving_average_decay=flags.optimizer.moving_average_decay,
    )
    checkpoint = None
    if _saves_checkpoints(flags):
        checkpoint = ps.CheckpointConfig(
            directory=folder.checkpoints,
            save_interval_steps=flags.logging.save_checkpoints_steps,
        )
    return ps.Trainer(
        network.train_program,
        optimizer,
        infer_func=network.infer_program,
        place=place,
        seed=flags.performance.seed,
        checkpoint=checkpoint,
        precision=precision_of(flags.performance),
        gradient_accumulation_steps=flags.model.gradient_accumulation_steps,
        freeze=words_of(flags.model.freeze),
    )


def _saves_checkpoints(flags: TrainFlags) -> bool:
    return flags.logging.has_hook("CheckpointSaverHook")


def _is_averaged(flags: TrainFlags) -> bool:
    return flags.optimizer.moving_average_decay is not None


def _start(
    flags: TrainFlags,
    data: Data,
    network: models.Classifier,
    trainer: ps.Trainer,
    folder: RunFolder,
    changed: dict[str, tuple[Any, Any]],
) -> list[str]:
    """Load the weights of a fine-tuning; return from what the run starts, a line each."""
    if trainer.global_step:
        lines = [f"again at step {trainer.global_step}, from {folder.checkpoints}"]
        lines += [f"--{name} was {old}, is {new}" for name, (old, new) in changed.items()]
        return lines
    if flags.model.task_type == "pretrain":
        return ["from initial values"]
    path = _weights.weights_path(flags.model.model_dir, flags.model.ckpt_file_name)
    return _weights.load_weights(
        trainer,
        path,
        flags.model,
        model=network.model,
        image_size=data.shape.image_shape[0],
        last_layers=lambda: last_layers(flags, data.shape, trainer),
    )
