"""Handlers and checkpoints: an error keeps the run, and handlers keep their own states."""

import functools

import numpy as np
import pytest

import penstock as ps
from penstock import handlers
from penstock._checkpoint import Store
from tests.checkpoints.runs import (
    EPOCH,
    RUNS,
    Seen,
    StopAfter,
    as_killed_at,
    every_step,
    shuffled,
    train_classifier,
    train_line,
    whole_state,
)
from tests.networks import (
    assert_same_bits,
    compile_warnings,
    describe,
    eight_devices,
    linear_reader,
)


class Faulty:
    """An event handler that raises at the first event of which `describe` gives `at`."""

    def __init__(self, at):
        self._at = at

    def __call__(self, event):
        if describe(event) == self._at:
            self._at = ""
            raise LookupError("a fault of mine")


@pytest.fixture(scope="module")
def whole():
    """Return state and what was seen of the runs that nothing interrupts."""

    @functools.cache
    def made(name):
        trainer, seen = RUNS[name].trained(None)
        return whole_state(trainer), seen

    return made


@pytest.mark.quick("line-1-EndStep 0 5")
@pytest.mark.parametrize(
    ("name", "at", "step"),
    [
        ("line-1", "EndStep 0 5", 6),
        ("line-1", "BeginTraining 0", 0),
        ("line-1", "BeginEpoch 0", 0),
        ("line-1", "BeginStep 0 5", 5),
        ("line-1", f"EndStep 0 {EPOCH - 1}", EPOCH),
        ("classifier-1", "EndEpoch 0", EPOCH),
        ("line-1", "BeginEpoch 1", EPOCH),
        ("line-1", "EndTraining completed", 2 * EPOCH),
        ("line-8", "BeginStep 1 5", EPOCH),
        ("line-8", "EndStep 0 5", 8),
        ("classifier-8", "EndStep 1 8", EPOCH + 9),
    ],
)
def test_error_of_a_handler_leaves_a_checkpoint_to_go_on_from_exactly_there(
    whole, name, at, step, tmp_path
):
    run, config = RUNS[name], ps.CheckpointConfig(directory=tmp_path, save_interval_steps=1000)
    with pytest.raises(LookupError) as caught:
        run.trained(config, Faulty(at))
    assert caught.value.args == ("a fault of mine",)
    (note,) = caught.value.__notes__
    assert note.startswith(f"Raised by the event handler Faulty at {at.split()[0]}(")
    assert Store(config).steps() == [step]
    state, expected = whole(name)
    trainer, seen = run.trained(config)
    assert_same_bits(whole_state(trainer), state)
    assert seen.steps == {k: record for k, record in expected.steps.items() if k >= step}


def test_state_is_saved_before_the_end_of_training_is_told(tmp_path):
    ends = []

    def look(event):
        if isinstance(event, ps.EndTraining):
            ends.append((event.reason, Store(every_step(tmp_path)).steps()))

    with pytest.raises(LookupError):
        train_line(tmp_path).train(linear_reader(), [Faulty("EndStep 0 1"), look])
    assert ends == [("failed", [2])]


def test_error_of_a_reader_leaves_a_checkpoint_to_go_on_from(whole, tmp_path):
    class Broken:
        def __iter__(self):
            yield from list(linear_reader())[:2]
            raise LookupError("a fault of the reader")

    with pytest.raises(LookupError):
        train_line(tmp_path).train(Broken())
    trainer, expected = train_line(tmp_path), train_line()
    assert trainer.global_step == 2
    trainer.train(list(linear_reader()))
    expected.train(list(linear_reader()))
    assert_same_bits(whole_state(trainer), whole_state(expected))


# Their states.


class Counter:
    """An event handler that counts examples and losses, and keeps its counts."""

    def __init__(self):
        self.num_examples, self.losses, self.restored = 0, [], []

    def __call__(self, event):
        if isinstance(event, ps.EndStep):
            self.num_examples += event.num_examples
            self.losses.append(event.metrics)

    def get_state(self):
        return {"num_examples": self.num_examples, "losses": self.losses}

    def set_state(self, state):
        self.restored.append(state)
        self.num_examples, self.losses = state["num_examples"], list(state["losses"])


class Other(Counter):
    """Another one."""


@pytest.mark.quick("2")
@pytest.mark.parametrize(("until", "others_too"), [(2, True), (3, False), (5, True)])
def test_states_of_handlers_go_through_a_checkpoint(until, others_too, tmp_path):
    expected = Counter()
    train_line().train(linear_reader(), expected, num_epochs=3)
    config = ps.CheckpointConfig(directory=tmp_path, save_interval_steps=1)
    train_line(config).train(linear_reader(), [Counter(), StopAfter(until)], num_epochs=3)
    resumed = Counter()
    watching = [resumed, Seen()] if others_too else resumed
    train_line(config).train(linear_reader(), watching, num_epochs=3)
    assert resumed.get_state() == expected.get_state()
    assert [len(state["losses"]) for state in resumed.restored] == [until]


class Ends:
    """An event handler that keeps the epochs whose end it has seen."""

    def __init__(self):
        self.epochs = []

    def __call__(self, event):
        if isinstance(event, ps.EndEpoch):
            self.epochs.append(event.epoch)

    def get_state(self):
        return self.epochs

    def set_state(self, state):
        self.epochs = state


class Halves:
    """An event handler that halves each update and shrinks a parameter at the end of an epoch."""

    def __call__(self, event):
        if isinstance(event, ps.BeginTraining):
            self._trainer = event.trainer
        elif isinstance(event, ps.EndEpoch):
            self._trainer.update_scale *= 0.5
            self._trainer.parameters["fc_0/w"] *= 0.5


@pytest.fixture(scope="module")
def halved():
    """Return the state of a run of two epochs whose ends change it, uninterrupted."""
    trainer = train_line()
    trainer.train(linear_reader(), [Halves()], num_epochs=2)
    return whole_state(trainer)


def test_end_of_an_epoch_that_a_handler_broke_off_is_told_to_each_once(halved, tmp_path):
    config = ps.CheckpointConfig(directory=tmp_path, save_interval_steps=1000)
    with pytest.raises(LookupError):
        train_line(config).train(
            linear_reader(), [Ends(), Halves(), Faulty("EndEpoch 0"), Ends()], num_epochs=2
        )
    before, after, trainer = Ends(), Ends(), train_line(config)
    trainer.train(linear_reader(), [before, Halves(), after], num_epochs=2)
    assert before.epochs == after.epochs == [0, 1]
    assert_same_bits(whole_state(trainer), halved)


def test_checkpoint_that_a_handler_writes_at_the_end_of_an_epoch_is_of_before_it(halved, tmp_path):
    trainer = train_line(ps.CheckpointConfig(directory=tmp_path / "a", save_interval_epochs=1))

    def save(event):
        if isinstance(event, ps.EndEpoch) and not event.epoch:
            trainer.save_checkpoint()
            as_killed_at(tmp_path / "a", event.global_step, tmp_path / "b")

    trainer.train(linear_reader(), [Ends(), Halves(), save, Ends()], num_epochs=2)
    assert_same_bits(whole_state(trainer), halved)
    before, after, trainer = Ends(), Ends(), train_line(tmp_path / "b")
    trainer.train(linear_reader(), [before, Halves(), after], num_epochs=2)
    assert before.epochs == after.epochs == [0, 1]
    assert_same_bits(whole_state(trainer), halved)


def test_checkpoint_of_a_resumed_trainer_before_train_keeps_what_handlers_said(tmp_path):
    train_line(tmp_path).train(linear_reader(), [Ends()])
    train_line(tmp_path).save_checkpoint()
    ends = Ends()
    train_line(tmp_path).train(linear_reader(), [ends], num_epochs=2)
    assert ends.epochs == [0, 1]


@pytest.mark.quick("2-None", "None-1")
@pytest.mark.parametrize(("every_steps", "every_epochs"), [(2, None), (3, None), (None, 1)])
def test_test_that_was_broken_off_is_made_and_shown_in_the_rerun(
    every_steps, every_epochs, tmp_path
):
    passes = []

    def broken_off_in_the_second_pass():
        passes.append(None)
        if len(passes) == 2:
            raise KeyboardInterrupt
        return linear_reader()

    def run(checkpoint, reader):
        evaluate = handlers.Evaluate(reader, every_steps=every_steps, every_epochs=every_epochs)
        before, after = (
            handlers.Report(tmp_path / f"{name}.html", test=evaluate) for name in ("a", "b")
        )
        train_line(checkpoint).train(linear_reader(), [before, evaluate, after], num_epochs=2)
        results = [[step, metrics] for step, metrics in evaluate.results]
        assert before.get_state()["tests"] == after.get_state()["tests"] == results
        return results

    config = ps.CheckpointConfig(directory=tmp_path / "c", save_interval_steps=1000)
    with pytest.raises(KeyboardInterrupt):
        run(config, broken_off_in_the_second_pass)
    assert run(config, broken_off_in_the_second_pass) == run(None, linear_reader())


@pytest.mark.quick("2")
@pytest.mark.parametrize("num_failing", [1, 2])
def test_handlers_after_one_that_raises_see_the_step_that_is_done(num_failing, tmp_path):
    config = ps.CheckpointConfig(directory=tmp_path, save_interval_steps=1000)
    path = tmp_path / "log.csv"

    def run(*before):
        log = handlers.CSVLog(path, every_steps=1)
        train_line(config).train(linear_reader(), [*before, log], num_epochs=2)

    with pytest.raises(LookupError):
        run(*[Faulty("EndStep 0 1") for _ in range(num_failing)])
    run()
    rows = [line.split(",") for line in path.read_text().splitlines()]
    steps = [dict(zip(rows[0], row, strict=True)) for row in rows if row[0] == "step"]
    assert [row["global_step"] for row in steps] == [*"012345"]
    assert [row["examples"] for row in steps] == [str(n) for n in (4, 8, 10, 14, 18, 20)]


def test_states_come_back_in_the_call_they_are_of(tmp_path):
    config = every_step(tmp_path)
    trainer = train_line(config)
    trainer.train(linear_reader(), Counter())
    trainer.train(linear_reader(), [Counter(), StopAfter(5)])
    first, second = Counter(), Counter()
    trainer = train_line(config)
    trainer.train(linear_reader(), first)
    trainer.train(linear_reader(), second)
    assert first.restored == []
    assert [len(state["losses"]) for state in second.restored] == [2]
    assert len(second.losses) == 3


@pytest.mark.quick("handlers0", "handlers2")
@pytest.mark.parametrize("handlers", [[Other()], [], [Counter(), Counter()]])
def test_states_of_other_handlers_are_left_aside_with_a_warning(handlers, tmp_path, caplog):
    train_line(tmp_path).train(linear_reader(), Counter())
    trainer = train_line(tmp_path)
    caplog.clear()
    trainer.train(linear_reader(), handlers, num_epochs=2)
    (warning,) = compile_warnings(caplog)
    names = [type(handler).__name__ for handler in handlers]
    assert warning == (
        f"the handlers that keep a state are {names}, in the checkpoint ['Counter']: they start "
        "afresh."
    )
    assert not any(handler.restored for handler in handlers)


def test_state_that_is_no_json_is_a_loud_failure(tmp_path):
    counter = Counter()
    counter.get_state = lambda: {"bad": np.float32(1)}
    with pytest.raises(ps.CheckpointError, match="not JSON serializable"):
        train_line(tmp_path).train(linear_reader(), counter)


# Restored state is like any other.


@pytest.mark.slow
def test_restored_state_is_donated_and_compiles_nothing_anew(tmp_path):
    options = {"place": eight_devices(), "steps_per_call": 8}
    first = train_classifier(tmp_path, **options)
    first.train(shuffled(), num_epochs=1)
    trainer = train_classifier(tmp_path, **options)
    restored = list(trainer._engine.leaves)
    assert not any(leaf.is_deleted() for leaf in restored)
    alive = []

    def look(event):
        if isinstance(event, ps.EndStep) and not alive:
            alive.append([leaf.is_deleted() for leaf in restored])

    trainer.train(shuffled(), look, num_epochs=2)
    states = trainer.builder.programs.states
    changed = zip(states.leaf_names[: states.num_changed], alive[0], strict=False)
    kept = [name for name, is_deleted in changed if not is_deleted]
    # The sums of the epoch before are replaced, not donated.
    assert all(name.startswith("metrics.") for name in kept)
    assert trainer.builder.num_compiles == first.builder.num_compiles
    # Of full batches, and of the short one.
    assert max(trainer.builder.num_compiles.values()) <= 2
