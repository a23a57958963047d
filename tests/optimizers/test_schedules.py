"""Schedules, against the reference's table and against its rules written out in float64."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from penstock import UnknownNameError, optimizers
from penstock.optimizers import ScheduleOptions


def rates(options, num_steps, count=None, **more):
    """Return the rates of the first `count` steps, by default those of the whole run."""
    schedule = optimizers.schedule(options, num_steps=num_steps, **more)
    steps = jnp.arange(num_steps if count is None else count)
    return np.asarray(jax.jit(jax.vmap(lambda step: jnp.float32(schedule(step))))(steps))


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-9)


TABLE = {  # 0.01, 100 steps of warmup, 1000 steps: step to rate
    ("luong234", 0.5): {599: 0.01, 600: 0.01, 748: 0.01, 749: 0.005, 833: 0.0025, 999: 0.000625},
    ("luong5", 0.5): {599: 0.01, 600: 0.005, 748: 0.0025, 833: 0.00125, 900: 0.000625},
    ("luong10", 0.5): {599: 0.005, 600: 0.0025, 748: 0.000625, 900: 3.90625e-5, 999: 1.953125e-5},
    ("luong234", 0.94): {748: 0.01, 749: 0.0094, 833: 0.008836, 900: 0.008836, 999: 0.00780749},
}


def test_number_of_steps_may_be_a_quotient():
    options = ScheduleOptions(learning_rate_decay_type="cosine", warmup_steps=2)
    close(rates(options, 640 / 64, 10), rates(options, 10))


@pytest.mark.parametrize(("scheme", "factor"), TABLE)
def test_scheme_gives_the_reference_values(scheme, factor):
    options = ScheduleOptions(
        warmup_steps=100, decay_scheme=scheme, learning_rate_decay_factor=factor
    )
    row = rates(options, 1000)
    close(row[[0, 50, 100]], [0.0001, 0.001, 0.01])
    assert row[99] == pytest.approx(0.00954993, abs=1e-8)
    for step, expected in TABLE[scheme, factor].items():
        assert row[step] == pytest.approx(expected, abs=1e-8), step


def test_polynomial_of_a_scheme_gives_the_reference_values():
    options = ScheduleOptions(learning_rate_decay_type="polynomial", decay_scheme="luong234")
    row = rates(options, 1000)
    expected = [0.01, 0.00594458, 0.00021928, 0.0001, 0.0001]
    np.testing.assert_allclose(row[[666, 700, 748, 749, 999]], expected, atol=1e-8)


def fastnn(options, stop):
    """Return FastNN's rates, written out from the reference; `stop` is the number of steps."""
    top, end, warmup = options.learning_rate, options.end_learning_rate, options.warmup_steps
    start, times = {
        "": (stop, 1),
        "luong234": (int(2 * stop / 3), 4),
        "luong5": (int(stop / 2), 5),
        "luong10": (int(stop / 2), 10),
    }[options.decay_scheme]
    period = max(1, int((stop - start) / times))
    row = []
    for step in range(stop):
        rate = top
        if options.learning_rate_decay_type != "fixed":
            if step < warmup:
                rate = top * 0.01 ** ((warmup - step) / warmup)
            if step >= start and options.learning_rate_decay_type == "exponential":
                rate *= options.learning_rate_decay_factor ** math.floor((step - start) / period)
            elif step >= start:
                rate = (rate - end) * (1 - min(step - start, period) / period) + end
        row.append(rate)
    return row


@pytest.mark.quick("polynomial", "exponential--37", "fixed-luong5-37")
@pytest.mark.parametrize("warmup_steps", [0, 37, 700])
@pytest.mark.parametrize("scheme", ["", "luong234", "luong5", "luong10"])
@pytest.mark.parametrize("decay_type", ["fixed", "exponential", "polynomial"])
def test_schedule_is_fastnns_in_every_step_where_compatible(decay_type, scheme, warmup_steps):
    options = ScheduleOptions(
        learning_rate=0.05,
        end_learning_rate=0.0002,
        learning_rate_decay_type=decay_type,
        decay_scheme=scheme,
        warmup_steps=warmup_steps,
    )
    close(rates(options, 1000, fastnn_compat=True), fastnn(options, 1000))
    if scheme or decay_type == "fixed":
        close(rates(options, 1000, steps_per_epoch=10), fastnn(options, 1000))


def test_exponential_without_scheme_decays_every_few_epochs_as_tf_slim_does():
    options = ScheduleOptions(num_epochs_per_decay=2.5)
    row = rates(options, 1000, steps_per_epoch=1437 / 32)
    period = int(1437 / 32 * 2.5)
    close(row, [0.01 * 0.94 ** (step // period) for step in range(1000)])
    # 404 examples in batches of 12: 1,010 steps, and no one less for a quotient that is rounded.
    options, rounded = ScheduleOptions(num_epochs_per_decay=30), 404 / 12
    assert rates(options, 1011, steps_per_epoch=rounded)[1009] == pytest.approx(0.01)


def test_exponential_without_scheme_begins_to_decay_after_the_warmup():
    row = rates(ScheduleOptions(warmup_steps=30), 1000, steps_per_epoch=50)
    expected = [0.01 * 0.01 ** (max(30 - s, 0) / 30) * 0.94 ** max((s - 30) // 100, 0)
                for s in range(1000)]  # fmt: skip
    close(row, expected)


def test_polynomial_without_scheme_falls_to_the_end_of_the_run():
    options = ScheduleOptions(learning_rate_decay_type="polynomial", warmup_steps=100)
    row = rates(options, 1000, count=1100)
    close(row[[100, 550, 1000, 1099]], [0.01, 0.00505, 0.0001, 0.0001])
    assert (np.diff(row[100:1001]) < 0).all()


@pytest.mark.parametrize("decay_type", ["exponential", "polynomial"])
def test_schedule_without_scheme_decays_by_default_and_never_where_compatible(decay_type):
    options = ScheduleOptions(learning_rate_decay_type=decay_type)
    assert rates(options, 1000, steps_per_epoch=45)[-1] < 0.006
    close(rates(options, 1000, fastnn_compat=True), np.full(1000, 0.01))


def test_cosine_with_linear_warmup_is_optaxs():
    options = ScheduleOptions(
        learning_rate_decay_type="cosine", warmup_scheme="linear", warmup_steps=100
    )
    expected = optax.warmup_cosine_decay_schedule(0.0, 0.01, 100, 1000, 0.0001)
    close(rates(options, 1000, count=1100), jax.vmap(expected)(jnp.arange(1100)))


def test_cosine_takes_the_warmup_of_tensor2tensor_too():
    row = rates(ScheduleOptions(learning_rate_decay_type="cosine", warmup_steps=100), 1000)
    close(row[[0, 50, 100]], [0.0001, 0.001, 0.01])
    assert row[-1] == pytest.approx(0.0001, rel=1e-3)


def test_one_cycle_is_optaxs():
    # optax divides the first rate, 0.0004, by its last factor.
    expected = optax.cosine_onecycle_schedule(1000, 0.01, final_div_factor=4.0)
    row = rates(ScheduleOptions(learning_rate_decay_type="one_cycle"), 1000, count=1100)
    close(row, jax.vmap(expected)(jnp.arange(1100)))
    close(row[[0, 300, 1000]], [0.0004, 0.01, 0.0001])


def test_one_cycle_rises_for_the_steps_of_its_warmup():
    options = ScheduleOptions(learning_rate_decay_type="one_cycle", warmup_steps=500)
    assert rates(options, 1000).argmax() == 500


@pytest.mark.parametrize(
    "decay_type", ["fixed", "exponential", "polynomial", "cosine", "one_cycle"]
)
def test_schedule_takes_python_numbers_and_arrays_alike(decay_type):
    options = ScheduleOptions(learning_rate_decay_type=decay_type, warmup_steps=10)
    schedule: Any = optimizers.schedule(options, num_steps=100, steps_per_epoch=5)
    row = rates(options, 100, steps_per_epoch=5)
    close([float(schedule(step)) for step in (0, 5, 10, 99)], row[[0, 5, 10, 99]])
    close([float(schedule(jnp.int32(step))) for step in (0, 99)], row[[0, 99]])


@pytest.mark.parametrize(
    ("options", "more", "line"),
    [
        ({"learning_rate_decay_type": "fixed", "warmup_steps": 5}, {}, "0.01 throughout"),
        ({}, {"fastnn_compat": True}, "0.01; never decays"),
        ({}, {"steps_per_epoch": 45}, "0.01; x 0.94 every 90 steps from step 0 on"),
        (
            {"decay_scheme": "luong234", "warmup_steps": 100},
            {},
            "0.01 after 100 steps of t2t warmup; x 0.94 every 83 steps from step 666 on",
        ),
        (
            {"learning_rate_decay_type": "cosine", "warmup_steps": 9, "warmup_scheme": "linear"},
            {},
            "0.01 after 9 steps of linear warmup; cosine to 0.0001 from step 9 to step 1000",
        ),
        (
            {"learning_rate_decay_type": "one_cycle"},
            {},
            "0.0004 rising to 0.01 at step 300, falling to 0.0001 at step 1000",
        ),
    ],
)
def test_description_says_what_happens_when(options, more, line):
    options = ScheduleOptions(**options)
    assert optimizers.describe_schedule(options, num_steps=1000, **more) == line


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        (
            "learning_rate_decay_type",
            "exponental",
            "learning_rate_decay_type got 'exponental', expected one of 'fixed', 'exponential', "
            "'polynomial', 'cosine', 'one_cycle'. Did you mean 'exponential'?",
        ),
        (
            "decay_scheme",
            "luong235",
            "decay_scheme got 'luong235', expected one of '', 'luong234', 'luong5', 'luong10'. "
            "Did you mean 'luong234'?",
        ),
        (
            "warmup_scheme",
            "t3t",
            "warmup_scheme got 't3t', expected one of 't2t', 'linear'. Did you mean 't2t'?",
        ),
    ],
)
def test_unknown_name_is_refused_with_the_nearest(option, value, message):
    with pytest.raises(UnknownNameError) as caught:
        ScheduleOptions(**{option: value})
    assert str(caught.value) == message


def test_numbers_outside_their_ranges_are_refused_all_at_once():
    with pytest.raises(ValueError, match="ScheduleOptions got") as caught:
        ScheduleOptions(learning_rate=0.0, end_learning_rate=-1.0, warmup_steps=-1)
    assert str(caught.value) == (
        "ScheduleOptions got learning_rate=0.0, expected a number above 0; end_learning_rate=-1.0, "
        "expected a number of 0 or more; warmup_steps=-1, expected a number of 0 or more."
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"learning_rate": 1e-5, "learning_rate_decay_type": "cosine"},
            r"end_learning_rate=0.0001 above learning_rate=1e-05, expected at most that: cosine",
        ),
        (
            {"decay_scheme": "luong5", "learning_rate_decay_type": "one_cycle"},
            r"decay_scheme='luong5' with learning_rate_decay_type='one_cycle', expected it empty",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ScheduleOptions(**options)


@pytest.mark.parametrize(
    ("options", "more", "message"),
    [
        ({}, {"num_steps": 0}, "num_steps=0, expected a number of 1 or more"),
        ({}, {"num_steps": 9}, "steps_per_epoch=None, expected a number that times num_epochs_per"),
        ({}, {"num_steps": 9, "steps_per_epoch": 0.1}, "steps_per_epoch=0.1, expected"),
        (
            {"decay_scheme": "luong10"},
            {"num_steps": 18},
            "num_steps=18 with decay_scheme='luong10', expected at least 10 steps after step 9",
        ),
        (
            {"learning_rate_decay_type": "cosine", "warmup_steps": 9},
            {"num_steps": 9},
            "warmup_steps=9 and num_steps=9, expected fewer steps of warmup than steps: cosine",
        ),
        ({"learning_rate_decay_type": "one_cycle"}, {"num_steps": 1}, "expected fewer steps of"),
    ],
)
def test_schedule_that_does_not_fit_into_the_run_is_refused(options, more, message):
    for function in (optimizers.schedule, optimizers.describe_schedule):
        with pytest.raises(ValueError, match=message):
            function(ScheduleOptions(**options), **more)
