"""`trainer.update_scale`: what it multiplies, exactly, and that it is kept."""

import itertools

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from tests.networks import (
    PLACES_AND_CALLS,
    assert_same_bits,
    eight_devices,
    linear_data,
    linear_program,
    linear_reader,
    one_device,
)


def trainer_of(place=one_device, optimizer=None, program=linear_program, **options):
    optimizer = optimizer or optax.sgd(0.1)
    return ps.Trainer(program, optimizer, place=place(), **options)


@PLACES_AND_CALLS
def test_scale_of_0_freezes_the_parameters_and_not_the_optimizer(place, steps_per_call):
    trainer = trainer_of(place, optax.adam(0.1), steps_per_call=steps_per_call)
    trainer.train(linear_reader())
    before = dict(trainer.parameters)
    trainer.update_scale = 0
    trainer.train(linear_reader(), num_epochs=2)
    assert_same_bits(dict(trainer.parameters), before)
    count = trainer._engine.state.opt_state["train"][0].count
    assert int(count) == 9


@pytest.mark.quick("0.5")
@pytest.mark.parametrize(
    ("scale", "place"), [(0.5, eight_devices), (0.25, one_device), (2.0, eight_devices)]
)
def test_scale_multiplies_the_first_update_exactly(scale, place):
    changes = []
    for factor in (1.0, scale):
        trainer = trainer_of(place)
        for name, value in trainer.parameters.items():
            trainer.parameters[name] = np.zeros_like(value)  # the change is then not rounded
        trainer.update_scale = factor
        trainer.train([linear_data(8)])
        changes.append(dict(trainer.parameters))
    for name, change in changes[0].items():
        assert np.all(change != 0)
        np.testing.assert_array_equal(changes[1][name], scale * change)


def test_scale_set_in_a_handler_counts_from_the_next_step():
    trainer, values = trainer_of(), []

    def on_event(event):
        if isinstance(event, ps.EndStep):
            values.append(trainer.parameters["fc_0/w"])
            trainer.update_scale = float(event.step % 2)

    trainer.train([linear_data(8)] * 4, on_event)
    is_same = [np.array_equal(*pair) for pair in itertools.pairwise(values)]
    assert is_same == [True, False, True]


def test_scale_multiplies_the_learning_rate_of_a_parameter():
    def program():
        attr = layers.ParamAttr(learning_rate=4.0)
        value = layers.create_parameter([1], name="value", attr=attr)
        return layers.mean(layers.data("x", shape=[1])) * 0 + jnp.sum(value)

    trainer = trainer_of(optimizer=optax.sgd(1.0), program=program)
    trainer.update_scale = 0.25
    trainer.train([{"x": np.ones((2, 1), np.float32)}])
    assert trainer.parameters["value"] == -1.0


def test_scale_is_1_at_first_and_takes_numbers_of_any_kind():
    trainer = trainer_of()
    assert trainer.update_scale == 1.0
    for value in (0, 0.5, np.float64(2), np.int32(3), jnp.float32(0.125), jnp.bfloat16(4)):
        trainer.update_scale = value
        assert trainer.update_scale == float(value)
        assert type(trainer.update_scale) is float


def test_scale_that_is_no_finite_number_of_0_or_more_is_refused_and_the_old_one_kept():
    trainer = trainer_of()
    trainer.update_scale = 0.5
    for value in (-1, -1e-9, np.nan, np.inf, 1e39, "0.5", None, [0.5], np.ones(1), 1j, print):
        with pytest.raises(ValueError, match="update_scale got") as caught:
            trainer.update_scale = value
        assert str(caught.value) == (
            f"update_scale got {value!r}, expected a finite number of 0 or more. It scales updates."
        )
    assert trainer.update_scale == 0.5
