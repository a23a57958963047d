"""Chapter 8 of Fluid's book: translation by an encoder, a recurrent decoder and beam search.

Training is the released program. Decoding is not: there a While loop writes to arrays of tensors
and prunes beams by their levels; here it is one call of `layers.beam_decode`.
"""

from functools import partial

import numpy as np

import penstock.fluid as fluid
import penstock.fluid.layers as pd
from penstock import layers
from tests.fluid.book import paddle

dict_size = 12
source_dict_dim = target_dict_dim = dict_size
hidden_dim = 32
word_dim = 16
batch_size = 20
max_length = 8
topk_size = 12
beam_size = 2
start_id = 0
end_id = 1

decoder_size = hidden_dim


def encoder(is_sparse):
    src_word_id = pd.data(name="src_word_id", shape=[1], dtype="int64", lod_level=1)
    src_embedding = pd.embedding(
        input=src_word_id,
        size=[dict_size, word_dim],
        dtype="float32",
        is_sparse=is_sparse,
        param_attr=fluid.ParamAttr(name="vemb"),
    )
    fc1 = pd.fc(input=src_embedding, size=hidden_dim * 4, act="tanh")
    lstm_hidden0, lstm_0 = pd.dynamic_lstm(input=fc1, size=hidden_dim * 4)
    return pd.sequence_last_step(input=lstm_hidden0)


def train_decoder(context, is_sparse):
    trg_language_word = pd.data(name="target_language_word", shape=[1], dtype="int64", lod_level=1)
    trg_embedding = pd.embedding(
        input=trg_language_word,
        size=[dict_size, word_dim],
        dtype="float32",
        is_sparse=is_sparse,
        param_attr=fluid.ParamAttr(name="vemb"),
    )

    rnn = pd.DynamicRNN()
    with rnn.block():
        current_word = rnn.step_input(trg_embedding)
        pre_state = rnn.memory(init=context)
        current_state = pd.fc(input=[current_word, pre_state], size=decoder_size, act="tanh")
        current_score = pd.fc(input=current_state, size=target_dict_dim, act="softmax")
        rnn.update_memory(pre_state, current_state)
        rnn.output(current_score)
    return rnn()


def train_program(is_sparse):
    context = encoder(is_sparse)
    rnn_out = train_decoder(context, is_sparse)
    label = pd.data(name="target_language_next_word", shape=[1], dtype="int64", lod_level=1)
    cost = pd.cross_entropy(input=rnn_out, label=label)
    return pd.mean(cost)


def decode(context, is_sparse):
    # The layers come in the order of train_decoder, and so find its parameters.
    def step(words, pre_state):
        current_word = pd.embedding(
            input=words,
            size=[dict_size, word_dim],
            dtype="float32",
            is_sparse=is_sparse,
            param_attr=fluid.ParamAttr(name="vemb"),
        )
        current_state = pd.fc(input=[current_word, pre_state], size=decoder_size, act="tanh")
        current_score = pd.fc(input=current_state, size=target_dict_dim)
        return current_score, current_state

    init_ids = pd.data(name="init_ids", shape=[1], dtype="int64")
    translation = layers.beam_decode(
        step, context, init_ids, beam_size=beam_size, end_id=end_id, max_length=max_length
    )
    return translation.ids, translation.scores


def decode_program(is_sparse):
    return decode(encoder(is_sparse), is_sparse)


def optimizer_func():
    return fluid.optimizer.Adagrad(
        learning_rate=0.1,
        regularization=fluid.regularizer.L2DecayRegularizer(regularization_coeff=1e-4),
    )


def train(use_cuda, is_sparse, params_dirname):
    place = fluid.CUDAPlace(0) if use_cuda else fluid.CPUPlace()
    train_reader = paddle.batch(
        paddle.reader.shuffle(paddle.dataset.wmt14.train(dict_size), buf_size=1000),
        batch_size=batch_size,
    )
    feed_order = ["src_word_id", "target_language_word", "target_language_next_word"]

    def event_handler(event):
        if isinstance(event, fluid.EndStepEvent):
            if event.step % 10 == 0:
                print(
                    "pass_id=" + str(event.epoch) + " batch=" + str(event.step),
                    "cost=%f" % event.metrics[0],
                )
        elif isinstance(event, fluid.EndEpochEvent):
            trainer.save_params(params_dirname)

    trainer = fluid.Trainer(
        train_func=partial(train_program, is_sparse), place=place, optimizer_func=optimizer_func
    )
    trainer.train(
        reader=train_reader, num_epochs=8, event_handler=event_handler, feed_order=feed_order
    )


def decode_main(use_cuda, is_sparse, params_dirname):
    place = fluid.CUDAPlace(0) if use_cuda else fluid.CPUPlace()
    inferencer = fluid.Inferencer(
        partial(decode_program, is_sparse), param_path=params_dirname, place=place
    )
    [data] = list(paddle.batch(paddle.dataset.wmt14.test(dict_size), 4)())[:1]
    src_word_ids = [source for source, _, _ in data]
    src_word_data = fluid.create_lod_tensor(
        src_word_ids, [[len(source) for source in src_word_ids]], place
    )
    init_ids = np.full((len(data), 1), start_id, dtype="int64")
    result_ids, result_scores = inferencer.infer(
        {"src_word_id": src_word_data, "init_ids": init_ids}
    )
    for (_, _, wanted), ids, scores in zip(data, result_ids, result_scores, strict=True):
        print(
            "wanted:", wanted, "found:", ids[0].tolist()[: len(wanted)], "score: %.3f" % scores[0]
        )


def main(use_cuda, is_sparse, params_dirname="machine_translation.inference.model"):
    if use_cuda and not fluid.core.is_compiled_with_cuda():
        return
    train(use_cuda, is_sparse, params_dirname)
    decode_main(use_cuda, is_sparse, params_dirname)


if __name__ == "__main__":
    main(use_cuda=False, is_sparse=True)
