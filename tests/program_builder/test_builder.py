"""The builder without a trainer: a loop of one's own, inference in buckets, and its arguments."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from tests.networks import (
    PLACES,
    assert_same_bits,
    class_data,
    classifier,
    classifier_program,
    eight_devices,
    host,
    linear_data,
    linear_program,
    one_device,
)


@PLACES
def test_loop_of_ones_own_gives_what_the_trainer_gives(place):
    batches = [class_data(16), class_data(16, seed=1), class_data(11, seed=2)]
    trainer = ps.Trainer(classifier_program, optax.adam(0.01), place=place())
    trainer.train(batches, num_epochs=2)
    builder = ps.ProgramBuilder(classifier_program, optax.adam(0.01), place=place())
    state = builder.init(seed=0)
    for _ in range(2):
        state = builder.reset_metrics(state)
        for batch in batches:
            state, metrics = builder.train(state, batch)
    params = trainer.parameters
    for name in ("fc_0", "fc_1"):
        assert_same_bits(state.variables["params"][name]["w"], params[f"{name}/w"])
    assert int(state.step) == trainer.global_step
    assert metrics[2].shape == (11, 3)
    tested = builder.test(state, batches[2])
    assert isinstance(tested, tuple)
    assert tested[2].shape == (11, 3)


@PLACES
def test_mean_of_the_metrics_is_weighted_by_examples_since_the_last_reset(place):
    builder = ps.ProgramBuilder(classifier_program, optax.sgd(0.1), place=place())
    state, _ = builder.train(builder.init(), class_data(8, seed=5))
    state = builder.reset_metrics(state)
    seen = []
    for size in (16, 16, 5):
        state, metrics = builder.train(state, class_data(size, seed=size))
        seen.append((size, *host(metrics)))
    loss, accuracy, probabilities = builder.mean_metrics(state)
    assert loss == pytest.approx(sum(n * value for n, value, _, _ in seen) / 37, rel=1e-6)
    assert accuracy == pytest.approx(sum(n * value for n, _, value, _ in seen) / 37, rel=1e-6)
    every = np.concatenate([rows for *_, rows in seen])
    np.testing.assert_allclose(probabilities, every.mean(0), rtol=1e-6)


def test_mean_of_the_metrics_before_a_step_is_refused():
    builder = ps.ProgramBuilder(linear_program, optax.sgd(0.1), place=one_device())
    with pytest.raises(ValueError, match="a mean over examples got no example"):
        builder.mean_metrics(builder.init())


# infer.


def several_outputs():
    """Return values by example, by row, without a batch axis, and a number, in a dict."""
    x = layers.data("x", shape=[4])
    prediction = layers.fc(x, size=3)
    return {
        "prediction": prediction,
        "rows": jnp.reshape(prediction, (-1, 1)),
        "weights": jnp.arange(5.0),
        "mean": layers.mean(prediction),
        "class": jnp.argmax(prediction, axis=1),
    }


@pytest.fixture(scope="module", params=PLACES.args[1], ids=["one", "eight"])
def inferring(request):
    builder = ps.ProgramBuilder(infer_func=several_outputs, place=request.param())
    return builder, builder.init()


def test_infer_of_any_number_of_examples_equals_the_computation_without_padding(inferring):
    builder, state = inferring
    params = host(state.variables["params"]["fc_0"])
    for size in range(1, 21):
        x = linear_data(size, seed=size)["x"]
        outputs = builder.infer(state, {"x": x})
        expected = x @ params["w"] + params["b"]
        assert list(outputs) == ["prediction", "rows", "weights", "mean", "class"]
        np.testing.assert_allclose(outputs["prediction"], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(outputs["rows"], outputs["prediction"].reshape(-1, 1))
        np.testing.assert_array_equal(outputs["weights"], np.arange(5))
        np.testing.assert_allclose(outputs["mean"], expected.mean(), rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(outputs["class"], expected.argmax(1))
        assert all(isinstance(outputs[n], np.ndarray) for n in ("prediction", "rows", "class"))


@pytest.mark.parametrize(
    ("outputs", "place", "num_compiles"),
    [
        (lambda x: layers.fc(x, 2), one_device, 6),
        (lambda x: layers.fc(x, 2), eight_devices, 3),
        # Outputs that other examples have a part in see no padding, and are compiled for each size.
        # Powers of two are tried: of those, 32 alone is the number of no feed.
        (lambda x: layers.fc(x, 2) - layers.fc(x, 2).max(0, keepdims=True), one_device, 21),
        (lambda x: layers.fc(x, 2).max(0), eight_devices, 20),
    ],
    ids=["own rows on one", "own rows", "rows of all", "no rows"],
)
@pytest.mark.quick("own rows]", "no rows")
def test_infer_compiles_once_for_each_power_of_two_where_examples_are_apart(
    outputs, place, num_compiles
):
    builder = ps.ProgramBuilder(
        infer_func=lambda: outputs(layers.data("x", shape=[4])), place=place()
    )
    state = builder.init()
    for _ in range(2):
        for size in range(1, 21):
            result = builder.infer(state, {"x": linear_data(size)["x"]})
            alone = builder.infer(state, {"x": linear_data(size)["x"]})
            assert_same_bits(result, alone)
    assert builder.num_compiles["infer"] == num_compiles


@pytest.mark.parametrize(
    ("outputs", "num_compiles"),
    [
        (lambda x: x / len(x), 2),
        # An index counts from the end, whatever the number.
        (lambda x: x[jnp.arange(len(x)), -1], 1),
    ],
    ids=["computes", "looks up"],
)
def test_infer_that_computes_with_the_number_of_examples_sees_no_padding(outputs, num_compiles):
    builder = ps.ProgramBuilder(
        infer_func=lambda: outputs(layers.data("x", shape=[4])), place=one_device()
    )
    state = builder.init()
    for size in (5, 7):
        x = linear_data(size)["x"]
        np.testing.assert_allclose(builder.infer(state, {"x": x}), outputs(x), rtol=1e-6)
    assert builder.num_compiles["infer"] == num_compiles


@PLACES
def test_infer_equals_the_prediction_of_the_test_program_bit_for_bit(place):
    def infer_program():
        hidden = layers.fc(layers.data("x", shape=[4]), size=6)
        hidden = layers.dropout(layers.batch_norm(hidden, act="relu"), 0.5)
        return layers.fc(hidden, size=3, act="softmax")

    def train_program():
        prediction = infer_program()
        label = layers.data("label", shape=[1], dtype="int32")
        return layers.mean(layers.cross_entropy(prediction, label)), prediction

    builder = ps.ProgramBuilder(
        train_program, optax.adam(0.1), infer_func=infer_program, place=place()
    )
    state, batch = builder.init(), class_data(16)
    for _ in range(3):
        state, _ = builder.train(state, batch)
    _, prediction = builder.test(state, batch)
    assert_same_bits(builder.infer(state, {"x": batch["x"]}), prediction)


# Arguments.


def test_builder_of_nothing_is_refused():
    with pytest.raises(TypeError) as caught:
        ps.ProgramBuilder()
    assert str(caught.value) == (
        "ProgramBuilder got neither program_func nor infer_func, expected one."
    )


def test_infer_keeps_integers_and_truths_without_a_batch_axis():
    large = 2**24 + 1  # no float32

    def ids():
        x = layers.data("x", [1])
        return jnp.int32(large), jnp.arange(2) + large, jnp.any(x > 0)

    builder = ps.ProgramBuilder(infer_func=ids)
    number, numbers, is_any = builder.infer(builder.init(), {"x": [[1.0]]})
    assert (type(number), number) == (int, large)
    assert (numbers.dtype, numbers.tolist()) == (np.int32, [large, large + 1])
    assert is_any is True


def test_builder_without_a_program_function_infers_alone():
    builder = ps.ProgramBuilder(infer_func=classifier, place=one_device())
    state = builder.init()
    for call in (builder.train, builder.test):
        with pytest.raises(ps.ProgramError, match="this builder got no program_func, expected one"):
            call(state, class_data(2))
