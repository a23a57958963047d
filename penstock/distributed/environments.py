"""Which processes belong together: found in a mapping of variables, without asking anybody.

Several launchers may have left variables, as mpirun in a Slurm job does. The one nearest to this
process wins:

1. arguments of `initialize`; then JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID,
   which `penstock launch` and Kubeflow set. What they leave open the others say
2. torchrun, or RANK, WORLD_SIZE and MASTER_ADDR of somebody else
3. Open MPI
4. MPICH, Intel MPI and others that speak PMI
5. a step of Slurm
6. Cloud TPU, as JAX finds it
7. SkyPilot
8. dstack
9. an indexed Job or JobSet of Kubernetes, as JAX finds it
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.distributed import launchers
from penstock.distributed.launchers import (
    Environ,
    IncompleteError,
    Membership,
    check_place,
    read_number,
)

ALONE = Membership()
# Where a launcher, or a person, has already given each process devices of its own.
_VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_VARIABLES = {
    "coordinator_address": "JAX_COORDINATOR_ADDRESS",
    "num_processes": "JAX_NUM_PROCESSES",
    "process_id": "JAX_PROCESS_ID",
}


Given = Mapping[str, Any]
"""What a person says of the three; what is not there is for others to say."""


def detect(environ: Environ, given: Given) -> Membership:
    """Return this process's place among those that were started with it.

    ValueError says that what is said contradicts itself, or is not enough.
    """
    # Who asks for one process is alone, whatever place a launcher gave it.
    if given.get("num_processes") == 1 and not given.get("process_id"):
        return ALONE
    variables = {
        "coordinator_address": environ.get("JAX_COORDINATOR_ADDRESS", "").strip() or None,
        "num_processes": read_number(environ, "JAX_NUM_PROCESSES"),
        "process_id": read_number(environ, "JAX_PROCESS_ID"),
    }
    said = {key: value for key, value in variables.items() if value is not None} | dict(given)
    if "num_processes" in said:
        names = (_name("process_id", given), _name("num_processes", given))
        check_place(names[0], said.get("process_id", 0), names[1], said["num_processes"])
        if said["num_processes"] == 1:
            return ALONE
    if len(said) == len(_VARIABLES):
        found = _describe_variables(environ, given)
    else:
        found = _find_launcher(environ)
        if found.is_alone:
            _check_alone(said, found)
            return found
    return _complete(environ, found, said, given)


def _name(key: str, given: Given) -> str:
    return key if key in given else f"the environment variable {_VARIABLES[key]}"


def _describe_variables(environ: Environ, given: Given) -> Membership:
    """Return what stands beside JAX's variables where they say all."""
    if given:
        return Membership(launcher="arguments")
    local_rank = read_number(environ, "PENSTOCK_LOCAL_RANK")
    # `penstock launch` is for one machine, and says which of its processes this is.
    return Membership(
        launcher="JAX_COORDINATOR_ADDRESS" if local_rank is None else "penstock launch",
        local_rank=local_rank,
        num_local=1 if local_rank is None else read_number(environ, "JAX_NUM_PROCESSES") or 1,
    )


def _find_launcher(environ: Environ) -> Membership:
    """Return what the first launcher says that says enough."""
    inner = (launchers.find_torchrun, launchers.find_open_mpi, launchers.find_pmi)
    clusters = (launchers.find_slurm, launchers.find_cloud_tpu, launchers.find_skypilot)
    detectors = (*inner, *clusters, launchers.find_dstack, launchers.find_kubernetes)
    # Scripts export WORLD_SIZE or RANK for programs of torch, and start them with srun.
    incomplete: list[IncompleteError] = []
    for detector in detectors:
        try:
            found = detector(environ)
        except IncompleteError as error:
            incomplete.append(error)
            continue
        if found is not None:
            return found
    if incomplete:
        raise incomplete[0]
    return ALONE


def _check_alone(said: Given, found: Membership) -> None:
    # An address may stand in a profile, for all that a launcher starts: to be alone is no mistake.
    if not said or (found.launcher and list(said) == ["coordinator_address"]):
        return
    said = {key: said[key] for key in _VARIABLES if key in said}
    names = ", ".join(f"{key}={value!r}" for key, value in said.items())
    missing = ", ".join(key for key in _VARIABLES if key not in said)
    says = f"{found.launcher} says that it is alone" if found.launcher else "No launcher says it"
    variables = ", ".join(_VARIABLES.values())
    raise IncompleteError(
        f"initialize got {names} and no {missing}, expected all three. Together they place this "
        f"process among the others. {says}. Pass {missing}, or set {variables}."
    )


def _complete(environ: Environ, found: Membership, said: Given, given: Given) -> Membership:
    """Return what a launcher says, and in its place what was said by others."""
    keys = ("process_id", "num_processes")
    found = replace(found, **{key: said[key] for key in keys if key in said})
    rank_name, size_name = (
        _name(key, given) if key in said else f"{key} of {found.launcher}" for key in keys
    )
    check_place(rank_name, found.process_id, size_name, found.num_processes)
    if "coordinator_address" in said:
        name = _name("coordinator_address", given)
        host, port = split_address(said["coordinator_address"], name)
        found = replace(found, host=host, port=port)
    # JAX's own variable, for the port that a launcher's variables lead to.
    elif (port := read_number(environ, "JAX_COORDINATOR_PORT")) is not None:
        found = replace(found, port=port)
    if found.host is None or found.port is None:
        raise IncompleteError(
            f"{found.launcher} got {found.num_processes} processes and no address, expected one "
            f"where process 0 listens for the others. {found.launcher} does not say where that is. "
            "Set JAX_COORDINATOR_ADDRESS=HOST:PORT for all, with the machine of process 0 and a "
            "port that is free there."
        )
    restarts = read_number(environ, "PENSTOCK_RESTARTS")
    return found if restarts is None else replace(found, restarts=restarts)


def choose_local_devices(environ: Environ, member: Membership) -> list[int] | None:
    """Return the devices of its machine that a process takes; None for all that it sees.

    One, as JAX has it for Slurm and Open MPI, where the launcher started several processes on the
    machine and has not divided the devices itself. It matters on GPUs alone.
    """
    # JAX reads the first itself; by the second Slurm divides the GPUs of a machine.
    is_said = environ.get("JAX_LOCAL_DEVICE_IDS") or environ.get("SLURM_GPUS_PER_TASK")
    if is_said or member.local_rank is None or member.num_local == 1:
        return None
    visible = next((environ[name] for name in _VISIBLE_DEVICES if name in environ), None)
    if visible is not None and len(visible.split(",")) < member.num_local:
        return None
    return [member.local_rank]


def split_address(address: str, thing: str = "coordinator_address") -> tuple[str, int]:
    """Return host and port of `HOST:PORT`; IPv6 stands in brackets."""
    found = re.fullmatch(r"(?:\[([^]\s]+)\]|([^]:/\s[]+)):([0-9]{1,5})", address)
    if found is None or not 0 < int(found[3]) < 1 << 16:
        raise ValueError(
            f"{thing} got {address!r}, expected HOST:PORT. Process 0 listens there, and the others "
            "look for it there. Name its machine and a port that is free there: node1:61440, "
            "[fd00::2]:61440."
        )
    return found[1] or found[2], int(found[3])
