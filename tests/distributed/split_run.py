"""What each process of `test_split_state` runs, and one that is alone.

python -m tests.distributed.split_run FOLDER SHARDING NUM_EPOCHS [NUM_DEVICES [KILL_AFTER]]

It trains with a checkpoint every third step, and prints what it has as JSON behind `RESULT`. With
`KILL_AFTER`, as STEPS:SECS, a thread kills the process so many seconds after so many steps.
"""

import hashlib
import json
import os
import signal
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import penstock as ps
from penstock import _mesh, layers, readers

NUM_EXAMPLES, BATCH_SIZE = 110, 24


def program():
    """Return the loss of a perceptron, whose arrays are large enough to be split."""
    hidden = layers.fc(layers.data("x", shape=[48]), size=240, act="tanh")
    label = layers.data("label", shape=[1], dtype="int32")
    logits = layers.fc(layers.dropout(hidden, 0.1), size=24)
    return layers.mean(layers.softmax_with_cross_entropy(logits, label))


def train(folder, sharding, num_epochs, num_devices=None, kill_after=None):
    """Return what a test compares."""
    x = np.random.default_rng(0).normal(size=(NUM_EXAMPLES, 48)).astype(np.float32)
    data = {"x": x, "label": np.argmax(x[:, :24], axis=1).astype(np.int32)}
    config = ps.CheckpointConfig(directory=str(Path(folder) / "steps"), save_interval_steps=3)
    trainer = ps.Trainer(
        program,
        optax.adamw(0.01),
        checkpoint=config,
        place=jax.devices()[:num_devices] if num_devices else None,
        state_sharding=None if sharding == "whole" else sharding,
    )
    losses, begun = [], trainer.global_step
    resumed = digest(trainer)

    def on_event(event):
        if isinstance(event, ps.EndStep):
            losses.append(float(event.metrics))
            if kill_after is not None and len(losses) == kill_after[0]:
                kill = threading.Timer(kill_after[1], os.kill, (os.getpid(), signal.SIGKILL))
                kill.daemon = True
                kill.start()

    reader = readers.arrays(data, BATCH_SIZE, shuffle=True, seed=1)
    trainer.train(reader, on_event, num_epochs=num_epochs)
    trainer.save_params(Path(folder) / "params")
    leaves = trainer._engine.leaves
    return {
        "begun": begun,
        "resumed": resumed,
        "losses": losses,
        "test": trainer.test(readers.arrays(data, BATCH_SIZE)),
        "digest": digest(trainer),
        "bytes": sum(leaf.addressable_data(0).nbytes for leaf in leaves),
        "weights": trainer.parameters["fc_0/w"][:3, 0].tolist(),
    }


def refuse():
    """Return what is said where the processes bring different things."""
    index, errors = jax.process_index(), []
    x = np.ones((4, 48), np.float32)
    reader = readers.arrays({"x": x, "label": np.zeros(4, np.int32)}, 4)
    trainer = ps.Trainer(program, optax.adamw(0.01), state_sharding="full")
    own = trainer.parameters["fc_0/w"] + index
    seeded = ps.Trainer(program, optax.adamw(0.01), state_sharding="full", seed=index)
    for attempt in (
        lambda: trainer.parameters.update({"fc_0/w": own}),
        lambda: seeded.train(reader),
        lambda: ps.Trainer(program, place=ps.mesh(data=1, model=2)),
    ):
        try:
            attempt()
        except ValueError as error:
            errors.append(str(error))
    return errors


def infer_program():
    """Return what looks up ids, and is nan where x is below 0."""
    words = layers.embedding(layers.data("word", shape=[1], dtype="int32"), size=[300, 48])
    return jnp.log(layers.data("x", shape=[1])) + layers.fc(words, size=24)


def predict_nan():
    """Return how many nan the own answers have, where process 1 alone has some."""
    trainer = ps.Trainer(
        lambda: layers.mean(infer_program()),
        optax.adamw(0.01),
        infer_func=infer_program,
        state_sharding="full",
    )
    data = {"x": np.repeat(np.float32([1, -1]), 2)[:, None], "word": np.zeros((4, 1), np.int32)}
    return [int(np.isnan(out).sum()) for out in trainer.predict(readers.arrays(data, 4))]


def read_alone():
    """Read a parameter on process 1, while process 0 makes a call of all."""
    trainer = ps.Trainer(program, optax.adamw(0.01), state_sharding="full")
    if jax.process_index():
        trainer.parameters["fc_0/w"]
    trainer.update_scale = 0.5


def digest(trainer):
    """Return a text that changes with any bit of the state. Collective."""
    leaves = _mesh.fetch_whole(trainer._engine.leaves)
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest()


def main(folder, sharding, num_epochs, num_devices="0", kill_after=None):
    """Join the others, train, and print."""
    # Gloo's threads write to descriptor 1 when they connect, into each other's lines.
    sys.stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ps.distributed.initialize()
    if sharding == "read":
        return read_alone()
    if sharding == "refuse":
        result = {"refused": refuse(), "num_nan": predict_nan()}
        print("RESULT " + json.dumps(result), flush=True)
        return
    after = None
    if kill_after is not None:
        steps, secs = kill_after.split(":")
        after = int(steps), float(secs)
    result = train(folder, sharding, int(num_epochs), int(num_devices) or None, after)
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
