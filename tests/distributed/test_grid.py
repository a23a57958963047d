"""One to four processes with one to four devices each train as one process does with one device."""

import functools
import socket

import numpy as np
import pytest

from tests.distributed import grid_run
from tests.distributed.processes import run_group
from tests.distributed.test_this_process import check_joined


@pytest.fixture(scope="module")
def alone():
    """Train in this very process: the import of JAX takes longer than the training."""
    return functools.cache(lambda network: grid_run.train(network, place="cpu"))


def assert_same_training(processes, alone):
    """Raise unless each process has the numbers of the one, and all of its rows together."""
    for process in processes:
        assert process["counts"] == alone["counts"] == [48, 48, 14] * 3
        np.testing.assert_allclose(process["epochs"], alone["epochs"], rtol=1e-5)
        np.testing.assert_allclose(process["test"], alone["test"], rtol=1e-5)
        assert process["parameters"].keys() == alone["parameters"].keys()
        for name, value in alone["parameters"].items():
            np.testing.assert_allclose(process["parameters"][name], value, rtol=1e-5, atol=1e-6)
    rows = np.sum([process["rows"] for process in processes], axis=0)
    assert rows.tolist() == alone["rows"] == alone["counts"]


def test_two_processes_with_two_devices_join_once_and_train_as_one_with_one(alone):
    processes = run_group(2, 2, "tests.distributed.grid_run", "join", "norm")
    check_joined([process["joined"] for process in processes])
    joined = (
        "penstock: joined 2 processes through JAX_COORDINATOR_ADDRESS (process 0 of 2 on "
        f"{socket.gethostname()}, coordinator 127.0.0.1:"
    )
    assert [process["said"].count(joined) for process in processes] == [1, 0]
    assert_same_training([process["norm"] for process in processes], alone("norm"))


# Each number of processes and of devices; of 48 examples nine devices get unlike parts, and of the
# last 14 some of sixteen get nothing.
@pytest.mark.slow
@pytest.mark.parametrize(("num_processes", "num_devices"), [(1, 3), (2, 1), (3, 3), (4, 4)])
def test_any_processes_and_devices_train_as_one_process_with_one_device(
    num_processes, num_devices, alone
):
    module, networks = "tests.distributed.grid_run", list(grid_run.NORMS)
    processes = run_group(num_processes, num_devices, module, *networks)
    for network in networks:
        assert_same_training([process[network] for process in processes], alone(network))
