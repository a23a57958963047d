"""Every metric is what other libraries say, however the rows come in."""

import functools

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import readers
from tests.metrics import cases


@functools.cache
def make_trainer(num_devices, are_quick=False, **options):
    """Return a trainer of metrics on some devices."""
    program = functools.partial(cases.program, cases.QUICK if are_quick else cases.ALL)
    place = jax.devices()[:num_devices]
    return ps.Trainer(program, optax.sgd(0.01), place=place, **dict(options))


@functools.cache
def data_and_expected(make):
    data = make(cases.make_data()) if make else cases.make_data()
    return data, cases.expect(data)


def assert_equal(found, expected, title=""):
    wrong = []
    for name, value in found.items():
        if name != "loss":
            try:
                np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-6)
            except AssertionError:
                wrong.append(f"{title} {name}: {value}, expected {expected[name]}")
    assert not wrong, "\n".join(wrong)


def check_test(trainer, batch_size):
    for make in (None, *cases.DEGENERATE):
        data, expected = data_and_expected(make)
        found = trainer.test(readers.arrays(data, batch_size=batch_size))
        assert_equal(found, expected, make and make.__name__)


def test_one_metric_of_each_class_is_what_scikit_learn_says_on_three_devices():
    check_test(make_trainer(3, are_quick=True), 64)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 7, 64, cases.NUM_ROWS])
@pytest.mark.parametrize("num_devices", [1, 3, 8])
def test_all_metrics_are_what_scikit_learn_says(num_devices, batch_size):
    check_test(make_trainer(num_devices), batch_size)
