"""Fluid's places, as JAX devices."""

from __future__ import annotations

import jax


def CPUPlace() -> jax.Device:  # pyright: ignore[reportInvalidTypeForm]
    """Return the first CPU device, for `place=`.

    >>> CPUPlace().platform
    'cpu'
    """
    return jax.devices("cpu")[0]


def CUDAPlace(device_id: int) -> jax.Device:  # pyright: ignore[reportInvalidTypeForm]
    """Return the GPU of that number, for `place=`.

    Raises:
      ValueError: this process has no such GPU.
    """
    try:
        devices = jax.devices("cuda")
    except RuntimeError as error:
        raise ValueError(
            f"fluid.CUDAPlace got {device_id}, expected a GPU that JAX can use; it sees none. "
            f"Install the extra penstock[cuda], or use fluid.CPUPlace(). JAX says: {error}"
        ) from error
    if not 0 <= device_id < len(devices):
        raise ValueError(
            f"fluid.CUDAPlace got {device_id}, expected 0 to {len(devices) - 1}. This process has "
            f"{len(devices)} GPU."
        )
    return devices[device_id]
