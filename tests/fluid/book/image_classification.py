"""Chapter 3 of Fluid's book: small colour images, by a residual network or by VGG."""

import sys

import numpy

import penstock.fluid as fluid
from penstock.fluid.contrib.inferencer import Inferencer
from penstock.fluid.contrib.trainer import EndEpochEvent, EndStepEvent, Trainer
from tests.fluid.book import paddle


def conv_bn_layer(input, ch_out, filter_size, stride, padding, act="relu", bias_attr=False):
    tmp = fluid.layers.conv2d(
        input=input,
        filter_size=filter_size,
        num_filters=ch_out,
        stride=stride,
        padding=padding,
        act=None,
        bias_attr=bias_attr,
    )
    return fluid.layers.batch_norm(input=tmp, act=act)


def basicblock(input, ch_in, ch_out, stride):
    tmp = conv_bn_layer(input, ch_out, 3, stride, 1)
    tmp = conv_bn_layer(tmp, ch_out, 3, 1, 1, act=None, bias_attr=True)
    short = input if ch_in == ch_out else conv_bn_layer(input, ch_out, 1, stride, 0, None)
    return fluid.layers.elementwise_add(x=tmp, y=short, act="relu")


def layer_warp(input, ch_in, ch_out, count, stride):
    tmp = basicblock(input, ch_in, ch_out, stride)
    for _ in range(1, count):
        tmp = basicblock(tmp, ch_out, ch_out, 1)
    return tmp


def resnet_cifar10(ipt, depth=32):
    n = (depth - 2) // 6
    conv1 = conv_bn_layer(ipt, ch_out=16, filter_size=3, stride=1, padding=1)
    res1 = layer_warp(conv1, 16, 16, n, 1)
    res2 = layer_warp(res1, 16, 32, n, 2)
    res3 = layer_warp(res2, 32, 64, n, 2)
    pool = fluid.layers.pool2d(input=res3, pool_size=8, pool_type="avg", pool_stride=1)
    return fluid.layers.fc(input=pool, size=10, act="softmax")


def vgg_bn_drop(input):
    def conv_block(ipt, num_filter, groups, dropouts):
        return fluid.nets.img_conv_group(
            input=ipt,
            pool_size=2,
            pool_stride=2,
            conv_num_filter=[num_filter] * groups,
            conv_filter_size=3,
            conv_act="relu",
            conv_with_batchnorm=True,
            conv_batchnorm_drop_rate=dropouts,
            pool_type="max",
        )

    conv1 = conv_block(input, 64, 2, [0.3, 0])
    conv2 = conv_block(conv1, 128, 2, [0.4, 0])
    conv3 = conv_block(conv2, 256, 3, [0.4, 0.4, 0])
    conv4 = conv_block(conv3, 512, 3, [0.4, 0.4, 0])
    conv5 = conv_block(conv4, 512, 3, [0.4, 0.4, 0])
    drop = fluid.layers.dropout(x=conv5, dropout_prob=0.5)
    fc1 = fluid.layers.fc(input=drop, size=512, act=None)
    bn = fluid.layers.batch_norm(input=fc1, act="relu")
    drop2 = fluid.layers.dropout(x=bn, dropout_prob=0.5)
    fc2 = fluid.layers.fc(input=drop2, size=512, act=None)
    return fluid.layers.fc(input=fc2, size=10, act="softmax")


def train(network, use_cuda, params_dirname, batch_size):
    def train_network():
        predict = network()
        label = fluid.layers.data(name="label", shape=[1], dtype="int64")
        cost = fluid.layers.cross_entropy(input=predict, label=label)
        avg_cost = fluid.layers.mean(cost)
        accuracy = fluid.layers.accuracy(input=predict, label=label)
        return [avg_cost, accuracy]

    def optimizer_program():
        return fluid.optimizer.Adam(learning_rate=0.001)

    train_reader = paddle.batch(
        paddle.reader.shuffle(paddle.dataset.cifar.train10(), buf_size=50000), batch_size=batch_size
    )
    test_reader = paddle.batch(paddle.dataset.cifar.test10(), batch_size=batch_size)

    def event_handler(event):
        if isinstance(event, EndStepEvent):
            if event.step % 2 == 0:
                print(
                    "\nPass %d, Batch %d, Cost %f, Acc %f"
                    % (event.step, event.epoch, event.metrics[0], event.metrics[1])
                )
            else:
                sys.stdout.write(".")
                sys.stdout.flush()

        if isinstance(event, EndEpochEvent):
            avg_cost, accuracy = trainer.test(reader=test_reader, feed_order=["pixel", "label"])
            print(
                "\nTest with Pass {0}, Loss {1:2.2}, Acc {2:2.2}".format(
                    event.epoch, avg_cost, accuracy
                )
            )
            trainer.save_params(params_dirname)

    place = fluid.CUDAPlace(0) if use_cuda else fluid.CPUPlace()
    trainer = Trainer(train_func=train_network, optimizer_func=optimizer_program, place=place)
    trainer.train(
        reader=train_reader,
        num_epochs=2,
        event_handler=event_handler,
        feed_order=["pixel", "label"],
    )


def infer(network, use_cuda, params_dirname):
    place = fluid.CUDAPlace(0) if use_cuda else fluid.CPUPlace()
    inferencer = Inferencer(infer_func=network, param_path=params_dirname, place=place)
    img = numpy.random.rand(1, 3, 32, 32).astype("float32")
    results = inferencer.infer({"pixel": img})
    label_list = ["airplane", "automobile", "bird", "cat", "deer"]
    label_list += ["dog", "frog", "horse", "ship", "truck"]
    print("infer results: %s" % label_list[numpy.argmax(results[0])])


def main(net, use_cuda, params_dirname="image_classification.inference.model", batch_size=128):
    def inference_network():
        images = fluid.layers.data(name="pixel", shape=[3, 32, 32], dtype="float32")
        return net(images)

    train(inference_network, use_cuda, params_dirname, batch_size)
    infer(inference_network, use_cuda, params_dirname)


if __name__ == "__main__":
    main(resnet_cifar10, use_cuda=False)
