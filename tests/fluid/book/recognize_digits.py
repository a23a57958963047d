"""Chapter 2 of Fluid's book: handwritten digits, by three networks."""

import numpy

import penstock.fluid as fluid
from tests.fluid.book import paddle

BATCH_SIZE = 64


def softmax_regression():
    img = fluid.layers.data(name="img", shape=[1, 28, 28], dtype="float32")
    return fluid.layers.fc(input=img, size=10, act="softmax")


def multilayer_perceptron():
    img = fluid.layers.data(name="img", shape=[1, 28, 28], dtype="float32")
    hidden = fluid.layers.fc(input=img, size=128, act="relu")
    hidden = fluid.layers.fc(input=hidden, size=64, act="relu")
    return fluid.layers.fc(input=hidden, size=10, act="softmax")


def convolutional_neural_network():
    img = fluid.layers.data(name="img", shape=[1, 28, 28], dtype="float32")
    conv_pool_1 = fluid.nets.simple_img_conv_pool(
        input=img, filter_size=5, num_filters=20, pool_size=2, pool_stride=2, act="relu"
    )
    conv_pool_1 = fluid.layers.batch_norm(conv_pool_1)
    conv_pool_2 = fluid.nets.simple_img_conv_pool(
        input=conv_pool_1, filter_size=5, num_filters=50, pool_size=2, pool_stride=2, act="relu"
    )
    return fluid.layers.fc(input=conv_pool_2, size=10, act="softmax")


def optimizer_program():
    return fluid.optimizer.Adam(learning_rate=0.001)


def train(network, use_cuda, params_dirname):
    def train_program():
        label = fluid.layers.data(name="label", shape=[1], dtype="int64")
        predict = network()
        cost = fluid.layers.cross_entropy(input=predict, label=label)
        avg_cost = fluid.layers.mean(cost)
        acc = fluid.layers.accuracy(input=predict, label=label)
        return [avg_cost, acc]

    train_reader = paddle.batch(
        paddle.reader.shuffle(paddle.dataset.mnist.train(), buf_size=500), batch_size=BATCH_SIZE
    )
    test_reader = paddle.batch(paddle.dataset.mnist.test(), batch_size=BATCH_SIZE)
    place = fluid.CUDAPlace(0) if use_cuda else fluid.CPUPlace()
    trainer = fluid.Trainer(
        train_func=train_program, place=place, optimizer_func=optimizer_program, parallel=False
    )
    lists = []

    def event_handler(event):
        if isinstance(event, fluid.BeginStepEvent):
            event.fetch_metrics = event.step % 5 == 0
        if isinstance(event, fluid.EndStepEvent) and event.metrics:
            cost, acc = event.metrics
            print("Pass %d, Batch %d, Cost %f" % (event.epoch, event.step, cost))
            print("mean of both: {0:.3}, {1}".format(numpy.array(event.metrics).mean(), acc))
        if isinstance(event, fluid.EndEpochEvent):
            avg_cost, acc = trainer.test(reader=test_reader, feed_order=["img", "label"])
            print("Test with Epoch %d, avg_cost: %s, acc: %s" % (event.epoch, avg_cost, acc))
            trainer.save_params(params_dirname)
            lists.append((event.epoch, avg_cost, acc))

    trainer.train(
        num_epochs=2, event_handler=event_handler, reader=train_reader, feed_order=["img", "label"]
    )
    best = sorted(lists, key=lambda entry: float(entry[1]))[0]
    print("The classification accuracy is %.2f%%" % (float(best[2]) * 100))


def infer(network, use_cuda, params_dirname):
    place = fluid.CUDAPlace(0) if use_cuda else fluid.CPUPlace()
    inferencer = fluid.Inferencer(infer_func=network, param_path=params_dirname, place=place)
    image, label = next(paddle.dataset.mnist.test()())
    results = inferencer.infer({"img": image.reshape(1, 1, 28, 28)})
    lab = numpy.argsort(results)  # probs and lab are the results of one batch data
    print("Inference result of a %d is: %d" % (label, lab[0][0][-1]))


def main(network, use_cuda, params_dirname="recognize_digits.inference.model"):
    train(network, use_cuda, params_dirname)
    infer(network, use_cuda, params_dirname)


if __name__ == "__main__":
    main(convolutional_neural_network, use_cuda=False)
