"""Ctrl-C: where it may fall, and that training goes on after it."""

import signal
import threading

import numpy as np
import optax
import pytest

import penstock as ps
from penstock import _interrupts
from penstock._interrupts import Interrupts, request_end
from tests.networks import Recorder, eight_devices, linear_program, linear_reader, one_device


def press_ctrl_c(*_):
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(scope="module")
def trainers():
    return {
        place: ps.Trainer(linear_program, optax.adam(0.01), place=place())
        for place in (one_device, eight_devices)
    }


@pytest.fixture(params=[one_device, eight_devices], ids=["one", "eight"])
def trainer(trainers, request):
    trainer = trainers[request.param]
    trainer._status.epoch = trainer._status.global_step = 0
    return trainer


def assert_goes_on(trainer, *, epoch, global_step):
    """Check the numbers and the state after an interrupt, and train another epoch."""
    assert (trainer.epoch, trainer.global_step) == (epoch, global_step)
    before = trainer.parameters["fc_0/w"]
    recorder = Recorder()
    trainer.train(linear_reader(), recorder)
    assert recorder.lines[1] == f"BeginEpoch {epoch}"
    assert [event.global_step - global_step for event in recorder.of(ps.EndStep)] == [0, 1, 2]
    assert np.isfinite(recorder.of(ps.EndEpoch)[0].metrics)
    assert not np.array_equal(before, trainer.parameters["fc_0/w"])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("at", "last", "global_step"),
    [
        ("BeginEpoch 0", "BeginEpoch 0", 0),
        ("BeginStep 0 1", "EndStep 0 1", 2),
        ("EndStep 0 1", "EndStep 0 1", 2),
        ("EndEpoch 0", "EndEpoch 0", 3),
    ],
)
def test_ctrl_c_in_a_handler_ends_training_after_the_step_and_it_goes_on_when_called_again(
    trainer, at, last, global_step
):
    recorder = Recorder(at, press_ctrl_c)
    with pytest.raises(KeyboardInterrupt) as caught:
        trainer.train(linear_reader(), recorder, num_epochs=2)
    assert recorder.lines[-2:] == [last, "EndTraining interrupted"]
    assert recorder.events[-1].error is caught.value
    assert recorder.events[-1].global_step == global_step
    assert_goes_on(trainer, epoch=1, global_step=global_step)


def test_ctrl_c_in_a_reader_interrupts_training_at_once(trainer):
    def read():
        for number, batch in enumerate(linear_reader(40)):
            if number == 5:
                press_ctrl_c()
                raise AssertionError("the reader went on after the interrupt")
            yield batch

    recorder = Recorder()
    with pytest.raises(KeyboardInterrupt):
        trainer.train(read, recorder)
    assert recorder.lines[-1] == "EndTraining interrupted"
    num_steps = len(recorder.of(ps.EndStep))
    assert num_steps <= 5
    assert_goes_on(trainer, epoch=1, global_step=num_steps)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_ctrl_c_during_a_launch_is_held_until_the_new_state_is_stored(trainer, moment, monkeypatch):
    launch = trainer.builder.programs.launch

    def interrupted_launch(*args):
        if moment == "before":
            press_ctrl_c()
        launched = launch(*args)
        if moment == "after":
            press_ctrl_c()
        return launched

    recorder = Recorder()
    with monkeypatch.context() as patch:
        patch.setattr(trainer.builder.programs, "launch", interrupted_launch)
        with pytest.raises(KeyboardInterrupt):
            trainer.train(linear_reader(), recorder)
    assert recorder.lines[-2:] == ["EndStep 0 0", "EndTraining interrupted"]
    assert_goes_on(trainer, epoch=1, global_step=1)


def test_first_ctrl_c_is_remembered_until_it_is_checked():
    with Interrupts() as interrupts:
        press_ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()


def test_ctrl_c_that_nothing_checked_is_raised_at_the_end():
    with pytest.raises(KeyboardInterrupt), Interrupts():
        press_ctrl_c()


def test_ctrl_c_while_open_is_raised_at_once():
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts, interrupts.open():  # noqa: PT012
        press_ctrl_c()
        raise AssertionError("went on after the interrupt")


def test_second_ctrl_c_is_raised_at_once():
    with pytest.raises(KeyboardInterrupt), Interrupts():  # noqa: PT012
        press_ctrl_c()
        press_ctrl_c()
        raise AssertionError("went on after the second interrupt")


def test_second_ctrl_c_waits_for_the_end_of_a_launch():
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:  # noqa: PT012
        interrupts.is_held = True
        press_ctrl_c()
        press_ctrl_c()
        interrupts.release()
        raise AssertionError("went on after the launch")


def test_sigterm_is_raised_as_the_exit_code_of_the_signal():
    with pytest.raises(SystemExit) as caught, Interrupts():
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def fail_inside(interrupts):
    with interrupts:
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        raise LookupError


def test_pythons_handler_is_back_after_the_context_also_after_an_exception():
    interrupts = Interrupts()
    with pytest.raises(LookupError):
        fail_inside(interrupts)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handler_of_the_program_itself_is_left_in_place():
    own = lambda number, frame: None  # noqa: E731
    previous = signal.signal(signal.SIGINT, own)
    try:
        with Interrupts():
            assert signal.getsignal(signal.SIGINT) is own
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, previous)


def test_training_in_another_thread_leaves_the_handler_alone():
    trainer = ps.Trainer(linear_program, optax.sgd(0.01), place=one_device())
    handlers = []
    recorder = Recorder(
        "EndStep 0 0", lambda event: handlers.append(signal.getsignal(signal.SIGINT))
    )
    thread = threading.Thread(target=trainer.train, args=(linear_reader(), recorder))
    thread.start()
    thread.join(timeout=60)
    assert handlers == [signal.default_int_handler]
    assert recorder.lines[-1] == "EndTraining completed"


def test_request_ends_training_in_a_thread_that_gets_no_signals(trainer, monkeypatch):
    monkeypatch.setattr(_interrupts._Thread, "signal", None)
    recorder = Recorder("EndStep 0 1", lambda _: request_end(signal.SIGTERM))
    codes = []

    def train():
        with pytest.raises(SystemExit) as caught:
            trainer.train(linear_reader(), recorder)
        codes.append(caught.value.code)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert codes == [143]
    assert trainer.global_step == 2
    monkeypatch.undo()
    assert_goes_on(trainer, epoch=1, global_step=2)
