"""Inputs as Fluid declares them."""

import numpy as np
import pytest

import penstock as ps
import penstock.fluid as fluid
from tests.layers.programs import infer, initial


@pytest.mark.parametrize(
    "options",
    [
        {"shape": [2]},
        {"shape": [-1, 2], "append_batch_size": False},
        {"shape": [-1, 2]},
        {"shape": (None, 2)},
        {"shape": [2], "dtype": "float32", "lod_level": 0, "stop_gradient": False},
    ],
)
def test_batch_axis_is_in_front_however_it_is_declared(options):
    def program():
        return fluid.layers.data(name="x", **options)

    assert infer(program, {"x": np.ones([3, 2], "float32")}).shape == (3, 2)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (("x", [1], "int64"), {}, TypeError, "append_batch_size='int64'.*Pass dtype by name"),
        (("x", [1]), {"lod_level": 3}, ps.ProgramError, "lod_level=3, expected one of 0, 1, 2"),
        (("x", [4, 1], False), {}, ps.ProgramError, "append_batch_size=False, expected -1 as"),
        (("x", [4, -1]), {}, ps.ProgramError, "expected a sequence of positive sizes"),
    ],
)
def test_other_declarations_are_refused(arguments, options, error, message):
    def program():
        return fluid.layers.data(*arguments, **options)

    with pytest.raises(error, match=message):
        ps.ProgramBuilder(infer_func=program)


def test_embedding_takes_fluids_arguments():
    def program():
        word = fluid.layers.data(name="word", shape=[1], dtype="int64")
        return fluid.layers.embedding(word, [9, 4], True, False, 0, "table", "float32")

    assert initial(program)["params"]["table"].shape == (9, 4)
    assert not infer(program, {"word": [[0]]}).any()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([9, 4], False, 0), TypeError, "is_distributed=0.*Pass padding_idx by its name"),
        (([9, 4], False, False, None, None, "float64"), ps.ProgramError, "dtype='float64'"),
    ],
)
def test_other_embeddings_are_refused(arguments, error, message):
    def program():
        word = fluid.layers.data(name="word", shape=[1], dtype="int64")
        return fluid.layers.embedding(word, *arguments)

    with pytest.raises(error, match=message):
        ps.ProgramBuilder(infer_func=program)
