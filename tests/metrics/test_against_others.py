"""Every metric is what other libraries say, however the rows come in."""

import functools
import json
import os
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import readers
from tests.metrics import cases
from tests.networks import Recorder
from tests.source_tree import ROOT


@functools.cache
def make_trainer(num_devices, names, **options):
    """Return a trainer of metrics on some devices."""
    program = functools.partial(cases.program, names)
    place = jax.devices()[:num_devices]
    return ps.Trainer(program, optax.sgd(0.01), place=place, **dict(options))


@functools.cache
def make_data(change):
    return change(cases.make_data()) if change else cases.make_data()


def check_values(values, data, title=""):
    """Compare values by name with what other libraries say of these rows."""
    expected = cases.expect(data, [name for name in values if name != "loss"])
    wrong = []
    for name, value in expected.items():
        try:
            np.testing.assert_allclose(values[name], value, rtol=1e-6, atol=1e-6)
        except AssertionError:
            wrong.append(f"{title} {name}: {values[name]}, expected {value}")
    assert not wrong, "\n".join(wrong)


def check_test(trainer, batch_size):
    for change in (None, *cases.DEGENERATE):
        data = make_data(change)
        values = trainer.test(readers.arrays(data, batch_size=batch_size))
        check_values(values, data, change.__name__ if change else "random")


def test_one_metric_of_each_class_is_what_scikit_learn_says_on_three_devices():
    # The trainer of the quick test of an epoch, which compiles for seconds.
    check_test(make_trainer(3, cases.QUICK, gradient_accumulation_steps=3), 64)


# Each number of devices with another size: all rows at once, a size that no number of devices
# divides; and examples one by one, of one metric of each class.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_devices", "batch_size", "names"),
    [(1, cases.NUM_ROWS, cases.ALL), (3, 7, cases.ALL), (8, 1, cases.QUICK)],
    ids=["1-whole", "3-7", "8-1"],
)
def test_all_metrics_are_what_scikit_learn_says(num_devices, batch_size, names):
    check_test(make_trainer(num_devices, tuple(names)), batch_size)


# In training.


def check_epoch(trainer, batch_size=64, stop_after=None):
    """Train an epoch, and compare what it says at its end; a stopped one says nothing."""
    data = make_data(None)
    recorder = Recorder(f"EndStep 0 {stop_after}", lambda _: trainer.stop())
    trainer.train(readers.arrays(data, batch_size=batch_size), recorder)
    for event in recorder.of(ps.EndEpoch):
        for name, value in event.metrics.items():
            assert (value is None) == (name != "loss" and cases.keeps_rows(name)), name
        check_values({n: v for n, v in event.metrics.items() if v is not None}, data)
    return recorder


@pytest.mark.parametrize(
    ("num_devices", "options"),
    [
        (3, {"gradient_accumulation_steps": 3}),
        (8, {"gradient_accumulation_steps": 2, "steps_per_call": 2}),
    ],
    ids=["accumulation", "both"],
)
@pytest.mark.quick("accumulation")
def test_end_of_an_epoch_has_the_sums_of_all_its_batches(num_devices, options):
    trainer = make_trainer(num_devices, cases.QUICK, **options)
    recorder = check_epoch(trainer)
    # Of a step the exact ones of its batch, those that keep rows too.
    data = make_data(None)
    for number, event in enumerate(recorder.of(ps.EndStep)):
        batch = {name: value[64 * number : 64 * (number + 1)] for name, value in data.items()}
        check_values(event.metrics, batch, f"step {number}")


@pytest.mark.slow
def test_epoch_that_was_resumed_in_the_middle_has_the_sums_of_all_its_batches(tmp_path):
    config = ps.CheckpointConfig(directory=tmp_path, save_interval_steps=1)
    make = make_trainer.__wrapped__
    names = ("accuracy by weight", "AUC binary", "confusion", "log loss by weight", "bleu")
    first = check_epoch(make(3, names, checkpoint=config), 32, stop_after=1)
    assert not first.of(ps.EndEpoch)
    second = check_epoch(make(3, names, checkpoint=config), 32)
    assert second.of(ps.EndStep)[0].step == 2


@pytest.mark.slow
def test_two_processes_have_the_metrics_of_the_whole(tmp_path):
    command = [sys.executable, "-m", "penstock", "launch", "--num_processes=2", "--"]
    done = subprocess.run(
        [*command, str(ROOT / "tests/metrics/two_processes_run.py"), str(tmp_path / "f")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NPROC": "4"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown, other = (json.loads((tmp_path / f"f.{n}").read_text()) for n in range(2))
    assert shown == other
    data = make_data(None)
    check_values(shown["test"], data)
    check_values({n: v for n, v in shown["epoch"].items() if v is not None}, data)
    check_values(shown["step"], {name: value[:64] for name, value in data.items()})
    # Of one process, not trained yet, the same: examples are drawn by their places in the batch.
    reader = readers.arrays(data, batch_size=64)
    alone = make_trainer.__wrapped__(1, cases.QUICK).test(reader, confidence=0.95)
    for name, ends in shown["ends"].items():
        for end, value in zip(ends, (alone[name].low, alone[name].high), strict=True):
            if value is not None:
                np.testing.assert_allclose(end, value, rtol=1e-4, atol=1e-6, err_msg=name)
