"""Recognise handwritten digits with a perceptron or a convolutional network.

The data are scikit-learn's digits: 1797 images of 8 x 8 pixels. After training, an Inferencer loads
the parameters from disk and recognises held-out digits.

Run it with `python examples/recognize_digits.py --net conv` (or `--net mlp`).
"""

import argparse

import optax

import penstock as ps
from penstock import layers, readers
from penstock.handlers import Progress


def mlp():
    image = layers.data("image", shape=[8, 8, 1])
    hidden = layers.fc(image, size=200, act="tanh")
    hidden = layers.fc(hidden, size=200, act="tanh")
    return layers.fc(hidden, size=10, act="softmax")


def conv():
    image = layers.data("image", shape=[8, 8, 1])
    hidden = layers.simple_img_conv_pool(
        image, num_filters=20, filter_size=3, pool_size=2, pool_stride=2, act="relu", conv_padding=1
    )
    hidden = layers.batch_norm(hidden)
    hidden = layers.simple_img_conv_pool(
        hidden, num_filters=50, filter_size=3, pool_size=2, pool_stride=2, act="relu"
    )
    return layers.fc(hidden, size=10, act="softmax")


NETS = {"mlp": mlp, "conv": conv}


def main(net="conv", num_epochs=15, param_path="runs/recognize_digits.params"):
    infer_program = NETS[net]

    def train_program():
        label = layers.data("label", shape=[1], dtype="int32")
        prediction = infer_program()
        loss = layers.mean(layers.cross_entropy(prediction, label))
        return loss, layers.accuracy(prediction, label)

    trainer = ps.Trainer(train_program, optax.adam(2e-3))
    print(trainer.builder.summary())
    test_reader = readers.dataset("digits", "test", batch_size=64)
    trainer.train(
        readers.dataset("digits", "train", batch_size=64, shuffle=True),
        Progress(("loss", "accuracy"), test=lambda: trainer.test(test_reader)),
        num_epochs=num_epochs,
    )
    trainer.save_params(param_path)

    inferencer = ps.Inferencer(infer_program, param_path)
    batches = list(test_reader)
    is_right = [
        guess == label
        for batch in batches
        for guess, label in zip(
            inferencer.infer({"image": batch["image"]}).argmax(axis=1), batch["label"], strict=True
        )
    ]
    accuracy = sum(is_right) / len(is_right)
    print(f"{accuracy:.2%} of {len(is_right)} held-out digits read right; see {param_path}")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--net", choices=NETS, default="conv")
    parser.add_argument("--num_epochs", type=int, default=15)
    parser.add_argument("--param_path", default="runs/recognize_digits.params")
    main(**vars(parser.parse_args()))
