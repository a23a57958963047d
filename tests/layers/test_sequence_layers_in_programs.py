"""Layers of sequences in programs, with feeds of any length; and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import fluid, layers
from penstock._errors import ProgramError
from penstock._program.sequences import Sequence
from tests.layers.programs import infer, initial, normal

WORDS = [normal(n, 4, seed=n) for n in (5, 1, 0, 7, 2, 6)]
LABELS = np.arange(6, dtype=np.int32)[:, None] % 3


def predict(buckets=()):
    """Use most layers: windows, softmax over words, what moves words, and every pooling."""
    words = layers.data("words", [4], lod_level=1, buckets=buckets)
    features = layers.sequence_conv(words, 4, act="tanh")
    scores = features.map(lambda rows: layers.fc(rows, 1))
    weights = layers.sequence_softmax(scores)
    mixed = layers.sequence_pool(features * weights, "sum")
    spread = layers.sequence_expand(mixed, words) * features
    backward = layers.row_conv(layers.sequence_reverse(spread), 2, act="relu")
    joined = layers.sequence_concat([words, backward])
    halves = layers.sequence_reshape(joined, 2)
    pooled = [
        layers.sequence_pool(joined, kind)
        for kind in ("sum", "average", "sqrt", "max", "last", "first")
    ]
    return layers.fc(
        [*pooled, layers.sequence_pool(halves, "max"), layers.sequence_conv_pool(joined, 5, 3)],
        3,
        act="softmax",
    )


def program():
    prediction = predict()
    label = layers.data("label", [1], "int32")
    return layers.mean(layers.cross_entropy(prediction, label)), prediction


@pytest.mark.quick("3")
@pytest.mark.parametrize("num_devices", [1, 3])
def test_program_gives_each_example_what_it_gives_alone(num_devices):
    place = jax.devices()[:num_devices]
    builder = ps.ProgramBuilder(program, optax.sgd(0.5), infer_func=predict, place=place)
    state = builder.init()
    feed = {"words": WORDS, "label": LABELS}
    loss, prediction = builder.test(state, feed)
    alone = [builder.infer(state, {"words": [row]})[0] for row in WORDS]
    np.testing.assert_allclose(prediction, alone, atol=1e-5)
    expected = -np.log(np.asarray(alone)[np.arange(6), LABELS[:, 0]]).mean()
    np.testing.assert_allclose(loss, expected, atol=1e-5)
    state, _ = builder.train(state, feed)
    assert builder.test(state, feed)[0] < loss


@pytest.mark.slow
def test_program_gives_the_same_in_other_buckets():
    variables = initial(predict)
    expected = infer(predict, {"words": WORDS}, variables)
    for buckets in ([7], [9, 40]):
        actual = infer(lambda buckets=buckets: predict(buckets), {"words": WORDS}, variables)
        np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_bfloat16_program_is_near_that_of_float32():
    def pooled():
        words = layers.data("words", [4], lod_level=1)
        features = layers.row_conv(layers.sequence_conv(words, 4, act="tanh"), 1)
        return layers.sequence_pool(features, "average")

    builder = ps.ProgramBuilder(infer_func=pooled, precision="bfloat16", place=jax.devices()[:1])
    state = builder.init()
    narrow = builder.infer(state, {"words": WORDS})
    wide = infer(pooled, {"words": WORDS}, state)
    np.testing.assert_allclose(np.asarray(narrow, np.float32), wide, atol=0.05)


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
TWO = Sequence(jnp.ones([2, 4, 2]), jnp.asarray([4, 1]))
NUMBERS = Sequence(jnp.ones([3, 4]), jnp.asarray([4, 1, 0]))


@pytest.mark.parametrize(
    ("call", "is_nan"),
    [
        (lambda: layers.sequence_reshape(THREE, 4), [False, True, False]),
        (lambda: layers.sequence_pad(THREE, 0.0, maxlen=3)[0], [True, False, False]),
        (lambda: layers.sequence_unpad(THREE.values, jnp.asarray([5, -1, 4])), [True, True, False]),
        (lambda: layers.lod_reset(THREE, jnp.asarray([4, 2, 0])), [False, True, False]),
        (
            lambda: layers.sequence_slice(THREE, jnp.asarray([1, 1, 0]), jnp.asarray([3, 1, 0])),
            [False, True, False],
        ),
        (lambda: layers.sequence_expand(THREE, THREE), [True, False, False]),
    ],
    ids=["reshape", "pad", "unpad", "reset", "slice", "expand"],
)
def test_example_that_does_not_fit_becomes_nan(call, is_nan):
    out = call()
    values = out.values if isinstance(out, Sequence) else out
    assert np.isnan(values.reshape(3, -1)).any(1).tolist() == is_nan


ERRORS = {
    "pool of an array": (
        lambda: layers.sequence_pool(THREE.values, "sum"),
        r"sequence_pool got an array of shape \(3, 4, 2\) as input, expected a Sequence\.",
    ),
    "pool of a kind": (
        lambda: layers.sequence_pool(THREE, "avg"),
        r"sequence_pool got pool_type='avg', expected one of 'sum', 'average'",
    ),
    "last step of a number": (
        lambda: layers.sequence_last_step(1.0),
        r"sequence_last_step got a float as input, expected a Sequence",
    ),
    "softmax of vectors": (
        lambda: layers.sequence_softmax(THREE),
        r"sequence_softmax got a Sequence of values \(3, 4, 2\), expected \[B, T, 1\] or \[B, T\]",
    ),
    "expand by a level": (
        lambda: layers.sequence_expand(THREE, THREE, ref_level=1),
        r"sequence_expand got ref_level=1, expected 0 or -1",
    ),
    "expand another batch": (
        lambda: layers.sequence_expand(TWO.values, THREE),
        r"sequence_expand got x of shape \(2, 4, 2\) for 3 examples of y, expected as many",
    ),
    "concat other widths": (
        lambda: layers.sequence_concat([THREE, NUMBERS]),
        r"sequence_concat got Sequences of values \[\(3, 4, 2\), \(3, 4\)\], expected at least one",
    ),
    "concat nothing": (lambda: layers.sequence_concat([]), r"expected at least one, all of one"),
    "reshape to nothing": (
        lambda: layers.sequence_reshape(THREE, 0),
        r"sequence_reshape got new_dim=0, expected 1 or more",
    ),
    "reshape numbers": (
        lambda: layers.sequence_reshape(NUMBERS, 2),
        r"sequence_reshape got a Sequence of values \(3, 4\), expected \[B, T, D\]",
    ),
    "mask without maxlen": (
        lambda: layers.sequence_mask(THREE.lengths),
        r"sequence_mask got lengths of dtype int32 and maxlen=None, expected integers and a maxlen",
    ),
    "pad with a vector": (
        lambda: layers.sequence_pad(THREE, jnp.zeros(3)),
        r"sequence_pad got pad_value of shape \(3,\) and maxlen=None for words of shape \(2,\)",
    ),
    "unpad without time": (
        lambda: layers.sequence_unpad(THREE.lengths, THREE.lengths),
        r"sequence_unpad got an array of shape \(3,\), expected \[B, T, ...\]",
    ),
    "unpad by other lengths": (
        lambda: layers.sequence_unpad(THREE.values, TWO.lengths),
        r"sequence_unpad got length of shape \(2,\) and dtype int32, expected integers of shape "
        r"\(3,\) or \(3, 1\)",
    ),
    "reset by offsets": (
        lambda: layers.lod_reset(THREE, target_lod=[0, 2, 5]),
        r"lod_reset got target_lod=\[0, 2, 5\] and no y, expected y alone. Offsets fix the number",
    ),
    "reset by floats": (
        lambda: layers.lod_reset(THREE, jnp.zeros(3)),
        r"lod_reset got lengths in y of shape \(3,\) and dtype float32, expected integers",
    ),
    "enumerate nothing": (
        lambda: layers.sequence_enumerate(NUMBERS, 0),
        r"sequence_enumerate got win_size=0 and a Sequence of values \(3, 4\), expected 1 or more",
    ),
    "conv with strides": (
        lambda: layers.sequence_conv(THREE, 2, 3, 2),
        r"sequence_conv got filter_size=3, filter_stride=2 and padding=True, expected",
    ),
    "conv of ids": (
        lambda: layers.sequence_conv(NUMBERS, 2),
        r"sequence_conv got a Sequence of values \(3, 4\), expected \[B, T, D\].*embedding",
    ),
    "row_conv into the past": (
        lambda: layers.row_conv(THREE, -1),
        r"row_conv got future_context_size=-1, expected 0 or more",
    ),
    "windows of words": (
        lambda: layers.im2sequence(THREE.values),
        r"im2sequence got an input of shape \(3, 4, 2\), expected \[B, H, W, C\]",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_does_not_fit_is_told(name):
    call, message = ERRORS[name]
    with pytest.raises(ProgramError, match=message):
        initial(call)


def test_parameters_are_shared_by_name_and_left_out_on_demand():
    def program():
        words = layers.data("words", [4], lod_level=1)
        twice = [layers.sequence_conv(words, 2, name="same") for _ in range(2)]
        row = layers.row_conv(words, 1, param_attr="table")
        bare = layers.sequence_conv(words, 2, padding=None, bias_attr=False)
        return [layers.sequence_pool(each, "sum") for each in (*twice, row, bare)]

    shapes = jax.tree.map(
        np.shape, initial(program)["params"], is_leaf=lambda x: hasattr(x, "ndim")
    )
    assert shapes == {
        "same": {"w": (12, 2), "b": (2,)},
        "table": (2, 4),
        "sequence_conv_0": {"w": (12, 2)},
    }
