"""Which processes belong together: found in what launchers leave in the environment.

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

import functools
import importlib.util
import operator
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock._errors import check_int, check_number

Environ = Mapping[str, str]

# Above the ports that Linux gives to outgoing connections, which end at 60999.
_FIRST_PORT, _NUM_PORTS = 61440, 4096
# The name of process 0's machine is known a while after its pod has started.
_NAME_SECS = 300


class IncompleteError(ValueError):
    """Some variables of a launcher are there and some are not: another launcher may know more."""


@dataclass(frozen=True, kw_only=True)
class Membership:
    """One process's place among those that were started together; by default it is alone.

    Arguments:
      host, port: where process 0 listens; None where nothing says it that all processes know.
      local_rank: its place among the processes of its machine, where the launcher says it.
      num_local: how many processes its machine has, as far as is known.
      run: tells this run from others of the launcher.
      note: what a person should hear.
    """

    launcher: str = ""
    host: str | None = None
    port: int | None = None
    num_processes: int = 1
    process_id: int = 0
    local_rank: int | None = None
    num_local: int = 1
    restarts: int = 0
    run: str = ""
    note: str = ""

    @property
    def is_alone(self) -> bool:
        """Whether there is nobody to join."""
        return self.num_processes == 1

    @property
    def address(self) -> str:
        """The address of process 0, HOST:PORT."""
        return join_address(self.host or "", self.port or 0)


def find_torchrun(environ: Environ) -> Membership | None:
    """Find torchrun, or others that speak its language."""
    launcher = "torchrun" if "TORCHELASTIC_RUN_ID" in environ else "RANK and WORLD_SIZE"
    local = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
    membership = _find_place(environ, launcher, "RANK", "WORLD_SIZE", *local)
    if membership is None or membership.is_alone:
        return membership
    master_port = read_number(environ, "MASTER_PORT") or 0
    # torch's own store listens at MASTER_PORT. Runs that share a machine have mostly counted that
    # up, and so their coordinators do not meet either.
    port = _choose_port(master_port)
    if port == master_port:
        port = _choose_port(master_port + _NUM_PORTS // 2)
    restarts = read_number(environ, "TORCHELASTIC_RESTART_COUNT") or 0
    membership = replace(membership, restarts=restarts, run=environ.get("TORCHELASTIC_RUN_ID", ""))
    return _listen_at(membership, _require(environ, "MASTER_ADDR", "RANK"), port)


def find_open_mpi(environ: Environ) -> Membership | None:
    """Find mpirun of Open MPI; JAX knows its releases before 5."""
    names = (f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
    membership = _find_place(environ, "Open MPI", *names)
    if membership is None or membership.is_alone:
        return membership
    host, port, run = _find_mpirun(environ)
    return _listen_at(replace(membership, run=run), host, port)


def _find_mpirun(environ: Environ) -> tuple[str | None, int | None, str]:
    """Return the machine on which mpirun runs, a port, and what tells it from others."""
    # Release 4: 1971716096.0;tcp://192.0.2.2:55829;tcp6://[fd00::2]:38555
    uri = environ.get("OMPI_MCA_orte_hnp_uri", "").strip('"')
    if job := re.match(r"\d+", uri):
        at = re.search(r"tcp://([^,:;]+)|tcp6://\[([^],]+)", uri)
        # The lower 12 bits count the jobs of one mpirun.
        return at and (at[1] or at[2]), _choose_port(int(job[0]) >> 12), job[0]
    # Release 5: prterun-node7-7600@1, with the machine of mpirun and its process there. Not
    # PMIX_SERVER_URI4 and its like, which are others on each machine.
    name = re.fullmatch(r"[^-]+-(.+)-(\d+)@\d+", environ.get("PMIX_NAMESPACE", ""))
    return (name[1], _choose_port(int(name[2])), name[0]) if name else (None, None, "")


def find_pmi(environ: Environ) -> Membership | None:
    """Find MPICH and its kin, which say how many processes there are and not where."""
    local = ("MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    membership = _find_place(environ, "PMI", "PMI_RANK", "PMI_SIZE", *local)
    # Slurm speaks PMI as well, and knows where its processes are.
    step = _find_place(environ, "PMI", *_STEP) if membership and _is_step(environ) else None
    if membership is None or (step and _PLACE(step) == _PLACE(membership)):
        return None
    return _listen_at(membership, None, None)


def find_slurm(environ: Environ) -> Membership | None:
    """Find a step of Slurm, which is what srun starts; the batch script itself is alone."""
    # The shell of salloc has a job and no place in it.
    if "SLURM_JOB_ID" not in environ or "SLURM_PROCID" not in environ:
        return None
    if not _is_step(environ):
        num_tasks = read_number(environ, "SLURM_NTASKS") or 1
        note = (
            f"this Slurm job has {num_tasks} tasks, and its batch script has started one process: "
            "it goes on alone. `srun python train.py` in the script starts one a task."
        )
        return Membership(launcher="Slurm", note=note if num_tasks > 1 else "")
    membership = _find_place(environ, "Slurm", *_STEP)
    if membership is None or membership.is_alone:
        return membership
    job, step = (read_number(environ, name) or 0 for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    restarts = read_number(environ, "SLURM_RESTART_COUNT") or 0
    num_local = _count_own_tasks(environ)
    membership = replace(membership, num_local=num_local, restarts=restarts, run=f"{job}.{step}")
    # Another port for each of the jobs that follow each other, and for each step of one.
    host = _first_host(environ.get("SLURM_STEP_NODELIST", ""))
    return _listen_at(membership, host, _choose_port(job + 1021 * step))


_PLACE = operator.attrgetter("process_id", "num_processes")
# Not SLURM_NTASKS, which in the shell that salloc opens as a step counts the whole job.
_STEP = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")


def _is_step(environ: Environ) -> bool:
    """Return whether srun started this process, and not a batch script."""
    if "SLURM_STEP_NUM_TASKS" not in environ or "SLURM_PROCID" not in environ:
        return False
    # What srun has set reaches a batch script that is submitted from one of its processes. Slurm
    # sets these itself in both, one for each task of the step on this machine.
    own_tasks = environ.get("SLURM_GTIDS")
    return own_tasks is None or len(own_tasks.split(",")) == _count_own_tasks(environ)


def _count_own_tasks(environ: Environ) -> int:
    """Return how many tasks the step has on this machine: of `2(x2),1` the first two have two."""
    counts: list[int] = []
    for part in environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        if match := re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part):
            counts += [int(match[1])] * int(match[2] or 1)
    node = read_number(environ, "SLURM_NODEID") or 0
    return counts[node] if node < len(counts) else 1


def _first_host(nodes: str) -> str | None:
    """Return the first of Slurm's list of machines: `gpu[03-07,9]-b,login` begins with gpu03-b."""
    first = re.match(r"(?:\[[^]]*\]|[^,[])+", nodes)
    return first and re.sub(r"\[([^],-]+)[^]]*\]", r"\1", first[0])


def _find_nodes(environ: Environ, *, launcher: str, names: Sequence[str]) -> Membership | None:
    """Find machines with a process on each: the third variable names all of them or the first."""
    rank_name, size_name, hosts_name, run_name = names
    membership = _find_place(environ, launcher, rank_name, size_name)
    if membership is None or membership.is_alone:
        return membership
    run = environ.get(run_name, "")
    host = _require(environ, hosts_name, rank_name).split()[0]
    return _listen_at(replace(membership, run=run), host, _choose_port(zlib.crc32(run.encode())))


_SKYPILOT = ("SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", "SKYPILOT_NODE_IPS", "SKYPILOT_TASK_ID")
_DSTACK = ("DSTACK_NODE_RANK", "DSTACK_NODES_NUM", "DSTACK_MASTER_NODE_IP", "DSTACK_RUN_NAME")
find_skypilot = functools.partial(_find_nodes, launcher="SkyPilot", names=_SKYPILOT)
find_dstack = functools.partial(_find_nodes, launcher="dstack", names=_DSTACK)


def find_cloud_tpu(environ: Environ) -> Membership | None:
    """Find the machines of a TPU slice, as JAX does.

    Google's metadata server is asked on machines that have a TPU and libtpu, and nowhere else: on
    others the answer takes minutes to fail.
    """
    if importlib.util.find_spec("libtpu") is None and "TPU_LIBRARY_PATH" not in environ:
        return None
    import jax  # noqa: F401  # looks for the TPU's device files, and nothing else, as it starts
    from jax._src import cloud_tpu_init
    from jax._src.clusters import GceTpuCluster, GkeTpuCluster

    if not cloud_tpu_init.running_in_cloud_tpu_vm:
        return None
    return _ask("Cloud TPU", GkeTpuCluster) or _ask("Cloud TPU", GceTpuCluster)


def find_kubernetes(environ: Environ) -> Membership | None:
    """Find the pods of an indexed Job or JobSet, as JAX does, if this pod may ask for them."""
    # Without an index it is no pod of such a Job, and the server has nothing to say.
    if "KUBERNETES_SERVICE_HOST" not in environ or "JOB_COMPLETION_INDEX" not in environ:
        return None
    if importlib.util.find_spec("kubernetes") is None:
        return Membership(
            launcher="Kubernetes",
            note=(
                f"this pod is number {environ['JOB_COMPLETION_INDEX']} of an indexed Job, and "
                "without the package kubernetes it cannot ask for the others: it goes on alone. "
                'Install "jax[k8s]", or set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and '
                "JAX_PROCESS_ID in the manifest; JAX_NUM_PROCESSES=1 says that each pod is alone."
            ),
        )
    from jax._src.clusters import K8sCluster

    try:
        return _ask("Kubernetes", K8sCluster)
    except Exception as error:
        error.add_note(
            "while asking Kubernetes for the pods of this Job. Its manifest may say it instead: "
            "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID; JAX_NUM_PROCESSES=1 "
            "for pods that are each alone."
        )
        raise


def _ask(launcher: str, cluster: Any) -> Membership | None:
    """Return what one of JAX's clusters says; None where this process is not in it."""
    if not cluster.is_env_present():
        return None
    # First: of one process the address would be looked up in vain, for minutes on some clusters.
    count = cluster.get_process_count() or 1
    if count == 1:
        return Membership(launcher=launcher)
    address = cluster.get_coordinator_address(
        timeout_secs=_NAME_SECS, override_coordinator_port=None
    )
    host, _, port = address.rpartition(":")
    place = {"process_id": cluster.get_process_id(), "num_processes": count}
    return Membership(launcher=launcher, host=host.strip("[]"), port=int(port), **place)


def join_address(host: str, port: int) -> str:
    """Return HOST:PORT; IPv6 stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_number(environ: Environ, name: str) -> int | None:
    """Return a variable that counts something; None where it is not set."""
    text = environ.get(name, "").strip()
    if text and not text.isdecimal():
        raise ValueError(
            f"the environment variable {name} got {text!r}, expected a number from 0. It places "
            "this process among those that were started with it. Correct it, or unset it."
        )
    return int(text) if text else None


def check_place(rank_name: str, rank: int, size_name: str, size: int) -> None:
    """Raise ValueError unless a number counts one of so many processes."""
    check_int(size_name, size, 1, "It counts a run's processes. Correct it.")
    why = f"It counts processes from 0, and {size_name} is {size}. Correct one of the two."
    check_number(rank_name, rank, f"[0, {size - 1}]", why)


def _find_place(
    environ: Environ,
    launcher: str,
    rank_name: str,
    size_name: str,
    local_rank_name: str = "",
    local_size_name: str = "",
) -> Membership | None:
    """Return which process of how many this one is; None where neither is said."""
    rank, size = read_number(environ, rank_name), read_number(environ, size_name)
    if rank is None and size is None:
        return None
    if rank is None or size is None:
        there, missing = (size_name, rank_name) if rank is None else (rank_name, size_name)
        raise _missing(environ, missing, there)
    variable = "the environment variable"
    check_place(f"{variable} {rank_name}", rank, f"{variable} {size_name}", size)
    if size == 1:
        return Membership(launcher=launcher)
    return Membership(
        launcher=launcher,
        process_id=rank,
        num_processes=size,
        local_rank=read_number(environ, local_rank_name),
        num_local=read_number(environ, local_size_name) or 1,
    )


def _listen_at(membership: Membership, host: str | None, port: int | None) -> Membership:
    # On one machine no name has to be looked up, and nobody outside it can call.
    is_one_machine = membership.num_processes == membership.num_local
    return replace(membership, host="127.0.0.1" if is_one_machine else host, port=port)


def _require(environ: Environ, name: str, beside: str) -> str:
    """Return a variable that the launcher sets where it sets another."""
    if text := environ.get(name, "").strip():
        return text
    raise _missing(environ, name, beside)


def _missing(environ: Environ, name: str, beside: str) -> IncompleteError:
    return IncompleteError(
        f"the environment got {beside}={environ[beside]} without {name}, expected both. Together "
        f"they place this process among those that were started with it. Set {name}, or unset "
        f"{beside} for a process that is alone."
    )


def _choose_port(number: int) -> int:
    """Return a port that every process finds, as all know the number."""
    return _FIRST_PORT + number % _NUM_PORTS


ALONE = Membership()
# Where a launcher, or a person, has already given each process devices of its own.
_VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_VARIABLES = {
    "coordinator_address": "JAX_COORDINATOR_ADDRESS",
    "num_processes": "JAX_NUM_PROCESSES",
    "process_id": "JAX_PROCESS_ID",
}


Settings = Mapping[str, Any]
"""What a person says of the three; what is not there is for others to say."""


def detect(environ: Environ, arguments: Settings) -> Membership:
    """Return this process's place among those that were started with it.

    ValueError says that what is said contradicts itself, or is not enough.
    """
    # Who asks for one process is alone, whatever place a launcher gave it.
    if arguments.get("num_processes") == 1 and not arguments.get("process_id"):
        return ALONE
    variables = {
        "coordinator_address": environ.get("JAX_COORDINATOR_ADDRESS", "").strip() or None,
        "num_processes": read_number(environ, "JAX_NUM_PROCESSES"),
        "process_id": read_number(environ, "JAX_PROCESS_ID"),
    }
    settings = {key: value for key, value in variables.items() if value is not None} | {**arguments}
    if "num_processes" in settings:
        names = (_name("process_id", arguments), _name("num_processes", arguments))
        check_place(names[0], settings.get("process_id", 0), names[1], settings["num_processes"])
        if settings["num_processes"] == 1:
            return ALONE
    if len(settings) == len(_VARIABLES):
        membership = _describe_variables(environ, arguments)
    else:
        membership = _find_launcher(environ)
        if membership.is_alone:
            _check_alone(settings, membership.launcher)
            return membership
    return _complete(environ, membership, settings, arguments)


def _name(key: str, arguments: Settings) -> str:
    return key if key in arguments else f"the environment variable {_VARIABLES[key]}"


def _describe_variables(environ: Environ, arguments: Settings) -> Membership:
    """Return what stands beside JAX's variables where they say all."""
    if arguments:
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
    inner = (find_torchrun, find_open_mpi, find_pmi)
    clusters = (find_slurm, find_cloud_tpu, find_skypilot)
    detectors = (*inner, *clusters, find_dstack, find_kubernetes)
    # Scripts export WORLD_SIZE or RANK for programs of torch, and start them with srun.
    incomplete: list[IncompleteError] = []
    for detector in detectors:
        try:
            membership = detector(environ)
        except IncompleteError as error:
            incomplete.append(error)
            continue
        if membership is not None:
            return membership
    if incomplete:
        raise incomplete[0]
    return ALONE


def _check_alone(settings: Settings, launcher: str) -> None:
    # An address may stand in a profile, for all that a launcher starts: to be alone is no mistake.
    if not settings or (launcher and list(settings) == ["coordinator_address"]):
        return
    settings = {key: settings[key] for key in _VARIABLES if key in settings}
    names = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    missing = ", ".join(key for key in _VARIABLES if key not in settings)
    says = f"{launcher} says that it is alone" if launcher else "No launcher says it"
    variables = ", ".join(_VARIABLES.values())
    raise IncompleteError(
        f"initialize got {names} and no {missing}, expected all three. Together they place this "
        f"process among the others. {says}. Pass {missing}, or set {variables}."
    )


def _complete(
    environ: Environ, membership: Membership, settings: Settings, arguments: Settings
) -> Membership:
    """Return what a launcher says, and in its place what was said by others."""
    keys, launcher = ("process_id", "num_processes"), membership.launcher
    membership = replace(membership, **{key: settings[key] for key in keys if key in settings})
    rank_name, size_name = (
        _name(key, arguments) if key in settings else f"{key} of {launcher}" for key in keys
    )
    check_place(rank_name, membership.process_id, size_name, membership.num_processes)
    if "coordinator_address" in settings:
        name = _name("coordinator_address", arguments)
        host, port = split_address(settings["coordinator_address"], name)
        membership = replace(membership, host=host, port=port)
    # JAX's own variable, for the port that a launcher's variables lead to.
    elif (port := read_number(environ, "JAX_COORDINATOR_PORT")) is not None:
        membership = replace(membership, port=port)
    if membership.host is None or membership.port is None:
        raise IncompleteError(
            f"{launcher} got {membership.num_processes} processes and no address, expected one "
            f"where process 0 listens for the others. {launcher} does not say where that is. "
            "Set JAX_COORDINATOR_ADDRESS=HOST:PORT for all, with the machine of process 0 and a "
            "port that is free there."
        )
    restarts = read_number(environ, "PENSTOCK_RESTARTS")
    return membership if restarts is None else replace(membership, restarts=restarts)


def choose_local_devices(environ: Environ, membership: Membership) -> list[int] | None:
    """Return the devices of its machine that a process takes; None for all that it sees.

    One, as JAX has it for Slurm and Open MPI, where the launcher started several processes on the
    machine and has not divided the devices itself. It matters on GPUs alone.
    """
    # JAX reads the first itself; by the second Slurm divides the GPUs of a machine.
    is_said = environ.get("JAX_LOCAL_DEVICE_IDS") or environ.get("SLURM_GPUS_PER_TASK")
    if is_said or membership.local_rank is None or membership.num_local == 1:
        return None
    visible = next((environ[name] for name in _VISIBLE_DEVICES if name in environ), None)
    if visible is not None and len(visible.split(",")) < membership.num_local:
        return None
    return [membership.local_rank]


def split_address(address: str, name: str = "coordinator_address") -> tuple[str, int]:
    """Return host and port of `HOST:PORT`; IPv6 stands in brackets."""
    match = re.fullmatch(r"(?:\[([^]\s]+)\]|([^]:/\s[]+)):([0-9]{1,5})", address)
    if match is None or not 0 < int(match[3]) < 1 << 16:
        raise ValueError(
            f"{name} got {address!r}, expected HOST:PORT. Process 0 listens there, and the others "
            "look for it there. Name its machine and a port that is free there: node1:61440, "
            "[fd00::2]:61440."
        )
    return match[1] or match[2], int(match[3])
