"""Places and the device mesh: where programs run and how values are reduced over devices."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

T = TypeVar("T")

AXIS = "data"

WHOLE, SPLIT = PartitionSpec(), PartitionSpec(AXIS)
"""What every device holds whole, and what is split over the devices along its first axis."""
"""The mesh axis that batches are split over. User code may use collectives over it."""

_LARGE = 2**14
"""From so many numbers on an array is sent by itself: it takes longer to copy than to begin."""

_MOST = 200
"""So many arrays at most are sent by themselves: of more than 256 XLA makes several all-reduces."""

Place = str | jax.Device | Sequence[jax.Device] | Mesh | None
"""Where programs run: `None`, `"cpu"`, `"gpu"`, `"tpu"`, a device, devices or a `Mesh`."""

Specs: TypeAlias = "PartitionSpec | Iterable[Specs] | Mapping[str, Specs]"
"""How the arrays of a pytree lie on the mesh, one spec for a part of it or for each."""


def make_mesh(place: Place) -> Mesh:
    """Return the one-axis mesh a place stands for.

    `None` is every device of the default backend, a platform name every device of that platform.

    Raises:
      ValueError: the platform has no device here, or a mesh has other axes than `"data"`.
      TypeError: the place is none of the accepted kinds.
    """
    if isinstance(place, Mesh):
        # Batches are split over one axis; user code names it in collectives.
        if place.axis_names != (AXIS,):
            raise ValueError(
                f"place got a Mesh with axes {place.axis_names}, expected ({AXIS!r},). Batches are "
                f"split over one axis. Make it with jax.sharding.Mesh(devices, ({AXIS!r},))."
            )
        return place
    return Mesh(np.asarray(find_devices(place)), (AXIS,))


def find_devices(place: object) -> list[Any]:
    """Return the devices that a place other than a `Mesh` stands for, see `make_mesh`."""
    if place is None or isinstance(place, str):
        try:
            return jax.devices(place)
        # JAX 0.10 asserts where JAX_PLATFORMS names one that no plugin brings.
        except (RuntimeError, AssertionError) as error:
            raise ValueError(_missing(place, error)) from error
    if isinstance(place, jax.Device):
        return [place]
    if isinstance(place, Sequence) and place and all(isinstance(p, jax.Device) for p in place):
        return list(place)
    raise TypeError(
        f"place got {place!r}, expected None, 'cpu', 'gpu', 'tpu', a jax.Device, a non-empty list "
        "of them or a Mesh."
    )


def _missing(place: str | None, error: BaseException) -> str:
    """Say that a platform is not there, which ones are, and what would bring it."""
    asked = os.environ.get("JAX_PLATFORMS")
    name = place or (asked or "").partition(",")[0]
    # What would bring the platform, where one of our extras does.
    extra = {"gpu": "cuda", "cuda": "cuda", "tpu": "tpu"}.get(name.lower())
    remedy = f' Does the driver work, and is "penstock[{extra}]" installed?' if extra else ""
    try:
        here = f"this process has {jax.default_backend()!r}"
    except (RuntimeError, AssertionError):
        remedy += " Unset JAX_PLATFORMS to use what there is."
        here = f"JAX_PLATFORMS={asked!r} allows no other"
    what = " ".join(str(error).split())
    return (
        f"place got {place!r}, expected a platform present here: {here}.{remedy}"
        f"{f' ({what})' if what else ''}"
    )


@functools.lru_cache(maxsize=16)
def is_on_cpu(mesh: Mesh) -> bool:
    """Return whether the devices are CPUs."""
    return mesh.devices.flat[0].platform == "cpu"


def replicated_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of a value that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh, axis: int = 0) -> NamedSharding:
    """Return the sharding of an array whose axis number `axis` is split over the devices."""
    return NamedSharding(mesh, PartitionSpec(*([None] * axis), AXIS))


def put(tree: object, sharding: NamedSharding) -> Any:
    """Return a pytree of arrays on the devices; each process brings what its devices hold."""
    if jax.process_count() == 1:
        return jax.device_put(tree, sharding)
    # Not `device_put`, which compares what the processes bring, by a collective.
    return jax.tree.map(lambda x: _put_local(x, sharding), tree)


def _put_local(value: Any, sharding: NamedSharding) -> jax.Array:
    if isinstance(value, jax.Array) and value.sharding == sharding:
        return value
    return jax.make_array_from_process_local_data(sharding, np.asarray(value))


def psum(value: T, num_devices: int) -> T:
    """Sum a pytree over the devices.

    On one device nothing is emitted: XLA on CPU keeps an all-reduce over a single participant,
    and seven of them made a 13->1 regression step take 32 us instead of 15.
    """
    return value if num_devices == 1 else jax.lax.psum(value, AXIS)


def psum_at_once(value: T, mesh: Mesh) -> T:
    """Sum a pytree over the devices in one all-reduce.

    On CPU what is small is sent as one vector: XLA sends the arrays of an all-reduce one after the
    other there. Elsewhere it joins by itself what is worth it, and may send some earlier.
    """
    if mesh.size == 1 or not is_on_cpu(mesh):
        return psum(value, mesh.size)
    leaves, tree = jax.tree.flatten(value)
    sizes = sorted([leaf.size for leaf in leaves], reverse=True)
    least = max([_LARGE, *[size + 1 for size in sizes[_MOST:]]])
    is_small = [leaf.size < least for leaf in leaves]
    # In the widest dtype that is there, so that no sum is less exact than by itself.
    vector, separate = ravel_pytree(list(itertools.compress(leaves, is_small)))
    large = [leaf for leaf, small in zip(leaves, is_small, strict=True) if not small]
    vector, large = jax.lax.psum((vector, large), AXIS)
    small_sums, large_sums = iter(separate(vector)), iter(large)
    return tree.unflatten([next(small_sums if small else large_sums) for small in is_small])


def pmean(value: T, num_devices: int) -> T:
    """Average a pytree over the devices; nothing is emitted on one device."""
    return value if num_devices == 1 else jax.lax.pmean(value, AXIS)


def all_gather(value: T, num_devices: int) -> T:
    """Join a pytree's arrays along their first axes, in the devices' order, on every device."""
    return value if num_devices == 1 else jax.lax.all_gather(value, AXIS, tiled=True)


def device_index(num_devices: int) -> jax.Array | int:
    """Return the index of this device on the mesh axis, from inside a program."""
    return 0 if num_devices == 1 else jax.lax.axis_index(AXIS)
