"""Chapter 6 of Fluid's book: whether a review is kind, by three networks."""

import math
import sys
from functools import partial

import penstock.fluid as fluid
from tests.fluid.book import paddle

CLASS_DIM = 2
EMB_DIM = 16
HID_DIM = 32
LSTM_SIZE = 16
STACKED_NUM = 3
BATCH_SIZE = 32

word_dict = paddle.dataset.imdb.word_dict()


def convolution_net(data, input_dim, class_dim, emb_dim, hid_dim):
    emb = fluid.layers.embedding(input=data, size=[input_dim, emb_dim], is_sparse=True)
    conv_3 = fluid.nets.sequence_conv_pool(
        input=emb, num_filters=hid_dim, filter_size=3, act="tanh", pool_type="sqrt"
    )
    conv_4 = fluid.nets.sequence_conv_pool(
        input=emb, num_filters=hid_dim, filter_size=4, act="tanh", pool_type="sqrt"
    )
    return fluid.layers.fc(input=[conv_3, conv_4], size=class_dim, act="softmax")


def dynamic_rnn_lstm(data, input_dim, class_dim, emb_dim, lstm_size):
    emb = fluid.layers.embedding(input=data, size=[input_dim, emb_dim], is_sparse=True)
    sentence = fluid.layers.fc(input=emb, size=lstm_size, act="tanh")

    rnn = fluid.layers.DynamicRNN()
    with rnn.block():
        word = rnn.step_input(sentence)
        prev_hidden = rnn.memory(value=0.0, shape=[lstm_size])
        prev_cell = rnn.memory(value=0.0, shape=[lstm_size])

        def gate_common(ipt, hidden, size):
            gate0 = fluid.layers.fc(input=ipt, size=size, bias_attr=True)
            gate1 = fluid.layers.fc(input=hidden, size=size, bias_attr=False)
            return gate0 + gate1

        forget_gate = fluid.layers.sigmoid(x=gate_common(word, prev_hidden, lstm_size))
        input_gate = fluid.layers.sigmoid(x=gate_common(word, prev_hidden, lstm_size))
        output_gate = fluid.layers.sigmoid(x=gate_common(word, prev_hidden, lstm_size))
        cell_gate = fluid.layers.sigmoid(x=gate_common(word, prev_hidden, lstm_size))

        cell = forget_gate * prev_cell + input_gate * cell_gate
        hidden = output_gate * fluid.layers.tanh(x=cell)
        rnn.update_memory(prev_cell, cell)
        rnn.update_memory(prev_hidden, hidden)
        rnn.output(hidden)

    last = fluid.layers.sequence_last_step(rnn())
    return fluid.layers.fc(input=last, size=class_dim, act="softmax")


def stacked_lstm_net(data, input_dim, class_dim, emb_dim, hid_dim, stacked_num):
    assert stacked_num % 2 == 1
    emb = fluid.layers.embedding(input=data, size=[input_dim, emb_dim], is_sparse=True)
    fc1 = fluid.layers.fc(input=emb, size=hid_dim)
    lstm1, cell1 = fluid.layers.dynamic_lstm(input=fc1, size=hid_dim)

    inputs = [fc1, lstm1]
    for i in range(2, stacked_num + 1):
        fc = fluid.layers.fc(input=inputs, size=hid_dim)
        lstm, cell = fluid.layers.dynamic_lstm(input=fc, size=hid_dim, is_reverse=(i % 2) == 0)
        inputs = [fc, lstm]

    fc_last = fluid.layers.sequence_pool(input=inputs[0], pool_type="max")
    lstm_last = fluid.layers.sequence_pool(input=inputs[1], pool_type="max")
    return fluid.layers.fc(input=[fc_last, lstm_last], size=class_dim, act="softmax")


def inference_program(word_dict, network):
    data = fluid.layers.data(name="words", shape=[1], dtype="int64", lod_level=1)
    dict_dim = len(word_dict)
    if network == "conv":
        return convolution_net(data, dict_dim, CLASS_DIM, EMB_DIM, HID_DIM)
    if network == "dynamic_rnn":
        return dynamic_rnn_lstm(data, dict_dim, CLASS_DIM, EMB_DIM, LSTM_SIZE)
    return stacked_lstm_net(data, dict_dim, CLASS_DIM, EMB_DIM, HID_DIM, STACKED_NUM)


def train_program(word_dict, network):
    prediction = inference_program(word_dict, network)
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    cost = fluid.layers.cross_entropy(input=prediction, label=label)
    avg_cost = fluid.layers.mean(cost)
    accuracy = fluid.layers.accuracy(input=prediction, label=label)
    return [avg_cost, accuracy]


def optimizer_func():
    return fluid.optimizer.Adagrad(learning_rate=0.1)


def train(use_cuda, network, params_dirname):
    place = fluid.CUDAPlace(0) if use_cuda else fluid.CPUPlace()
    train_reader = paddle.batch(
        paddle.reader.shuffle(paddle.dataset.imdb.train(word_dict), buf_size=25000),
        batch_size=BATCH_SIZE,
    )
    test_reader = paddle.batch(paddle.dataset.imdb.test(word_dict), batch_size=BATCH_SIZE)
    trainer = fluid.Trainer(
        train_func=partial(train_program, word_dict, network),
        place=place,
        optimizer_func=optimizer_func,
    )
    feed_order = ["words", "label"]

    def event_handler(event):
        if isinstance(event, fluid.EndEpochEvent):
            avg_cost, acc = trainer.test(reader=test_reader, feed_order=feed_order)
            print("Epoch {0}, Test Loss {1:0.4}, Acc {2:0.3}".format(event.epoch, avg_cost, acc))
            if acc > 0.9:
                trainer.save_params(params_dirname)
                trainer.stop()
        elif isinstance(event, fluid.EndStepEvent):
            if event.step % 5 == 0:
                print(
                    "Step {0}, Epoch {1} Metrics {2}".format(
                        event.step, event.epoch, [float(metric) for metric in event.metrics]
                    )
                )
            if math.isnan(event.metrics[0]):
                sys.exit("got NaN loss, training failed.")

    trainer.train(
        num_epochs=6, event_handler=event_handler, reader=train_reader, feed_order=feed_order
    )


def infer(use_cuda, network, params_dirname):
    place = fluid.CUDAPlace(0) if use_cuda else fluid.CPUPlace()
    inferencer = fluid.Inferencer(
        infer_func=partial(inference_program, word_dict, network),
        param_path=params_dirname,
        place=place,
    )
    reviews_str = ["word30 word25 word39", "word3 word1 word12 word8", "word22 word38"]
    reviews = [c.split() for c in reviews_str]
    UNK = 0
    lod = []
    for c in reviews:
        lod.append([word_dict.get(words, UNK) for words in c])
    base_shape = [[len(c) for c in lod]]
    tensor_words = fluid.create_lod_tensor(lod, base_shape, place)
    results = inferencer.infer({"words": tensor_words})
    for i, r in enumerate(results[0]):
        print(
            "Predict probability of ",
            r[0],
            " to be positive and ",
            r[1],
            " to be negative for review '",
            reviews_str[i],
            "'",
        )


def main(use_cuda, network, params_dirname="understand_sentiment.inference.model"):
    if use_cuda and not fluid.core.is_compiled_with_cuda():
        return
    train(use_cuda, network, params_dirname)
    infer(use_cuda, network, params_dirname)


if __name__ == "__main__":
    for network in ("conv", "dynamic_rnn", "stacked_lstm"):
        main(use_cuda=False, network=network)
