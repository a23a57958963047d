"""EarlyStopping and ReduceOnPlateau: when they act, by which values, and what they leave."""

import io
import itertools
import json

import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from penstock._errors import UnknownNameError
from penstock.events import BeginTraining, EndEpoch, EndStep, EndTraining
from penstock.handlers import EarlyStopping, Evaluate, ReduceOnPlateau, StopAt
from tests.handlers.driving import Source, drive, driven_trainer, epochs, linear_trainer, resumed
from tests.networks import (
    Recorder,
    assert_same_bits,
    classifier_program,
    compile_warnings,
    host,
    linear_program,
    linear_reader,
)

NAN = float("nan")


class Stops:
    """A real trainer whose `stop` is noted, to drive a handler by hand."""

    def __init__(self) -> None:
        self.trainer = driven_trainer()
        self.epochs: list[int] = []
        # Past the trainer's own check: to users `stop` is a method, not an attribute to set.
        object.__setattr__(self.trainer, "stop", lambda: self.epochs.append(self.epoch))
        self.epoch = -1

    def __call__(self, event):
        self.epoch = getattr(event, "epoch", self.epoch)


def first_stop(values, **options):
    stops = Stops()
    options.setdefault("file", io.StringIO())
    epochs([stops, EarlyStopping(**options)], values, trainer=stops.trainer)
    return stops.epochs[0] if stops.epochs else None


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        ([3, 2, 1, 1, 1, 1], {"patience": 2}, 4),
        ([3, 2, 1, 1, 1, 1], {"patience": 1}, 3),
        ([3, 2, 1, 1, 0.5, 1, 0.75, 1], {"patience": 3}, 7),
        ([3, 2, 1, 0.5], {"patience": 1}, None),
        ([1, 2, 3, 3, 3], {"mode": "max", "patience": 2}, 4),
        ([1, 0.75, 0.5, 0.25], {"min_delta": 0.5, "patience": 2}, 2),
        ([1, 0.75, 0.5, 0.25, 0.25], {"min_delta": 0.25, "patience": 2}, 4),
        ([1, NAN, NAN, 0.5, NAN, NAN, NAN], {"patience": 3}, 6),
        ([NAN, NAN, NAN], {"patience": 2}, 1),
        ([float("inf"), 2.0, float("inf"), 1.0], {"patience": 2}, None),
    ],
)
def test_training_stops_after_epochs_without_a_better_value(values, options, expected):
    assert first_stop([float(value) for value in values], **options) == expected


def test_other_metrics_may_be_monitored():
    trainer = ps.Trainer(classifier_program, optax.sgd(0.1), place="cpu")
    stops = []
    object.__setattr__(trainer, "stop", lambda: stops.append(True))
    handler = EarlyStopping(
        "accuracy", mode="max", patience=1, names=("loss", "accuracy"), file=io.StringIO()
    )
    epochs(handler, [(1.0, 0.5), (2.0, 0.75), (0.5, 0.75)], trainer=trainer)
    assert stops == [True]


def test_with_a_reader_its_test_counts_and_no_epoch_is_read():
    trainer = linear_trainer()
    recorder = Recorder()
    diverging = EarlyStopping(reader=linear_reader(), patience=2, file=io.StringIO())
    source = Source()

    def spoil(event):
        if isinstance(event, EndEpoch):
            for name, value in trainer.parameters.items():
                trainer.parameters[name] = value + 10.0

    trainer.train(linear_reader(), [recorder, diverging, spoil], num_epochs=9)
    assert recorder.lines[-1] == "EndTraining stopped"
    assert trainer.epoch == 3
    drive(EarlyStopping(reader=linear_reader()), trainer=trainer, source=source)
    assert source.epochs == []


def test_evaluate_is_asked_and_tests_once_for_all():
    passes = []

    def reader():
        passes.append(True)
        return iter(linear_reader())

    evaluate = Evaluate(reader, file=io.StringIO())
    handlers = [EarlyStopping(test=evaluate, min_delta=99.0, patience=2), evaluate]
    trainer = linear_trainer()
    trainer.train(linear_reader(), handlers, num_epochs=9)
    assert trainer.epoch == 3
    assert len(passes) == 3


@pytest.mark.parametrize("stop_first", [True, False])
@pytest.mark.parametrize("options", [{"every_epochs": 3}, {"every_epochs": None, "every_steps": 7}])
def test_epochs_between_the_tests_of_an_evaluate_are_not_counted(options, stop_first, capsys):
    """Epochs have three steps: tests are behind 9, 18 and 27 of them, or in epochs 3, 5 and 7."""
    evaluate = Evaluate(linear_reader(), file=io.StringIO(), **options)
    stop = EarlyStopping(test=evaluate, min_delta=99.0, patience=2)
    trainer = linear_trainer()
    handlers = [stop, evaluate] if stop_first else [evaluate, stop]
    trainer.train(linear_reader(), handlers, num_epochs=20)
    assert trainer.epoch == (9 if "every_steps" not in options else 7)
    assert len(evaluate.results) == 3
    assert "for 2 tests, training stops" in capsys.readouterr().out


def spoiled(*handlers, after_epochs=(), num_epochs=9):
    """Train, and make the parameters worse after some epochs.

    Returns:
      The trainer, and the parameters at the end of each epoch.
    """
    trainer, kept = linear_trainer(), []

    def keep(event):
        if isinstance(event, EndEpoch):
            kept.append(host(dict(trainer.parameters)))

    def spoil(event):
        if isinstance(event, EndEpoch) and event.epoch in after_epochs:
            for name, value in trainer.parameters.items():
                trainer.parameters[name] = value + 10.0

    trainer.train(linear_reader(), [keep, *handlers, spoil], num_epochs=num_epochs)
    return trainer, kept


@pytest.mark.parametrize(("patience", "num_epochs"), [(2, 9), (9, 4)], ids=["stopped", "done"])
def test_best_parameters_are_given_back_at_the_end(patience, num_epochs):
    handler = EarlyStopping(patience=patience, restore_best=True, file=io.StringIO())
    trainer, kept = spoiled(handler, after_epochs=(1, 2), num_epochs=num_epochs)
    assert len(kept) == 4
    assert_same_bits(dict(trainer.parameters), kept[1])


def test_best_parameters_are_given_back_where_training_stops_in_the_epoch_after_them():
    trainer, kept = spoiled(EarlyStopping(patience=9, restore_best=True), StopAt(step=5))
    assert (trainer.global_step, len(kept)) == (5, 1)
    assert_same_bits(dict(trainer.parameters), kept[0])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"every_steps": 2, "every_epochs": None}, "every_steps=2, every_epochs=None"),
        ({"every_steps": 2, "every_epochs": 2}, "every_steps=2, every_epochs=2"),
        ({"averaged": True}, "averaged=True"),
    ],
)
def test_best_parameters_are_not_of_a_test_of_others(options, text):
    evaluate = Evaluate(linear_reader(), **options)
    with pytest.raises(ValueError, match=rf"restore_best=True and Evaluate\({text}\), expected"):
        EarlyStopping(restore_best=True, test=evaluate)
    EarlyStopping(test=evaluate)


def test_best_parameters_are_those_that_an_evaluate_tested():
    evaluate = Evaluate(linear_reader(), every_steps=2, file=io.StringIO())
    handler = EarlyStopping(patience=9, restore_best=True, test=evaluate)
    trainer, _ = spoiled(evaluate, handler, after_epochs=(1, 2), num_epochs=4)
    of_ends = [metrics["loss"] for step, metrics in evaluate.results if step % 3 == 0]
    assert len(of_ends) == 4 < len(evaluate.results)
    assert trainer.test(linear_reader()) == min(of_ends)


@pytest.mark.parametrize("restore_best", [True, False])
def test_parameters_stay_after_an_error_and_when_not_asked_for(restore_best):
    trainer = linear_trainer()
    handler = EarlyStopping(patience=9, restore_best=restore_best)
    before = host(dict(trainer.parameters))
    handler(BeginTraining(0, 9, 0, trainer))
    for epoch, loss in enumerate([0.5, 1.0]):
        handler(EndEpoch(epoch, epoch + 1, read=lambda loss=loss: loss))
        for name, value in trainer.parameters.items():
            trainer.parameters[name] = value + 1.0
    after = host(dict(trainer.parameters))
    handler(
        EndTraining("failed", ValueError("no more data"))
        if restore_best
        else EndTraining("completed")
    )
    assert_same_bits(dict(trainer.parameters), after)
    assert not np.array_equal(before["fc_0/w"], after["fc_0/w"])


def state_after(values, **options):
    """Return the state of a handler after epochs of these values, as a checkpoint holds it."""
    stops = Stops()
    handler = EarlyStopping(**options, file=io.StringIO())
    epochs([stops, handler], values, trainer=stops.trainer)
    return json.loads(json.dumps(handler.get_state(), allow_nan=False))


def test_resumed_run_counts_on():
    state = state_after([2.0, 1.0, 1.5], patience=3)
    handler, stops = EarlyStopping(patience=3, file=io.StringIO()), Stops()
    options = resumed(handler, state)
    epochs([stops, handler], [1.5, 1.25, 0.5], trainer=stops.trainer, first=3, **options)
    assert stops.epochs == [4]


def test_run_that_was_stopped_stops_again_when_it_is_resumed(capsys):
    state = state_after([1.0, 2.0], patience=1)
    handler, stops = EarlyStopping(patience=1), Stops()
    options = resumed(handler, state)
    epochs([stops, handler], [0.5], trainer=stops.trainer, first=2, **options)
    assert stops.epochs == [2]
    assert "EarlyStopping: training was stopped here before" in capsys.readouterr().out


def test_same_command_run_again_stops_again_with_the_best_parameters(tmp_path):
    results = []
    for _ in range(2):
        trainer = linear_trainer(checkpoint=tmp_path / "run")
        handler = EarlyStopping(patience=2, min_delta=99.0, restore_best=True, file=io.StringIO())
        trainer.train(linear_reader(), handler, num_epochs=9)
        results.append((trainer.global_step, host(dict(trainer.parameters))))
    assert results[0][0] == results[1][0] == 9
    assert_same_bits(results[0][1], results[1][1])


def test_best_parameters_of_a_run_to_its_end_are_in_its_checkpoint(tmp_path):
    results = []
    for _ in range(2):
        trainer = linear_trainer(checkpoint=tmp_path / "run")
        # Worse with every epoch: the first is the best.
        handler = EarlyStopping(
            patience=9, restore_best=True, test=lambda trainer=trainer: float(trainer.epoch)
        )
        trainer.train(linear_reader(), handler, num_epochs=4)
        results.append(host(dict(trainer.parameters)))
    loaded = linear_trainer()
    loaded.load_params(tmp_path / "run")
    first = linear_trainer()
    first.train(linear_reader(), num_epochs=1)
    for parameters in (*results, host(dict(loaded.parameters))):
        assert_same_bits(parameters, host(dict(first.parameters)))


def test_another_call_of_train_has_its_patience_anew():
    trainer = linear_trainer()
    handler = EarlyStopping(patience=2, min_delta=99.0, file=io.StringIO())
    trainer.train(linear_reader(), handler, num_epochs=9)
    assert trainer.epoch == 3
    trainer.train(linear_reader(), handler, num_epochs=9)
    assert trainer.epoch == 5


def test_another_run_begins_without_a_best_value():
    handler = EarlyStopping(patience=2, min_delta=99.0, file=io.StringIO())
    for _ in range(2):
        trainer = linear_trainer()
        trainer.train(linear_reader(), handler, num_epochs=9)
        assert trainer.epoch == 3


def test_another_trainer_gets_no_parameters_of_the_one_before():
    evaluate = Evaluate(linear_reader(), file=io.StringIO())
    handler = EarlyStopping(patience=9, restore_best=True, test=evaluate)
    first, second = linear_trainer(), linear_trainer()
    first.train(linear_reader(), [evaluate, handler], num_epochs=3)
    # Worse than the first ever was, and not at its beginning.
    second.train(linear_reader())
    second.parameters["fc_0/b"] += 100.0
    second.update_scale = 0.0
    before = host(dict(second.parameters))
    second.train(linear_reader(), [evaluate, handler])
    assert_same_bits(dict(second.parameters), before)
    assert [step for step, _ in evaluate.results] == [6]


def test_resume_without_the_best_parameters_is_warned_of(caplog):
    handler = EarlyStopping(restore_best=True)
    handler(BeginTraining(2, 9, 6, driven_trainer()))
    handler.set_state({"best": 0.5, "num_bad_epochs": 1, "has_stopped": False})
    (warning,) = compile_warnings(caplog)
    assert warning.startswith("EarlyStopping got a resumed run and restore_best=True, expected")
    assert "The parameters of the best value so far, 0.5, are not in a checkpoint" in warning


def test_metric_that_is_an_array_is_an_error_that_says_so():
    def program():
        prediction = layers.fc(layers.data("x", shape=[2]), size=1)
        return {"loss": layers.mean(prediction), "prediction": prediction}

    text = r"monitor='prediction', expected one of 'loss'\. .* 'prediction' is an array\. Return a"
    trainer = ps.Trainer(program, optax.sgd(0.1), place="cpu")
    with pytest.raises(UnknownNameError, match=text):
        trainer.train(linear_reader(), EarlyStopping("prediction"))


def test_unknown_metric_of_a_test_is_an_error_at_the_first_reading():
    handler = EarlyStopping("bleu", test=lambda: {"blue": 0.5})
    text = r"EarlyStopping got monitor='bleu', expected one of 'blue'\. .* Did you mean 'blue'\?"
    with pytest.raises(UnknownNameError, match=text):
        linear_trainer().train(linear_reader(), handler)


def scales(values, *, handler=None, first=0, on_begin=lambda: None, **options):
    options.setdefault("file", io.StringIO())
    trainer = driven_trainer()
    trainer.update_scale = 1.0
    update_scales = []

    def look(event):
        if isinstance(event, EndEpoch):
            update_scales.append(round(trainer.update_scale, 6))

    handlers = [handler or ReduceOnPlateau(**options), look]
    epochs(
        handlers,
        [float(value) for value in values],
        trainer=trainer,
        first=first,
        on_begin=on_begin,
    )
    return update_scales


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


def test_optimizer_whose_updates_cannot_be_scaled_is_refused_before_the_first_step():
    trainer = ps.Trainer(linear_program, optax.lookahead(optax.sgd(0.05), 5, 0.5), place="cpu")
    with pytest.raises(ps.ProgramError, match=r"expected 1 with the optimizer optax\.lookahead"):
        trainer.train(linear_reader(), ReduceOnPlateau(), num_epochs=2)
    assert trainer.global_step == 0


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


def test_resumed_run_counts_its_cooldown_on():
    first = ReduceOnPlateau(patience=2, cooldown=2, file=io.StringIO())
    assert scales([1, 1, 1, 1], handler=first) == [1, 1, 0.1, 0.1]
    state = json.loads(json.dumps(first.get_state(), allow_nan=False))
    assert state == {"best": 1.0, "num_bad_epochs": 0, "cooldown_left": 1}
    second = ReduceOnPlateau(patience=2, cooldown=2, file=io.StringIO())
    options = resumed(second, state)
    # The scale is the trainer's to keep; here it begins anew.
    assert scales([1, 1, 1], handler=second, first=4, **options) == [1, 1, 0.1]


def test_another_run_begins_anew():
    handler = ReduceOnPlateau(patience=2, file=io.StringIO())
    assert scales([1, 1], handler=handler) == [1, 1]
    assert scales([2, 1, 1, 1], handler=handler) == [1, 1, 1, 0.1]


def test_state_before_the_first_value_goes_through_a_checkpoint():
    state = state_after([], patience=3)
    assert state == {"best": None, "num_bad_epochs": 0, "has_stopped": False}
    assert state_after([float("inf")], patience=3)["best"] == "inf"


def test_resumed_epoch_counts_by_the_tests_that_it_had_before(tmp_path):
    """Tests are behind steps 4, 8 and 12, epochs behind 3, 6 and 9; it breaks off behind 5."""

    def train(*more):
        evaluate = Evaluate(linear_reader(), every_steps=4, every_epochs=None, file=io.StringIO())
        stop = EarlyStopping(test=evaluate, min_delta=99.0, patience=2, file=io.StringIO())
        trainer = linear_trainer(checkpoint=tmp_path / "run")
        trainer.train(linear_reader(), [evaluate, stop, *more], num_epochs=20)
        return trainer.global_step

    def break_off(event):
        if isinstance(event, EndStep) and event.global_step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(break_off)
    assert train() == 12
