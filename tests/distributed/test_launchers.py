"""The launchers that people have start a script of one process, and it trains as one does."""

import fcntl
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from tests.distributed import launchers
from tests.distributed.launched_training import NUM_STEPS
from tests.distributed.launchers import SCRIPT, read_result, run
from tests.distributed.slurm_cluster import PROGRAMS, slurm_cluster
from tests.source_tree import ROOT

pytestmark = pytest.mark.slow  # each starts three processes or more, and daemons


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return what one process has that runs alone."""
    return launchers.run_processes(1, tmp_path_factory.mktemp("alone"))


@pytest.fixture
def folder(tmp_path):
    """Return a folder for checkpoints whose name a shell would take for two."""
    return str(tmp_path / "a run")


def assert_equals(result, alone, processes=2):
    assert (result["processes"], result["devices"]) == (processes, processes)
    assert result["parameters"].keys() == alone["parameters"].keys()
    for name, value in alone["parameters"].items():
        np.testing.assert_allclose(result["parameters"][name], value, rtol=1e-5, atol=1e-5)


def test_open_mpi_starts_processes_that_train_as_one(alone, folder):
    (mpirun,) = launchers.require_programs("mpirun")
    # Debian's looks for other machines and, in a container, for its user.
    loopback = ["--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"]
    words = [mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2"]
    words += [*loopback, "--mca", "oob_tcp_if_include", "lo"]
    assert_equals(read_result(run([*words, sys.executable, str(SCRIPT), folder])), alone)


# One node, which needs no address, has the batch script below.
def test_slurm_starts_processes_on_two_nodes_that_train_as_one(alone, folder):
    srun, *_ = launchers.require_programs(*PROGRAMS)
    with slurm_cluster(2) as settings:
        # Both nodes are this machine under names that nobody else knows.
        address = f"127.0.0.1:{launchers.free_port()}"
        words = [srun, "-N", "2", "-n", "2", sys.executable, str(SCRIPT), folder]
        done = run(words, **settings, JAX_COORDINATOR_ADDRESS=address)
        assert_equals(read_result(done), alone)


def test_batch_script_starts_the_processes_again_until_they_end_well(alone, folder, tmp_path):
    _, sbatch, _, squeue, *_ = launchers.require_programs(*PROGRAMS)
    log = tmp_path / "log"
    with slurm_cluster(1) as settings:
        words = [sbatch, "--parsable", "--nodes=1", "--ntasks-per-node=2"]
        words += [f"--output={log}", f"--chdir={ROOT}", str(ROOT / "deploy" / "slurm.sbatch")]
        job = run([*words, sys.executable, str(SCRIPT), folder, "--fail=17:kill"], **settings)
        assert job.returncode == 0, job.stderr
        # `sbatch --wait` asks every half minute.
        while run([squeue, "--noheader", f"--jobs={job.stdout.strip()}"], **settings).stdout:
            time.sleep(0.2)
    job.stdout = log.read_text()
    result = read_result(job)
    assert result["restarts"] == "1"
    assert result["first_step"] > 0
    assert_equals(result, alone)


def test_torchrun_starts_processes_that_train_as_one(alone, folder):
    python = launchers.require_python("torch")
    words = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    assert_equals(read_result(run([*words, str(SCRIPT), folder])), alone)


@pytest.fixture
def ray_python():
    """Return the Python that has Ray; one test at a time has a cluster.

    Ray joins one that runs on this machine, another test's too, and goes down with it.
    """
    python = launchers.require_python("ray")
    with open(Path(tempfile.gettempdir()) / "penstock-tests-ray.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield python


RUN_ON_RAY = """
import functools, json, sys
from penstock import distributed
from tests.distributed import launched_training
function = functools.partial(launched_training.train, {folder!r}, {failure!r})
result = distributed.run_on_ray(
    function, num_processes={num_processes!r}, max_restarts=2, storage_path={storage!r})
print("RESULT " + json.dumps(result))
"""


def test_ray_starts_a_killed_process_again_and_ends_bit_for_bit_alike(ray_python, folder, tmp_path):
    program = RUN_ON_RAY.format(
        folder=folder, failure=(17, "kill"), num_processes=2, storage=str(tmp_path / "ray")
    )
    result = read_result(run([ray_python, "-c", program]))
    undisturbed = launchers.run_processes(2, tmp_path / "undisturbed")
    assert result["restarts"] == "1"
    assert result["first_step"] > undisturbed["first_step"] == 0
    assert result["parameters"] == undisturbed["parameters"]


LAUNCH_ON_RAY = """
import sys
from penstock import distributed
sys.exit(distributed.launch_on_ray(
    sys.argv[1:], num_processes=2, max_restarts=2))
"""


def test_ray_ends_at_an_error_of_the_program_and_shows_where(ray_python, folder):
    done = run([ray_python, "-c", LAUNCH_ON_RAY, str(SCRIPT), folder, "--fail=7:raise"])
    assert done.returncode == 1, done.stdout + done.stderr
    *before, last = done.stderr.rstrip().splitlines()
    assert last.endswith("process 1 of 2 failed with ZeroDivisionError: a part of the test")
    assert "ZeroDivisionError: a part of the test" in before  # below its traceback
    assert "restart 1" not in done.stderr


def end_at(stream, text, number, words, folder):
    """Send a driver in a folder a signal when a line has a text; return exit code and errors."""
    with launchers.start(words, folder) as driver:
        has_text = any(text in line for line in getattr(driver, stream))
        driver.send_signal(number)
        _, errors = driver.communicate(timeout=launchers.SECONDS)
    assert has_text, errors
    return driver.returncode, errors


def test_ctrl_c_ends_a_run_on_ray_with_all_its_processes(ray_python, folder):
    words = [ray_python, "-c", LAUNCH_ON_RAY, str(SCRIPT), folder, "--fail=7:sleep"]
    # Both have the program, and one of them sleeps soon.
    code, errors = end_at("stderr", "compiled the train program", signal.SIGINT, words, ROOT)
    assert code == 130, errors
    assert "penstock launch: interrupted" in errors


def test_sigterm_to_a_run_on_ray_saves_before_the_end(ray_python, tmp_path):
    # A relative path is of the driver's folder.
    words = [ray_python, "-c", LAUNCH_ON_RAY, str(SCRIPT), "a run", "--fail=7:wait"]
    code, errors = end_at("stdout", "waits for a signal", signal.SIGTERM, words, tmp_path)
    assert code == 143, errors
    assert "penstock launch: ended by SIGTERM" in errors
    ended = re.search(r"SIGTERM.*: all processes end after global step (\d+)", errors)
    assert ended is not None, errors
    # At the next place where all meet, and nothing but the signal saves.
    assert 8 <= int(ended[1]) < NUM_STEPS
    assert (tmp_path / "a run" / "steps" / ended[1]).is_dir()
