"""What devices tell each other in a step: of gradients a message, of each batch norm two."""

import jax
import optax
import pytest

import penstock as ps
from penstock import layers


def classify(hidden):
    prediction = layers.fc(hidden, 3, act="softmax")
    label = layers.data("y", [1], "int32")
    loss = layers.mean(layers.cross_entropy(prediction, label))
    return loss, layers.accuracy(prediction, label)


def perceptron():
    hidden = layers.fc(layers.data("x", [36]), 8, act="tanh")
    return classify(layers.dropout(hidden, 0.3))


def conv_net(num_norms, group_size=None):
    hidden = layers.data("x", [12, 12, 1])
    for number in range(2):
        hidden = layers.conv2d(hidden, num_filters=4, filter_size=3)
        if number < num_norms:
            hidden = layers.batch_norm(hidden, act="relu", group_size=group_size)
    return classify(layers.pool2d(hidden, 2, pool_stride=2))


def tagger():
    words = layers.data("x", [1], "int32", lod_level=1)
    hidden = layers.fc(layers.embedding(words, [20, 4]), 16)
    return classify(layers.sequence_pool(layers.dynamic_lstm(hidden, 16)[0], "max"))


@pytest.mark.quick("norms short", "groups")
@pytest.mark.parametrize(
    ("program", "batch_size", "expected"),
    [
        (perceptron, 64, 1),
        (perceptron, 61, 1),
        (lambda: conv_net(0), 64, 1),
        (lambda: conv_net(1), 64, 3),
        (lambda: conv_net(2), 64, 5),
        (lambda: conv_net(2), 61, 5),
        (lambda: conv_net(2, 8), 64, 1),
        # The loop over 16 words has one in each turn.
        (tagger, 64, 17),
    ],
    ids=["mlp", "mlp short", "conv", "norm", "norms", "norms short", "groups", "lstm"],
)
def test_step_has_a_message_for_gradients_and_two_for_each_batch_norm(
    program, batch_size, expected
):
    builder = ps.ProgramBuilder(program, optax.sgd(0.1, momentum=0.9), place=jax.devices()[:8])
    (found,) = ps.plan(builder, batch_size=batch_size).collectives
    assert found.kind == "all-reduce"
    assert found.number <= expected
