"""The networks of the library that are measured, and their counterparts in other libraries."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import optax

import penstock as ps
from benchmarks import _workloads
from penstock import models

NUM_CLASSES = 1000
CONV_NET = "conv_net"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """A network by its name here.

    Arguments:
      size: height and width of its images.
      keras: its name in keras.applications, if it has one.
      keras_options: the options to pass there.
      repeats: batches per round, for steps too short to be timed alone.
    """

    name: str
    size: int
    keras: str = ""
    keras_options: tuple[tuple[str, Any], ...] = ()
    num_channels: int = 3
    repeats: int = 1

    @property
    def input_names(self) -> tuple[str, str]:
        """What its program calls images and labels."""
        return ("x", "y") if self.name == CONV_NET else ("image", "label")


def make_programs(network: Network) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return the train and the infer program."""
    if network.name == CONV_NET:
        workload = _workloads.WORKLOADS[2]

        def infer() -> Any:
            return workload.program()(ps.layers.data("x", shape=workload.shape))

        return workload.train_program, infer
    # Without what Keras's and torch's networks lack: dropout, weight decay, the auxiliary head.
    settings = models.Settings(dropout=0.0, weight_decay=0.0)
    made = models.classifier(
        network.name, NUM_CLASSES, image_size=network.size, settings=settings, auxiliary_weight=0.0
    )
    return made.train_program, made.infer_program


def make_builder(network: Network) -> ps.ProgramBuilder:
    """Return a builder that trains by plain SGD and infers, on the first device."""
    train_program, infer_program = make_programs(network)
    return ps.ProgramBuilder(
        train_program, optax.sgd(1e-3), infer_func=infer_program, place=jax.devices()[:1]
    )


def make_keras(network: Network) -> Any:
    """Return Keras's network, with the same optimizer and loss."""
    import keras

    if network.name == CONV_NET:
        model = keras.Sequential(_workloads.WORKLOADS[2].keras_layers(keras.layers))
        loss: Any = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    else:
        function = getattr(keras.applications, network.keras)
        shape = (network.size, network.size, network.num_channels)
        model = function(input_shape=shape, weights=None, **dict(network.keras_options))
        loss = "sparse_categorical_crossentropy"
    model.compile(keras.optimizers.SGD(1e-3), loss, metrics=["accuracy"])
    return model


class OtherInterpreter:
    """A script in an interpreter with another library; it runs a step for each line it reads."""

    def __init__(self, python: str, script: str, *arguments: object) -> None:
        path = str(Path(__file__).with_name(script))
        command = [os.path.expanduser(python), path, *map(str, arguments)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, line: str) -> float:
        """Return the time that it measured."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{process.args} ended with {process.wait()}; what it said is above")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        self._process.communicate("")
