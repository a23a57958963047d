"""What each process of `test_processes` runs: train on its part, print what it has as JSON.

python -m tests.two_processes checkpoints DIRECTORY SIGTERM_STEP

12 epochs with checkpoints in a directory; process 0 sends itself SIGTERM at that step.

python -m tests.two_processes roll_back DIRECTORY

Three epochs of which the second has a batch of nan; the disk of process 0 takes its time.

python -m tests.two_processes freeze NAME NAME

Two calls of train with another choice of parameters each, the second of a name of each process.

python -m tests.two_processes several DIRECTORY

One after the other: an epoch of which process 1 makes a loss that is not finite, and the replay of
that step; the same with readers of two lengths; a run of such readers whole and in two; two calls
of train with another choice of parameters each; two trainers, two epochs each, of which every
process reads all; the order of what is predicted, for readers of one and of several lengths.

python -m tests.two_processes sequences

Two epochs of words of unequal length.
"""

import functools
import itertools
import json
import logging
import os
import signal
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import penstock as ps
from penstock import fluid, layers, readers
from penstock.trainer._saver import Saver
from tests.trainer import sequence_run

NUM_EXAMPLES, BATCH_SIZE = 70, 32  # the last batch has 6 examples, fewer than there are devices


def program():
    """Return loss, accuracy and the predictions, so that a value with a batch axis is read too."""
    hidden = layers.fc(layers.data("x", shape=[5]), size=8, act="tanh")
    logits = layers.fc(layers.batch_norm(hidden), size=3)
    label = layers.data("label", shape=[1], dtype="int32")
    loss = layers.mean(layers.softmax_with_cross_entropy(logits, label))
    return loss, layers.accuracy(logits, label), logits


def data_and_reader(part, transform=None):
    """Return the data, and a reader of one process's part of it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_EXAMPLES, 5)).astype(np.float32)
    data = {"x": x, "label": np.argmax(x[:, :3], axis=1).astype(np.int32)}
    options = {"shuffle": True, "seed": 1, "shard": part, "transform": transform}
    return data, readers.arrays(data, batch_size=BATCH_SIZE, **options)


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


class Messages(logging.Handler):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        """Keep a line."""
        self.lines.append(record.getMessage())


def run_with_a_roll_back(shard, num_shards, directory):
    """Return the parameters after three epochs, as lists, and what was said of rolling back."""
    numbers = itertools.count()

    def poisoned(batch):
        is_bad = next(numbers) == 4
        return {**batch, "x": batch["x"] * np.float32("nan")} if is_bad else batch

    _, reader = data_and_reader(readers.Shard(shard, num_shards), poisoned)
    config = ps.CheckpointConfig(directory=directory, save_interval_steps=4)
    trainer = ps.Trainer(program, optax.adam(0.05), checkpoint=config, on_non_finite="roll_back")
    assert isinstance(trainer._saver, Saver)
    store, messages = trainer._saver.store, Messages()
    logging.getLogger("penstock").addHandler(messages)
    write = store.write

    def write_slowly(contents):
        time.sleep(1)
        write(contents)

    store.write = write_slowly
    trainer.train(reader, num_epochs=3)
    parameters = {name: value.tolist() for name, value in trainer.parameters.items()}
    texts = [line.partition("rolled back ")[2][:31] for line in messages.lines]
    return {"parameters": parameters, "said": [line for line in texts if line]}


def run_with_a_replay(shard, num_shards):
    """Return what a replay says of a step to which one process gave a negative number."""

    def bent_program():
        x = layers.data("x", shape=[5])
        bent = jnp.log(x[:, :1] + 100.0)
        return layers.mean(layers.fc(x, size=1) + bent)

    def bend(batch):
        is_bad = shard == 1 and 17 in batch["number"]
        return {"x": batch["x"] - np.float32(200) * is_bad}

    data, _ = data_and_reader(readers.Shard(shard, num_shards))
    data = {"x": data["x"], "number": np.arange(NUM_EXAMPLES)}
    part = readers.Shard(shard, num_shards)
    reader = readers.arrays(data, batch_size=BATCH_SIZE, shard=part, transform=bend)
    trainer, errors = ps.Trainer(bent_program, optax.sgd(0.05)), []
    for call in (trainer.train, trainer.replay):
        try:
            call(reader)
        except FloatingPointError as error:
            errors.append(str(error))
    return errors


class UnequalReader:
    """Two batches an epoch on process 0, one on the other, bad in its second epoch."""

    def __init__(self, shard):
        self._shard = shard

    def iterate(self, epoch):
        """Yield the batches of an epoch."""
        for number in range(2 - self._shard):
            x = np.full((4, 5), 1 + epoch + number + self._shard, np.float32)
            yield {"x": -x if self._shard and epoch else x}

    def __iter__(self):
        """Yield the batches of the first epoch."""
        return self.iterate(0)


def run_with_unequal_readers(shard):
    """Return what is said of a bad step of the second epoch, by the run and by a replay."""

    def rooted_program():
        return layers.mean(layers.fc(jnp.sqrt(layers.data("x", shape=[5])), size=1))

    trainer, errors = ps.Trainer(rooted_program, optax.sgd(0.05)), []
    for call in (functools.partial(trainer.train, num_epochs=2), trainer.replay):
        try:
            call(UnequalReader(shard))
        except FloatingPointError as error:
            errors.append(str(error))
    return errors


def run_in_two(directory, shard):
    """Return the parameters of a whole run, and of one that stops after the shorter reader's end.

    Process 1 has read all of its batches ahead then, and was asked for more in vain.
    """

    def read():
        return ({"x": np.full((4, 5), number + shard / 2)} for number in range(18 - 2 * shard))

    def stop_at(trainer, step, event):
        if isinstance(event, ps.EndStep) and event.global_step + 1 == step:
            trainer.stop()

    weights = []
    for name, stop_after in (("whole", None), ("in_two", 17), ("in_two", None)):
        checkpoint = ps.CheckpointConfig(directory=f"{directory}/{name}")
        trainer = ps.Trainer(linear_program, optax.sgd(1e-4), checkpoint=checkpoint)
        trainer.train(read, functools.partial(stop_at, trainer, stop_after), num_epochs=2)
        weights.append(trainer.parameters["fc_0/w"].tolist())
    return weights


def linear_program():
    """Return the mean of one number for each example."""
    return layers.mean(layers.fc(layers.data("x", shape=[5]), size=1) ** 2)


def run_with_freezes(shard, num_shards, name):
    """Return the parameters after training the last layer, then another one too, as lists."""
    _, reader = data_and_reader(readers.Shard(shard, num_shards))
    trainer = ps.Trainer(program, optax.adam(0.05), freeze=["fc_0", "batch_norm_0"])
    trainer.train(reader)
    trainer.unfreeze(name)
    trainer.train(reader)
    return {name: value.tolist() for name, value in trainer.parameters.items()}


def run_with_a_place():
    """Return how many devices train in Fluid's terms, and whether its place is of this process."""
    place = fluid.CPUPlace()
    trainer = fluid.Trainer(linear_program, fluid.optimizer.SGD(1e-4), place=place)
    trainer.train(1, lambda event: None, [{"x": np.ones((4, 5))}])
    return trainer.builder.mesh.size, place in jax.local_devices()


def run_alike():
    """Return how often it was said that the processes read the same."""
    messages = Messages()
    logging.getLogger("penstock").addHandler(messages)
    _, reader = data_and_reader(readers.Shard())
    for _ in range(2):
        ps.Trainer(program, optax.sgd(0.05)).train(reader, num_epochs=2)
    return sum("the same first batch on all 2 processes" in line for line in messages.lines)


def run_predictions(shard, num_shards):
    """Return ids in the order of the outputs, and by how much outputs and ids differ."""

    def numbers():
        return layers.data("number", shape=[1])

    def batch_means():
        return 0 * numbers() + jnp.mean(numbers())

    def trainer(infer_func):
        return ps.Trainer(lambda: layers.mean(numbers()), infer_func=infer_func)

    ids = np.arange(NUM_EXAMPLES)
    data = {"number": ids.astype(np.float32), "id": ids, "name": ids.astype(str)}
    reader = readers.arrays(data, BATCH_SIZE, shard=readers.Shard(shard, num_shards))
    columns = trainer(numbers).predict_all(reader, keep=["id", "name"])
    means = trainer(batch_means).predict_all(reader).ravel()
    parts = [ids[:32], ids[32:64], ids[64:]]
    expected = np.concatenate([np.full(len(part), part.mean()) for part in parts])
    batches = list(trainer(numbers).predict(reader, keep="id"))
    # The second process has one batch of two examples, the first has two.
    own = [[1000, 1001]] if shard else [[0, 1, 2, 3], [4, 5]]
    own = [{"number": np.array(batch, np.float32), "id": batch} for batch in own]
    unequal = trainer(numbers).predict_all(own, keep="id")
    return {
        "joined": columns["id"].tolist(),
        "batches": [batch["id"].tolist() for batch in batches],
        "unequal": unequal["id"].tolist(),
        "errors": [
            int(np.abs(columns["output"].ravel() - columns["name"].astype(int)).max()),
            round(float(np.abs(means - expected).max())),
            int(np.abs(unequal["output"].ravel() - unequal["id"]).max()),
        ],
    }


if __name__ == "__main__":
    place = [os.environ[f"JAX_{name}"] for name in ("NUM_PROCESSES", "PROCESS_ID")]
    count, index = map(int, place)
    jax.distributed.initialize(os.environ["JAX_COORDINATOR_ADDRESS"], count, index)
    assert len(jax.devices()) == count * len(jax.local_devices())
    what, *words = sys.argv[1:]
    if what == "checkpoints":
        result = run_with_checkpoints(index, count, words[0], int(words[1]))
    elif what == "roll_back":
        result = run_with_a_roll_back(index, count, words[0])
    elif what == "freeze":
        result = run_with_freezes(index, count, words[index])
    elif what == "several":
        result = {
            "replay": run_with_a_replay(index, count),
            "unequal": run_with_unequal_readers(index),
            "in_two": run_in_two(words[0], index),
            "freeze": run_with_freezes(index, count, "fc_0"),
            "place": run_with_a_place(),
            "alike": run_alike(),
            "predict": run_predictions(index, count),
        }
    else:
        result = sequence_run.run(readers.Shard(index, count))
    print("RESULT " + json.dumps({"result": result}))
