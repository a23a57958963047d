"""A run in which one of several processes fails: `_faulty_run.py FAULT FOLDER [EPOCHS SECS]`.

A launcher starts it, for `failures`, `killed_groups` and the tests. The fault happens at global
step 7, on process 1 unless its name says otherwise. Its time is written to FOLDER/fault. SECS is
the duration of a step.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import penstock as ps
from penstock import layers, readers

STEP = 7
NUM_EPOCHS = 4
NUM_EXAMPLES, BATCH_SIZE = 84, 24  # a multiple of 1, 2, 3 and 4 processes; the last batch is short


def program() -> Any:
    """Return the loss of a small network."""
    hidden = layers.fc(layers.data("x", shape=[5]), size=8, act="tanh")
    error = layers.square_error_cost(layers.fc(hidden, size=1), layers.data("y", shape=[1]))
    return layers.mean(error)


def other_program() -> Any:
    """Return the loss of another network with the same parameters."""
    hidden = layers.fc(layers.data("x", shape=[5]), size=8, act="relu")
    error = layers.square_error_cost(layers.fc(hidden, size=1), layers.data("y", shape=[1]))
    return layers.mean(error)


def failing_program() -> Any:
    """Raise."""
    raise ValueError("a program that fails")


def make_reader() -> Any:
    """Return a reader of this process's part of the data."""
    x = np.random.default_rng(0).normal(size=(NUM_EXAMPLES, 5)).astype(np.float32)
    data = {"x": x, "y": x.sum(axis=1, keepdims=True)}
    part = readers.Shard(jax.process_index(), jax.process_count())
    return readers.arrays(data, BATCH_SIZE, shuffle=True, seed=1, shard=part)


class Run:
    """The run, with its fault.

    Arguments:
      fault: one of `FAULTS`.
    """

    def __init__(
        self, fault: str, folder: Path, num_epochs: str = str(NUM_EPOCHS), step_secs: str = "0"
    ) -> None:
        self.fault, self.folder = fault, folder
        self.num_epochs, self.step_secs = int(num_epochs), float(step_secs)
        self.is_other = jax.process_index() == 1
        self.trainer: ps.Trainer | None = None
        self.epoch_sizes: list[int] = []
        self.faults: dict[str, Callable[[], object]] = {
            "exception in a handler": lambda: _raise(ValueError("a handler that fails")),
            "sys.exit": lambda: sys.exit(3),
            "stop()": lambda: self.trainer and self.trainer.stop(),
            "stop() on all": lambda: self.trainer and self.trainer.stop(),
            "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
            "SIGINT": lambda: os.kill(os.getpid(), signal.SIGINT),
            "os._exit(0)": lambda: os._exit(0),
            "closed descriptors": lambda: os.closerange(3, 10_000),
            "a removed folder of process 0": self.replace_folder,
            "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "SIGKILL of process 0": lambda: os.kill(os.getpid(), signal.SIGKILL),
            # No file may grow any more: what a full disk does, without one.
            "a full disk of process 0": lambda: resource.setrlimit(
                resource.RLIMIT_FSIZE, (100, 100)
            ),
            "SIGSTOP": lambda: os.kill(os.getpid(), signal.SIGSTOP),
            "test on one": lambda: self.trainer and self.trainer.test(make_reader()),
        }

    def note(self) -> None:
        """Write down that it happens now; once, however often the run is started again."""
        path = self.folder / "fault"
        if not path.exists():
            path.write_text(repr(time.time()))

    def on_event(self, event: object) -> None:
        """Cause the fault at its step."""
        if isinstance(event, ps.EndEpoch):
            self.epoch_sizes.append(event.num_examples)
        if isinstance(event, ps.EndStep):
            # Who kills processes finds them here, in the middle of training.
            (self.folder / f"pid-{jax.process_index()}").write_text(str(os.getpid()))
            time.sleep(self.step_secs)
        is_of_all = self.fault == "stop() on all"
        is_it = is_of_all or self.is_other != self.fault.endswith("of process 0")
        if not isinstance(event, ps.EndStep) or event.global_step != STEP or not is_it:
            return
        fault = self.faults.get(self.fault)
        if fault is not None and (is_of_all or not (self.folder / "fault").exists()):
            self.note()
            fault()

    def replace_folder(self) -> None:
        """Put a file in the place of the folder of checkpoints."""
        # One may be being written there.
        os.rename(self.folder / "checkpoints", self.folder / "removed")
        (self.folder / "checkpoints").touch()

    def read(self) -> Iterator[Any]:
        """Yield this process's batches, and do wrong among those of the second epoch."""
        for number, batch in enumerate(make_reader()):
            self._num_read = getattr(self, "_num_read", 0) + 1
            if self.is_other and self._num_read > STEP:
                if self.fault == "exception in a reader":
                    self.note()
                    raise OSError("a disk that fails")
                if self.fault == "a stuck reader":
                    self.note()
                    time.sleep(10_000)
            if self.is_other and self.fault == "unequal readers" and number == 1:
                self.note()
                return
            yield batch

    def train(self) -> None:
        """Train to the end, or to the fault."""
        fault, other = self.fault, self.is_other
        chosen, options = program, {}
        if other and fault == "exception in the program":
            self.note()
            chosen = failing_program
        if other and fault == "another program":
            self.note()
            chosen = other_program
        if fault == "another seed":
            options["seed"] = jax.process_index()
        if fault == "other arguments":
            options["steps_per_call"] = 1 + jax.process_index()
        if fault == "param_path on one machine alone":
            options["param_path"] = self.folder / ("nothing" if other else "params")
        if fault == "unequal readers":
            options["on_unequal"] = "raise"
        if fault in ("another seed", "other arguments", "param_path on one machine alone"):
            self.note()
        config = ps.CheckpointConfig(directory=self.folder / "checkpoints", save_interval_steps=2)
        self.trainer = ps.Trainer(chosen, optax.adam(0.01), checkpoint=config, **options)
        is_own = fault in ("exception in a reader", "a stuck reader", "unequal readers")
        reader = self.read if is_own else make_reader()
        self.trainer.train(reader, self.on_event, num_epochs=self.num_epochs)
        result = {name: value.tolist() for name, value in self.trainer.parameters.items()}
        if not jax.process_index():
            print("EPOCHS", *self.epoch_sizes)
            print("RESULT", json.dumps({"step": self.trainer.global_step, "params": result}))


FAULTS = (
    "none",
    "exception in a handler",
    "exception in a reader",
    "exception in the program",
    "sys.exit",
    "stop()",
    "stop() on all",
    "SIGTERM",
    "SIGINT",
    "os._exit(0)",
    "closed descriptors",
    "a removed folder of process 0",
    "SIGKILL of process 0",
    "SIGKILL",
    "SIGSTOP",
    "a stuck reader",
    "a full disk of process 0",
    "unequal readers",
    "another seed",
    "another program",
    "other arguments",
    "param_path on one machine alone",
    "test on one",
)


def _raise(error: Exception) -> None:
    raise error


if __name__ == "__main__":
    ps.distributed.initialize()
    Run(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]).train()
