"""Chapter 1 of Fluid's book: the price of a house, by linear regression."""

import math
import sys

import numpy

import penstock.fluid as fluid
from penstock.fluid.contrib.inferencer import Inferencer
from penstock.fluid.contrib.trainer import EndEpochEvent, EndStepEvent, Trainer
from tests.fluid.book import paddle

BATCH_SIZE = 20


def train_program():
    y = fluid.layers.data(name="y", shape=[1], dtype="float32")
    x = fluid.layers.data(name="x", shape=[13], dtype="float32")
    y_predict = fluid.layers.fc(input=x, size=1, act=None)

    loss = fluid.layers.square_error_cost(input=y_predict, label=y)
    return fluid.layers.mean(loss)


def inference_program():
    x = fluid.layers.data(name="x", shape=[13], dtype="float32")
    return fluid.layers.fc(input=x, size=1, act=None)


def optimizer_program():
    return fluid.optimizer.SGD(learning_rate=0.001)


def train(use_cuda, params_dirname):
    train_reader = paddle.batch(
        paddle.reader.shuffle(paddle.dataset.uci_housing.train(), buf_size=500),
        batch_size=BATCH_SIZE,
    )
    test_reader = paddle.batch(
        paddle.reader.shuffle(paddle.dataset.uci_housing.test(), buf_size=500),
        batch_size=BATCH_SIZE,
    )
    place = fluid.CUDAPlace(0) if use_cuda else fluid.CPUPlace()
    trainer = Trainer(train_func=train_program, place=place, optimizer_func=optimizer_program)
    feed_order = ["x", "y"]
    step = 0

    def event_handler(event):
        nonlocal step
        if isinstance(event, EndStepEvent):
            if step % 10 == 0:
                print("%s, Step %d, Cost %f" % ("Train cost", step, event.metrics[0]))
            if step % 100 == 0:
                test_metrics = trainer.test(reader=test_reader, feed_order=feed_order)
                print("%s, Step %d, Cost %f" % ("Test cost", step, test_metrics[0]))
                if test_metrics[0] < 10.0:
                    print("loss is less than 10.0, stop")
                    trainer.stop()
            step += 1
            if math.isnan(event.metrics[0]):
                sys.exit("got NaN loss, training failed.")

        if isinstance(event, EndEpochEvent) and event.epoch % 10 == 0:
            trainer.save_params(params_dirname)

    trainer.train(
        reader=train_reader, num_epochs=100, event_handler=event_handler, feed_order=feed_order
    )


def infer(use_cuda, params_dirname):
    place = fluid.CUDAPlace(0) if use_cuda else fluid.CPUPlace()
    inferencer = Inferencer(infer_func=inference_program, param_path=params_dirname, place=place)
    tensor_x = numpy.random.uniform(0, 10, [10, 13]).astype("float32")
    results = inferencer.infer({"x": tensor_x})
    print("infer results: (House Price)")
    for idx, val in enumerate(results[0]):
        print("%d: %.2f" % (idx, val))


def main(use_cuda, params_dirname="fit_a_line.inference.model"):
    if use_cuda and not fluid.core.is_compiled_with_cuda():
        return
    train(use_cuda, params_dirname)
    infer(use_cuda, params_dirname)


if __name__ == "__main__":
    main(use_cuda=False)
