"""What is made of the variables that launchers leave: a table, without any of them at work."""

import dataclasses
import re

import pytest

from penstock.distributed import environments
from penstock.distributed.environments import (
    IncompleteError,
    Membership,
    choose_local_devices,
    detect,
    split_address,
)

JAX = {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:1234", "JAX_NUM_PROCESSES": "3", "JAX_PROCESS_ID": "2"}
TORCH = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node7",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "abc",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
OPEN_MPI_4 = {
    **OPEN_MPI,
    "OMPI_MCA_orte_hnp_uri": "1971716096.0;tcp://10.0.0.5,10.1.0.5:55829;tcp6://[fd00::2]:38555",
    "PMIX_NAMESPACE": "1971716097",
}
OPEN_MPI_5 = {
    **OPEN_MPI,
    "PMIX_NAMESPACE": "prterun-gpu-07.example.org-7600@1",
    "PMIX_SERVER_URI4": "prterun-gpu-07.example.org-7600@0.1;tcp4://127.0.0.1:37093",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
# Of a batch script: it has a place in the job, which is no place in a step.
SLURM_JOB = {
    "SLURM_JOB_ID": "4097",
    "SLURM_NTASKS": "3",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_GTIDS": "0",
}
SLURM_STEP = {
    **SLURM_JOB,
    "SLURM_PROCID": "2",
    "SLURM_NODEID": "1",
    "SLURM_GTIDS": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
}
SKYPILOT = {
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NODE_IPS": "10.0.0.3\n10.0.0.4",
    "SKYPILOT_TASK_ID": "sky-1",
}
DSTACK = {
    "DSTACK_NODE_RANK": "1",
    "DSTACK_NODES_NUM": "2",
    "DSTACK_MASTER_NODE_IP": "10.0.0.6",
    "DSTACK_RUN_NAME": "run-1",
}


def find(environ, **options):
    return detect(environ, options)


def summary(environ, **options):
    """Return what was found: launcher, place, number, address, place on the machine."""
    membership = find(environ, **options)
    place = (membership.process_id, membership.num_processes)
    return (membership.launcher, *place, membership.address, membership.local_rank)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (JAX, ("JAX_COORDINATOR_ADDRESS", 2, 3, "10.0.0.1:1234", None)),
        ({**JAX, "PENSTOCK_LOCAL_RANK": "2"}, ("penstock launch", 2, 3, "10.0.0.1:1234", 2)),
        (TORCH, ("torchrun", 3, 4, "node7:62268", 1)),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "::1", "MASTER_PORT": "1"},
            ("RANK and WORLD_SIZE", 0, 2, "[::1]:61441", None),
        ),
        (OPEN_MPI_4, ("Open MPI", 1, 4, "10.0.0.5:63584", 1)),
        (OPEN_MPI_5, ("Open MPI", 1, 4, "gpu-07.example.org:64944", 1)),
        (SLURM_STEP, ("Slurm", 2, 3, "gpu03:61441", 0)),
        (SKYPILOT, ("SkyPilot", 1, 2, "10.0.0.3:62474", None)),
        (DSTACK, ("dstack", 1, 2, "10.0.0.6:63715", None)),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_launcher_is_found_with_place_and_address(environ, expected):
    assert summary(environ) == expected


@pytest.mark.parametrize(
    ("environ", "changes"),
    [
        (TORCH, {"LOCAL_WORLD_SIZE": "4"}),
        (OPEN_MPI_4, {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}),
        (OPEN_MPI_5, {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}),
        ({**MPICH, "JAX_COORDINATOR_PORT": "80"}, {"MPI_LOCALNRANKS": "4"}),
        (SLURM_STEP, {"SLURM_STEP_TASKS_PER_NODE": "1,3", "SLURM_GTIDS": "1,2,3"}),
    ],
    ids=["torchrun", "Open MPI 4", "Open MPI 5", "MPICH", "Slurm"],
)
def test_processes_of_one_machine_need_no_name_of_it(environ, changes):
    assert find({**environ, **changes}).host == "127.0.0.1"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"JAX_NUM_PROCESSES": "1"},
        {**TORCH, "JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"PMI_RANK": "0", "PMI_SIZE": "1"},
        {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_IPS": "10.0.0.3"},
        {"DSTACK_NODE_RANK": "0", "DSTACK_NODES_NUM": "1"},
        # A batch script of one task, the shell of salloc, and that shell where it is a step.
        {**SLURM_JOB, "SLURM_NTASKS": "1"},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_JOB_NODELIST": "a,b"},
        {
            **SLURM_JOB,
            "SLURM_STEP_NUM_TASKS": "1",
            "SLURM_STEP_ID": "4294967290",
            "SLURM_STEP_TASKS_PER_NODE": "1",
        },
        # An address that stands in a profile, and a launcher that knows of one process.
        {"JAX_COORDINATOR_ADDRESS": "node1:80", "RANK": "0", "WORLD_SIZE": "1"},
        # Of programs of torch, beside a launcher that knows.
        {"WORLD_SIZE": "8", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "1"},
        {"RANK": "", "WORLD_SIZE": " "},
    ],
)
def test_one_process_is_alone_without_a_word(environ):
    membership = find(environ)
    assert membership.is_alone
    assert membership.note == ""


@pytest.mark.parametrize(
    "environ",
    [
        SLURM_JOB,
        # Submitted from a process that srun had started: Slurm lets its variables through.
        {
            **SLURM_JOB,
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_TASKS_PER_NODE": "2",
        },
    ],
)
def test_batch_script_is_alone_and_told_of_srun(environ):
    membership = find(environ)
    assert membership.is_alone
    assert membership.note == (
        "this Slurm job has 3 tasks, and its batch script has started one process: it goes on "
        "alone. `srun python train.py` in the script starts one a task."
    )


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [
        (JAX | TORCH | OPEN_MPI_5 | MPICH | SLURM_STEP | SKYPILOT, "JAX_COORDINATOR_ADDRESS"),
        (TORCH | OPEN_MPI_5 | MPICH | SLURM_STEP | SKYPILOT, "torchrun"),
        (OPEN_MPI_5 | SLURM_JOB | SKYPILOT, "Open MPI"),
        (OPEN_MPI_5 | SLURM_STEP, "Open MPI"),
        (MPICH | SLURM_STEP | {"JAX_COORDINATOR_ADDRESS": "node1:80"}, "PMI"),
        # Slurm's own PMI: it says the same, and Slurm says where.
        ({"PMI_RANK": "2", "PMI_SIZE": "3"} | SLURM_STEP, "Slurm"),
        (SLURM_STEP | SKYPILOT | DSTACK, "Slurm"),
        (SKYPILOT | DSTACK, "SkyPilot"),
        # Exported for programs of torch, before srun.
        ({"WORLD_SIZE": "3", "MASTER_ADDR": "gpu03", "MASTER_PORT": "1"} | SLURM_STEP, "Slurm"),
        ({"RANK": "1"} | SKYPILOT, "SkyPilot"),
    ],
)
def test_innermost_launcher_wins(environ, launcher):
    assert find(environ).launcher == launcher


def test_cloud_tpu_comes_before_skypilot_and_kubernetes_last(monkeypatch):
    def ask(name, launcher):
        membership = launcher and Membership(launcher=launcher, host="t", port=1, num_processes=2)
        monkeypatch.setattr(environments, name, lambda environ: membership)

    ask("find_cloud_tpu", "Cloud TPU")
    ask("find_kubernetes", "Kubernetes")
    assert find(SKYPILOT).launcher == "Cloud TPU"
    assert find(SLURM_STEP).launcher == "Slurm"
    ask("find_cloud_tpu", None)
    assert find(SKYPILOT).launcher == "SkyPilot"
    assert find({}).launcher == "Kubernetes"


def test_arguments_win_over_variables_and_launchers_one_by_one():
    all_three = {"coordinator_address": "here:1", "num_processes": 9, "process_id": 8}
    assert summary({**JAX, **TORCH}, **all_three) == ("arguments", 8, 9, "here:1", None)
    assert summary(TORCH, coordinator_address="here:1") == ("torchrun", 3, 4, "here:1", 1)
    assert summary(JAX, process_id=0) == ("arguments", 0, 3, "10.0.0.1:1234", None)
    assert find({**JAX, **TORCH}, num_processes=1).is_alone


def test_address_of_jaxs_variable_or_its_port_replaces_the_launchers():
    variable = {"JAX_COORDINATOR_ADDRESS": "10.9.9.9:80"}
    assert summary({**SLURM_STEP, **variable}) == ("Slurm", 2, 3, "10.9.9.9:80", 0)
    assert summary({**MPICH, **variable}) == ("PMI", 1, 4, "10.9.9.9:80", 1)
    assert find({**SLURM_STEP, "JAX_COORDINATOR_PORT": "81"}).address == "gpu03:81"


def test_restarts_are_counted_where_somebody_counts_them():
    assert find(TORCH).restarts == 2
    assert find({**SLURM_STEP, "SLURM_RESTART_COUNT": "1"}).restarts == 1
    assert find({**JAX, "PENSTOCK_RESTARTS": "3"}).restarts == 3
    assert find(JAX).restarts == 0


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu03", "gpu03"),
        ("gpu03,gpu05", "gpu03"),
        ("gpu[03-07,9],login", "gpu03"),
        ("gpu[3,9]-ib0,login", "gpu3-ib0"),
        ("rack[1-2]node[3-4]", "rack1node3"),
    ],
)
def test_first_machine_of_slurms_lists_is_found(nodes, first):
    assert find({**SLURM_STEP, "SLURM_STEP_NODELIST": nodes}).host == first


def test_ports_of_neighbours_differ_and_are_none_that_is_taken():
    steps = [
        {**SLURM_STEP, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}
        for job in range(100, 120)
        for step in range(3)
    ]
    ports = {find(step).port for step in steps}
    assert len(ports) == len(steps)
    assert all(61440 <= port < 65536 for port in ports)
    # torch's own store has this one.
    for master_port in (61440, 65535, 29500):
        assert find({**TORCH, "MASTER_PORT": str(master_port)}).port != master_port


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"RANK": "1"},
            "the environment got RANK=1 without WORLD_SIZE, expected both. Together they place "
            "this process among those that were started with it. Set WORLD_SIZE, or unset RANK "
            "for a process that is alone.",
        ),
        ({"WORLD_SIZE": "2"}, "got WORLD_SIZE=2 without RANK, expected both."),
        (
            {**TORCH, "RANK": "4"},
            "the environment variable RANK got 4, expected a number from 0 to 3. It counts "
            "processes from 0, and the environment variable WORLD_SIZE is 4. Correct one of the "
            "two.",
        ),
        (
            {**TORCH, "WORLD_SIZE": "two"},
            "the environment variable WORLD_SIZE got 'two', expected a number from 0.",
        ),
        ({**TORCH, "WORLD_SIZE": "0"}, "WORLD_SIZE got 0, expected an integer of 1 or more."),
        ({**SKYPILOT, "SKYPILOT_NODE_IPS": ""}, "SKYPILOT_NODE_RANK=1 without SKYPILOT_NODE_IPS"),
        (
            MPICH,
            "PMI got 4 processes and no address, expected one where process 0 listens for the "
            "others. PMI does not say where that is. Set JAX_COORDINATOR_ADDRESS=HOST:PORT for "
            "all, with the machine of process 0 and a port that is free there.",
        ),
        (
            {"JAX_COORDINATOR_ADDRESS": "node1:80"},
            "initialize got coordinator_address='node1:80' and no num_processes, process_id, "
            "expected all three. Together they place this process among the others. No launcher "
            "says it. Pass num_processes, process_id, or set JAX_COORDINATOR_ADDRESS, "
            "JAX_NUM_PROCESSES, JAX_PROCESS_ID.",
        ),
        ({"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"}, "and no coordinator_address, expected"),
        (
            {**JAX, "JAX_COORDINATOR_ADDRESS": "node1"},
            "the environment variable JAX_COORDINATOR_ADDRESS got 'node1', expected HOST:PORT.",
        ),
        (
            {**TORCH, "JAX_NUM_PROCESSES": "2"},
            "process_id of torchrun got 3, expected a number from 0 to 1.",
        ),
    ],
)
def test_variables_that_do_not_fit_are_named_with_what_they_hold(environ, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        find(environ)


def test_what_is_missing_is_told_from_what_is_wrong():
    with pytest.raises(IncompleteError):
        find({"RANK": "1"})
    # A launcher that knows does not mend a place that cannot be.
    with pytest.raises(ValueError, match="RANK got 9"):
        find({**TORCH, **SLURM_STEP, "RANK": "9"})


@pytest.mark.parametrize(
    ("environ", "changes", "devices"),
    [
        ({}, {}, [1]),
        ({}, {"local_rank": None}, None),
        # One process on the machine has all of its devices.
        ({}, {"num_local": 1}, None),
        ({"JAX_LOCAL_DEVICE_IDS": "0,1"}, {}, None),
        ({"JAX_LOCAL_DEVICE_IDS": "", "SLURM_GPUS_PER_TASK": ""}, {}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "5"}, {}, None),
        ({"CUDA_VISIBLE_DEVICES": "4,5"}, {}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "5"}, {}, None),
        ({"SLURM_GPUS_PER_TASK": "4", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, {}, None),
    ],
)
def test_processes_of_a_machine_take_a_device_each_unless_they_have_their_own(
    environ, changes, devices
):
    member = Membership(num_processes=4, process_id=3, local_rank=1, num_local=2)
    assert choose_local_devices(environ, dataclasses.replace(member, **changes)) == devices


@pytest.mark.parametrize(
    "address",
    [
        *("node1", ":80", "node1:", "node1:x", "node1:0", "node1:65536"),
        *("fd00::2", "[fd00::2:80", "a b:80", "tcp://node1:80"),
    ],
)
def test_address_that_is_none_is_refused(address):
    with pytest.raises(
        ValueError, match=re.escape(f"hosts[0] got {address!r}, expected HOST:PORT")
    ):
        split_address(address, "hosts[0]")
