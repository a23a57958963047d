"""What each process of `test_grid` runs: `python -m tests.distributed.grid_run NETWORK ...`.

It trains the networks one after the other, three epochs each, and prints what it has as JSON.
"""

import json
import os
import sys

import numpy as np
import optax

import penstock as ps
from penstock import layers, readers
from tests.distributed.processes import join

NUM_EXAMPLES, BATCH_SIZE = 110, 48  # the last batch has 14 examples, of 16 devices at most
NORMS = {"plain": lambda hidden: hidden, "norm": layers.batch_norm}


def train(network, place=None):
    """Return what the training of a network leaves behind, as lists."""

    def program():
        """Return loss, accuracy, and the logits, a value with a batch axis."""
        hidden = layers.fc(layers.data("x", shape=[5]), size=8, act="tanh")
        logits = layers.fc(NORMS[network](hidden), size=3)
        label = layers.data("label", shape=[1], dtype="int32")
        loss = layers.mean(layers.softmax_with_cross_entropy(logits, label))
        return loss, layers.accuracy(logits, label), logits

    # Each reader takes this process's part by itself.
    x = np.random.default_rng(0).normal(size=(NUM_EXAMPLES, 5)).astype(np.float32)
    data = {"x": x, "label": np.argmax(x[:, :3], axis=1).astype(np.int32)}
    trainer = ps.Trainer(program, optax.adam(0.05), place=place)
    counts, rows, epochs = [], [], []

    def on_event(event):
        if isinstance(event, ps.EndStep):
            counts.append(event.num_examples)
            rows.append(len(event.metrics[2]))
        elif isinstance(event, ps.EndEpoch):
            epochs.append(event.metrics[:2])

    trainer.train(readers.arrays(data, BATCH_SIZE, shuffle=True, seed=1), on_event, num_epochs=3)
    parameters = {name: value.tolist() for name, value in trainer.parameters.items()}
    tested = trainer.test(readers.arrays(data, BATCH_SIZE))[:2]
    result = {"counts": counts, "rows": rows, "epochs": epochs, "parameters": parameters}
    return result | {"test": tested}


def main(*words):
    """Join the others, train, and print; with the word `join`, what came of joining too."""
    # Gloo's threads write to descriptor 1 when they connect, into each other's lines.
    sys.stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    joined = join() if "join" in words else ps.distributed.initialize()
    result = {network: train(network) for network in words if network != "join"}
    print("RESULT " + json.dumps({**result, "joined": joined}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
