"""Ten folds of one network: what a fold costs beside the work of its steps.

Each fold makes a Trainer, trains it and tests it. Then the same Trainer trains and tests as much
once more, with everything compiled: that is the work of its steps. The Trainers are of one
`ProgramBuilder`; or of the program function, whose programs come from a folder of compiled ones
after the first fold. The floor is a hand-written perceptron whose step and evaluation are jitted
once: XLA compiles each for every size of a batch there too.

    python -m benchmarks folds
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import penstock as ps
from benchmarks import _timing
from penstock import layers, readers

NUM_FOLDS, BATCH_SIZE = 10, 64


def _loss(hidden: Any) -> Any:
    prediction = layers.fc(hidden, size=10, act="softmax")
    label = layers.data("label", shape=[1], dtype="int32")
    return layers.mean(layers.cross_entropy(prediction, label))


def perceptron() -> Any:
    """Return the loss of a perceptron with 64 units."""
    return _loss(layers.fc(layers.data("image", shape=[8, 8, 1]), size=64, act="relu"))


def conv_net() -> Any:
    """Return the loss of the README's network."""
    image = layers.data("image", shape=[8, 8, 1])
    hidden = layers.conv2d(image, num_filters=32, filter_size=3, act="relu")
    return _loss(layers.pool2d(layers.batch_norm(hidden), pool_size=2, pool_stride=2))


NUM_EPOCHS = {perceptron: 75, conv_net: 20}
"""Each is 0.2 s of steps on two quiet cores."""


OPTIMIZER = optax.adam(1e-3)


def _loss_by_hand(params: Any, image: jax.Array, label: jax.Array) -> jax.Array:
    (kernel, bias), (last_kernel, last_bias) = params
    hidden = jax.nn.relu(image.reshape(len(image), -1) @ kernel + bias)
    logits = hidden @ last_kernel + last_bias
    return optax.softmax_cross_entropy_with_integer_labels(logits, label).mean()


_evaluate = jax.jit(_loss_by_hand)


@functools.partial(jax.jit, donate_argnums=0)
def _step(state: Any, image: jax.Array, label: jax.Array) -> Any:
    params, moments = state
    loss, gradients = jax.value_and_grad(_loss_by_hand)(params, image, label)
    updates, moments = OPTIMIZER.update(gradients, moments, params)
    return (optax.apply_updates(params, updates), moments), loss


class ByHand:
    """What a Trainer of the perceptron does in a fold, in two jitted functions."""

    def __init__(self) -> None:
        keys = jax.random.split(jax.random.key(0))
        sizes = [(64, 64), (64, 10)]
        params = [
            (0.1 * jax.random.normal(key, size), jnp.zeros(size[1]))
            for key, size in zip(keys, sizes, strict=True)
        ]
        self.state = (params, OPTIMIZER.init(params))

    def train(self, reader: Any, num_epochs: int) -> None:
        """Take the steps of so many epochs."""
        for _ in range(num_epochs):
            for batch in reader():
                self.state, loss = _step(self.state, **batch)
                loss.block_until_ready()

    def test(self, reader: Any) -> None:
        """Compute the loss of every batch."""
        jax.block_until_ready([_evaluate(self.state[0], **batch) for batch in reader()])


def measure(make: Callable[[], Any], num_epochs: int) -> np.ndarray:
    """Return the seconds of each fold, and those of its steps alone, `[NUM_FOLDS, 2]`."""
    whole: Any = readers.dataset("digits", split="train", batch_size=BATCH_SIZE, shuffle=True)
    times: list[list[float]] = []
    for train, test in readers.folds(whole, NUM_FOLDS):
        marks = [time.perf_counter()]
        trainer = make()
        for _ in range(2):
            trainer.train(train, num_epochs=num_epochs)
            trainer.test(test)
            marks.append(time.perf_counter())
        times.append(np.diff(marks).tolist())
    return np.array(times)


def main() -> None:
    """Print the seconds of ten folds, and their ratio to the work of their steps."""
    print(_timing.environment())
    rows: list[list[str]] = []

    def measure_row(name: str, make: Callable[[], Any], num_epochs: int) -> None:
        times = measure(make, num_epochs)
        later, steps = np.median(times[1:], axis=0)
        seconds = [f"{x:.3f} s" for x in (times[0, 0], later, steps)]
        ratio = np.median(times[1:, 0] / times[1:, 1])
        of_all = times[:, 0].sum() / times[:, 1].sum()
        rows.append([name, *seconds, f"{ratio:.2f}", f"{of_all:.2f}"])

    measure_row("perceptron, by hand", ByHand, NUM_EPOCHS[perceptron])
    for program, num_epochs in NUM_EPOCHS.items():
        builder = ps.ProgramBuilder(program, optax.adam(1e-3))
        make = functools.partial(ps.Trainer, builder)
        measure_row(f"{program.__name__}, of one builder", make, num_epochs)
    with tempfile.TemporaryDirectory() as folder:
        ps.use_compile_cache(folder)
        for program, num_epochs in NUM_EPOCHS.items():
            make = functools.partial(ps.Trainer, program, optax.adam(1e-3))
            measure_row(f"{program.__name__}, of the function", make, num_epochs)
    heads = ["", "first fold", "a later one", "its steps", "ratio", "of all ten"]
    print(_timing.table(heads, rows))
