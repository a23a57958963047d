"""Signals to a script in a process of its own: its exit code, and the run that goes on after it."""

from signal import SIGINT, SIGTERM

import optax
import pytest

import penstock as ps
from penstock._checkpoint import CheckpointConfig, Store
from tests.distributed.processes import finish, lines_of, start_module
from tests.networks import assert_same_bits, host, linear_program, one_device
from tests.trainer.interrupted_run import NUM_EPOCHS, NUM_STEPS, data_reader


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


# test_phases.py has every other phase, in this process; Python ends itself by SIGINT below.
def test_script_ends_with_the_code_of_its_signal_and_its_run_is_finished_by_another_process(
    tmp_path,
):
    code, lines, errors = signalled(tmp_path / "run", "last save", SIGTERM)
    assert code == 143, errors
    assert lines == ["noticed", "interrupted SystemExit 10"]
    assert Store(CheckpointConfig(directory=tmp_path / "run")).steps() == [10]
    assert_same_bits(parameters_after(tmp_path / "run"), parameters_after(tmp_path / "whole"))


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
