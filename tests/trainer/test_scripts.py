"""Signals to a script in a process of its own: its exit code, and the run that goes on after it."""

import signal
from signal import SIGINT, SIGTERM

import optax
import pytest

import penstock as ps
from penstock._checkpoint import CheckpointConfig, Store
from tests.distributed.processes import finish, lines_of, start_module
from tests.networks import assert_same_bits, host, linear_program, one_device
from tests.trainer.interrupted_run import NUM_EPOCHS, NUM_STEPS, data_reader

EXIT_CODES = {SIGINT: -SIGINT, SIGTERM: 143}  # Python ends itself by SIGINT
ERRORS = {SIGINT: "KeyboardInterrupt", SIGTERM: "SystemExit"}


def signalled(folder, phase, number, *, waits_for=("ready",)):
    """Run the script, and send it a signal at each of some lines that it prints.

    Returns:
      Its exit code, the lines after those, and its errors.
    """
    process = start_module("tests.trainer.interrupted_run", folder, phase)
    lines, printed = lines_of(process), []
    for expected in waits_for:
        printed.append(next((line for line in lines if line == expected), None))
        process.send_signal(number)
    [(code, output, errors)] = finish([process])
    assert printed == list(waits_for), errors
    return code, output.splitlines(), errors


def parameters_after(folder):
    """Train in this process until the end of the script's run; return what was learnt."""
    trainer = ps.Trainer(linear_program, optax.adam(0.05), place=one_device(), checkpoint=folder)
    trainer.train(data_reader(), num_epochs=NUM_EPOCHS)
    assert trainer.global_step == NUM_EPOCHS * NUM_STEPS
    return host((trainer._engine.state.variables, trainer._engine.state.opt_state))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return parameters_after(tmp_path_factory.mktemp("whole"))


# test_phases.py has every other phase, in this process.
@pytest.mark.quick("last save")
@pytest.mark.parametrize(
    ("phase", "number", "output", "global_step"),
    [("reader", SIGINT, [], 3), ("last save", SIGTERM, ["noticed"], 10)],
)
def test_script_ends_with_the_code_of_its_signal_and_its_run_is_finished_by_another_process(
    phase, number, output, global_step, tmp_path, uninterrupted
):
    code, lines, errors = signalled(tmp_path, phase, number)
    assert code == EXIT_CODES[number], errors
    assert lines == [*output, f"interrupted {ERRORS[number]} {global_step}"]
    assert Store(CheckpointConfig(directory=tmp_path)).steps() == [global_step]
    assert_same_bits(parameters_after(tmp_path), uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "output"),
    [(SIGINT, -SIGINT, ["interrupted KeyboardInterrupt 10"]), (SIGTERM, -SIGTERM, [])],
)
def test_second_signal_ends_a_script_at_once_also_in_a_save_that_hangs(
    number, code, output, tmp_path
):
    ended = signalled(tmp_path, "endless save", number, waits_for=("ready", "noticed"))
    assert ended[:2] == (code, output)
    assert Store(CheckpointConfig(directory=tmp_path)).steps() == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [SIGINT, SIGTERM], ids=lambda number: number.name)
def test_signal_in_a_test_outside_of_training_does_what_python_does(number, tmp_path):
    code, lines, errors = signalled(tmp_path, "test", number)
    assert (code, lines) == (-number, [])
    assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)
