"""What each launcher starts: a script of one process, and one line that joins the others.

python tests/distributed/launched_training.py FOLDER [--fail=STEP:HOW]

Process 0 prints what it has as JSON behind `RESULT`. With `--fail`, the last process does at that
step, in the first start of the group, what HOW says: `kill` itself, `raise`, `sleep`, or `wait`,
which makes the step last until a signal has come.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import jax
import numpy as np
import optax

import penstock as ps
from penstock import layers, readers

NUM_EXAMPLES, BATCH_SIZE, NUM_EPOCHS = 70, 16, 6  # the last batch of an epoch is short
NUM_STEPS = -(-NUM_EXAMPLES // BATCH_SIZE) * NUM_EPOCHS


def program():
    """Return the loss of a small network without batch statistics."""
    hidden = layers.fc(layers.data("x", shape=[5]), size=8, act="tanh")
    label = layers.data("label", shape=[1], dtype="int32")
    return layers.mean(layers.softmax_with_cross_entropy(layers.fc(hidden, size=3), label))


def make_reader():
    """Return a reader, which takes this process's part by itself."""
    x = np.random.default_rng(0).normal(size=(NUM_EXAMPLES, 5)).astype(np.float32)
    data = {"x": x, "label": np.argmax(x[:, :3], axis=1).astype(np.int32)}
    return readers.arrays(data, batch_size=BATCH_SIZE, shuffle=True, seed=1)


def fail(how, trainer):
    """End this process, or hold it up."""
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "raise":
        raise ZeroDivisionError("a part of the test")
    elif how == "wait":
        print("waits for a signal", flush=True)
        while trainer._interrupts.signal is None:
            time.sleep(0.01)
    else:
        time.sleep(3600)


def train(folder, failure=None):
    """Train with checkpoints in a folder; return what a test compares."""
    # Who waits for a signal is saved by it alone.
    interval = 1000 if failure and failure[1] == "wait" else 5
    config = ps.CheckpointConfig(
        directory=str(Path(folder) / "steps"), save_interval_steps=interval
    )
    trainer = ps.Trainer(program, optax.adam(0.05), checkpoint=config)
    is_last = jax.process_index() == jax.process_count() - 1
    is_first_start = os.environ.get("PENSTOCK_RESTARTS", "0") == "0"
    begun = []

    def on_event(event):
        if not isinstance(event, ps.EndStep):
            return
        begun.append(event.global_step)
        if failure and is_last and is_first_start and event.global_step == failure[0]:
            fail(failure[1], trainer)

    trainer.train(make_reader(), on_event, num_epochs=NUM_EPOCHS)
    return {
        "processes": jax.process_count(),
        "devices": len(jax.devices()),
        "restarts": os.environ.get("PENSTOCK_RESTARTS", "0"),
        "first_step": begun[0] if begun else None,
        "parameters": {name: value.tolist() for name, value in trainer.parameters.items()},
    }


def main(argv):
    """Join, train, and print."""
    ps.distributed.initialize()
    failure = None
    if len(argv) > 1:
        step, _, how = argv[1].removeprefix("--fail=").partition(":")
        failure = int(step), how
    result = train(argv[0], failure)
    if jax.process_index() == 0:
        print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
