"""What trainers, inferencers, builders and readers show of themselves in a notebook."""

import numpy as np
import optax
import pytest

import penstock as ps
from penstock import readers
from tests.networks import classifier, classifier_program, one_device


@pytest.fixture
def reader():
    rows = {"x": np.ones([6, 4], np.float32), "label": np.zeros([6, 1], np.int32)}
    return readers.arrays(rows, 2, shuffle=True)


def test_trainer_and_inferencer_say_what_they_hold(reader, tmp_path):
    trainer = ps.Trainer(classifier_program, optax.sgd(0.1), place=one_device())
    held = f"{sum(value.size for value in trainer.parameters.values())} parameters, on 1 x cpu>"
    trainer.train(reader)
    names = ", ".join(trainer.builder.programs.network.feed_specs)
    assert repr(trainer.builder) == f"<ProgramBuilder: inputs {names}, {held}"
    assert repr(trainer) == f"<Trainer: epoch 1, step 3, {trainer.builder!r}>"
    trainer.save_params(tmp_path)
    inferencer = ps.Inferencer(classifier, tmp_path, place=one_device())
    assert repr(inferencer) == f"<Inferencer: <ProgramBuilder: inputs x, {held}>"


def test_readers_say_what_they_read_without_reading(reader):
    iter(reader)
    rows = "6 rows of {'x': 'float32[4]', 'label': 'int32[1]'}, batch size 2, shuffled"
    assert repr(reader) == f"<ArrayReader: {rows}, next epoch 1>"
    assert repr(readers.shuffle(reader, 3)) == f"<shuffle of {reader!r}: next epoch 0>"
    # Of a file that is not there yet: nothing is opened.
    assert repr(readers.cache(lambda: iter(()))) == (
        "<cache of <ForeignReader: next epoch 0>: next epoch 0>"
    )


def test_repr_of_an_event_has_metrics_that_were_read_in_short():
    metrics = {"loss": 0.123456, "each": np.ones([64, 10], np.float32), "all": list(range(9))}
    step, epoch = ps.EndStep(1, 2, 3, read=lambda: metrics), ps.EndEpoch(1, 3, read=lambda: 0.5)
    assert repr(step) == "EndStep(epoch=1, step=2, global_step=3)"  # and waits for no device
    assert repr(epoch) == "EndEpoch(epoch=1, global_step=3)"
    assert step.metrics is metrics
    assert epoch.metrics == 0.5
    short = "{'all': [0, 1, 2, 3, 4, 5, ...], 'each': float32[64, 10], 'loss': 0.1235}"
    assert repr(step) == f"EndStep(epoch=1, step=2, global_step=3, metrics={short})"
    assert repr(epoch) == "EndEpoch(epoch=1, global_step=3, metrics=0.5)"


def test_repr_of_an_event_has_neither_the_trainer_nor_a_long_error():
    assert repr(ps.BeginTraining(0, 2, 3, trainer=object())) == (  # pyright: ignore
        "BeginTraining(epoch=0, num_epochs=2, global_step=3)"
    )
    assert repr(ps.EndTraining("completed", None, 8)) == (
        "EndTraining(reason='completed', global_step=8)"
    )
    failed = repr(ps.EndTraining("failed", ValueError("x" * 1000), 8))
    assert failed.startswith("EndTraining(reason='failed', error=ValueError('xxx")
    assert len(failed) < 160
