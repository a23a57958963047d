"""A state that is split over processes: checkpoints are of all of them, whole or not there."""

import os
import random
import shutil

import numpy as np
import pytest

import penstock as ps
from penstock._checkpoint import Store
from tests.distributed.processes import finish, run_group, start_group

MODULE = "tests.distributed.split_run"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train alone and, with the state split, in two processes; return the folder and results."""
    folder = tmp_path_factory.mktemp("split")
    alone = run_group(1, 1, MODULE, folder / "alone", "whole", 2)
    return folder, *alone, *run_group(2, 2, MODULE, folder / "two", "full", 2)


@pytest.mark.slow
def test_two_processes_split_the_state_and_others_go_on_with_it(trained, tmp_path):
    folder, alone, first, second = trained
    for result in (first, second):
        np.testing.assert_allclose(result["losses"], alone["losses"], rtol=1e-5)
        np.testing.assert_allclose(result["test"], alone["test"], rtol=1e-5)
        np.testing.assert_allclose(result["weights"], alone["weights"], rtol=1e-4, atol=1e-5)
        assert result["digest"] == first["digest"]
    assert first["bytes"] < 0.3 * alone["bytes"]
    store = Store(ps.CheckpointConfig(directory=str(folder / "two" / "steps")))
    names = {path.name for path in (store.directory / "10").iterdir()}
    assert names == {"part_0.safetensors", "part_1.safetensors"}
    assert sorted(path.name for path in (folder / "two" / "steps").glob(".*")) == []
    # Each process has written about a half.
    size = (store.directory / "10" / "part_1.safetensors").stat().st_size
    files = (store.directory / "10").rglob("*")
    assert 0.3 < size / sum(file.stat().st_size for file in files if file.is_file()) < 0.6
    shutil.copytree(folder / "two", tmp_path / "two")
    plain = run_group(1, 3, MODULE, tmp_path / "two", "whole", 2)[0]
    assert plain["begun"] == 10
    assert plain["resumed"] == first["digest"]


@pytest.mark.slow
def test_what_processes_cannot_share_is_refused_and_nan_of_one_is_no_hang(tmp_path):
    results = run_group(2, 1, MODULE, tmp_path, "refuse", 1)
    # Where a nan may be of an id outside its table, all gather the parameters to look.
    assert [result["num_nan"] for result in results] == [[0], [48]]
    for result in results:
        parameters, seeds, mesh = result["refused"]
        assert parameters.startswith("the processes got different parameters to set, expected the")
        assert "process 1 has in its split state 'seed' 1, process 0 0" in seeds
        assert "in which process 1 has no part of the axis 'data' of its own, expected" in mesh


@pytest.mark.slow
def test_split_parameter_that_one_process_reads_alone_is_no_hang(tmp_path):
    for code, _, err in finish(start_group(2, 1, MODULE, tmp_path, "read", 1)):
        assert code == 1
        assert "process 1 is in reading parameters" in err


@pytest.mark.slow
def test_whole_state_goes_on_split_over_two_processes(trained, tmp_path):
    folder, alone, *_ = trained
    shutil.copytree(folder / "alone", tmp_path / "alone")
    both = run_group(2, 2, MODULE, tmp_path / "alone", "full", 2)
    assert [result["begun"] for result in both] == [10, 10]
    assert {result["resumed"] for result in both} == {alone["digest"]}


@pytest.mark.slow
def test_part_that_is_damaged_or_of_another_save_leaves_the_checkpoint_before(trained, tmp_path):
    shutil.copytree(trained[0] / "two" / "steps", tmp_path / "steps")
    store = Store(ps.CheckpointConfig(directory=str(tmp_path / "steps")))
    part = store.directory / "10" / "part_1.safetensors"
    data = part.read_bytes()
    damages = {
        "cut": data[:-7],
        "changed": data[:-9] + b"x" * 9,
        "of another save": (store.directory / "9" / part.name).read_bytes(),
        "missing": b"",
    }
    for damage in damages.values():
        part.write_bytes(damage) if damage else part.unlink()
        with pytest.raises(ps.CheckpointError, match=r"part_1\.safetensors: |not of one save"):
            store.read(10)
    contents = store.read_newest()
    assert contents is not None
    assert contents.position.global_step == 9


@pytest.mark.slow
def test_kills_of_two_processes_leave_the_bits_of_a_run_without(tmp_path):
    chosen, folder, num_begun = random.Random(0), tmp_path / "killed", set()
    expected = run_group(2, 2, MODULE, tmp_path / "plain", "full", 40)[0]["digest"]
    num_kills = int(os.environ.get("PENSTOCK_KILLS", "8"))
    for _ in range(num_kills):
        # Counted in steps, so that a busy machine gets as far; the rest is anywhere in a save.
        after = f"{chosen.randint(1, 40)}:{chosen.uniform(0, 0.1)}"
        started = start_group(2, 2, MODULE, folder, "full", 40, 0, after)
        finish(started)
        store = Store(ps.CheckpointConfig(directory=str(folder / "steps")))
        for step in store.steps():
            store.read(step)
            num_begun.add(step)
    last = run_group(2, 2, MODULE, folder, "full", 40)
    assert {result["digest"] for result in last} == {expected}
    assert len(num_begun) > num_kills // 2
