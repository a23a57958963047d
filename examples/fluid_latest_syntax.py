"""The script that settled Fluid's high-level syntax, with nothing changed but imports and data.

It is the "Latest Syntax" of PaddlePaddle's issue 10248. scikit-learn's digits stand in for MNIST:
1797 real ones of 8 x 8 pixels, enlarged to 28 x 28. The script tests at each step, so it tests on a
hundred digits only.

Run it with `python examples/fluid_latest_syntax.py`.
"""

import argparse

import cv2
import numpy as np

import penstock.fluid as fluid
from penstock import readers

use_cuda = False


def read_digits(split):
    digits = next(iter(readers.dataset("digits", split, batch_size=2000)))
    images = [cv2.resize(d, (28, 28), interpolation=cv2.INTER_LINEAR) for d in digits["image"]]
    return 2 * np.stack(images)[:, np.newaxis] - 1, digits["label"]  # [N, 1, 28, 28] in -1..1


train_images, train_labels = read_digits("train")
images, labels = read_digits("test")
train_reader = readers.arrays((train_images, train_labels), batch_size=64, shuffle=True)
test_reader = readers.arrays((images[:100], labels[:100]), batch_size=100)


def inference_program():
    image = fluid.layers.data(name="image", shape=[1, 28, 28])

    hidden = fluid.layers.simple_img_conv_pool(
        image, num_filters=32, filter_size=3, pool_size=3, pool_stride=1, act="relu"
    )
    hidden = fluid.layers.dropout(hidden, 0.1)
    hidden = fluid.layers.batch_norm(hidden)

    prediction = fluid.layers.fc(hidden, size=10, act="softmax")
    return prediction


def train_program():
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")

    prediction = inference_program()
    cost = fluid.layers.cross_entropy(prediction, label)
    avg_cost = fluid.layers.mean(cost)
    return avg_cost


def main(param_path="image.model"):
    place = fluid.CUDAPlace(0) if use_cuda else fluid.CPUPlace()
    trainer = fluid.Trainer(
        program_func=train_program,
        optimizer=fluid.optimizer.SGD(),
        param_path=param_path,
        place=place,
    )

    def event_handler(event):
        if isinstance(event, fluid.EndEpochEvent):
            trainer.save_inference_model(param_path)
        elif isinstance(event, fluid.EndStepEvent):
            test_metrics = trainer.test(reader=test_reader)
            cost, test_cost = event.metrics[0], test_metrics[0]
            print(f"step {event.step}: cost {cost:.3f}, in the test {test_cost:.3f}")

    trainer.train(
        num_epochs=1,
        event_handler=event_handler,
        reader=train_reader,
        feed_order=["image", "label"],
    )

    inferencer = fluid.Inferencer(infer_func=inference_program, param_path=param_path, place=place)
    [prediction] = inferencer.infer({"image": images[100:]})
    accuracy = np.mean(prediction.argmax(axis=1) == labels[100:])
    print(f"{accuracy:.1%} of {len(prediction)} digits read right")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--param_path", default="image.model")
    main(parser.parse_args().param_path)
