"""Devices of the processes of one machine: GPUs where there are some, one each."""

import os

import pytest

from penstock.distributed import local_launch
from penstock.distributed.local_launch import (
    assign_devices,
    find_gpus,
    make_group_variables,
    read_gpu_list,
)

DIVIDED = """GPU 0: NVIDIA H200 (UUID: GPU-5c1)
GPU 1: NVIDIA H200 (UUID: GPU-77e)
  MIG 1g.18gb     Device  0: (UUID: MIG-a1)
  MIG 1g.18gb     Device  1: (UUID: MIG-b2)
GPU 2: NVIDIA H200 (UUID: GPU-0d3)
"""


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Put a program on the path that prints a list of GPUs."""

    def install(text: str, status: int = 0) -> None:
        (tmp_path / "list").write_text(text)
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\ncat '{tmp_path}/list'\nexit {status}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return install


@pytest.mark.parametrize(
    ("value", "gpus"),
    [
        ("0,1", ["0", "1"]),
        (" 3 , GPU-5c1", ["3", "GPU-5c1"]),
        ("", []),
        ("-1", []),
        ("0,-1,1", ["0"]),
        ("NoDevFiles", []),
    ],
)
def test_gpus_are_those_that_cuda_would_see(value, gpus, nvidia_smi):
    nvidia_smi(DIVIDED)
    assert find_gpus({"CUDA_VISIBLE_DEVICES": value}) == gpus


def test_gpus_are_those_that_the_driver_lists(nvidia_smi):
    nvidia_smi(DIVIDED)
    assert find_gpus({}) == ["0", "MIG-a1", "MIG-b2", "2"]
    assert read_gpu_list("GPU 0: x (UUID: GPU-1)\nGPU 1: y (UUID: GPU-2)\n") == ["0", "1"]


def test_driver_that_fails_has_no_gpus(nvidia_smi):
    nvidia_smi("NVIDIA-SMI has failed\n", status=9)
    assert find_gpus({}) == []


@pytest.mark.parametrize(
    ("place", "environment", "expected"),
    [
        ("cpu", {"CUDA_VISIBLE_DEVICES": "0,1"}, [{"JAX_PLATFORMS": "cpu"}] * 2),
        (None, {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "0,1"}, [{}, {}]),
        (None, {"JAX_PLATFORMS": "tpu"}, [{}, {}]),
        (
            None,
            {"JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": "4,5,6"},
            [{"CUDA_VISIBLE_DEVICES": "4"}, {"CUDA_VISIBLE_DEVICES": "5"}],
        ),
        (
            "gpu",
            {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "4,5"},
            [
                {"CUDA_VISIBLE_DEVICES": "4", "JAX_PLATFORMS": "cuda,cpu"},
                {"CUDA_VISIBLE_DEVICES": "5", "JAX_PLATFORMS": "cuda,cpu"},
            ],
        ),
    ],
)
def test_each_process_has_a_device_of_its_own(place, environment, expected):
    assert assign_devices(2, place, environment) == expected


@pytest.mark.parametrize("has_plugin", [False, True])
def test_gpus_count_where_this_jax_can_use_them(has_plugin, monkeypatch):
    monkeypatch.setattr(local_launch, "_has_cuda_plugin", lambda: has_plugin)
    seen = [{"CUDA_VISIBLE_DEVICES": "0"}] if has_plugin else [{}]
    assert assign_devices(1, None, {"CUDA_VISIBLE_DEVICES": "0"}) == seen
    assert assign_devices(1, None, {"CUDA_VISIBLE_DEVICES": ""}) == [{}]


def test_more_processes_than_gpus_are_an_error_with_the_number():
    with pytest.raises(ValueError, match="num_processes got 3 on GPUs, expected at most 2"):
        assign_devices(3, "gpu", {"CUDA_VISIBLE_DEVICES": "0,1"})
    with pytest.raises(ValueError, match="num_processes got 1 on GPUs, expected some GPUs"):
        assign_devices(1, "gpu", {"CUDA_VISIBLE_DEVICES": ""})


def test_every_start_of_a_group_has_a_secret_of_its_own(monkeypatch):
    monkeypatch.delenv("PENSTOCK_SECRET", raising=False)
    monkeypatch.delenv("PENSTOCK_SECRET_FILE", raising=False)
    first, second = (make_group_variables(2, 80, restarts) for restarts in range(2))
    assert first["PENSTOCK_SECRET"] != second["PENSTOCK_SECRET"]
    monkeypatch.setenv("PENSTOCK_SECRET", "own")
    assert "PENSTOCK_SECRET" not in make_group_variables(2, 80, 0)
