"""The launchers people have: what each says in the environment of a process that it started."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from penstock._errors import message

Environ = Mapping[str, str]

LOOPBACK = "127.0.0.1"
# Above the ports that Linux gives to outgoing connections, which end at 60999.
_FIRST_PORT, _NUM_PORTS = 61440, 4096


class IncompleteError(ValueError):
    """Some variables of a launcher are there and some are not: another launcher may know more."""


@dataclass(frozen=True, kw_only=True)
class Membership:
    """One process's place among those that were started together; by default it is alone.

    Arguments:
      launcher: what started them, as people call it.
      host: where process 0 listens; None where the launcher does not say.
      port: the port there; None where nothing that all processes know gives one.
      local_rank: its place among the processes of its machine, where the launcher says it.
      num_local: how many processes its machine has, as far as is known.
      restarts: how often the processes were started again.
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
    place = _read_place(environ, "RANK", "WORLD_SIZE")
    if place is None or place[1] == 1:
        return place and Membership(launcher=launcher)
    rank, size = place
    num_local = read_number(environ, "LOCAL_WORLD_SIZE") or 1
    master_port = read_number(environ, "MASTER_PORT") or 0
    # torch's own store listens at MASTER_PORT. Runs that share a machine have mostly counted that
    # up, and so their coordinators do not meet either.
    port = _choose_port(master_port)
    return Membership(
        launcher=launcher,
        host=_choose_host(size, num_local, _require(environ, "MASTER_ADDR", "RANK")),
        port=port if port != master_port else _choose_port(master_port + _NUM_PORTS // 2),
        process_id=rank,
        num_processes=size,
        local_rank=read_number(environ, "LOCAL_RANK"),
        num_local=num_local,
        restarts=read_number(environ, "TORCHELASTIC_RESTART_COUNT") or 0,
        run=environ.get("TORCHELASTIC_RUN_ID", ""),
    )


def find_open_mpi(environ: Environ) -> Membership | None:
    """Find mpirun of Open MPI; JAX knows its releases before 5."""
    place = _read_place(environ, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    if place is None or place[1] == 1:
        return place and Membership(launcher="Open MPI")
    rank, size = place
    host, port, run = _find_mpirun(environ)
    num_local = read_number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE") or 1
    return Membership(
        launcher="Open MPI",
        host=_choose_host(size, num_local, host),
        port=port,
        process_id=rank,
        num_processes=size,
        local_rank=read_number(environ, "OMPI_COMM_WORLD_LOCAL_RANK"),
        num_local=num_local,
        run=run,
    )


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
    place = _read_place(environ, "PMI_RANK", "PMI_SIZE")
    # Slurm speaks PMI as well, and knows where its processes are.
    if place is not None and _is_step(environ) and place == _read_step_place(environ):
        return None
    if place is None or place[1] == 1:
        return place and Membership(launcher="PMI")
    rank, size = place
    num_local = read_number(environ, "MPI_LOCALNRANKS") or 1
    return Membership(
        launcher="PMI",
        host=_choose_host(size, num_local, None),
        process_id=rank,
        num_processes=size,
        local_rank=read_number(environ, "MPI_LOCALRANKID"),
        num_local=num_local,
    )


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
    rank, size = _read_step_place(environ)
    if size == 1:
        return Membership(launcher="Slurm")
    job, step = (read_number(environ, name) or 0 for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    num_local = _count_own_tasks(environ)
    return Membership(
        launcher="Slurm",
        host=_choose_host(size, num_local, _first_host(environ.get("SLURM_STEP_NODELIST", ""))),
        # Another one for each of the jobs that follow each other, and for each step of one.
        port=_choose_port(job + 1021 * step),
        process_id=rank,
        num_processes=size,
        local_rank=read_number(environ, "SLURM_LOCALID"),
        num_local=num_local,
        restarts=read_number(environ, "SLURM_RESTART_COUNT") or 0,
        run=f"{job}.{step}",
    )


def _is_step(environ: Environ) -> bool:
    """Return whether srun started this process, and not a batch script."""
    if "SLURM_STEP_NUM_TASKS" not in environ or "SLURM_PROCID" not in environ:
        return False
    # What srun has set reaches a batch script that is submitted from one of its processes. Slurm
    # sets these itself in both, one for each task of the step on this machine.
    own_tasks = environ.get("SLURM_GTIDS")
    return own_tasks is None or len(own_tasks.split(",")) == _count_own_tasks(environ)


def _read_step_place(environ: Environ) -> tuple[int, int]:
    # Not SLURM_NTASKS, which in the shell that salloc opens as a step counts the whole job.
    place = _read_place(environ, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    assert place is not None
    return place


def _count_own_tasks(environ: Environ) -> int:
    """Return how many tasks the step has on this machine: of `2(x2),1` the first two have two."""
    counts: list[int] = []
    for part in environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        if found := re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part):
            counts += [int(found[1])] * int(found[2] or 1)
    node = read_number(environ, "SLURM_NODEID") or 0
    return counts[node] if node < len(counts) else 1


def _first_host(nodes: str) -> str | None:
    """Return the first of Slurm's list of machines: `gpu[03-07,9]-b,login` begins with gpu03-b."""
    first = re.match(r"(?:\[[^]]*\]|[^,[])+", nodes)
    return first and re.sub(r"\[([^],-]+)[^]]*\]", r"\1", first[0])


def find_skypilot(environ: Environ) -> Membership | None:
    """Find the machines of a SkyPilot task, a process on each."""
    names = ("SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", "SKYPILOT_NODE_IPS", "SKYPILOT_TASK_ID")
    return _find_nodes(environ, "SkyPilot", *names)


def find_dstack(environ: Environ) -> Membership | None:
    """Find the machines of a dstack task, a process on each."""
    names = ("DSTACK_NODE_RANK", "DSTACK_NODES_NUM", "DSTACK_MASTER_NODE_IP", "DSTACK_RUN_NAME")
    return _find_nodes(environ, "dstack", *names)


def _find_nodes(
    environ: Environ, launcher: str, rank_name: str, size_name: str, hosts_name: str, run_name: str
) -> Membership | None:
    """Find machines with a process on each, by the variables of their launcher.

    Arguments:
      hosts_name: has the machines, or the first alone.
      run_name: tells this run from others, and gives the port.
    """
    place = _read_place(environ, rank_name, size_name)
    if place is None or place[1] == 1:
        return place and Membership(launcher=launcher)
    run = environ.get(run_name, "")
    return Membership(
        launcher=launcher,
        host=_require(environ, hosts_name, rank_name).split()[0],
        port=_choose_port(zlib.crc32(run.encode())),
        process_id=place[0],
        num_processes=place[1],
        run=run,
    )


def join_address(host: str, port: int) -> str:
    """Return HOST:PORT.

    >>> join_address("fd00::2", 80)
    '[fd00::2]:80'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_number(environ: Environ, name: str) -> int | None:
    """Return a variable that counts something; None where it is not set.

    Raises:
      ValueError: it is no number.
    """
    text = environ.get(name, "").strip()
    if text and not text.isdecimal():
        raise ValueError(
            message(
                f"the environment variable {name}",
                repr(text),
                "a number from 0",
                "It places this process among those that were started with it",
                "Correct it, or unset it",
            )
        )
    return int(text) if text else None


def check_place(rank_name: str, rank: int, size_name: str, size: int) -> None:
    """Check that a number counts one of so many processes.

    Raises:
      ValueError: it does not.
    """
    if size < 1:
        why = "It counts the processes of a run"
        raise ValueError(message(size_name, size, "1 or more", why, "Correct it"))
    if not 0 <= rank < size:
        expected = f"a number from 0 to {size - 1}"
        why = f"It counts processes from 0, and {size_name} is {size}"
        raise ValueError(message(rank_name, rank, expected, why, "Correct one of the two"))


def _read_place(environ: Environ, rank_name: str, size_name: str) -> tuple[int, int] | None:
    """Return which process of how many this one is; None where neither is said.

    Raises:
      IncompleteError: one of the two is.
      ValueError: they are no numbers, or do not fit.
    """
    rank, size = read_number(environ, rank_name), read_number(environ, size_name)
    if rank is None and size is None:
        return None
    if rank is None or size is None:
        there, missing = (size_name, rank_name) if rank is None else (rank_name, size_name)
        _require(environ, missing, there)
    assert rank is not None
    assert size is not None
    check_place(
        f"the environment variable {rank_name}", rank, f"the environment variable {size_name}", size
    )
    return rank, size


def _require(environ: Environ, name: str, beside: str) -> str:
    """Return a variable that the launcher sets where it sets another.

    Raises:
      IncompleteError: it is not there.
    """
    text = environ.get(name, "").strip()
    if not text:
        raise IncompleteError(
            message(
                "the environment",
                f"{beside}={environ[beside]} without {name}",
                "both",
                "Together they place this process among those that were started with it",
                f"Set {name}, or unset {beside} for a process that is alone",
            )
        )
    return text


def _choose_host(num_processes: int, num_local: int, host: str | None) -> str | None:
    # On one machine no name has to be looked up, and nobody outside it can call.
    return LOOPBACK if num_processes == num_local else host


def _choose_port(number: int) -> int:
    """Return a port that every process finds, as all know the number."""
    return _FIRST_PORT + number % _NUM_PORTS
