"""A run goes on on another number of devices than it was interrupted on."""

import jax
import pytest

import penstock as ps
from tests.checkpoints.runs import (
    EPOCH,
    RUNS,
    Seen,
    StopAfter,
    leaves,
    shuffled,
    train_classifier,
    whole_state,
)
from tests.networks import assert_close, assert_same_bits

ROUTES = {
    "1-to-3": ("line-1", (1, 5), (3, 2 * EPOCH + 1)),
    "1-to-8-to-4": ("classifier-1", (1, 5), (8, EPOCH + 4), (4, 2 * EPOCH + 1)),
}
"""A run, numbers of devices, and the global step that each part of the run ends after."""


@pytest.fixture(
    scope="module", params=[pytest.param("1-to-8-to-4", marks=pytest.mark.slow), "1-to-3"]
)
def moved(tmp_path_factory, request):
    """Return what the whole run saw and what the moved one saw, its states before and after."""
    name, *parts = ROUTES[request.param]
    _, whole = RUNS[name].trained(None)
    directory = tmp_path_factory.mktemp("moved")
    left, restored, seen = [], [], Seen()
    for num_devices, until in parts:
        trainer = RUNS[name].make(directory, place=jax.devices()[:num_devices])
        restored.append(leaves(trainer))
        trainer.train(RUNS[name].reader(), [seen, StopAfter(until)], num_epochs=2)
        left.append(leaves(trainer))
    return whole, seen, left, restored


def test_restored_state_is_that_of_the_other_devices_bit_for_bit(moved):
    _, _, left, restored = moved
    assert_same_bits(restored[1:], left[:-1])


def test_losses_and_means_of_epochs_agree_with_those_of_the_whole_run_on_one_device(moved):
    whole, seen, _, _ = moved
    assert list(seen.steps) == list(whole.steps) == list(range(2 * EPOCH))
    for actual, expected in ((seen.steps, whole.steps), (seen.epochs, whole.epochs)):
        for key, (where, metrics) in expected.items():
            assert actual[key][0] == where
            assert_close(jax.tree.leaves(actual[key][1])[:1], jax.tree.leaves(metrics)[:1])


@pytest.mark.slow
def test_run_on_several_devices_ends_with_the_bits_of_the_whole_run_there(tmp_path):
    place = jax.devices()[:8]
    whole = train_classifier(place=place)
    whole.train(shuffled(), num_epochs=2)
    for until in (EPOCH + 2, 2 * EPOCH + 1):
        config = ps.CheckpointConfig(directory=tmp_path, save_interval_steps=4)
        trainer = train_classifier(config, place=place)
        trainer.train(shuffled(), StopAfter(until), num_epochs=2)
    assert_same_bits(whole_state(trainer), whole_state(whole))
