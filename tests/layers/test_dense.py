"""Fully connected layers and embeddings against numpy."""

import numpy as np
import pytest

from penstock import layers
from penstock._errors import ProgramError
from tests.layers.programs import infer, initial, normal, train


@pytest.mark.parametrize(("num_flatten_dims", "shape"), [(1, (3, 5)), (2, (3, 2, 5))])
def test_fc_flattens_the_axes_behind_and_keeps_those_in_front(num_flatten_dims, shape):
    x = normal(3, 2, 4)

    def function():
        return layers.fc(layers.data("x", [2, 4]), 5, num_flatten_dims, name="out", act="tanh")

    variables = initial(function)
    params = variables["params"]["out"]
    params["b"] = normal(5, seed=1)
    rows = x.reshape(*shape[:-1], -1)
    expected = np.tanh(rows @ params["w"] + params["b"])
    np.testing.assert_allclose(infer(function, {"x": x}, variables), expected, rtol=1e-5)


def test_fc_of_several_inputs_sums_their_products_and_adds_one_bias():
    a, b = normal(3, 4), normal(3, 2, 3, seed=1)

    def function():
        inputs = [layers.data("a", [4]), layers.data("b", [2, 3])]
        return layers.fc(inputs, 5, param_attr=["shared", None], name="out")

    variables = initial(function)
    params = variables["params"]
    assert sorted(params) == ["out", "shared"]
    assert sorted(params["out"]) == ["b", "w_1"]
    expected = a @ params["shared"] + b.reshape(3, 6) @ params["out"]["w_1"]
    np.testing.assert_allclose(
        infer(function, {"a": a, "b": b}, variables), expected, rtol=1e-5, atol=1e-6
    )


def test_fc_starts_with_xavier_weights_and_no_bias():
    params = initial(lambda: layers.fc(layers.data("x", [300]), 200))["params"]["fc_0"]
    limit = np.sqrt(6 / 500)
    assert limit * 0.99 < np.abs(params["w"]).max() <= limit
    assert np.std(params["w"]) == pytest.approx(limit / np.sqrt(3), rel=0.02)
    assert not params["b"].any()


def test_fc_without_bias_has_none():
    params = initial(lambda: layers.fc(layers.data("x", [3]), 2, bias_attr=False))["params"]
    assert list(params["fc_0"]) == ["w"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: layers.fc(x, 5, num_flatten_dims=2), r"shape \[B, 4\] and num_flatten_dims=2"),
        (lambda x: layers.fc([], 5), r"got 0 inputs"),
        (lambda x: layers.fc([x, x], 5, param_attr=[None]), r"got 2 inputs and 1 param_attr"),
        (lambda x: layers.fc(x, 5, param_attr=3), r"layers.fc got param_attr=3, expected a Param"),
        (lambda x: layers.fc(x, 0), r"'fc_0/w' got shape \(4, 0\), expected positive integers"),
    ],
)
def test_fc_with_a_wrong_argument_says_what_it_expects(call, message):
    with pytest.raises(ProgramError, match=message):
        initial(lambda: call(layers.data("x", [4])))


@pytest.mark.parametrize("shape", [[1], [6], [6, 1]])
def test_embedding_gives_a_row_for_each_id(shape):
    ids = np.random.default_rng(0).integers(0, 9, (3, *shape)).astype(np.int32)

    def function():
        return layers.embedding(layers.data("x", shape, "int32"), [9, 4])

    variables = initial(function)
    table = variables["params"]["embedding_0"]["w"]
    expected = table[ids[..., 0]] if shape[-1] == 1 else table[ids]
    np.testing.assert_array_equal(infer(function, {"x": ids}, variables), expected)


@pytest.mark.parametrize("padding_idx", [2, -7])
def test_embedding_of_the_padding_is_zero_and_learns_nothing(padding_idx):
    def function():
        rows = layers.embedding(layers.data("x", [1], "int32"), [9, 4], padding_idx, name="e")
        return layers.mean(rows), rows

    step = train(function, {"x": np.array([[1], [2], [1]], np.int32)})
    assert not step.values[1][1].any()
    learns = step.gradients["e"]["w"].any(axis=1)
    assert learns.tolist() == [False, True] + [False] * 7


@pytest.mark.parametrize("wrong", [-1, 9])
def test_embedding_of_an_id_outside_the_table_is_nan(wrong):
    rows = infer(
        lambda: layers.embedding(layers.data("x", [1], "int32"), [9, 4]), {"x": [[wrong], [3]]}
    )
    assert np.isnan(rows).all(axis=1).tolist() == [True, False]


def test_embedding_of_fractions_asks_for_integers():
    with pytest.raises(ProgramError, match=r"ids of dtype float32, expected integers"):
        initial(lambda: layers.embedding(layers.data("x", [1]), [9, 4]))
