"""Chapter 4 of Fluid's book: the next word, and vectors of words, from the four before it."""

import math
import sys
from functools import partial

import numpy

import penstock.fluid as fluid
from penstock.fluid.contrib.inferencer import Inferencer
from penstock.fluid.contrib.trainer import EndStepEvent, Trainer
from tests.fluid.book import paddle

EMBED_SIZE = 32
HIDDEN_SIZE = 256
N = 5
BATCH_SIZE = 100

word_dict = paddle.dataset.imikolov.build_dict()
dict_size = len(word_dict)


def inference_program(is_sparse):
    def embed(name):
        word = fluid.layers.data(name=name, shape=[1], dtype="int64")
        return fluid.layers.embedding(
            input=word,
            size=[dict_size, EMBED_SIZE],
            dtype="float32",
            is_sparse=is_sparse,
            param_attr="shared_w",
        )

    words = [embed(name) for name in ("firstw", "secondw", "thirdw", "fourthw")]
    concat_embed = fluid.layers.concat(input=words, axis=1)
    hidden1 = fluid.layers.fc(input=concat_embed, size=HIDDEN_SIZE, act="sigmoid")
    return fluid.layers.fc(input=hidden1, size=dict_size, act="softmax")


def train_program(is_sparse):
    predict_word = inference_program(is_sparse)
    next_word = fluid.layers.data(name="nextw", shape=[1], dtype="int64")
    cost = fluid.layers.cross_entropy(input=predict_word, label=next_word)
    return fluid.layers.mean(cost)


def optimizer_func():
    return fluid.optimizer.AdagradOptimizer(
        learning_rate=3e-3, regularization=fluid.regularizer.L2DecayRegularizer(8e-4)
    )


def train(use_cuda, train_program, params_dirname):
    train_reader = paddle.batch(paddle.dataset.imikolov.train(word_dict, N), BATCH_SIZE)
    test_reader = paddle.batch(paddle.dataset.imikolov.test(word_dict, N), BATCH_SIZE)
    place = fluid.CUDAPlace(0) if use_cuda else fluid.CPUPlace()
    feed_order = ["firstw", "secondw", "thirdw", "fourthw", "nextw"]

    def event_handler(event):
        if isinstance(event, EndStepEvent):
            outs = trainer.test(reader=test_reader, feed_order=feed_order)
            avg_cost = outs[0]
            if event.step % 10 == 0:
                print("Step %d: Average Cost %f" % (event.step, avg_cost))
            if avg_cost < 3.3:
                trainer.save_params(params_dirname)
                trainer.stop()
            if math.isnan(avg_cost):
                sys.exit("got NaN loss, training failed.")

    trainer = Trainer(train_func=train_program, optimizer_func=optimizer_func, place=place)
    trainer.train(
        reader=train_reader, num_epochs=10, event_handler=event_handler, feed_order=feed_order
    )


def infer(use_cuda, inference_program, params_dirname):
    place = fluid.CUDAPlace(0) if use_cuda else fluid.CPUPlace()
    inferencer = Inferencer(infer_func=inference_program, param_path=params_dirname, place=place)
    lod = [[1]]
    result = inferencer.infer(
        {
            "firstw": fluid.create_lod_tensor([[11]], lod, place),
            "secondw": fluid.create_lod_tensor([[12]], lod, place),
            "thirdw": fluid.create_lod_tensor([[13]], lod, place),
            "fourthw": fluid.create_lod_tensor([[14]], lod, place),
        },
        return_numpy=False,
    )
    print(numpy.array(result[0]).shape)
    most_possible_word_index = numpy.argmax(result[0])
    words = [key for key, value in word_dict.items() if value == most_possible_word_index]
    print("the next word: %s" % words[0])


def main(use_cuda, is_sparse, params_dirname="word2vec.inference.model"):
    if use_cuda and not fluid.core.is_compiled_with_cuda():
        return
    train(use_cuda, partial(train_program, is_sparse), params_dirname)
    infer(use_cuda, partial(inference_program, is_sparse), params_dirname)


if __name__ == "__main__":
    main(use_cuda=False, is_sparse=True)
