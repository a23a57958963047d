"""The group of this process: when it is joined, and by what."""

import types
from typing import Any

import jax
import numpy as np
import pytest

import penstock as ps
from penstock.distributed import joining, this_process
from penstock.distributed.group import Group
from penstock.distributed.launchers import Membership


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
    assert this_process.find_group().count == 1
    assert this_process.find_group_of(make_mesh(1, 1)).count == 1
    assert jax_joined == []


def test_mesh_of_more_processes_than_there_are_is_a_topology_that_one_compiles_for():
    assert this_process.find_group_of(make_mesh(0, 1, 2, 3)).count == 1


def test_mesh_of_all_processes_joins_them(jax_joined):
    this_process.find_group_of(make_mesh(0, 1, 2))
    assert jax_joined == ["joined"]


def test_initialize_after_a_mesh_has_joined_all_waits_for_nobody(monkeypatch):
    member = Membership(launcher="jax.distributed", num_processes=3)
    monkeypatch.setattr(joining, "_is_jax_joined", lambda: True)
    monkeypatch.setattr(joining, "_describe_jax", lambda: member)
    monkeypatch.setattr(this_process._Process, "joined", Group())
    monkeypatch.setattr(this_process, "_wait_for_all", lambda secs: pytest.fail("waits"))
    ps.distributed.initialize()


def test_mesh_of_some_processes_is_an_error_that_waits_for_nobody(jax_joined):
    with pytest.raises(ValueError, match="place got devices of 2 of 3 processes, expected those"):
        this_process.find_group_of(make_mesh(0, 1))
    assert jax_joined == []
