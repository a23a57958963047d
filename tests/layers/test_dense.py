"""Fully connected layers and embeddings against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from tests.layers.programs import infer, initial, train
from tests.networks import eight_devices, one_device


def test_fc_starts_with_xavier_weights_and_no_bias():
    params = initial(lambda: layers.fc(layers.data("x", [300]), 200))["params"]["fc_0"]
    limit = np.sqrt(6 / 500)
    assert limit * 0.99 < np.abs(params["w"]).max() <= limit
    assert np.std(params["w"]) == pytest.approx(limit / np.sqrt(3), rel=0.02)
    assert not params["b"].any()


def test_embedding_of_bytes_trains_on_a_batch_that_the_devices_do_not_divide():
    def program():
        return layers.mean(layers.embedding(layers.data("x", [1], "uint8"), [300, 4]) ** 2)

    x, tables = np.arange(21, dtype=np.uint8)[:, None], []
    for place in (one_device, eight_devices):
        builder = ps.ProgramBuilder(program, optax.sgd(1.0), place=place())
        state, _ = builder.train(builder.init(), {"x": x})
        tables.append(np.asarray(state.variables["params"]["embedding_0"]["w"]))
    np.testing.assert_allclose(*tables, rtol=1e-5)


@pytest.mark.parametrize("padding_idx", [2, -7])
def test_embedding_of_the_padding_is_zero_and_learns_nothing(padding_idx):
    def function():
        rows = layers.embedding(layers.data("x", [1], "int32"), [9, 4], padding_idx, name="e")
        return layers.mean(rows), rows

    step = train(function, {"x": np.array([[1], [2], [1]], np.int32)})
    assert not step.values[1][1].any()
    learns = step.gradients["e"]["w"].any(axis=1)
    assert learns.tolist() == [False, True] + [False] * 7


OUTSIDE = (
    "expected ids from 0 to 8. They are rows of the table of layers.embedding 'words'. Give "
    "unknown words an id of their own, or the table more rows."
)


def embedding_of(change=lambda ids: ids, **how):
    return lambda: layers.embedding(
        change(layers.data("x", [1], "int32", **how)), [9, 4], name="words"
    )


@pytest.mark.parametrize("wrong", [-1, 9])
def test_id_outside_the_table_is_refused_before_anything_runs(wrong):
    with pytest.raises(ps.FeedError) as caught:
        infer(embedding_of(), {"x": [[wrong], [3]]})
    low, high = sorted([wrong, 3])
    assert str(caught.value) == f"feed 'x' got ids from {low} to {high}, {OUTSIDE}"


def test_id_outside_the_table_in_a_sequence_is_refused_and_padding_is_not_looked_at():
    words = layers.sequence_pool
    function = lambda: words(embedding_of(lod_level=1)(), "sum")  # noqa: E731
    assert infer(function, {"x": [[8], [], [0, 8]]}).shape == (3, 4)
    with pytest.raises(ps.FeedError, match="feed 'x' got ids from 2 to 9, expected ids from 0 to"):
        infer(function, {"x": [[9], [], [2, 8]]})


def test_ids_of_two_tables_are_those_of_the_smaller():
    def function():
        ids = layers.data("x", [1], "int32")
        return embedding_of()() + layers.embedding(ids, [7, 4])

    with pytest.raises(ps.FeedError, match="ids from 2 to 7, expected ids from 0 to 6"):
        infer(function, {"x": [[2], [7]]})


def test_full_batches_of_training_are_checked_each():
    reader = [{"x": np.full((4, 1), number, np.int32)} for number in (8, 8, 9)]
    trainer = ps.Trainer(lambda: layers.mean(embedding_of()()), optax.sgd(0.1), place=one_device())
    with pytest.raises(ps.FeedError, match="ids from 9 to 9, expected ids from 0 to 8"):
        trainer.train(reader)


def repeated(ids):
    return jax.lax.fori_loop(0, 2, lambda _, x: x + 1, ids)


@pytest.mark.quick("sum-1", "loop-8", "on the device-8")
@pytest.mark.parametrize("place", [1, 8])
@pytest.mark.parametrize(
    ("change", "feed"),
    [
        (lambda ids: ids + 1, np.array([[8], [2]])),
        (repeated, np.array([[7], [1]])),
        (lambda ids: ids, jnp.array([[9], [3]])),
    ],
    ids=["sum", "loop", "on the device"],
)
def test_inference_with_an_id_that_no_feed_shows_outside_the_table_names_the_layer(
    change, feed, place
):
    with pytest.raises(ps.NonFiniteError) as caught:
        infer(embedding_of(change), {"x": feed}, num_devices=place)
    assert str(caught.value) == f"a program got ids from 3 to 9, {OUTSIDE}"


def test_nan_of_another_origin_than_ids_is_returned():
    rows = infer(lambda: embedding_of(lambda ids: ids + 1)() * jnp.nan, {"x": [[1]]})
    assert np.isnan(rows).all()


@pytest.mark.parametrize(
    "change", [lambda ids: ids + 1, lambda ids: ids.astype("uint32") - 9], ids=["sum", "unsigned"]
)
def test_training_with_a_computed_id_outside_the_table_names_the_layer(change):
    function = lambda: layers.mean(embedding_of(change)())  # noqa: E731
    trainer = ps.Trainer(function, optax.sgd(0.1), place=one_device())
    with pytest.raises(
        ps.NonFiniteError,
        match=r"layers.embedding 'words' looks up ids that the program computes, and gives nan for "
        "those outside its 9 rows",
    ):
        trainer.train([{"x": np.full((4, 1), 8, np.int32)}])


def test_constant_id_outside_the_table_is_refused_where_the_program_is_made():
    with pytest.raises(ps.NonFiniteError, match="a program got ids from 0 to 9, expected ids from"):
        initial(embedding_of(lambda ids: np.arange(10)))
