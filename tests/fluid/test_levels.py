"""Tensors of two levels: documents of sentences of words, in Fluid's way."""

import jax
import numpy as np
import pytest

import penstock as ps
import penstock.fluid as fluid
from penstock import layers
from penstock._program.sequences import NestedSequence, Sequence
from penstock.fluid._levels import OF_WORDS
from tests.layers.programs import infer, normal

PLACE = fluid.CPUPlace()
COUNTS, LENGTHS = [2, 0, 1, 3], [3, 0, 1, 2, 5, 1]
WORDS = np.random.default_rng(0).integers(0, 30, [sum(LENGTHS), 1])


def classify(read, pool):
    """Return the classes of documents, in layers of which `pool` goes one level up."""
    words = fluid.layers.embedding(read, size=[30, 4])
    sentences = pool(fluid.layers.dynamic_gru(fluid.layers.fc(words, size=12), size=4))
    vectors = fluid.layers.fc(sentences, size=6, act="tanh")
    return fluid.layers.fc(fluid.layers.sequence_pool(vectors, "sum"), size=2, act="softmax")


def as_in_fluid():
    document = fluid.layers.data("document", [1], dtype="int64", lod_level=2)
    return classify(document, fluid.layers.sequence_last_step)


def level_by_level():
    document = layers.data("document", [1], "int32", lod_level=2)
    return classify(document.inner, lambda inner: document.outer(layers.sequence_last_step(inner)))


def test_layers_work_on_the_last_level_and_pools_go_one_up():
    text = fluid.create_lod_tensor(WORDS, [COUNTS, LENGTHS], PLACE)
    builders = [
        ps.ProgramBuilder(infer_func=func, place=[PLACE]) for func in (as_in_fluid, level_by_level)
    ]
    values = builders[0].init()
    actual, expected = (builder.infer(values, {"document": text}) for builder in builders)
    np.testing.assert_array_equal(actual, expected)
    # A document alone gets what it gets among others.
    alone = fluid.create_lod_tensor(WORDS[4:], [[3], LENGTHS[3:]], PLACE)
    np.testing.assert_allclose(
        builders[0].infer(values, {"document": alone}), expected[3:], rtol=1e-5
    )


@pytest.mark.quick("1")
@pytest.mark.parametrize("num_devices", [1, 3])
def test_script_of_two_levels_trains_and_infers(num_devices, tmp_path):
    def train_program():
        label = fluid.layers.data("label", [1], dtype="int64")
        return fluid.layers.mean(fluid.layers.cross_entropy(input=as_in_fluid(), label=label))

    def reader():
        random = np.random.default_rng(0)
        for _ in range(6):
            labels = random.integers(0, 2, 12)
            yield [
                (
                    [
                        [int(label) + 2 * int(w) for w in random.integers(0, 15, size)]
                        for size in sizes
                    ],
                    [label],
                )
                for label, sizes in zip(labels, random.integers(1, 5, (12, 3)), strict=True)
            ]

    costs = []

    def note(event):
        if isinstance(event, fluid.EndStepEvent):
            costs.append(float(event.metrics[0]))

    trainer = fluid.Trainer(
        train_program,
        lambda: fluid.optimizer.Adam(0.05),
        infer_func=as_in_fluid,
        place=jax.devices()[:num_devices],
    )
    trainer.train(4, note, reader, ["document", "label"])
    assert np.mean(costs[-6:]) < 0.3 < np.mean(costs[:3])
    trainer.save_params(tmp_path / "params")
    text = fluid.create_lod_tensor([[[0, 2], [4]], [[1, 3], [5]]], [[2, 2], [2, 1, 2, 1]], PLACE)
    [chances] = fluid.Inferencer(as_in_fluid, tmp_path / "params").infer({"document": text})
    assert chances.argmax(1).tolist() == [0, 1]


def test_two_levels_are_fetched_end_to_end_with_their_lengths(tmp_path):
    def network():
        words = fluid.layers.data("words", [2], lod_level=2)
        return fluid.layers.fc(words, size=3), fluid.layers.sequence_pool(words, "sum")

    trainer = fluid.Trainer(
        lambda: fluid.layers.mean(network()[0]), fluid.optimizer.SGD, infer_func=network
    )
    text = fluid.create_lod_tensor(normal(12, 2), [COUNTS, LENGTHS], PLACE)
    rows, sums = trainer.infer({"words": text})
    assert rows.shape == (12, 3)
    assert rows.recursive_sequence_lengths() == [COUNTS, LENGTHS]
    assert rows.lod() == [[0, 2, 2, 3, 6], [0, 3, 3, 4, 6, 11, 12]]
    assert sums.recursive_sequence_lengths() == [COUNTS]
    expected = [words.sum(axis=0) for words in np.split(normal(12, 2), np.cumsum(LENGTHS)[:-1])]
    np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-6)


def test_tensors_of_two_levels_are_cut_again():
    text = fluid.create_lod_tensor(WORDS, [COUNTS, LENGTHS], PLACE)
    assert [len(example) for example in text.cut()] == COUNTS
    again = fluid.create_lod_tensor(text, [[1, 1], [4, 8]], PLACE)
    np.testing.assert_array_equal(again.cut()[1][0], WORDS[4:])
    flat = fluid.create_lod_tensor(text, [[12]], PLACE)
    np.testing.assert_array_equal(flat.cut()[0], WORDS)
    ids = fluid.create_random_int_lodtensor([COUNTS, LENGTHS], [1], PLACE, low=3, high=3)
    assert ids.values.sum() == 3 * sum(LENGTHS)


def test_lists_that_are_not_as_long_as_said_are_refused():
    with pytest.raises(ValueError, match=r"of lengths \[2, 1\], expected .*\[1, 2\]"):
        fluid.create_lod_tensor([[[1], [2]], [[3]]], [[1, 2], [1, 1, 1]], PLACE)


@pytest.mark.parametrize("level", [0, 1, -1])
def test_expansion_follows_the_level_that_is_named(level):
    def program():
        text = fluid.layers.data("text", [1], lod_level=2)
        x = fluid.layers.data("x", [1]) if level == 0 else fluid.layers.sequence_pool(text, "max")
        return fluid.layers.sequence_expand(x, text, ref_level=level)

    text = [[[1.0, 2.0], [3.0]], [[4.0, 0.0, 0.0]]]
    feed = {"text": text} | ({"x": [[7.0], [8.0]]} if level == 0 else {})
    values = [np.concatenate(example).ravel().tolist() for example in infer(program, feed)]
    assert values == ([[7, 7], [8]] if level == 0 else [[2, 2, 3], [4, 4, 4]])


def test_tuple_of_two_levels_is_taken_as_a_list_is():
    text = fluid.create_lod_tensor(WORDS, [COUNTS, LENGTHS], PLACE)
    actual, expected = (fluid.layers.sums(kind([text, text])) for kind in (tuple, list))
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


def test_inputs_of_other_counts_are_refused():
    def program():
        return fluid.layers.elementwise_add(*values)

    values = [
        NestedSequence(np.ones([2, count, 3, 1]), np.ones([2, count], int), np.ones(2, int))
        for count in (4, 8)
    ]
    with pytest.raises(ps.ProgramError, match=r"shapes \(2, 4\), \(2, 8\), expected as many"):
        program()


ARGUMENTS = {
    "batch_norm": {},
    "cast": {"dtype": "int32"},
    "concat": {"axis": 1},
    "crf_decoding": {"param_attr": "crf"},
    "cross_entropy": "ids",
    "ctc_greedy_decoder": {"blank": 11},
    "dropout": {"dropout_prob": 0.5},
    "dynamic_gru": {"size": 4},
    "dynamic_lstmp": {"size": 12, "proj_size": 2},
    "dynamic_lstm": {"size": 12},
    "embedding": {"size": [9, 2]},
    "fc": {"size": 3},
    "hsigmoid": {"label": "ids", "num_classes": 4},
    "huber_loss": {"label": "x", "delta": 1.0},
    "l2_normalize": {"axis": 1},
    "linear_chain_crf": "ids",
    "nce": {"label": "ids", "num_total_classes": 4},
    "one_hot": {"depth": 4},
    "reshape": {"shape": [-1, 3, 4]},
    "row_conv": {"future_context_size": 2},
    "sequence_conv": {"num_filters": 2},
    "sequence_enumerate": {"win_size": 2},
    "sequence_pool": {"pool_type": "max"},
    "sequence_reshape": {"new_dim": 2},
    "softmax_with_cross_entropy": "ids",
    "warpctc": {"label": "ids", "blank": 11},
}
OF_IDS = ("embedding", "one_hot", "sequence_enumerate")
OF_LISTS = ("concat", "sequence_concat", "sums")
OF_TWO = ("cos_sim", "square_error_cost", "sigmoid_cross_entropy_with_logits")


def apply(name, x, ids):
    """Return what a layer makes of words `[4]` and ids, or of their inner sequences."""
    arguments = ARGUMENTS.get(name, {})
    options = {"label": arguments} if isinstance(arguments, str) else arguments
    options = {
        key: {"ids": ids, "x": x}.get(value) if value in ("ids", "x") else value
        for key, value in options.items()
    }
    first = ids if name in OF_IDS else x
    first = fluid.layers.cast(ids, "float32") if name == "sequence_softmax" else first
    second = [x] if name in OF_TWO or name.startswith("elementwise") else []
    first = [first, first] if name in OF_LISTS else first
    return getattr(fluid.layers, name)(first, *second, **options)


@pytest.mark.slow
def test_layers_make_of_two_levels_what_they_make_of_the_inner_sequences():
    names = sorted({*OF_WORDS, *ARGUMENTS} - {"mean", "accuracy", "chunk_eval"})

    def read():
        x = layers.softmax(layers.data("x", [12], lod_level=2).inner)
        ids = layers.data("ids", [1], "int32", lod_level=2)
        layers.linear_chain_crf(x, ids.inner, param_attr="crf")
        return x, ids

    def of_two_levels():
        x, ids = read()
        return {name: apply(name, ids.with_inner(x), ids) for name in names}

    def of_inner_ones():
        x, ids = read()
        return jax.tree.map(
            lambda leaf: ids.with_inner(leaf) if isinstance(leaf, Sequence) else ids.outer(leaf),
            {name: apply(name, x, ids.inner) for name in names},
            is_leaf=lambda node: isinstance(node, Sequence),
        )

    feed = {
        "x": fluid.create_lod_tensor(normal(12, 12), [COUNTS, LENGTHS], PLACE),
        "ids": fluid.create_lod_tensor(WORDS % 3, [COUNTS, LENGTHS], PLACE),
    }
    actual, expected = infer(of_two_levels, feed), infer(of_inner_ones, feed)
    for name in names:
        assert jax.tree.structure(actual[name]) == jax.tree.structure(expected[name]), name
        pairs = zip(jax.tree.leaves(actual[name]), jax.tree.leaves(expected[name]), strict=True)
        for one, other in pairs:
            assert np.all(np.isfinite(one)), name
            np.testing.assert_allclose(one, other, rtol=1e-6, err_msg=name)
        # As many sentences and, but for layers that change it, as many words.
        first = actual[name][0] if isinstance(actual[name], tuple) else actual[name]
        assert [len(example) for example in first] == COUNTS, name


def test_means_over_two_levels_count_words_of_the_batch():
    def program():
        x = layers.data("x", [4], lod_level=2)
        ids = layers.data("ids", [1], "int32", lod_level=2)
        right = fluid.layers.accuracy(x, ids)
        chunks = fluid.layers.chunk_eval(ids, ids, "plain", 3)
        return fluid.layers.mean(x), right, chunks[3]

    x, ids = normal(12, 4), WORDS % 3
    feed = {
        "x": fluid.create_lod_tensor(x, [COUNTS, LENGTHS], PLACE),
        "ids": fluid.create_lod_tensor(ids, [COUNTS, LENGTHS], PLACE),
    }
    mean, right, num_chunks = infer(program, feed)
    np.testing.assert_allclose(mean, x.mean(), rtol=1e-5)
    np.testing.assert_allclose(right, (x.argmax(1) == ids[:, 0]).mean(), rtol=1e-5)
    parts = np.split(ids[:, 0], np.cumsum(LENGTHS)[:-1])
    assert num_chunks == sum(1 + np.count_nonzero(np.diff(part)) for part in parts if len(part))
