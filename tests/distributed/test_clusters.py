"""Cloud TPU and Kubernetes: when they are asked, and what is made of the answer."""

import importlib.util
import re
import sys

import pytest

from penstock.distributed import environments
from penstock.distributed.environments import find_cloud_tpu, find_kubernetes

POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1"}


class Pods:
    """What JAX's `K8sCluster` offers, of so many pods."""

    def __init__(self, count, address="job-0.jaxpods:55527"):
        self.count, self.address, self.asked = count, address, []

    def is_env_present(self):
        return True

    def get_process_count(self):
        return self.count

    def get_process_id(self):
        return 1

    def get_coordinator_address(self, timeout_secs, override_coordinator_port):
        self.asked.append(timeout_secs)
        if isinstance(self.address, Exception):
            raise self.address
        return self.address


@pytest.fixture
def kubernetes(monkeypatch):
    """Install a package of this name, and return how JAX's answer is chosen."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    return lambda pods: monkeypatch.setattr("jax._src.clusters.K8sCluster", pods)


@pytest.mark.parametrize("missing", POD)
def test_pod_of_no_indexed_job_asks_nobody(kubernetes, missing):
    kubernetes(None)
    assert find_kubernetes({key: value for key, value in POD.items() if key != missing}) is None


def test_pods_of_a_job_are_found(kubernetes):
    kubernetes(Pods(3))
    member = find_kubernetes(POD)
    assert member is not None
    assert (member.launcher, member.process_id, member.num_processes) == ("Kubernetes", 1, 3)
    assert member.address == "job-0.jaxpods:55527"


@pytest.mark.parametrize("count", [1, None])
def test_single_pod_is_alone_and_looks_nobody_up(kubernetes, count):
    pods = Pods(count)
    kubernetes(pods)
    member = find_kubernetes(POD)
    assert member is not None
    assert member.is_alone
    assert pods.asked == []


def test_failure_to_ask_keeps_its_error_and_says_what_would_do_without(kubernetes):
    kubernetes(Pods(3, RuntimeError("Kubernetes API Error: 403 - Forbidden")))
    with pytest.raises(RuntimeError, match="403 - Forbidden") as raised:
        find_kubernetes(POD)
    assert "JAX_NUM_PROCESSES=1" in raised.value.__notes__[0]


def test_pod_that_cannot_ask_is_alone_and_says_so(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    member = find_kubernetes(POD)
    assert member is not None
    assert member.is_alone
    assert re.match("this pod is number 1 of an indexed Job, and without the package", member.note)


@pytest.mark.parametrize("libtpu", [None, object()])
def test_no_metadata_server_is_asked_without_libtpu_or_a_tpu(monkeypatch, libtpu):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: libtpu)
    monkeypatch.setattr("jax._src.cloud_tpu_init.running_in_cloud_tpu_vm", libtpu is None)
    monkeypatch.setattr(environments, "_ask", lambda *args: pytest.fail("asked"))
    assert find_cloud_tpu({}) is None


def test_machines_of_a_slice_are_found_where_there_is_a_tpu(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr("jax._src.cloud_tpu_init.running_in_cloud_tpu_vm", True)
    monkeypatch.setattr("jax._src.clusters.GkeTpuCluster", Pods(4, "t1k-0:8482"))
    member = find_cloud_tpu({})
    assert member is not None
    assert (member.launcher, member.num_processes, member.address) == ("Cloud TPU", 4, "t1k-0:8482")


def test_jaxs_clusters_offer_what_is_asked_of_them():
    # Private to JAX: a release that changes them fails here and not on a TPU.
    from jax._src.clusters import GceTpuCluster, GkeTpuCluster, K8sCluster

    names = [name for name in vars(Pods) if name.startswith(("is_", "get_"))]
    for cluster in (GceTpuCluster, GkeTpuCluster, K8sCluster):
        assert all(callable(getattr(cluster, name)) for name in names)
    assert "kubernetes" not in sys.modules
