"""`fluid.core`: what scripts ask of the machine; and places, as JAX devices."""

from __future__ import annotations

from typing import Any

import jax

from penstock._errors import check_number, check_type
from penstock._mesh import Place

__all__ = ["CPUPlace", "CUDAPlace", "get_cuda_device_count", "is_compiled_with_cuda"]


def CPUPlace() -> jax.Device:  # pyright: ignore[reportInvalidTypeForm]
    """Return this process's first CPU device, for `place=`.

    >>> CPUPlace().platform
    'cpu'
    """
    return jax.local_devices(backend="cpu")[0]


def CUDAPlace(device_id: int) -> jax.Device:  # pyright: ignore[reportInvalidTypeForm]
    """Return the GPU with index `device_id`, for `place=`.

    Raises:
      ValueError: this process has no such GPU.
    """
    try:
        devices = jax.local_devices(backend="cuda")
    except RuntimeError as error:
        raise ValueError(
            f"fluid.CUDAPlace got {device_id}, expected a GPU that JAX can use; it sees none. "
            f"Install the extra penstock[cuda], or use fluid.CPUPlace(). JAX says: {error}"
        ) from error
    why = f"This process has {len(devices)} GPU."
    check_number("fluid.CUDAPlace", device_id, f"[0, {len(devices) - 1}]", why)
    return devices[device_id]


def get_cuda_device_count() -> int:
    """Return how many GPUs this process has.

    >>> get_cuda_device_count() >= 0
    True
    """
    try:
        return len(jax.local_devices(backend="cuda"))
    # There is no such backend.
    except RuntimeError:
        return 0


def is_compiled_with_cuda() -> bool:
    """Return whether `fluid.CUDAPlace(0)` can be used: JAX has a GPU backend, and sees a GPU.

    >>> is_compiled_with_cuda() == (get_cuda_device_count() > 0)
    True
    """
    return get_cuda_device_count() > 0


def choose_devices(owner: str, place: Place, parallel: bool) -> Place:
    """Return where Fluid runs: on one device, with `parallel` or several processes on all."""
    expected = "True or False. It says whether every device of the place's kind is used."
    check_type(f"{owner} got parallel=", parallel, bool, expected)
    # Each process names a place of its own, and they train together.
    parallel = parallel or jax.process_count() > 1
    # penstock's default is every device, Fluid's is one.
    if place is None and not parallel:
        return jax.devices()[0]
    if parallel and isinstance(place, jax.Device):
        # A checker cannot follow `jax.Device`, which is no class to it.
        device: Any = place
        return jax.devices(device.platform)
    return place
