"""Two real processes that JAX has joined save, roll back, replay and refuse together."""

import os
import signal

import pytest

from penstock._folder_lock import FolderLock
from tests.distributed.processes import finish, run_group, start_group
from tests.two_processes import NUM_EXAMPLES


def results(*words):
    """Run two processes that share a training run; return what each came to."""
    return [output["result"] for output in run_group(2, 1, "tests.two_processes", *words)]


def finished(*words):
    """Run two processes that share a training run; return exit code, output and errors of each."""
    return finish(start_group(2, 1, "tests.two_processes", *words))


@pytest.mark.slow
def test_two_processes_end_together_on_a_signal_to_one_and_go_on_bit_for_bit(tmp_path):
    never = "-1"
    whole = results("checkpoints", str(tmp_path / "whole"), never)
    directory = str(tmp_path / "interrupted")
    for code, _, errors in finished("checkpoints", directory, "10"):
        assert code == 128 + signal.SIGTERM, errors
    assert results("checkpoints", directory, never) == whole


@pytest.mark.slow
def test_two_processes_roll_back_to_the_checkpoint_that_the_first_still_writes(tmp_path):
    first, second = results("roll_back", str(tmp_path))
    assert first["said"] == ["to the state of global step 4; "]
    assert first == second


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Return by name what each of two processes, of two devices each, came to in several runs."""
    words = "several", str(tmp_path_factory.mktemp("runs"))
    first, second = (output["result"] for output in run_group(2, 2, "tests.two_processes", *words))
    return {name: (first[name], second[name]) for name in first}


@pytest.mark.slow
def test_two_processes_unfreeze_together_and_refuse_two_choices(several):
    first, second = several["freeze"]
    assert first == second
    for code, _, errors in finished("freeze", "fc_0", "batch_norm_0"):
        assert code == 1
        assert "trainer.unfreeze of 'fc_0', but process 1 is in trainer.unfreeze of 'b" in errors


@pytest.mark.slow
def test_two_processes_predict_their_shares_and_join_them_in_order(several):
    first, second = several["predict"]
    assert first["joined"] == second["joined"] == list(range(NUM_EXAMPLES))
    assert [len(ids) for ids in first["batches"]] == [16, 16, 3]
    batches = zip(first["batches"], second["batches"], strict=True)
    assert [n for one, other in batches for n in one + other] == list(range(NUM_EXAMPLES))
    assert first["unequal"] == second["unequal"] == [0, 1, 2, 3, 1000, 1001, 4, 5]
    for result in (first, second):
        # Each id is told by the network too, alone and beside a mean of its whole batch.
        assert result["errors"] == [0, 0, 0]


@pytest.mark.slow
def test_two_processes_both_refuse_a_folder_with_nothing_but_damaged_checkpoints(tmp_path):
    (tmp_path / "3").mkdir()
    first, second = finished("checkpoints", str(tmp_path), "-1")
    assert first[0] == second[0] == 1
    assert "no checkpoint can be read" in first[2]
    assert "process 0 cannot read" in second[2]


@pytest.mark.slow
def test_two_processes_both_refuse_a_folder_of_another_run(tmp_path):
    with FolderLock(tmp_path):
        first, second = finished("checkpoints", str(tmp_path), "-1")
    assert first[0] == second[0] == 1
    assert f"by process {os.getpid()} on" in first[2]
    assert "process 0 could not take the folder" in second[2]


@pytest.mark.slow
def test_two_processes_replay_a_step_that_one_of_them_made_bad(several):
    first, second = several["replay"]
    assert first == second
    assert len(first) == 2
    assert "global step 0: invalid value (nan) encountered in log. This line made it" in first[1]
    assert "in bent_program: bent = jnp.log(" in first[1]


@pytest.mark.slow
def test_two_processes_replay_the_batches_that_readers_of_two_lengths_gave_each_step(several):
    first, second = several["unequal"]
    assert first == second
    assert len(first) == 2
    assert "global step 2: invalid value (nan) encountered in sqrt" in first[1]


@pytest.mark.slow
def test_two_processes_resume_where_the_reader_of_one_had_ended_before_the_checkpoint(several):
    (whole, _, resumed), second = several["in_two"]
    assert resumed == whole
    assert second[2] == whole


@pytest.mark.slow
def test_two_processes_of_a_fluid_script_train_together_whatever_place_each_names(several):
    assert several["place"] == ([4, True], [4, True])


@pytest.mark.slow
def test_two_processes_that_read_the_same_are_told_so_once_for_each_trainer(several):
    assert several["alike"] == (2, 0)
