"""Clusters that have to be asked: Cloud TPU and Kubernetes, through JAX's own detection."""

from __future__ import annotations

import importlib.util
from typing import Protocol

from penstock.distributed.launchers import Environ, Membership

# The name of process 0's machine is known a while after its pod has started.
_NAME_SECS = 300


class Cluster(Protocol):
    """The part of JAX's `ClusterEnv` that is asked; its classes are, as they have no objects."""

    def is_env_present(self) -> bool:
        """Return whether this process runs in such a cluster."""
        ...

    def get_process_count(self) -> int | None:
        """Return how many processes there are."""
        ...

    def get_process_id(self) -> int:
        """Return which of them this is."""
        ...

    def get_coordinator_address(
        self, timeout_secs: int | None, override_coordinator_port: str | None
    ) -> str:
        """Return HOST:PORT of process 0."""
        ...


def ask_cloud_tpu(environ: Environ) -> Membership | None:
    """Find the machines of a TPU slice.

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


def ask_kubernetes(environ: Environ) -> Membership | None:
    """Find the pods of an indexed Job or JobSet, as far as this pod may ask for them."""
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


def _ask(launcher: str, cluster: Cluster) -> Membership | None:
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
    return Membership(
        launcher=launcher,
        host=host.removeprefix("[").removesuffix("]"),
        port=int(port),
        process_id=cluster.get_process_id(),
        num_processes=count,
    )
