"""A Slurm of one or two nodes on the loopback, with all its files in a folder of its own.

python -m tests.distributed.slurm_cluster COMMAND ...: run a command with one node.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_CONFIGURATION = """
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
# No cgroups, which a container may not have.
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
MpiDefault=none
ReturnToService=2
KillWait=5
# Nodes may say that they have more cores than the machine.
SlurmdParameters=config_overrides
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE
"""
PROGRAMS = ("srun", "sbatch", "sinfo", "squeue", "slurmctld", "slurmd", "munged")


def find(program: str) -> str | None:
    """Return where a program is; Debian has the daemons where only root looks."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@contextlib.contextmanager
def slurm_cluster(num_nodes: int) -> Iterator[dict[str, str]]:
    """Run a cluster; yield what its commands need in their environment."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: a socket's path has 107 characters
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    daemons: list[subprocess.Popen[bytes]] = []

    def start(program: str, *words: str) -> None:
        path = find(program)
        assert path is not None
        with (folder / f"{program}-{len(daemons)}.out").open("wb") as log:
            daemons.append(
                subprocess.Popen([path, *words], env=environment, stdout=log, stderr=log)
            )

    try:
        nodes = _configure(folder, num_nodes)
        munge = folder / "munge"
        files = ("socket", "log-file", "pid-file", "seed-file")
        paths = [f"--{name}={munge / name.removesuffix('-file')}" for name in files]
        start("munged", "--foreground", "--force", f"--key-file={munge / 'key'}", *paths)
        _wait(lambda: (munge / "socket").exists(), daemons, folder)
        start("slurmctld", "-D", "-f", environment["SLURM_CONF"])
        for node in nodes:
            start("slurmd", "-D", "-f", environment["SLURM_CONF"], "-N", node)
        _wait(lambda: _count_idle(environment) == num_nodes, daemons, folder)
        yield {"SLURM_CONF": environment["SLURM_CONF"]}
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(timeout=15)
            daemon.kill()
            daemon.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _configure(folder: Path, num_nodes: int) -> list[str]:
    """Write the key of munge and Slurm's configuration; return the names of the nodes."""
    for name in ("munge", "state"):
        (folder / name).mkdir()
    folder.chmod(0o755)  # munged looks whether others may change what leads to its socket
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    host = socket.gethostname().split(".")[0]
    # JAX looks its coordinator up by the node's name, which several on one machine cannot have.
    nodes = [host] if num_nodes == 1 else [f"node{index}" for index in range(num_nodes)]
    ports = _free_ports(num_nodes + 1)
    cores = max(4, os.cpu_count() or 1)
    lines = [
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cores}"
        for node, port in zip(nodes, ports[1:], strict=True)
    ]
    for node in nodes:
        (folder / f"spool-{node}").mkdir()
    text = _CONFIGURATION.format(
        host=host, controller_port=ports[0], user=_user(), folder=folder, nodes="\n".join(lines)
    )
    (folder / "slurm.conf").write_text(text)
    return nodes


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def _free_ports(count: int) -> list[int]:
    """Return ports that nobody listens at."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def _count_idle(environment: dict[str, str]) -> int:
    """Return how many nodes take work, 0 where the controller does not answer yet."""
    path = find("sinfo")
    assert path is not None
    words = [path, "--noheader", "--Node", "--states=idle", "--format=%N"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    return len(done.stdout.split())


def _wait(is_ready, daemons, folder: Path, secs: float = 60.0) -> None:
    """Wait until something is so, or a daemon has ended, which says why."""
    end = time.monotonic() + secs
    while not is_ready():
        has_ended = any(daemon.poll() is not None for daemon in daemons)
        if has_ended or time.monotonic() > end:
            logs = sorted([*folder.glob("*.out"), *folder.glob("*.log")])
            text = "\n".join(f"{log.name}: {log.read_text(errors='replace')}" for log in logs)
            raise RuntimeError(f"Slurm did not start.\n{text}")
        time.sleep(0.1)


if __name__ == "__main__":
    with slurm_cluster(1) as variables:
        command = subprocess.run(sys.argv[1:], env={**os.environ, **variables}, check=False)
    sys.exit(command.returncode)
