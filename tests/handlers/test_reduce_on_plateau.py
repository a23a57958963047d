"""ReduceOnPlateau: when the updates get smaller, how small, and how often."""

import io
import itertools
import json

import pytest

from penstock.events import EndEpoch
from penstock.handlers import Evaluate, ReduceOnPlateau
from tests.handlers.driving import ORDERS, driven_trainer, epochs, linear_trainer, resumed
from tests.networks import host, linear_reader


def scales(values, *, handler=None, first=0, on_begin=lambda: None, **options):
    """Return the update scale after each epoch, given the values of the epochs."""
    options.setdefault("file", io.StringIO())
    trainer = driven_trainer()
    trainer.update_scale = 1.0
    found = []

    def look(event):
        if isinstance(event, EndEpoch):
            found.append(round(trainer.update_scale, 6))

    handlers = [handler or ReduceOnPlateau(**options), look]
    epochs(
        handlers,
        [float(value) for value in values],
        trainer=trainer,
        first=first,
        on_begin=on_begin,
    )
    return found


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        ([2, 1, 1, 1, 1, 1], {"patience": 2}, [1, 1, 1, 0.1, 0.1, 0.01]),
        ([2, 1, 1, 0.5, 0.5], {"patience": 1, "factor": 0.5}, [1, 1, 0.5, 0.5, 0.25]),
        ([1, 1, 1, 1, 1], {"patience": 1, "cooldown": 2}, [1, 0.1, 0.1, 0.1, 0.01]),
        ([1, 1, 1, 1], {"patience": 1, "min_scale": 0.05}, [1, 0.1, 0.05, 0.05]),
        ([1, 2, 2], {"patience": 1, "mode": "max"}, [1, 1, 0.1]),
        ([2, 1.75, 1.5], {"patience": 1, "min_delta": 0.5}, [1, 0.1, 0.01]),
        ([2, float("nan"), 1], {"patience": 1}, [1, 0.1, 0.1]),
    ],
)
def test_scale_is_lowered_after_epochs_without_a_better_value(values, options, expected):
    assert scales(values, **options) == expected


def test_line_is_printed_at_each_reduction_and_none_at_the_lowest(capsys):
    scales([1, 1, 1, 1], patience=1, min_scale=0.1, file=None)
    assert capsys.readouterr().out == (
        "ReduceOnPlateau: loss has not been better than 1 for 1 epoch, updates are scaled by 0.1\n"
    )


def test_updates_of_a_real_training_get_smaller():
    trainer, parameters = linear_trainer(), []

    def note(event):
        if type(event).__name__ == "EndStep":
            parameters.append(host(dict(trainer.parameters)))

    handler = ReduceOnPlateau(factor=1e-6, patience=1, min_delta=99.0, file=io.StringIO())
    trainer.train(linear_reader(4), [note, handler], num_epochs=4)
    moves = [
        abs(after["fc_0/w"] - before["fc_0/w"]).max()
        for before, after in itertools.pairwise(parameters)
    ]
    assert trainer.update_scale == pytest.approx(1e-18)
    assert moves[0] > 1e-3  # the second epoch's, after which the scale is lowered
    assert max(moves[1:]) < 1e-6


def test_with_a_reader_its_test_counts():
    trainer = linear_trainer()
    handler = ReduceOnPlateau(
        reader=linear_reader(), patience=1, min_delta=99.0, file=io.StringIO()
    )
    trainer.train(linear_reader(), handler, num_epochs=2)
    assert trainer.update_scale == pytest.approx(0.1)


def test_evaluate_is_asked():
    trainer = linear_trainer()
    evaluate = Evaluate(linear_reader(), file=io.StringIO())
    handler = ReduceOnPlateau(test=evaluate, patience=1, min_delta=99.0, file=io.StringIO())
    trainer.train(linear_reader(), [handler, evaluate], num_epochs=3)
    assert trainer.update_scale == pytest.approx(0.01)
    assert len(evaluate.results) == 3


@ORDERS
def test_resumed_run_counts_on(order):
    first = ReduceOnPlateau(patience=2, cooldown=2, file=io.StringIO())
    assert scales([1, 1, 1, 1], handler=first) == [1, 1, 0.1, 0.1]
    state = json.loads(json.dumps(first.get_state(), allow_nan=False))
    assert state == {"best": 1.0, "num_bad_epochs": 0, "cooldown_left": 1}
    second = ReduceOnPlateau(patience=2, cooldown=2, file=io.StringIO())
    options = resumed(second, state, order)
    # The scale is the trainer's to keep; here it begins anew.
    assert scales([1, 1, 1], handler=second, first=4, **options) == [1, 1, 0.1]


def test_checkpoint_of_a_real_run_brings_count_and_scale(tmp_path):
    def run(directory, num_epochs):
        trainer = linear_trainer(checkpoint=directory)
        handler = ReduceOnPlateau(patience=2, min_delta=99.0, file=io.StringIO())
        trainer.train(linear_reader(), handler, num_epochs=num_epochs)
        return trainer.update_scale

    def interrupt(event):
        if isinstance(event, EndEpoch) and event.epoch == 3:
            raise KeyboardInterrupt

    trainer = linear_trainer(checkpoint=tmp_path / "run")
    handler = ReduceOnPlateau(patience=2, min_delta=99.0, file=io.StringIO())
    with pytest.raises(KeyboardInterrupt):
        trainer.train(linear_reader(), [handler, interrupt], num_epochs=5)
    assert trainer.update_scale == pytest.approx(0.1)
    assert run(tmp_path / "run", 5) == pytest.approx(0.01)


def test_another_run_begins_anew():
    handler = ReduceOnPlateau(patience=2, file=io.StringIO())
    assert scales([1, 1], handler=handler) == [1, 1]
    assert scales([2, 1, 1, 1], handler=handler) == [1, 1, 1, 0.1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"factor": 1}, "ReduceOnPlateau got factor=1, expected a number between 0 and 1. The sc"),
        ({"factor": 0.0}, "ReduceOnPlateau got factor=0.0, expected a number between 0 and 1."),
        ({"min_scale": -1}, "ReduceOnPlateau got min_scale=-1, expected 0 or more. The scale of"),
        ({"cooldown": -1}, "ReduceOnPlateau got cooldown=-1, expected an integer of 0 or more."),
        ({"patience": 0}, "ReduceOnPlateau got patience=0, expected a positive integer."),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, text):
    with pytest.raises(ValueError, match=text.replace(".", r"\.")):
        ReduceOnPlateau(**arguments)
