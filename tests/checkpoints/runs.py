"""The training runs that are interrupted and resumed, and what is compared of them."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import penstock as ps
from penstock import layers, readers
from tests.networks import class_data, host, linear_program, linear_reader, one_device, rich_program

NUM_EXAMPLES, BATCH_SIZE = 43, 4
EPOCH = 11
"""Steps of an epoch: with eight to a launch they are a launch of 8 and three of 1; the last batch
is short."""


def _classifier_program() -> Any:
    """Return loss and accuracy of a network with running statistics and dropout."""
    return rich_program()[:2]


@layers.scope("discriminator")
def _judged(x: Any) -> Any:
    hidden = layers.dropout(layers.fc(x, size=6, act="tanh"), dropout_prob=0.25)
    return layers.fc(hidden, size=1)


@layers.scope("generator")
def _made(like: Any) -> Any:
    noise = layers.gaussian_random_batch_size_like(like, like.shape)
    hidden = layers.batch_norm(layers.fc(noise, size=6, bias_attr=False), act="relu")
    return layers.fc(hidden, size=4)


def _discriminator_program() -> Any:
    x = layers.data("x", shape=[4])
    return layers.mean(jax.nn.softplus(-_judged(x)) + jax.nn.softplus(_judged(_made(x))))


def _generator_program() -> Any:
    return layers.mean(jax.nn.softplus(-_judged(_made(layers.data("x", shape=[4])))))


def gan() -> dict[str, ps.Objective]:
    """Return two objectives with dropout, batch norm and an optimizer each."""
    programs = {"discriminator": _discriminator_program, "generator": _generator_program}
    return {
        name: ps.Objective(program, optax.adam(0.02), updates=name)
        for name, program in programs.items()
    }


def shuffled(seed: int = 3) -> Any:
    """Return a shuffled reader of 10 batches of 4 and one of 3."""
    return readers.arrays(class_data(NUM_EXAMPLES), BATCH_SIZE, shuffle=True, seed=seed)


def shuffled_x() -> Any:
    """Return the same without labels."""
    data = {"x": class_data(NUM_EXAMPLES)["x"]}
    return readers.arrays(data, BATCH_SIZE, shuffle=True, seed=3)


def train_classifier(checkpoint: Any = None, **options: Any) -> Any:
    options = {"place": one_device(), **options, "checkpoint": checkpoint}
    return ps.Trainer(_classifier_program, optax.adam(0.05), **options)


def train_gan(checkpoint: Any = None, **options: Any) -> Any:
    schedule = {"discriminator": 2, "generator": 1}
    options = {"place": one_device(), "schedule": schedule, **options}
    return ps.Trainer(gan(), **options, checkpoint=checkpoint)


def train_line(checkpoint: Any = None, **options: Any) -> Any:
    """Return a trainer of the regression, the cheapest there is."""
    return ps.Trainer(
        linear_program,
        optax.adam(0.05),
        **{"place": one_device(), **options},
        checkpoint=checkpoint,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run of two epochs."""

    make: Callable[..., Any]
    reader: Callable[[], Any]
    steps_per_call: int

    def trained(
        self, checkpoint: Any, event_handler: Any = None, num_epochs: int = 2
    ) -> tuple[Any, "Seen"]:
        """Return the trainer after the run, or what is left of it, and what was seen."""
        trainer = self.make(checkpoint, steps_per_call=self.steps_per_call)
        seen = Seen()
        handlers = [seen, *([] if event_handler is None else [event_handler])]
        trainer.train(self.reader(), handlers, num_epochs=num_epochs)
        return trainer, seen


RUNS = {
    f"{name}-{steps_per_call}": Run(make=make, reader=reader, steps_per_call=steps_per_call)
    for name, make, reader in (
        ("classifier", train_classifier, shuffled),
        ("gan", train_gan, shuffled_x),
        ("line", train_line, lambda: linear_reader(NUM_EXAMPLES, BATCH_SIZE)),
    )
    for steps_per_call in (1, 8)
}


class Seen:
    """An event handler that keeps what it could have printed."""

    def __init__(self) -> None:
        self.steps: dict[int, Any] = {}
        self.epochs: dict[int, Any] = {}

    def __call__(self, event: Any) -> None:
        """Read the metrics of each step and epoch."""
        if isinstance(event, ps.EndStep):
            where = (event.epoch, event.step, event.num_examples)
            self.steps[event.global_step] = (where, event.metrics)
        elif isinstance(event, ps.EndEpoch):
            counts = (event.global_step, event.num_steps, event.num_examples)
            self.epochs[event.epoch] = (counts, event.metrics)


class StopAfter:
    """An event handler that stops training after so many steps."""

    def __init__(self, num_steps: int) -> None:
        self._num_steps, self._trainer = num_steps, None

    def __call__(self, event: Any) -> None:
        """Stop when the step has come."""
        if isinstance(event, ps.BeginTraining):
            self._trainer = event.trainer
        elif isinstance(event, ps.EndStep) and event.global_step + 1 == self._num_steps:
            self._trainer.stop()


def every_step(directory: Any, **options: Any) -> ps.CheckpointConfig:
    """Return a configuration that keeps a checkpoint of every launch."""
    options = {"save_interval_steps": 1, "max_to_keep": 1000, **options}
    return ps.CheckpointConfig(directory=directory, **options)


def as_killed_at(directory: Path, step: int, to: Path) -> Path:
    """Return a copy of a folder of checkpoints as a run that was killed would have left it.

    Arguments:
      step: the newest checkpoint that was written by then.
    """
    to.mkdir()
    for path in directory.iterdir():
        if path.name.isdigit() and int(path.name) <= step:
            shutil.copytree(path, to / path.name)
    assert (to / str(step)).exists()
    return to


def whole_state(trainer: Any) -> Any:
    """Return every array of a trainer's state on the host: moments, statistics and key too."""
    return host(trainer._engine.state._asdict())


def leaves(trainer: Any) -> list[np.ndarray]:
    """Return `whole_state` as a flat list, for files."""
    return jax.tree.leaves(whole_state(trainer))
