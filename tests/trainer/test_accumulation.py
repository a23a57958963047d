"""Gradient accumulation: the same step as the whole batch, in parts."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers, optimizers
from penstock._errors import ProgramError

ONE = jax.devices("cpu")[0]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(96, 6)).astype("float32")
Y = RNG.integers(0, 3, size=(96, 1)).astype("int32")


def program():
    hidden = layers.fc(layers.data("x", [6]), 16, act="relu")
    prediction = layers.fc(hidden, 3, act="softmax")
    label = layers.data("y", [1], dtype="int32")
    loss = layers.cross_entropy(prediction, label)
    return layers.mean(loss), layers.accuracy(prediction, label), prediction


def run(parts, *, place=ONE, batch=32, num=96, function=program, **options):
    """Return losses by step and parameters after three epochs of batches, the last one short."""
    trainer = ps.Trainer(
        function,
        options.pop("optimizer", None) or optax.adam(0.01),
        place=place,
        gradient_accumulation_steps=parts,
        **options,
    )
    reader = ps.readers.arrays({"x": X[:num], "y": Y[:num]}, batch_size=batch)
    seen = []
    handler = lambda e: seen.append(e.metrics) if isinstance(e, ps.EndStep) else None  # noqa: E731
    trainer.train(reader, handler, num_epochs=3)
    return seen, dict(trainer.parameters)


@pytest.mark.quick("full")
@pytest.mark.parametrize(
    ("num", "num_devices"),
    [(96, 4), (90, 1), (67, 4)],
    ids=["full", "short", "fewer than parts"],
)
def test_parts_give_the_step_of_the_whole_batch(num, num_devices):
    place = jax.devices()[:num_devices]
    optimizer = optax.sgd(0.1, momentum=0.9)
    whole, expected = run(1, place=place, num=num, optimizer=optimizer)
    parts, actual = run(4, place=place, num=num, optimizer=optimizer)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-6, atol=1e-6)
    for (loss, accuracy, rows), (loss_whole, accuracy_whole, rows_whole) in zip(
        parts, whole, strict=True
    ):
        assert loss == pytest.approx(loss_whole, abs=1e-6)
        assert accuracy == pytest.approx(accuracy_whole, abs=1e-6)
        np.testing.assert_allclose(rows, rows_whole, rtol=1e-5, atol=1e-6)


def test_parts_stay_split_over_the_devices():
    builder = ps.ProgramBuilder(
        program, optax.sgd(0.1), place=jax.devices()[:4], gradient_accumulation_steps=4
    )
    text = builder.inspect("train", batch_size=64).compiled_text
    # For the gradients of each part, in the body of the loop; and no rows.
    assert len(re.findall(r" all-reduce(?:-start)?\(", text)) <= 2
    assert "all-gather" not in text


def test_parts_that_devices_do_not_divide_are_sorted():
    def sorted_program():
        hidden = layers.fc(layers.data("x", [6]), 3)
        return layers.mean((jnp.median(hidden, axis=1, keepdims=True) - 1) ** 2)

    runs = [
        run(2, place=jax.devices()[:number], batch=12, num=12, function=sorted_program)
        for number in (1, 4)
    ]
    (_, expected), (_, actual) = runs
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_parts_draw_each_its_own_mask():
    def noisy():
        x = layers.data("x", [6])
        kept = layers.dropout(jnp.ones_like(x), 0.5)
        return layers.mean(layers.fc(x, 1) ** 2), kept

    builder = ps.ProgramBuilder(noisy, optax.sgd(0.1), place=ONE, gradient_accumulation_steps=2)
    _, (_, kept) = builder.train(builder.init(), {"x": X[:32]})
    assert not np.array_equal(kept[0::2], kept[1::2])


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, "2"])
def test_number_of_parts_that_is_none_is_refused(steps):
    with pytest.raises(
        ProgramError, match=r"gradient_accumulation_steps got .* expected an integer of 1"
    ):
        ps.Trainer(program, optax.sgd(0.1), gradient_accumulation_steps=steps)


def test_number_of_parts_of_numpy_is_described_as_a_number():
    trainer = ps.Trainer(program, optax.sgd(0.1), gradient_accumulation_steps=np.int32(2))
    assert '"gradient_accumulation_steps": 2' in json.dumps(trainer.describe())


def test_learning_rate_of_each_step_is_in_its_event():
    schedule = optax.linear_schedule(1.0, 0.0, transition_steps=10)
    trainer = ps.Trainer(program, optimizers.get("sgd", schedule), place=ONE, steps_per_call=2)
    rates = []

    def handler(event):
        if isinstance(event, ps.EndStep):
            rates.append(event.learning_rate)
        if isinstance(event, ps.EndEpoch):
            trainer.update_scale = 0.5

    reader = ps.readers.arrays({"x": X, "y": Y}, batch_size=32)
    trainer.train(reader, handler, num_epochs=2)
    assert rates == pytest.approx([1.0, 0.9, 0.8, 0.35, 0.3, 0.25])


def synchronised():
    hidden = layers.fc(layers.data("x", [6]), 8, bias_attr=False)
    hidden = layers.batch_norm(hidden, act="relu")
    prediction = layers.fc(hidden, 3, act="softmax")
    return layers.mean(layers.cross_entropy(prediction, layers.data("y", [1], dtype="int32")))


def change(rows, **options):
    """Return what a step of plain descent by these rows changes."""
    trainer = ps.Trainer(synchronised, optax.sgd(1.0), **options)
    before = {name: np.array(value) for name, value in trainer.parameters.items()}
    trainer.train(lambda: iter([{"x": X[rows], "y": Y[rows]}]))
    return {name: np.array(value) - before[name] for name, value in trainer.parameters.items()}


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [1, 2])
def test_micro_batches_count_by_their_examples(num_devices):
    devices = jax.devices()[:num_devices]
    trainer = ps.Trainer(synchronised, optax.sgd(1.0), place=devices, gradient_accumulation_steps=2)
    before = {name: np.array(value) for name, value in trainer.parameters.items()}
    trainer.train(lambda: iter([{"x": X[:15], "y": Y[:15]}]))
    # Every second row: 8 and 7 of them.
    parts = np.r_[0:15:2], np.r_[1:15:2]
    first, second = (change(rows, place=ONE) for rows in parts)
    # Running statistics move with each micro-batch.
    alone = ps.Trainer(synchronised, optax.sgd(0.0), place=ONE)
    alone.train(lambda: iter([{"x": X[rows], "y": Y[rows]} for rows in parts]))
    for name, value in trainer.parameters.items():
        expected = before[name] + (8 * first[name] + 7 * second[name]) / 15
        if name in ("batch_norm_0/mean", "batch_norm_0/variance"):
            expected = np.array(alone.parameters[name])
        np.testing.assert_allclose(np.array(value), expected, rtol=1e-4, atol=1e-6, err_msg=name)


def test_parameters_and_values_of_half_precision_are_added_up_in_full():
    weights = np.ones([1, 6], jnp.bfloat16)

    def function():
        x = layers.data("x", [6])
        w = layers.create_parameters(weights, name="own")
        return layers.mean(x * w.astype("float32")) * 6.0, jnp.mean(x.astype("bfloat16"))

    def step(parts):
        builder = ps.ProgramBuilder(
            function, optax.sgd(1.0), place=ONE, gradient_accumulation_steps=parts
        )
        feed = {"x": np.full((64, 6), 0.7, np.float32)}
        state, (_, value) = builder.train(builder.init(), feed)
        assert value.dtype == jnp.bfloat16
        return float(state.variables["params"]["own"]["value"][0, 0]), float(value)

    assert step(64) == pytest.approx(step(1), rel=4e-3)
