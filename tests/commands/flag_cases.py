"""The flags of FastNN's tables: each with a value, and what it changes."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock import optimizers, readers
from penstock.commands import train
from penstock.commands._flags import TRAIN_FLAGS
from penstock.commands._run import network, plan
from penstock.commands._run.data import open_data
from penstock.commands._run_folder.folder import RunFolder, find_weights
from penstock.handlers import Evaluate, Log, Progress, StopAt, Summary
from penstock.optimizers import OptimizerOptions, ScheduleOptions
from penstock.readers import Shard


class Asked:
    """What flags come to, each part made when it is looked at."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        self.flags = train.read_flags([word.format(folder=folder) for word in words])

    @functools.cached_property
    def data(self):
        place = plan.choose_place(self.flags.performance)
        count = jax.device_count() if place is None else len(place)
        return open_data(self.flags, None, num_devices=count, shard=Shard())

    @property
    def read(self):
        return self.data.train.options

    @property
    def model(self):
        return network.choose_model(self.flags)

    @property
    def length(self):
        return plan.make_length(self.flags, self.data.steps_per_epoch)

    @property
    def schedule(self):
        return plan.choose_schedule(self.flags, self.data, self.length)

    def rates(self) -> list[float]:
        rate = optimizers.schedule(**self.schedule)
        return [round(float(rate(step)), 9) for step in (0, 5, 40, 60, 70, 99)]

    def updates(self, optimizer: Any = None) -> list[float]:
        optimizer = optimizer or plan.make_optimizer(self.flags, self.schedule)
        params = {"w": jnp.asarray([1.0, -2.0, 0.5])}
        state = optimizer.init(params)
        for scale in (1.0, 0.5, -2.0):
            grads = {"w": scale * jnp.asarray([3.0, 4.0, 12.0])}
            update, state = optimizer.update(grads, state, params)
            params = {"w": params["w"] + update["w"]}
        return params["w"].round(6).tolist()

    def handlers(self, kind: Any) -> list[Any]:
        folder = RunFolder(self.folder / "run")
        made, _ = plan.make_handlers(self.flags, self.data, self.length, folder)
        wanted = kind if isinstance(kind, str) else kind.__name__
        names = (getattr(handler, "__name__", type(handler).__name__) for handler in made)
        return [name for name in names if name == wanted]

    def weights(self) -> str:
        path = find_weights(self.flags.model.model_dir, self.flags.model.ckpt_file_name)
        return path.relative_to(self.folder).as_posix()

    def labels(self, epoch: int = 0) -> list[int]:
        reader = self.data.train
        passes = [next(iter(reader))["label"] for _ in range(epoch + 1)]
        return np.asarray(passes[-1]).tolist()


@dataclasses.dataclass(frozen=True)
class Case:
    """A flag with a value, what it changes, and what that is then; `beside` is set both times."""

    flag: str
    effect: Callable[[Asked], Any]
    expected: Any
    beside: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.flag[2:].partition("=")[0]


def optimizer_case(flag: str, optimizer: str) -> Case:
    """Return the case of one optimizer's option: its updates are those the library makes."""
    name, _, text = flag[2:].partition("=")

    def expected(asked: Asked) -> list[float]:
        options = OptimizerOptions(**{name: float(text)})
        return asked.updates(optimizers.get(optimizer, 0.01, options=options))

    # The library's epsilon, with which three updates show each option, and one rate for all.
    beside = (f"--optimizer={optimizer}", "--learning_rate_decay_type=fixed")
    beside += ("--opt_epsilon=1.0", "--learning_rate=0.01")
    return Case(flag, lambda asked: asked.updates(), expected, beside)


def rate_case(flag: str, *beside: str) -> Case:
    """Return the case of a flag of the learning rate: the rates are those the library has."""

    def expected(asked: Asked) -> list[float]:
        pairs = [word[2:].split("=") for word in (flag, *beside)]
        made = ScheduleOptions(**{name: TRAIN_FLAGS[name].read(text) for name, text in pairs})
        epoch = asked.data.schedule_steps_per_epoch
        rate = optimizers.schedule(made, num_steps=100, steps_per_epoch=epoch)
        return [round(float(rate(step)), 9) for step in (0, 5, 40, 60, 70, 99)]

    return Case(flag, lambda asked: asked.rates(), expected, beside)


def first_labels(seed: int) -> list[int]:
    reader = readers.dataset("digits", "train", 256, shuffle=True, seed=seed)
    return next(iter(reader))["label"].tolist()


FOLDER = ("--dataset_name=image_folder", "--dataset_dir={folder}/photos", "--num_epochs=1")
RECORDS = ("--dataset_name=mine", "--dataset_dir={folder}/records", "--num_classes=10")
PROFILED = ("--profile_every_n_iters=5",)
FLOAT16 = ("--precision=float16",)
FINETUNE = ("--task_type=finetune", "--model_dir={folder}/weights")
LUONG = "--decay_scheme=luong5"
POLYNOMIAL = "--learning_rate_decay_type=polynomial"

DATASET = [
    Case("--dataset_name=mock", lambda a: a.data.num_train, 80 * 32 * 8),
    Case("--dataset_dir={folder}/others", lambda a: a.data.num_train, 6, FOLDER),
    Case("--num_sample_per_epoch=512", lambda a: a.schedule["steps_per_epoch"], 2.0),
    Case("--num_classes=12", lambda a: a.data.shape.num_classes, 12),
    Case("--train_files=a.tfrecord", lambda a: a.data.num_train, 6, RECORDS),
    Case("--train_files=a.tfrecord,b.tfrecord", lambda a: a.data.num_train, 10, RECORDS),
    Case("--eval_files=b.tfrecord", lambda a: a.data.facts.num_test, 4, RECORDS),
    Case("--num_folder_parts=2", lambda a: a.data.facts.num_final_test, None, FOLDER),
    Case("--split_seed=7", lambda a: [int(f[-5]) for f in a.data.test_files], [2, 7], FOLDER),
    Case("--group_pattern=[0-9]", lambda a: len({f[-5] for f in a.data.test_files}), 1, FOLDER),
    Case("--labels_offset=-1", lambda a: a.labels()[0], 9, (*RECORDS, "--shuffle_buffer_size=0")),
]
PREPROCESSING = [
    Case("--preprocessing_name=cifarnet", lambda a: type(a.data.shape.preprocessing), "Cifarnet"),
    Case("--shuffle_buffer_size=0", lambda a: a.labels(0) == a.labels(1), True),
    Case("--num_parallel_batches=1", lambda a: a.read.num_workers, 4, ("--batch_size=4",)),
    Case("--prefetch_buffer_size=3", lambda a: a.read.look_ahead, 3),
    Case("--num_preprocessing_threads=3", lambda a: a.read.num_workers, 3),
    Case("--datasets_use_caching=True", lambda a: a.read.cache_records, True),
    Case("--cache_image_size=64", lambda a: a.read.cache_records, True, FOLDER),
    Case("--train_image_size=16", lambda a: a.data.shape.image_shape, (16, 16, 1)),
]
MODEL = [
    Case("--task_type=finetune", lambda a: a.flags.model.task_type, "finetune", FINETUNE[1:]),
    Case("--model_name=cifarnet", lambda a: a.model.name, "cifarnet"),
    Case("--num_epochs=2", lambda a: a.length.num_steps, 12),
    Case("--weight_decay=0.5", lambda a: a.model.settings.weight_decay, 0.5),
    Case(
        "--max_gradient_norm=0.5",
        lambda a: a.updates(),
        lambda a: a.updates(optimizers.get("sgd", 0.01, max_gradient_norm=0.5)),
        ("--optimizer=sgd", "--learning_rate_decay_type=fixed"),
    ),
    Case("--batch_size=4", lambda a: a.data.batch_size, 32),
    Case(
        "--model_dir={folder}/weights", lambda a: a.weights(), "weights", ("--task_type=finetune",)
    ),
    Case("--ckpt_file_name=inner", lambda a: a.weights(), "weights/inner", FINETUNE),
    Case("--batch_norm_decay=0.5", lambda a: a.model.settings.batch_norm_decay, 0.5),
    Case("--batch_norm_group_size=4", lambda a: a.model.settings.batch_norm_group_size, 4),
]
LEARNING_RATE = [
    rate_case("--warmup_steps=20"),
    rate_case("--warmup_scheme=linear", "--warmup_steps=20"),
    rate_case("--decay_scheme=luong234"),
    rate_case(LUONG),
    rate_case("--decay_scheme=luong10"),
    rate_case("--learning_rate_decay_factor=0.5", LUONG),
    rate_case("--learning_rate_decay_type=fixed"),
    rate_case(POLYNOMIAL),
    rate_case("--learning_rate=0.25"),
    rate_case("--end_learning_rate=0.005", POLYNOMIAL),
]
# What these take where no flag says it; TensorFlow's.
PLAIN, EPSILON = OptimizerOptions(), OptimizerOptions(opt_epsilon=1e-8)


def named_case(name: str, rate: float, options: OptimizerOptions = PLAIN) -> Case:
    return Case(
        f"--optimizer={name}",
        lambda asked: asked.updates(),
        lambda asked: asked.updates(optimizers.get(name, rate, options=options)),
        ("--learning_rate_decay_type=fixed",),
    )


OPTIMIZER = [
    *(
        named_case(name, 0.01)
        for name in ("adadelta", "adagrad", "ftrl", "momentum", "sgd", "optax.lion")
    ),
    *(named_case(name, 0.001, EPSILON) for name in ("adam", "adamweightdecay")),
    optimizer_case("--adadelta_rho=0.5", "adadelta"),
    optimizer_case("--adagrad_initial_accumulator_value=5.0", "adagrad"),
    optimizer_case("--adam_beta1=0.5", "adam"),
    optimizer_case("--adam_beta2=0.5", "adam"),
    optimizer_case("--opt_epsilon=0.001", "adam"),
    optimizer_case("--ftrl_learning_rate_power=-0.25", "ftrl"),
    optimizer_case("--ftrl_initial_accumulator_value=3.0", "ftrl"),
    optimizer_case("--ftrl_l1=1.0", "ftrl"),
    optimizer_case("--ftrl_l2=1.0", "ftrl"),
    optimizer_case("--momentum=0.5", "momentum"),
    optimizer_case("--rmsprop_momentum=0.5", "rmsprop"),
    optimizer_case("--rmsprop_decay=0.5", "rmsprop"),
]
LOGGING = [
    Case("--stop_at_step=7", lambda a: a.length.num_steps, 7),
    Case("--stop_at_step=0", lambda a: a.handlers(StopAt), []),
    Case("--log_loss_every_n_iters=0", lambda a: a.handlers(Progress), ["Progress"]),
    Case("--profile_every_n_iters=5", lambda a: a.handlers("ProfileEvery"), ["ProfileEvery"]),
    Case("--profile_at_task=1", lambda a: a.handlers("ProfileEvery"), [], PROFILED),
    Case(
        "--log_device_placement=True", lambda a: a.handlers("print_placement"), ["print_placement"]
    ),
    Case("--print_model_statistics=True", lambda a: a.handlers(Summary), ["Summary"]),
    Case("--log_trainable_vars_statistics=True", lambda a: a.handlers(Summary), ["Summary"]),
    Case("--hooks=LoggingTensorHook", lambda a: a.handlers(StopAt), []),
    Case("--hooks=stopatstephook", lambda a: a.handlers(Log), []),
    Case("--hooks=StopAtStepHook", lambda a: a.handlers("ProfileEvery"), [], PROFILED),
    Case("--hooks=LOGGINGTENSORHOOK", lambda a: plan.make_plan(a.flags).checkpoint is None, True),
    Case("--eval_every_n_epochs=0", lambda a: a.handlers(Evaluate), []),
    Case(
        "--checkpointDir={folder}/here", lambda a: plan.make_plan(a.flags).folder.path.name, "here"
    ),
]
PERFORMANCE = [
    Case("--use_fp16=False", lambda a: a.flags.performance.make_precision().compute, "float32"),
    Case(
        "--precision=bfloat16", lambda a: a.flags.performance.make_precision().compute, "bfloat16"
    ),
    Case(
        "--loss_scale=128", lambda a: a.flags.performance.make_precision().loss_scale, 128, FLOAT16
    ),
    Case("--enable_paisoar=False", lambda a: a.data.batch_size, 32),
    Case(
        "--protocol=grpc+verbs",
        lambda a: plan.describe_unused(a.flags.unused),
        ["no effect here: --protocol"],
    ),
    Case("--seed=3", lambda a: a.labels(), lambda a: first_labels(seed=3)),
]
CASES = [
    case
    for cases in (DATASET, PREPROCESSING, MODEL, LEARNING_RATE, OPTIMIZER, LOGGING, PERFORMANCE)
    for case in cases
]
