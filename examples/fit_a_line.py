"""Fit a line: predict the progression of a disease from ten features of a patient.

The data are scikit-learn's 442 diabetes patients; the target is a number from 25 to 346. A line
cannot explain more than about half of its variance.

Run it with `python examples/fit_a_line.py`.
"""

import argparse

import jax.numpy as jnp
import numpy as np
import optax

import penstock as ps
from penstock import layers, readers


def infer_program():
    x = layers.data("x", shape=[10])
    return layers.fc(x, size=1)


def train_program():
    y = layers.data("y", shape=[1])
    prediction = infer_program()
    return {
        "loss": layers.mean(layers.square_error_cost(prediction, y)),
        "absolute_error": layers.mean(jnp.abs(prediction - y)),
    }


def main(num_epochs=50, param_path="runs/fit_a_line.params"):
    trainer = ps.Trainer(train_program, optax.sgd(0.02))
    test_reader = readers.dataset("diabetes", "test", batch_size=64)

    def every_tenth_epoch(event):
        if isinstance(event, ps.EndEpoch) and (event.epoch + 1) % 10 == 0:
            error = trainer.test(test_reader)["absolute_error"]
            print(f"epoch {event.epoch + 1}: off by {error:.1f} on average in the test")

    trainer.train(
        readers.dataset("diabetes", "train", batch_size=20, shuffle=True),
        every_tenth_epoch,
        num_epochs=num_epochs,
    )
    trainer.save_params(param_path)

    weights = trainer.parameters["fc_0/w"][:, 0]
    names = ["age", "sex", "bmi", "blood pressure", *(f"serum {i}" for i in range(1, 7))]
    for weight, name in sorted(zip(weights, names, strict=True)):
        print(f"{name:>15} {weight:+6.1f}")

    patients = next(iter(readers.dataset("diabetes", "test", batch_size=1000)))
    prediction = ps.Inferencer(infer_program, param_path).infer({"x": patients["x"]})
    explained = 1 - np.var(patients["y"] - prediction) / np.var(patients["y"])
    print(
        f"the line explains {explained:.0%} of the variance of {len(prediction)} held-out patients"
    )
    return explained


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_epochs", type=int, default=50)
    parser.add_argument("--param_path", default="runs/fit_a_line.params")
    main(**vars(parser.parse_args()))
