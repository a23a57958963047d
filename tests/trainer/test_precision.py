"""Precision: what a Trainer computes in, and the loss scale of float16."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from penstock._errors import NonFiniteError, ProgramError
from penstock._program.precision import INITIAL_LOSS_SCALE

ONE = jax.devices("cpu")[0]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 6)).astype("float32")
Y = (X @ RNG.normal(size=(6, 1))).astype("float32")
READER = ps.readers.arrays({"x": X, "y": Y}, batch_size=16)
SIZED = {"float32": None, "bfloat16": "bf16", "float16": "f16"}


def program():
    hidden = layers.batch_norm(layers.fc(layers.data("x", [6]), 8, act="relu"))
    error = layers.square_error_cost(layers.fc(hidden, 1), layers.data("y", [1]))
    return layers.mean(error)


@pytest.mark.quick("float16")
@pytest.mark.parametrize("precision", SIZED)
def test_products_are_in_the_precision_and_the_state_is_float32(precision):
    trainer = ps.Trainer(program, optax.adam(0.01), place=ONE, precision=precision)
    trainer.train(READER, num_epochs=2)
    text = trainer.builder.inspect("train").lowered_text
    products = [line for line in text.splitlines() if "dot_general" in line]
    short = SIZED[precision]
    assert products
    assert all((f"x{short}>" in line) == (short is not None) for line in products)
    state = trainer._engine.state
    leaves = jax.tree.leaves((state.variables, state.opt_state))
    assert {str(leaf.dtype) for leaf in leaves} == {"float32", "int32"}
    assert trainer.test(READER) < 60


class Device:
    """As much of an accelerator as the choice looks at."""

    def __init__(self, platform, **attributes):
        self.platform = platform
        vars(self).update(attributes)


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (Device("gpu", compute_capability="9.0"), "bfloat16"),
        (Device("gpu", compute_capability="7.5"), "float32"),
        (Device("gpu"), "bfloat16"),
        (Device("tpu"), "bfloat16"),
        (Device("cpu"), "float32"),
    ],
)
def test_auto_is_bfloat16_where_the_accelerator_has_it(device, expected):
    class OneDevice:
        devices = np.array([device])

    assert ps.Precision("auto").on(OneDevice()).compute == expected


def overflowing():
    """Return a loss whose gradient overflows float16 in the step with a large input."""
    x = layers.data("x", [6])
    return layers.mean(layers.square_error_cost(layers.fc(x, 1), layers.data("y", [1])))


def half(rate=0.01, **options):
    return ps.Trainer(overflowing, optax.sgd(rate), place=ONE, precision="float16", **options)


def test_dynamic_scale_recovers_from_an_overflow():
    trainer = half()
    assert trainer.loss_scale == INITIAL_LOSS_SCALE
    trainer.train(READER)
    before, scale = dict(trainer.parameters), trainer.loss_scale
    assert all(np.all(np.isfinite(value)) for value in before.values())
    # The gradient by w is 2e4 times larger than a usual one: beyond float16 once it is scaled.
    trainer.train(ps.readers.arrays({"x": X[:16] * 1e3, "y": Y[:16]}, batch_size=16))
    for name, value in trainer.parameters.items():
        np.testing.assert_array_equal(value, before[name])
    assert trainer.loss_scale == scale / 2
    trainer.train(READER, num_epochs=20)
    assert trainer.test(READER) < 0.5
    assert any(np.any(value != before[name]) for name, value in trainer.parameters.items())


def test_dynamic_scale_falls_below_one_where_gradients_are_large():
    trainer, data = half(1e-6), {"x": X[:16] * 60, "y": np.full([16, 1], 2e4, np.float32)}
    reader = ps.readers.arrays(data, batch_size=16)
    before = trainer.test(reader)
    trainer.train(reader, num_epochs=60)
    assert trainer.loss_scale < 1
    assert trainer.test(reader) < 0.999 * before


def test_gradients_that_no_scale_makes_finite_end_training():
    def program():
        prediction = layers.fc(layers.data("x", [6]), 1)
        return jnp.mean(prediction**2) + jnp.sqrt(jnp.sum(0 * prediction**2))  # nan, as 0 * inf

    trainer = ps.Trainer(program, optax.sgd(0.01), place=ONE, precision="float16")
    with pytest.raises(NonFiniteError):
        trainer.train(ps.readers.arrays({"x": X[:16]}, batch_size=16), num_epochs=100)
    assert trainer.global_step < 60  # 29 times it is halved; up to 16 steps are in flight


def test_dynamic_scale_grows_after_many_good_updates(monkeypatch):
    monkeypatch.setattr("penstock._program.precision._STEPS_BEFORE_GROWTH", 3)
    trainer = half(0.001)
    small = ps.readers.arrays({"x": X * 1e-2, "y": Y * 1e-2}, batch_size=16)
    trainer.train(small, num_epochs=2)  # 8 updates
    assert trainer.loss_scale == INITIAL_LOSS_SCALE * 4


def test_dynamic_scale_is_in_the_checkpoint(tmp_path):
    first = half(checkpoint=tmp_path)
    first.train(ps.readers.arrays({"x": X * 1e3, "y": Y}, batch_size=16))
    assert half(checkpoint=tmp_path).loss_scale == first.loss_scale < INITIAL_LOSS_SCALE


def test_static_scale_changes_no_step_in_float32():
    plain = ps.Trainer(program, optax.sgd(0.01), place=ONE)
    scaled = ps.Trainer(
        program, optax.sgd(0.01), place=ONE, precision=ps.Precision("float32", loss_scale=1024.0)
    )
    for trainer in (plain, scaled):
        trainer.train(READER)
    assert scaled.loss_scale == 1024
    for name, value in plain.parameters.items():
        np.testing.assert_allclose(scaled.parameters[name], value, rtol=1e-6)


def test_a_scale_beyond_float16_moves_parameters_of_float16():
    weights = np.ones([1, 6], np.float16)

    def function():
        w = layers.create_parameters(weights, name="own").astype("float32")
        return layers.mean(layers.data("x", [6]) * w) * 0.1

    moved = []
    for scale in (1.0, 2.0**17):
        precision = ps.Precision("float32", loss_scale=scale)
        builder = ps.ProgramBuilder(function, optax.sgd(1.0), place=ONE, precision=precision)
        state, _ = builder.train(builder.init(), {"x": 9 + X[:4]})
        moved.append(np.asarray(state.variables["params"]["own"]["value"], np.float32))
    assert np.all(moved[0] < 0.95)
    np.testing.assert_allclose(moved[1], moved[0], rtol=1e-2)


def test_small_gradients_survive_float16_by_the_scale():
    def tiny():
        y = layers.fc(layers.data("x", [6]), 1, bias_attr=False)
        return layers.mean(y.astype("float32")) * 3e-7

    def moved(precision):
        trainer = ps.Trainer(tiny, optax.sgd(1 / 3e-7), place=ONE, precision=precision)
        before = trainer.parameters["fc_0/w"]
        trainer.train(ps.readers.arrays({"x": X + 1}, batch_size=64))
        return trainer.parameters["fc_0/w"] - before

    expected = -(X + 1).mean(axis=0)[:, None]
    unscaled = moved(ps.Precision("float16", loss_scale=1.0))
    assert not np.any(unscaled)
    np.testing.assert_allclose(moved("float16"), expected, rtol=2e-2, atol=1e-3)


def test_loss_that_is_not_finite_ends_training_with_a_dynamic_scale_too():
    trainer = half()
    with pytest.raises(NonFiniteError, match="a loss that is not finite"):
        trainer.train(ps.readers.arrays({"x": X * np.nan, "y": Y}, batch_size=16))


def test_each_state_has_a_scale_of_its_own():
    trainer = ps.Trainer(
        {
            "big": ps.Objective(lambda: 1e4 * overflowing(), optax.sgd(0.0)),
            "small": ps.Objective(overflowing, optax.sgd(0.0)),
        },
        place=ONE,
        precision="float16",
    )
    trainer.train(ps.readers.arrays({"x": X * 0.1, "y": Y * 0.1}, batch_size=64))
    assert trainer.loss_scale["big"] < trainer.loss_scale["small"] == INITIAL_LOSS_SCALE


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ps.Precision("float61"), "precision got 'float61'.*Did you mean 'float16'"),
        (lambda: ps.Precision("float16", loss_scale=0), "loss_scale got 0, expected a positive"),
        (lambda: ps.Precision("float16", loss_scale="static"), "expected a positive number, or"),
    ],
)
def test_wrong_precision_is_refused(make, message):
    with pytest.raises(ProgramError, match=message):
        make()


def test_accumulation_scales_once():
    def losses(parts):
        trainer = ps.Trainer(
            overflowing,
            optax.sgd(0.01),
            place=jax.devices()[:2],
            precision=ps.Precision("float16", loss_scale=128.0),
            gradient_accumulation_steps=parts,
        )
        trainer.train(READER, num_epochs=2)
        return trainer.test(READER)

    assert losses(4) == pytest.approx(losses(1), rel=1e-2)


def read_digits():
    image = layers.data("image", [8, 8, 1])
    hidden = layers.simple_img_conv_pool(
        image, num_filters=16, filter_size=3, pool_size=2, pool_stride=2, conv_padding=1, act="relu"
    )
    prediction = layers.fc(layers.batch_norm(hidden), 10, act="softmax")
    label = layers.data("label", [1], dtype="int32")
    loss = layers.mean(layers.cross_entropy(prediction, label))
    return loss, layers.accuracy(prediction, label)


@pytest.mark.slow
def test_every_precision_reads_digits_as_well(digits):
    train = {"image": digits.train_images, "label": digits.train_labels}
    held_out = {"image": digits.test_images, "label": digits.test_labels}
    accuracies = {}
    for precision in SIZED:
        trainer = ps.Trainer(read_digits, optax.adam(3e-3), place=ONE, precision=precision)
        trainer.train(ps.readers.arrays(train, batch_size=64, shuffle=True), num_epochs=10)
        _, accuracies[precision] = trainer.test(ps.readers.arrays(held_out, batch_size=359))
    assert accuracies["float32"] > 0.96
    for precision, accuracy in accuracies.items():
        assert accuracy == pytest.approx(accuracies["float32"], abs=0.01), precision
