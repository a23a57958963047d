"""A training script to send signals to: `python -m tests.trainer.interrupted_run FOLDER PHASE`.

It says `ready` where the phase wants the signal, and prints why training ended.
"""

import sys
import time
from typing import Any

import optax

import penstock as ps
from penstock import readers
from penstock._checkpoint import Store
from tests.networks import linear_data, linear_program

NUM_EPOCHS = 2
NUM_STEPS = 5  # in an epoch
MUCH_SECS = 3600.0


def data_reader() -> Any:
    """Return the reader of the uninterrupted run."""
    return readers.arrays(linear_data(18), batch_size=4, shuffle=True)


def trainer_of(folder: str) -> ps.Trainer:
    """Return the trainer of every run."""
    config = ps.CheckpointConfig(directory=folder, save_interval_steps=100)
    return ps.Trainer(linear_program, optax.adam(0.05), checkpoint=config)


def slow_disk(trainer: ps.Trainer, secs: float) -> None:
    """Make every save begin some seconds after a first signal was noticed."""
    write = Store.write

    def slow(store: Store, contents: Any) -> None:
        print("ready", flush=True)
        while trainer._interrupts.signal is None:
            time.sleep(0.01)
        print("noticed", flush=True)
        time.sleep(secs)
        write(store, contents)

    Store.write = slow  # type: ignore[method-assign]


def main(folder: str, phase: str) -> None:
    """Train; the phase, "last save" or "endless save", says how long a save takes."""
    trainer = trainer_of(folder)
    slow_disk(trainer, 0.5 if phase == "last save" else MUCH_SECS)
    trainer.train(data_reader(), say_end, num_epochs=NUM_EPOCHS)


def say_end(event: Any) -> None:
    """Print why training ended."""
    if isinstance(event, ps.EndTraining):
        print(event.reason, type(event.error).__name__, event.global_step, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
