"""Chapter 7 of Fluid's book: who does what to whom, by a deep LSTM and a random field."""

import numpy as np

import penstock.fluid as fluid
from tests.fluid.book import paddle

WORD_DICT, VERB_DICT, LABEL_DICT = paddle.dataset.conll05.get_dict()
WORD_DICT_LEN = len(WORD_DICT)
LABEL_DICT_LEN = len(LABEL_DICT)
PRED_DICT_LEN = len(VERB_DICT)
MARK_DICT_LEN = 2
IS_SPARSE = True
BATCH_SIZE = 10

word_dim = 8
mark_dim = 5
hidden_dim = 32
depth = 8
mix_hidden_lr = 1e-3
embedding_name = "emb"


def embed_features():
    # 8 features
    word = fluid.layers.data(name="word_data", shape=[1], dtype="int64", lod_level=1)
    predicate = fluid.layers.data(name="verb_data", shape=[1], dtype="int64", lod_level=1)
    ctx_n2 = fluid.layers.data(name="ctx_n2_data", shape=[1], dtype="int64", lod_level=1)
    ctx_n1 = fluid.layers.data(name="ctx_n1_data", shape=[1], dtype="int64", lod_level=1)
    ctx_0 = fluid.layers.data(name="ctx_0_data", shape=[1], dtype="int64", lod_level=1)
    ctx_p1 = fluid.layers.data(name="ctx_p1_data", shape=[1], dtype="int64", lod_level=1)
    ctx_p2 = fluid.layers.data(name="ctx_p2_data", shape=[1], dtype="int64", lod_level=1)
    mark = fluid.layers.data(name="mark_data", shape=[1], dtype="int64", lod_level=1)

    predicate_embedding = fluid.layers.embedding(
        input=predicate,
        size=[PRED_DICT_LEN, word_dim],
        dtype="float32",
        is_sparse=IS_SPARSE,
        param_attr="vemb",
    )
    mark_embedding = fluid.layers.embedding(
        input=mark, size=[MARK_DICT_LEN, mark_dim], dtype="float32", is_sparse=IS_SPARSE
    )
    word_input = [word, ctx_n2, ctx_n1, ctx_0, ctx_p1, ctx_p2]
    emb_layers = [
        fluid.layers.embedding(
            size=[WORD_DICT_LEN, word_dim], input=x, param_attr=fluid.ParamAttr(name=embedding_name)
        )
        for x in word_input
    ]
    emb_layers.append(predicate_embedding)
    emb_layers.append(mark_embedding)
    return emb_layers


def lstm_net():
    emb_layers = embed_features()
    hidden_0_layers = [
        fluid.layers.fc(input=emb, size=hidden_dim, act="tanh") for emb in emb_layers
    ]
    hidden_0 = fluid.layers.sums(input=hidden_0_layers)
    lstm_0 = fluid.layers.dynamic_lstm(
        input=hidden_0,
        size=hidden_dim,
        candidate_activation="relu",
        gate_activation="sigmoid",
        cell_activation="sigmoid",
    )

    # stack L-LSTM and R-LSTM with direct edges
    input_tmp = [hidden_0, lstm_0]
    for i in range(1, depth):
        mix_hidden = fluid.layers.sums(
            input=[
                fluid.layers.fc(input=input_tmp[0], size=hidden_dim, act="tanh"),
                fluid.layers.fc(input=input_tmp[1], size=hidden_dim, act="tanh"),
            ]
        )
        lstm = fluid.layers.dynamic_lstm(
            input=mix_hidden,
            size=hidden_dim,
            candidate_activation="relu",
            gate_activation="sigmoid",
            cell_activation="sigmoid",
            is_reverse=((i % 2) == 1),
        )
        input_tmp = [mix_hidden, lstm]

    return fluid.layers.sums(
        input=[
            fluid.layers.fc(input=input_tmp[0], size=LABEL_DICT_LEN, act="tanh"),
            fluid.layers.fc(input=input_tmp[1], size=LABEL_DICT_LEN, act="tanh"),
        ]
    )


def inference_program():
    predict = lstm_net()
    return fluid.layers.crf_decoding(input=predict, param_attr=fluid.ParamAttr(name="crfw"))


def train_program():
    predict = lstm_net()
    target = fluid.layers.data(name="target", shape=[1], dtype="int64", lod_level=1)
    crf_cost = fluid.layers.linear_chain_crf(
        input=predict,
        label=target,
        param_attr=fluid.ParamAttr(name="crfw", learning_rate=mix_hidden_lr),
    )
    avg_cost = fluid.layers.mean(crf_cost)
    return [avg_cost]


def optimizer_func():
    return fluid.optimizer.SGD(
        learning_rate=fluid.layers.exponential_decay(
            learning_rate=0.01, decay_steps=100000, decay_rate=0.5, staircase=True
        )
    )


feed_order = [
    "word_data",
    "ctx_n2_data",
    "ctx_n1_data",
    "ctx_0_data",
    "ctx_p1_data",
    "ctx_p2_data",
    "verb_data",
    "mark_data",
    "target",
]


def train(use_cuda, train_program, params_dirname):
    place = fluid.CUDAPlace(0) if use_cuda else fluid.CPUPlace()
    trainer = fluid.Trainer(train_func=train_program, place=place, optimizer_func=optimizer_func)

    def event_handler(event):
        if isinstance(event, fluid.EndEpochEvent):
            test_reader = paddle.batch(paddle.dataset.conll05.test(), batch_size=BATCH_SIZE)
            avg_cost_set = trainer.test(reader=test_reader, feed_order=feed_order)
            # get avg cost
            avg_cost = np.array(avg_cost_set).mean()
            print("avg_cost: %s" % avg_cost)
            trainer.save_params(params_dirname)
        elif isinstance(event, fluid.EndStepEvent) and event.step % 5 == 0:
            print(
                "Step {0}, Epoch {1} Cost {2:f}".format(event.step, event.epoch, event.metrics[0])
            )

    train_reader = paddle.batch(
        paddle.reader.shuffle(paddle.dataset.conll05.test(), buf_size=8192), batch_size=BATCH_SIZE
    )
    trainer.train(
        num_epochs=3, event_handler=event_handler, reader=train_reader, feed_order=feed_order
    )


def infer(use_cuda, inference_program, params_dirname):
    place = fluid.CUDAPlace(0) if use_cuda else fluid.CPUPlace()
    inferencer = fluid.Inferencer(inference_program, param_path=params_dirname, place=place)

    lod = [[3, 4, 2]]
    base_shape = [1]
    # Ids are random, from 0 to high.
    high = {"verb_data": PRED_DICT_LEN - 1, "mark_data": MARK_DICT_LEN - 1}
    feed = {
        name: fluid.create_random_int_lodtensor(
            lod, base_shape, place, low=0, high=high.get(name, WORD_DICT_LEN - 1)
        )
        for name in feed_order[:-1]
    }
    results = inferencer.infer(feed, return_numpy=False)
    print("infer results: ", np.array(results[0]).shape, results[0].recursive_sequence_lengths())


def main(use_cuda, params_dirname="label_semantic_roles.inference.model"):
    if use_cuda and not fluid.core.is_compiled_with_cuda():
        return
    train(use_cuda, train_program, params_dirname)
    infer(use_cuda, inference_program, params_dirname)


if __name__ == "__main__":
    main(use_cuda=False)
