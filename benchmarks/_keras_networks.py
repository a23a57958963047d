"""The networks of `cpu_networks` in Keras on TensorFlow, its default backend.

One step for each line read, its seconds written back. Runs in an interpreter of its own and imports
nothing of penstock.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np


def _conv_net() -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Conv2D(20, 5, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(50, 5, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(10, activation="softmax"),
        ]
    )


def main(keras_name: str, size: int, batch_size: int) -> None:
    """Answer each line, `train` or `infer`, with the seconds it took."""
    is_conv_net = keras_name == "conv_net"
    shape = (size, size, 1 if is_conv_net else 3)
    if is_conv_net:
        model = _conv_net()
    else:
        model = getattr(keras.applications, keras_name)(input_shape=shape, weights=None)
    model.compile(
        keras.optimizers.SGD(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    rng = np.random.default_rng(0)
    images = rng.uniform(-1, 1, (batch_size, *shape)).astype(np.float32)
    labels = rng.integers(0, 10, (batch_size, 1)).astype(np.int32)
    for line in sys.stdin:
        start = time.perf_counter()
        if line.strip() == "train":
            model.train_on_batch(images, labels)
        else:
            model.predict_on_batch(images[:1])
        print(json.dumps(time.perf_counter() - start), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
