"""What each process of `test_grid` runs: `python -m tests.distributed.grid_run FOLDER NETWORK ...`.

It trains the networks one after the other, three epochs each, and prints what it has as JSON. With
`handlers` among the networks, the first is trained with the handlers that write, into FOLDER.
"""

import functools
import json
import os
import sys
from pathlib import Path

import numpy as np
import optax

import penstock as ps
from penstock import handlers, layers, readers
from tests.distributed.processes import join

NUM_EXAMPLES, BATCH_SIZE = 110, 48  # the last batch has 14 examples, of 16 devices at most
NUM_EPOCHS = 3
NAMES = ("loss", "accuracy")

NORMS = {
    "plain": lambda hidden: hidden,
    "synced": functools.partial(layers.batch_norm),
    "by_device": layers.batch_norm,
}


def make_program(norm):
    """Return a program function: loss, accuracy, and the logits, a value with a batch axis."""

    def program():
        hidden = layers.fc(layers.data("x", shape=[5]), size=8, act="tanh")
        logits = layers.fc(norm(hidden), size=3)
        label = layers.data("label", shape=[1], dtype="int32")
        loss = layers.mean(layers.softmax_with_cross_entropy(logits, label))
        return loss, layers.accuracy(logits, label), logits

    return program


def make_readers(network):
    """Return the readers to train and to test with; each takes this process's part by itself."""
    # By device it matters which examples meet on one: the same of whole batches alone.
    is_whole = network == "by_device"
    size, batch_size = (288, 144) if is_whole else (NUM_EXAMPLES, BATCH_SIZE)
    x = np.random.default_rng(0).normal(size=(size, 5))
    data = {"x": x.astype(np.float32), "label": np.argmax(x[:, :3], axis=1).astype(np.int32)}
    return readers.arrays(data, batch_size, shuffle=True, seed=1), readers.arrays(data, batch_size)


def make_handlers(folder, test):
    """Return the handlers that write files, and two that print."""
    evaluate = handlers.Evaluate(test, best_path=folder / "best", names=NAMES)
    return [
        evaluate,
        handlers.Log(every_steps=2, names=NAMES),
        handlers.Progress(),
        handlers.CSVLog(folder / "log.csv", every_steps=2, names=NAMES, test=evaluate),
        handlers.JSONLog(folder / "log.jsonl", every_steps=2, names=NAMES, test=evaluate),
        handlers.TensorBoard(folder / "board", every_steps=2, names=NAMES, test=evaluate),
        handlers.Plot(folder / "curves.png", every_steps=2, names=NAMES, test=evaluate),
    ]


def train(network, folder=None, place=None):
    """Return what the training of a network leaves behind, as lists."""
    reader, test = make_readers(network)
    trainer = ps.Trainer(make_program(NORMS[network]), optax.adam(0.05), place=place)
    counts, rows, epochs = [], [], []

    def on_event(event):
        if isinstance(event, ps.EndStep):
            counts.append(event.num_examples)
            rows.append(len(event.metrics[2]))
        elif isinstance(event, ps.EndEpoch):
            epochs.append(event.metrics[:2])

    writing = [] if folder is None else make_handlers(folder, test)
    trainer.train(reader, [*writing, on_event], num_epochs=NUM_EPOCHS)
    parameters = {name: value.tolist() for name, value in trainer.parameters.items()}
    result = {"counts": counts, "rows": rows, "epochs": epochs, "parameters": parameters}
    return result | {"test": trainer.test(test)[:2]}


def main(folder, *networks):
    """Join the others, train, and print."""
    # Gloo's threads write to descriptor 1 when they connect, into each other's lines.
    sys.stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    joined = join()
    with_handlers = "handlers" in networks
    chosen = [network for network in networks if network != "handlers"]
    result = {
        network: train(network, Path(folder) if with_handlers and not number else None)
        for number, network in enumerate(chosen)
    }
    print("RESULT " + json.dumps(result | {"joined": joined}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
