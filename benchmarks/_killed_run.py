"""The training run that `kill_and_resume` kills: `python -m benchmarks._killed_run FOLDER EPOCHS`.

Batch norm, dropout, Adam and a shuffled reader with a short last batch; a checkpoint every ten
steps, written in a thread, the newest three and the best kept. With `--plain` there are no
checkpoints and no pauses: the uninterrupted run. At the end FOLDER/final.npz holds the state.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import penstock as ps
from penstock import layers, readers

SAVE_INTERVAL_STEPS = 10
STEP_SECS = 0.01
"""How long a step is made to take, so that the process is not always inside a save."""


def program() -> Any:
    """Return loss and accuracy."""
    label = layers.data("label", shape=[1], dtype="int32")
    hidden = layers.fc(layers.data("x", shape=[8]), size=16, bias_attr=False)
    hidden = layers.dropout(layers.batch_norm(hidden, act="relu"), dropout_prob=0.2)
    prediction = layers.fc(hidden, size=4, act="softmax")
    return layers.mean(layers.cross_entropy(prediction, label)), layers.accuracy(prediction, label)


def reader() -> Any:
    """Return a shuffled reader of 12 batches of 16 and one of 8."""
    x = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    label = x[:, :4].argmax(axis=1).astype(np.int32)[:, None]
    return readers.arrays({"x": x, "label": label}, 16, shuffle=True, seed=1)


def config(folder: Path) -> ps.CheckpointConfig:
    """Return where and when the run writes checkpoints."""
    return ps.CheckpointConfig(
        directory=folder / "checkpoints",
        save_interval_steps=SAVE_INTERVAL_STEPS,
        max_to_keep=3,
        num_best=1,
    )


def main(folder: Path, num_epochs: int, *, is_plain: bool) -> None:
    """Train, or resume training."""
    checkpoint = None if is_plain else config(folder)
    trainer = ps.Trainer(program, optax.adam(0.01), place=jax.devices()[0], checkpoint=checkpoint)

    def on_event(event: Any) -> None:
        if isinstance(event, ps.BeginTraining):
            (folder / "begun.tmp").write_text(str(event.global_step))
            (folder / "begun.tmp").rename(folder / "begun")
        elif isinstance(event, ps.EndStep) and not is_plain:
            time.sleep(STEP_SECS)

    trainer.train(reader(), on_event, num_epochs=num_epochs)
    # After the run itself, and beside the public names: every array of the state, not only the
    # parameters.
    leaves = [np.asarray(leaf) for leaf in jax.device_get(trainer._engine.leaves)]
    np.savez(folder / "final.npz", *leaves)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), is_plain="--plain" in sys.argv)
