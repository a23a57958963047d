"""Devices that need not be here: what is known of each kind, and descriptions to compile for."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Any

import jax
from jax.experimental import topologies

from penstock import _mesh
from penstock._errors import check_installed, nearest


@dataclasses.dataclass(frozen=True)
class Rates:
    """What the vendor says that a device can do at most; a chip may have two devices.

    Attributes:
      memory_gib: what a program can have, by the limits of the compilers.
      teraflops: operations on bfloat16, in 1e12 a second.
      memory_gb: gigabytes a second from and to its memory.
      link_gb: gigabytes a second to other devices, over all of its links.
    """

    memory_gib: float
    teraflops: float
    memory_gb: float
    link_gb: float


# What JAX calls a device, its topologies, and its rates. v2, v3, v4 and tpu7x have two devices a
# chip, and half of it each.
_KINDS = {
    "v2": ("TPU v2", "2x2 to 16x16", Rates(7.48, 22.5, 350, 124)),
    "v3": ("TPU v3", "2x2 to 32x32", Rates(15.48, 61, 450, 164)),
    "v4": ("TPU v4", "2x2x1 to 16x16x16", Rates(15.25, 137, 600, 150)),
    "v5e": ("TPU v5 lite", "1x1 to 16x16", Rates(15.75, 197, 819, 200)),
    "v5p": ("TPU v5", "2x2x1 to 16x16x24", Rates(95.73, 459, 2765, 600)),
    "v6e": ("TPU v6 lite", "1x1 to 16x16", Rates(31.24, 918, 1600, 400)),
    "tpu7x": ("TPU7x", "2x2x1 to 8x16x16", Rates(94.74, 1153, 3690, 300)),
    "h100": ("NVIDIA H100", "1 to 8", Rates(79, 989, 3350, 450)),
}

# The properties that the driver tells of one, in the text form of XLA's GpuTargetConfigProto.
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448 registers_per_core_limit: 65536
  registers_per_block_limit: 65536 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84942979072 cuda_compute_capability { major: 9 }
}
platform_name: "CUDA" runtime_version { major: 13 } dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""

_ENVIRONMENT = {
    # Described in full: no machine is asked what it has.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    # libtpu lets one process in at a time, as if each had the TPU.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
}


def find_rates(device: Any) -> Rates | None:
    """Return what is known of a device's kind; None where it is none of those."""
    rates = {name: known for name, _, known in _KINDS.values()}
    return rates.get(max(filter(device.device_kind.startswith, rates), key=len, default=""))


def find_memory(device: Any) -> int:
    """Return how many bytes a program can have on a device; on CPU its share of the machine's."""
    rates = find_rates(device)
    # A device of this machine says itself what JAX may take of it: of a GPU three quarters.
    is_here = rates is None or device in jax.local_devices()
    known = _mesh.find_memory(device) if is_here else math.inf
    if math.isinf(known):
        return 0 if rates is None else int(rates.memory_gib * 2**30)
    return int(known)


def describe_devices(topology: str) -> list[Any]:
    """Return the devices of a topology such as `"v5e:4x4"`, as a compiler takes them.

    Raises:
      ValueError: there is no such topology.
      ModuleNotFoundError: the compiler for it is not installed.
    """
    kind, _, size = topology.lower().partition(":")
    if kind not in _KINDS or not all(part.isdigit() for part in size.split("x")):
        sizes = ", ".join(f"{name}:{sizes}" for name, (_, sizes, _) in _KINDS.items())
        raise ValueError(
            f"topology got {topology!r}, expected 'here', or a kind of device and how many there "
            f"are along each axis: {sizes}.{nearest(kind, _KINDS)}"
        )
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    wanted: dict[str, Any] = {"platform": "tpu", "topology_name": f"{kind}:{size}"}
    if kind == "h100":
        wanted = {"platform": "cuda", "target_config": _H100, "topology": f"1x1x{size}"}
    else:
        check_installed("libtpu", "tpu", f"topology {topology!r}")
    try:
        return list(topologies.get_topology_desc(**wanted).devices)
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(
            f"topology got {topology!r}, expected a size that there is of {kind}, from "
            f"{_KINDS[kind][1]}: {error}"
        ) from error
    except NotImplementedError as error:
        version = jax.__version__
        raise ModuleNotFoundError(
            f"topology {topology!r} got no CUDA plugin of JAX, expected it to be there to compile "
            f"with. Run pip install --no-deps jax-cuda13-plugin=={version} "
            f"jax-cuda13-pjrt=={version}, and in scripts set JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 and "
            "JAX_PLATFORMS=cpu, since it looks for a driver otherwise."
        ) from error
