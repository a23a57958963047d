"""A run with everything that is random, for a process of its own: its digest and description.

`python -m tests.trainer.described_run FOLDER SEED ...`: one run after the other, each in a folder
of its own, with the name of its seed.
"""

import hashlib
import json
import sys
from typing import Any

import jax
import numpy as np
import optax

import penstock as ps
from penstock import layers, readers
from tests.networks import class_data


def program() -> Any:
    """Return loss and accuracy of a network with statistics and dropout."""
    label = layers.data("label", shape=[1], dtype="int32")
    hidden = layers.batch_norm(layers.fc(layers.data("x", shape=[4]), size=8), act="relu")
    prediction = layers.fc(layers.dropout(hidden, 0.25), size=3, act="softmax")
    return layers.mean(layers.cross_entropy(prediction, label)), layers.accuracy(prediction, label)


def digest(trainer: ps.Trainer) -> str:
    """Return a digest of every bit of the state."""
    leaves = jax.device_get(jax.tree.leaves(trainer._engine.state))
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest()


def run(folder: str, seed: int) -> tuple[ps.Trainer, dict[str, Any]]:
    """Train, and return the trainer and what it says of itself."""
    trainer = ps.Trainer(program, optax.adam(0.01), seed=seed, checkpoint=folder)
    described = trainer.describe()
    trainer.train(readers.arrays(class_data(45), 8, shuffle=True, seed=seed), num_epochs=2)
    return trainer, described


if __name__ == "__main__":
    results = []
    for seed in sys.argv[2:]:
        trainer, described = run(f"{sys.argv[1]}/{seed}", int(seed))
        results.append({"digest": digest(trainer), "described": described})
    print(json.dumps(results))
