"""What each process of `test_processes` runs: train on its part, print what it has as JSON.

python -m tests.two_processes PORT INDEX COUNT [DIRECTORY SIGTERM_STEP]

With a directory: 12 epochs with checkpoints there; process 0 sends itself SIGTERM at that step.
"""

import json
import os
import signal
import sys

import jax
import numpy as np
import optax

import penstock as ps
from penstock import layers, readers

NUM_EXAMPLES, BATCH_SIZE = 70, 32  # the last batch has 6 examples, fewer than there are devices


def program():
    """Return loss, accuracy and the predictions, so that a value with a batch axis is read too."""
    hidden = layers.fc(layers.data("x", shape=[5]), size=8, act="tanh")
    logits = layers.fc(layers.batch_norm(hidden, sync=True), size=3)
    label = layers.data("label", shape=[1], dtype="int32")
    loss = layers.mean(layers.softmax_with_cross_entropy(logits, label))
    return loss, layers.accuracy(logits, label), logits


def data_and_reader(part):
    """Return the data, and a reader of one process's part of it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_EXAMPLES, 5)).astype(np.float32)
    data = {"x": x, "label": np.argmax(x[:, :3], axis=1).astype(np.int32)}
    return data, readers.arrays(data, batch_size=BATCH_SIZE, shuffle=True, seed=1, shard=part)


def run_with_checkpoints(shard, num_shards, directory, sigterm_step):
    """Return the parameters after 12 epochs, as lists."""
    _, reader = data_and_reader(readers.Shard(shard, num_shards))
    config = ps.CheckpointConfig(directory=directory, save_interval_secs=0.1)
    trainer = ps.Trainer(program, optax.adam(0.05), checkpoint=config)

    def on_event(event):
        is_step = isinstance(event, ps.EndStep) and event.global_step == sigterm_step
        if is_step and shard == 0:
            os.kill(os.getpid(), signal.SIGTERM)

    trainer.train(reader, on_event, num_epochs=12)
    return {name: value.tolist() for name, value in trainer.parameters.items()}


def run(shard, num_shards):
    """Return what a training run leaves behind, as lists."""
    part = readers.Shard(shard, num_shards)
    data, reader = data_and_reader(part)
    trainer = ps.Trainer(program, optax.adam(0.05))
    rows, epochs = [], []

    def on_event(event):
        if isinstance(event, ps.EndStep):
            rows.append(len(event.metrics[2]))
        elif isinstance(event, ps.EndEpoch):
            epochs.append(event.metrics[:2])

    trainer.train(reader, on_event, num_epochs=3)
    test = trainer.test(readers.arrays(data, batch_size=BATCH_SIZE, shard=part))
    parameters = {name: value.tolist() for name, value in trainer.parameters.items()}
    return {"rows": rows, "epochs": epochs, "test": test[:2], "parameters": parameters}


if __name__ == "__main__":
    port, index, count = map(int, sys.argv[1:4])
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=count, process_id=index)
    assert len(jax.devices()) == count * len(jax.local_devices())
    if len(sys.argv) > 4:
        result = run_with_checkpoints(index, count, sys.argv[4], int(sys.argv[5]))
    else:
        result = run(index, count)
    print("RESULT " + json.dumps(result))
