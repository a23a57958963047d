"""When checkpoints are written, and which are kept."""

import optax
import pytest

import penstock as ps
from penstock import layers
from penstock._checkpoint import Store
from tests.checkpoints.runs import StopAfter, every_step, gan, shuffled_x, train_gan, train_line
from tests.networks import Recorder, linear_program, linear_reader, one_device


def steps(directory):
    return Store(every_step(directory)).steps()


class Written:
    """An event handler that notes the newest checkpoint at every event, once it is written."""

    def __init__(self, directory):
        self.steps, self._store, self._trainer = [], Store(every_step(directory)), None

    def __call__(self, event):
        if isinstance(event, ps.BeginTraining):
            self._trainer = event.trainer
        self._trainer._saver._writer.wait()
        newest = self._store.steps()[-1:]
        if newest and newest != self.steps[-1:]:
            self.steps += newest


def written(directory, num_epochs=3, **options):
    """Return the global steps at which a run of epochs of three steps wrote checkpoints."""
    trainer = train_line(ps.CheckpointConfig(directory=directory, max_to_keep=1, **options))
    handler = Written(directory)
    trainer.train(linear_reader(), handler, num_epochs=num_epochs)
    handler(None)
    return handler.steps


@pytest.mark.quick("save_interval_steps': 4, 'save_interval_epochs", "save_interval_epochs': 2")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [3, 6, 9]),
        ({"save_interval_steps": 1}, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ({"save_interval_steps": 4}, [4, 8, 9]),
        ({"save_interval_steps": 100}, [9]),
        ({"save_interval_epochs": 2}, [6, 9]),
        ({"save_interval_epochs": 100}, [9]),
        ({"save_interval_steps": 4, "save_interval_epochs": 1}, [3, 4, 6, 8, 9]),
        ({"save_interval_secs": 1000}, [9]),
        ({"save_interval_steps": 4, "is_asynchronous": False}, [4, 8, 9]),
    ],
    ids=str,
)
def test_checkpoints_are_written_at_their_interval_and_at_the_end(options, expected, tmp_path):
    assert written(tmp_path, **options) == expected


def test_interval_counts_steps_within_launches_too(tmp_path):
    config = ps.CheckpointConfig(directory=tmp_path, save_interval_steps=3, max_to_keep=1)
    trainer, handler = train_line(config, steps_per_call=2), Written(tmp_path)
    trainer.train(linear_reader(40), handler)  # ten batches: launches end after 2, 4, 6, 8, 10
    handler(None)
    assert handler.steps == [4, 6, 10]


def test_interval_goes_on_where_the_run_was_interrupted(tmp_path):
    config = ps.CheckpointConfig(directory=tmp_path, save_interval_steps=4, max_to_keep=1)
    train_line(config).train(linear_reader(), StopAfter(5), num_epochs=3)
    assert steps(tmp_path) == [5]
    assert written(tmp_path, save_interval_steps=4) == [5, 8, 9]


def test_interval_in_seconds_counts_from_the_checkpoint_before(tmp_path):
    config = ps.CheckpointConfig(
        directory=tmp_path, save_interval_secs=2.5, max_to_keep=100, is_asynchronous=False
    )
    trainer, now = train_line(config), [0.0]
    trainer._saver._clock = lambda: now[0]  # a real clock would make the steps guesswork

    def tick(event):
        now[0] += isinstance(event, ps.EndStep)

    trainer.train(linear_reader(40), tick)
    assert steps(tmp_path) == [3, 6, 9, 10]


# The newest and the best.


@pytest.mark.quick("2")
@pytest.mark.parametrize("max_to_keep", [1, 2, 5])
def test_newest_checkpoints_are_kept(max_to_keep, tmp_path):
    config = every_step(tmp_path, max_to_keep=max_to_keep)
    train_line(config).train(linear_reader(), num_epochs=2)
    assert steps(tmp_path) == list(range(1, 7))[-max_to_keep:]


def metrics_program():
    """Return the step's number as loss and, counted down from 8, as a metric."""
    step = layers.mean(layers.data("step", shape=[1]))
    weight = layers.create_parameter([1], name="weight")
    return step + layers.mean(weight) * 0, (step - 4.0) ** 2


def dict_program():
    """Return the same under names."""
    loss, metric = metrics_program()
    return {"loss": loss, "distance": metric}


def loss_program():
    """Return the loss alone."""
    return metrics_program()[0]


def numbers():
    """Yield a batch for each of eight steps, which holds its number."""
    for step in range(1, 9):
        yield {"step": [[float(step)]]}


def kept(directory, program, *, max_to_keep=1, num_epochs=1, reader=numbers, **options):
    """Return which checkpoints of a run of eight steps are kept."""
    config = every_step(directory, max_to_keep=max_to_keep, **options)
    trainer = ps.Trainer(program, optax.sgd(0.1), place=one_device(), checkpoint=config)
    trainer.train(reader, num_epochs=num_epochs)
    return steps(directory)


def values(*numbers):
    """Return a function that gives one number after the other."""
    return iter(numbers).__next__


NAN = float("nan")
LOWEST, HIGHEST = ({"num_best": 2, "mode": mode} for mode in ("min", "max"))
# The mean of the loss over the epoch so far grows from step to step: the last is the highest. That
# of (step - 4)² is 9, 6.5, 4.7, 3.5, 3, 3.2, 4 and 5.5.
BEST = {
    "lowest loss of a tuple": (metrics_program, {"max_to_keep": 2, **LOWEST}, [1, 2, 7, 8]),
    "lowest loss of a dict": (dict_program, {"max_to_keep": 2, **LOWEST}, [1, 2, 7, 8]),
    "highest loss": (loss_program, {"max_to_keep": 2, **HIGHEST}, [7, 8]),
    "metric by its number": (metrics_program, {"monitor": "1", **LOWEST}, [5, 6, 8]),
    "metric by its name": (dict_program, {"monitor": "distance", **LOWEST}, [5, 6, 8]),
    "highest metric": (dict_program, {"monitor": "distance", **HIGHEST}, [1, 2, 8]),
    "function": (
        loss_program,
        {"num_best": 2, "monitor": lambda: values(3.0, 1.0, 2.0, 0.5, 5.0, 4.0, 6.0, 7.0, 8.0)},
        [2, 4, 8],
    ),
    "function with nan, which is never the best": (
        loss_program,
        {"num_best": 3, "monitor": lambda: values(NAN, 3.0, NAN, 2.0, *[NAN] * 5)},
        [2, 4, 8],
    ),
}


@pytest.mark.quick("lowest loss of a dict", "metric by its name")
@pytest.mark.parametrize("what", BEST)
def test_best_are_kept_beside_the_newest(what, tmp_path):
    program, options, expected = BEST[what]
    monitor = options.get("monitor")
    if callable(monitor):
        options = {**options, "monitor": monitor()}
    assert kept(tmp_path, program, **options) == expected


@pytest.mark.slow
@pytest.mark.parametrize("is_best_first", [True, False])
def test_best_stay_the_best_in_a_resumed_run(is_best_first, tmp_path):
    values = [1.0, 5.0, 6.0, 7.0, 8.0, 9.0, 9.0, 9.0, 9.0]
    values = iter(values if is_best_first else values[::-1])
    config = every_step(tmp_path, max_to_keep=1, num_best=1, monitor=lambda: next(values))
    for until in (3, 6, 9):
        trainer = ps.Trainer(loss_program, optax.sgd(0.1), place=one_device(), checkpoint=config)
        trainer.train(numbers, StopAfter(until))
        newest = trainer.global_step
        assert steps(tmp_path) == ([1, newest] if is_best_first else [newest])


def test_checkpoint_without_an_example_has_no_metric_and_is_kept_as_the_newest(tmp_path):
    config = ps.CheckpointConfig(directory=tmp_path, num_best=1)
    trainer = train_line(config)
    trainer.save_checkpoint()
    assert steps(tmp_path) == [0]
    trainer.train(linear_reader())
    assert steps(tmp_path) == [0, 3]


@pytest.mark.parametrize(
    ("program", "monitor", "names"),
    [
        (metrics_program, "accuracy", "'0', '1', 'loss'"),
        (dict_program, "distances", "'loss', 'distance'"),
        (loss_program, "1", "'loss'"),
        (gan(), "discriminator/accuracy", "'loss'"),
    ],
)
def test_unknown_monitor_is_refused_at_construction(program, monitor, names, tmp_path):
    optimizer = None if isinstance(program, dict) else optax.sgd(0.1)
    config = ps.CheckpointConfig(directory=tmp_path, num_best=1, monitor=monitor)
    with pytest.raises(ps.UnknownNameError) as caught:
        ps.Trainer(program, optimizer, place=one_device(), checkpoint=config)
    expected = f"monitor got {monitor!r}, expected one of {names}, or a function."
    assert str(caught.value) == expected


def test_monitor_without_its_objective_is_refused_at_construction(tmp_path):
    config = ps.CheckpointConfig(directory=tmp_path, num_best=1)
    with pytest.raises(ps.UnknownNameError) as caught:
        train_gan(config)
    assert str(caught.value) == (
        "monitor got 'loss', expected 'objective/metric' of 'discriminator', 'generator'."
    )


# The configuration.


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"save_interval_steps": 0}, "save_interval_steps got 0, expected an integer of 1 or more"),
        (
            {"save_interval_epochs": 1.5},
            "save_interval_epochs got 1.5, expected an integer of 1 or more",
        ),
        ({"save_interval_secs": 0}, "save_interval_secs=0, expected a number above 0"),
        ({"max_to_keep": -1}, "max_to_keep got -1, expected an integer of 1 or more"),
        ({"num_best": -1}, "num_best got -1, expected an integer of 0 or more"),
        ({"mode": "best"}, "mode='best', expected one of 'min', 'max'"),
    ],
)
def test_configuration_that_makes_no_sense_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        ps.CheckpointConfig(directory="runs", **wrong)


def test_what_is_no_configuration_is_refused():
    with pytest.raises(TypeError) as caught:
        ps.Trainer(linear_program, optax.sgd(0.1), checkpoint=3)
    assert str(caught.value) == ("checkpoint got int, expected a ps.CheckpointConfig or a folder.")


def test_name_of_a_folder_is_a_configuration_of_one_checkpoint_an_epoch(tmp_path):
    train_line(str(tmp_path)).train(linear_reader(), num_epochs=5)
    assert steps(tmp_path) == [9, 12, 15]


@pytest.mark.slow
def test_best_of_several_objectives_is_named_with_its_objective(tmp_path):
    config = every_step(tmp_path, max_to_keep=1, num_best=1, monitor="generator/loss")
    trainer, recorder = train_gan(config), Recorder()
    trainer.train(shuffled_x(), recorder)
    losses, best = 0.0, (float("inf"), 0)
    for count, event in enumerate(recorder.of(ps.EndStep), 1):
        losses += event.metrics["generator"] * event.num_examples
        mean = losses / (4 * count if count < 11 else 43)
        best = min(best, (mean, count))
    assert steps(tmp_path) == sorted({best[1], 11})
