"""`fluid.core`: what scripts ask of the machine."""

from __future__ import annotations

import jax

from penstock.fluid._places import CPUPlace as CPUPlace
from penstock.fluid._places import CUDAPlace as CUDAPlace

__all__ = ["CPUPlace", "CUDAPlace", "get_cuda_device_count", "is_compiled_with_cuda"]


def get_cuda_device_count() -> int:
    """Return how many GPUs JAX can use here.

    >>> get_cuda_device_count() >= 0
    True
    """
    try:
        return len(jax.devices("cuda"))
    # There is no such backend.
    except RuntimeError:
        return 0


def is_compiled_with_cuda() -> bool:
    """Return whether `fluid.CUDAPlace(0)` can be used: JAX has a GPU backend, and sees a GPU.

    >>> is_compiled_with_cuda() == (get_cuda_device_count() > 0)
    True
    """
    return get_cuda_device_count() > 0
