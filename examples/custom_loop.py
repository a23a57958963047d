"""Train with your own loop: a ProgramBuilder, and no Trainer.

The loop halves the learning rate when the test loss has not improved, and keeps the best
parameters. A state is a value: a step takes one and returns the next. The data are scikit-learn's
digits.

Run it with `python examples/custom_loop.py`.
"""

import argparse

import jax
import numpy as np
import optax

import penstock as ps
from penstock import layers, readers


def infer_program():
    image = layers.data("image", shape=[8, 8, 1])
    hidden = layers.fc(image, size=128, act="relu")
    hidden = layers.dropout(hidden, 0.2)
    return layers.fc(hidden, size=10, act="softmax")


def train_program():
    label = layers.data("label", shape=[1], dtype="int32")
    prediction = infer_program()
    loss = layers.mean(layers.cross_entropy(prediction, label))
    return loss, layers.accuracy(prediction, label)


def main(num_epochs=20):
    optimizer = optax.inject_hyperparams(optax.adam)(learning_rate=4e-3)
    builder = ps.ProgramBuilder(train_program, optimizer, infer_func=infer_program)
    state = builder.init(seed=0)
    train_reader = readers.dataset("digits", "train", batch_size=64, shuffle=True)
    test_batch = next(iter(readers.dataset("digits", "test", batch_size=1000)))

    best_loss, best_variables, rate = float("inf"), {}, 4e-3
    for epoch in range(num_epochs):
        state = builder.reset_metrics(state)
        for batch in train_reader:
            state, _ = builder.train(state, batch)  # does not wait for the device
        loss, accuracy = builder.mean_metrics(state)  # this does
        test_loss, test_accuracy = (float(m) for m in builder.test(state, test_batch))
        print(
            f"epoch {epoch:2}  rate {rate:.4f}  loss {loss:.4f}  accuracy {accuracy:.4f}"
            f"  test loss {test_loss:.4f}  accuracy {test_accuracy:.4f}"
        )
        if test_loss < best_loss:
            # The next step takes the state's buffers over, so what is kept is copied to the host.
            best_loss, best_variables = test_loss, jax.device_get(state.variables)
        else:
            rate /= 2
            state = with_rate(state, rate)

    probabilities = builder.infer(best_variables, {"image": test_batch["image"]})
    accuracy = float(np.mean(probabilities.argmax(axis=1) == test_batch["label"]))
    print(f"the best parameters read {accuracy:.2%} of {len(probabilities)} held-out digits right")
    print(f"compiled: {builder.num_compiles}")
    return accuracy


def with_rate(state, rate):
    """Return the state with another learning rate, on the same devices: nothing recompiles."""
    old = optax.tree_utils.tree_get(state.opt_state, "learning_rate")
    new = jax.device_put(np.float32(rate), old.sharding)
    opt_state = optax.tree_utils.tree_set(state.opt_state, learning_rate=new)
    return state._replace(opt_state=opt_state)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_epochs", type=int, default=20)
    main(parser.parse_args().num_epochs)
