"""`initialize`: its arguments, the secret, the group of this process, and real processes."""

import dataclasses
import multiprocessing
import os
import re
import socket
import time
import types
from typing import Any

import jax
import numpy as np
import pytest

import penstock as ps
from penstock.distributed import group, secret, this_process
from penstock.distributed.environments import Membership
from penstock.distributed.group import Group
from tests.distributed.processes import (
    finish,
    free_port,
    jax_variables,
    results,
    start,
)


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    """Leave out what started the tests themselves."""
    for name in os.environ:
        theirs = ("JAX_COORD", "JAX_NUM", "JAX_PROCESS", "SLURM", "OMPI", "PENSTOCK_")
        if name.startswith(theirs):
            monkeypatch.delenv(name)


@pytest.fixture
def never_joins(monkeypatch):
    """Fail where a process would wait for others."""
    monkeypatch.setattr(this_process, "_join", lambda *args: pytest.fail("joined"))


def test_alone_nothing_happens(never_joins, capsys, caplog):
    ps.distributed.initialize()
    ps.distributed.initialize(hosts=["localhost:1"])
    ps.distributed.initialize(num_processes=1)
    assert capsys.readouterr() == ("", "")
    assert caplog.messages == []


def test_batch_script_is_warned_once(never_joins, monkeypatch, caplog):
    this_process._warn_once.cache_clear()
    for name, value in {"JOB_ID": "1", "NTASKS": "2", "PROCID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    ps.distributed.initialize()
    ps.distributed.initialize()
    assert [message[:29] for message in caplog.messages] == ["this Slurm job has 2 tasks, a"]


def test_process_that_multiprocessing_spawns_joins_nobody(never_joins, monkeypatch):
    monkeypatch.setenv("RANK", "nonsense")
    process = multiprocessing.current_process()
    monkeypatch.setattr(process, "_inheriting", True, raising=False)
    ps.distributed.initialize("node1:80", 2, 0)


def test_after_the_first_computation_it_is_too_late():
    jax.devices()
    text = (
        "initialize got 2 processes to join, by arguments, after JAX's first computation, expected "
        "to come before it. JAX has begun with the devices of this process alone, and takes no "
        "others in. jax.devices() and jax.process_index() begin too. Call it at the top of the "
        "script."
    )
    with pytest.raises(RuntimeError, match=re.escape(text)):
        ps.distributed.initialize("127.0.0.1:1", 2, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_processes": 0}, "num_processes got 0, expected an integer of 1 or more."),
        (
            {"coordinator_address": "a:1", "num_processes": 2, "process_id": 2},
            "process_id got 2, expected a number from 0 to 1. It counts processes from 0, and "
            "num_processes is 2. Correct one of the two.",
        ),
        ({"process_id": 1}, "initialize got process_id=1 and no coordinator_address, num_proc"),
        (
            {"hosts": ["a:1", "b:1"], "num_processes": 2},
            "initialize got hosts=['a:1', 'b:1'], coordinator_address=None, num_processes=2, "
            "expected hosts alone, a list of HOST:PORT.",
        ),
        ({"hosts": ["a:1", "b"]}, "hosts[1] got 'b', expected HOST:PORT."),
        (
            {"hosts": ["127.0.0.1:1", "localhost:2"]},
            f"hosts got 127.0.0.1:1, localhost:2: 2 of this machine, {socket.gethostname()}, "
            "expected one of this machine. By its address each finds out which of the processes it "
            "is. Check the addresses, or say it with process_id.",
        ),
        (
            {"hosts": ["198.51.100.1:1", "198.51.100.2:2"]},
            f"198.51.100.2:2: none of this machine, {socket.gethostname()}, expected one of this",
        ),
        ({"heartbeat_secs": 0}, "heartbeat_secs got 0, expected a finite number above 0. So"),
        ({"hang_secs": float("nan")}, "hang_secs got nan, expected a finite number above 0. So"),
    ],
)
def test_arguments_that_do_not_fit_are_named(never_joins, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ps.distributed.initialize(**arguments)


def test_variable_of_seconds_is_named_where_it_is_none(never_joins, monkeypatch):
    monkeypatch.setenv("PENSTOCK_HANG_SECS", "soon")
    text = (
        "the environment variable PENSTOCK_HANG_SECS got 'soon', expected a finite number above 0"
    )
    with pytest.raises(ValueError, match=text):
        ps.distributed.initialize()


def test_seconds_of_arguments_win_over_those_of_variables(monkeypatch):
    joined = []
    monkeypatch.setattr(this_process, "_join", lambda member, times: joined.append(times))
    monkeypatch.setattr(this_process, "start", joined.append)
    ps.distributed.initialize("a:1", 2, 1)
    monkeypatch.setenv("PENSTOCK_HEARTBEAT_SECS", "7")
    monkeypatch.setenv("PENSTOCK_INITIALIZATION_SECS", "8")
    monkeypatch.setenv("PENSTOCK_HANG_SECS", "9.5")
    ps.distributed.initialize("a:1", 2, 1)
    ps.distributed.initialize("a:1", 2, 1, heartbeat_secs=1, initialization_secs=2, hang_secs=3)
    expected = [(30, 1800, None), (7, 8, 9.5), (1, 2, 3)]
    assert [dataclasses.astuple(times) for times in joined[::2]] == expected
    assert joined[::2] == joined[1::2]


@pytest.mark.parametrize(
    ("variable", "host", "expected"),
    [
        ("", "127.0.0.1", ("127.0.0.1", 80)),
        ("", "localhost", ("localhost", 80)),
        ("", "node1", ("", 80)),
        ("[::]:81", "127.0.0.1", ("", 81)),
        ("10.0.0.1:81", "node1", ("10.0.0.1", 81)),
    ],
)
def test_coordinator_of_one_machine_hears_nobody_outside_it(monkeypatch, variable, host, expected):
    monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", variable)
    member = Membership(host=host, port=80, num_processes=2)
    assert this_process._choose_bind_address(member) == expected


@pytest.mark.parametrize(
    ("address", "place", "variables", "is_warned"),
    [
        ("node1:80", 0, {}, True),
        ("node1:80", 1, {}, False),
        ("127.0.0.1:80", 0, {}, False),
        ("127.0.0.1:80", 0, {"JAX_COORDINATOR_BIND_ADDRESS": "[::]:80"}, True),
        ("node1:80", 0, {"PENSTOCK_SECRET": "s3cret"}, False),
    ],
)
def test_run_of_several_machines_without_a_secret_is_warned(
    monkeypatch, caplog, address, place, variables, is_warned
):
    this_process._warn_once.cache_clear()
    monkeypatch.setattr(this_process, "_join", lambda *args: None)
    monkeypatch.setattr(this_process, "start", lambda times: False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    ps.distributed.initialize(address, 2, place)
    text = (
        f"process 0 listens at {address} for other machines, and the run has no secret: whoever "
        "reaches that port can take the place of a process. Set PENSTOCK_SECRET, or "
        "PENSTOCK_SECRET_FILE, alike for all processes (`penstock docs pods`)."
    )
    assert caplog.messages == [text] * is_warned


def check_joined(processes):
    """Check what two processes have that were joined."""
    first, second = processes
    assert [one["total"] for one in processes] == [3.0, 3.0]
    assert [one["count"] for one in processes] == [2, 2]
    whole = [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    for one in processes:
        # Made before they were joined, or told to read all.
        assert one["before"] == one["all"] == whole
        assert one["generated"] == [[0, 1, 2, 3]]
    assert first["own"] == first["indexed"] == [[0, 1, 2], [6, 7, 8]]
    assert second["own"] == second["indexed"] == [[3, 4, 5], [9, 10, 11]]
    # The batches of one process, side by side.
    order = ps.readers.shuffle(ps.readers.arrays({"x": np.arange(12)}, None), 12, seed=3)
    numbers = [int(one["x"]) for one in order]
    both = zip(first["samples"], second["samples"], strict=True)
    assert [left + right for left, right in both] == [numbers[:6], numbers[6:]]


# Those of JAX's variables are joined in test_grid.py, those of torchrun's in test_launchers.py.
@pytest.mark.slow
def test_processes_that_jax_has_joined_are_adopted():
    port = free_port()
    variables = [
        {"OWN_ADDRESS": f"127.0.0.1:{port}", "OWN_COUNT": "2", "OWN_PLACE": str(place)}
        for place in range(2)
    ]
    processes = results([start("adopt", environ) for environ in variables])
    check_joined(processes)
    assert processes[0]["said"].count("joined 2 processes through jax.distributed (process 0") == 1


@pytest.mark.slow
def test_process_that_never_comes_is_an_error_of_the_others_and_no_abort():
    port = free_port()
    short, long = {"PENSTOCK_INITIALIZATION_SECS": "12"}, {"PENSTOCK_INITIALIZATION_SECS": "60"}
    ended = finish(
        [
            start("plain", jax_variables(port, 0, 3) | short),
            start("plain", jax_variables(port, 2, 3) | long),
        ]
    )
    for status, _, err in ended:
        assert status == 1
        assert "got 2 of 3 processes within 12 s, expected all of them. Process 1 has not " in err


@pytest.mark.slow
def test_process_0_that_is_killed_while_it_waits_may_be_started_again():
    port = free_port()
    waiting = [start("plain", jax_variables(port, place, 3)) for place in (0, 1)]
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except ConnectionRefusedError:
            assert waiting[0].poll() is None
            time.sleep(0.1)
    waiting[0].kill()
    waiting[0].communicate()
    again = [start("plain", jax_variables(port, place, 3)) for place in (0, 2)]
    processes = results([waiting[1], *again])
    assert [one["total"] for one in processes] == [6.0] * 3


def make_file(tmp_path, text="from a file\n", mode=0o600):
    path = tmp_path / "secret"
    path.write_text(text)
    path.chmod(mode)
    return {"PENSTOCK_SECRET_FILE": str(path)}


def test_secret_comes_from_the_environment_else_from_a_file(tmp_path):
    assert secret.read({}) == ""
    assert secret.read(make_file(tmp_path)) == "from a file"
    assert secret.read(make_file(tmp_path) | {"PENSTOCK_SECRET": "own"}) == "own"


def test_file_that_others_may_read_or_that_is_empty_is_refused(tmp_path):
    text = (
        f"PENSTOCK_SECRET_FILE got the mode 640 of {tmp_path}/secret, expected 600. Whoever knows "
        f"the secret may take the place of a process. Run chmod 600 {tmp_path}/secret."
    )
    with pytest.raises(PermissionError, match=re.escape(text)):
        secret.read(make_file(tmp_path, mode=0o640))
    text = f"PENSTOCK_SECRET_FILE got the empty file {tmp_path}/secret, expected a secret. "
    with pytest.raises(ValueError, match=re.escape(text)):
        secret.read(make_file(tmp_path, text="\n"))


@pytest.fixture
def jax_joined(monkeypatch):
    """Have JAX say that it has joined three processes; return the joins of penstock's own."""
    joins = []
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(this_process, "_count", lambda: 3)
    monkeypatch.setattr(this_process, "start", lambda times: joins.append("joined"))
    return joins


def make_mesh(*processes) -> Any:
    """Return what is asked of a mesh: the processes of its devices."""
    devices = [types.SimpleNamespace(process_index=index) for index in processes]
    return types.SimpleNamespace(devices=np.array(devices))


def test_looking_for_the_group_joins_none(jax_joined):
    assert group.find_group().count == 1
    assert this_process.find_group_of(make_mesh(1, 1)).count == 1
    assert jax_joined == []


def test_mesh_of_more_processes_than_there_are_is_a_topology_that_one_compiles_for():
    assert this_process.find_group_of(make_mesh(0, 1, 2, 3)).count == 1


def test_mesh_of_all_processes_joins_them(jax_joined):
    this_process.find_group_of(make_mesh(0, 1, 2))
    assert jax_joined == ["joined"]


def test_initialize_after_a_mesh_has_joined_all_waits_for_nobody(monkeypatch):
    member = Membership(launcher="jax.distributed", num_processes=3)
    monkeypatch.setattr(this_process, "_is_jax_joined", lambda: True)
    monkeypatch.setattr(this_process, "_describe_jax", lambda: member)
    monkeypatch.setattr(group.Joined, "group", Group())
    monkeypatch.setattr(this_process, "_wait_for_all", lambda secs: pytest.fail("waits"))
    ps.distributed.initialize()


def test_mesh_of_some_processes_is_an_error_that_waits_for_nobody(jax_joined):
    with pytest.raises(ValueError, match="place got devices of 2 of 3 processes, expected those"):
        this_process.find_group_of(make_mesh(0, 1))
    assert jax_joined == []
