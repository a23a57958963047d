"""Layers of sequences at their edges, and in programs with feeds of any length.

What each gives of an example is compared with its formula in test_alone.py.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from penstock import fluid, layers
from penstock._errors import ProgramError
from penstock._program.sequences import Sequence
from tests.layers.programs import initial, normal


def test_nan_among_words_is_their_maximum_and_nan_behind_them_is_not():
    values = np.zeros([4, 5], np.float32)
    values[[0, 1, 2], [0, 1, 2]] = np.nan
    values[3] = np.nan
    words = Sequence(jnp.asarray(values), jnp.asarray([3, 3, 3, 0]))
    maxima = jax.jit(lambda: layers.sequence_pool(words, "max"))()
    np.testing.assert_array_equal(maxima, [np.nan, np.nan, np.nan, 0])


def test_maximum_of_booleans_is_whether_any_word_is_true():
    values = jnp.asarray([[False, True, False], [False, False, True], [True, True, True]])
    words = Sequence(values, jnp.asarray([3, 2, 0]))
    maxima = jax.jit(lambda: layers.sequence_pool(words, "max"))()
    np.testing.assert_array_equal(maxima, [True, False, False])


def test_integers_are_pooled_as_integers_and_bfloat16_in_float32():
    @jax.jit
    def run():
        whole = Sequence(jnp.asarray([[-3, -2, 9], [9, 9, 9]]), jnp.asarray([2, 0]))
        halves = Sequence(jnp.ones([1, 1000, 1], jnp.bfloat16), jnp.asarray([1000]))
        kinds = ("max", "sum", "average", "sqrt")
        pooled = [{k: layers.sequence_pool(x, k) for k in kinds} for x in (whole, halves)]
        return *pooled, layers.sequence_softmax(halves).values

    whole, halves, weights = run()
    assert whole["max"].tolist() == [-2, 0]
    assert whole["sum"].tolist() == [-5, 0]
    assert whole["average"].tolist() == [-2.5, 0]
    assert {str(x.dtype) for x in (*halves.values(), weights)} == {"bfloat16"}
    assert halves["average"].item() == 1
    assert abs(np.asarray(weights, np.float32).sum() - 1) < 1e-2


def test_softmax_of_large_scores_is_finite():
    scores = Sequence(jnp.asarray([[1e30, 1e30, -1e30]]), jnp.asarray([3]))
    probabilities = jax.jit(lambda: layers.sequence_softmax(scores).values)()
    assert probabilities.tolist() == [[0.5, 0.5, 0]]


@pytest.mark.parametrize("padding", [0, 1, ((0, 1), (2, 0))])
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_windows_of_images_are_cut_row_by_row(data_format, padding):
    image = normal(2, 5, 6, 3)
    batch = image if data_format == "NHWC" else image.transpose(0, 3, 1, 2)
    windows = functools.partial(layers.im2sequence, data_format=data_format)
    words = jax.jit(lambda x: windows(x, (2, 3), (1, 2), padding))(batch)
    sides = padding if isinstance(padding, tuple) else [(padding, padding)] * 2
    padded = np.pad(image, [(0, 0), *sides, (0, 0)])
    for number, actual in enumerate(words.cut()):
        expected = [
            padded[number, i : i + 2, j : j + 3]
            for i in range(0, padded.shape[1] - 1, 1)
            for j in range(0, padded.shape[2] - 2, 2)
        ]
        if data_format == "NCHW":
            expected = [window.transpose(2, 0, 1) for window in expected]
        np.testing.assert_array_equal(actual, [window.ravel() for window in expected])


def test_fluids_images_become_channels_first_windows():
    image = normal(2, 3, 4, 5)
    words = fluid.layers.im2sequence(image, filter_size=[2, 2], stride=2, padding=[0, 1, 1, 0])
    padded = np.pad(image, [(0, 0), (0, 0), (0, 1), (1, 0)])
    expected = [
        padded[:, :, i : i + 2, j : j + 2].reshape(2, -1) for i in (0, 2) for j in (0, 2, 4)
    ]
    np.testing.assert_array_equal(words.values, np.stack(expected, 1))
    with pytest.raises(ProgramError, match=r"out_stride=2 and an input_image_size of NoneType"):
        fluid.layers.im2sequence(image, out_stride=2)
    scores = Sequence(jnp.zeros([1, 2]), jnp.asarray([2]))
    assert fluid.layers.sequence_softmax(scores, False, "name").values.tolist() == [[0.5, 0.5]]


THREE = Sequence(jnp.ones([3, 4, 2]), jnp.asarray([4, 1, 0]))


def test_example_that_does_not_fit_becomes_nan():
    @jax.jit
    def run():
        one_more, offset = jnp.asarray([4, 2, 0]), jnp.asarray([1, 1, 0])
        outs = {
            "reshape": layers.sequence_reshape(THREE, 4),
            "pad": layers.sequence_pad(THREE, 0.0, maxlen=3)[0],
            "unpad": layers.sequence_unpad(THREE.values, jnp.asarray([5, -1, 4])),
            "reset": layers.lod_reset(THREE, one_more),
            "slice": layers.sequence_slice(THREE, offset, jnp.asarray([3, 1, 0])),
            "expand": layers.sequence_expand(THREE, THREE),
        }
        values = {k: out.values if isinstance(out, Sequence) else out for k, out in outs.items()}
        return {k: jnp.isnan(v).reshape(3, -1).any(1) for k, v in values.items()}

    assert {name: is_nan.tolist() for name, is_nan in run().items()} == {
        "reshape": [False, True, False],
        "pad": [True, False, False],
        "unpad": [True, True, False],
        "reset": [False, True, False],
        "slice": [False, True, False],
        "expand": [True, False, False],
    }


def test_parameters_are_shared_by_name_and_left_out_on_demand():
    def program():
        words = layers.data("words", [4], lod_level=1)
        twice = [layers.sequence_conv(words, 2, name="same") for _ in range(2)]
        row = layers.row_conv(words, 1, param_attr="table")
        bare = layers.sequence_conv(words, 2, padding=None, bias_attr=False)
        return [layers.sequence_pool(sequence, "sum") for sequence in (*twice, row, bare)]

    shapes = jax.tree.map(
        np.shape, initial(program)["params"], is_leaf=lambda x: hasattr(x, "ndim")
    )
    assert shapes == {
        "same": {"w": (12, 2), "b": (2,)},
        "table": (2, 4),
        "sequence_conv_0": {"w": (12, 2)},
    }
