"""Places and the device mesh: where programs run, and how arrays lie there."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

T = TypeVar("T")

AXIS = "data"
"""The mesh axis that batches are split over; a mesh may have others."""

WHOLE, SPLIT = PartitionSpec(), PartitionSpec(AXIS)
"""What every device holds whole, and what is split over the devices along its first axis."""

Place = str | jax.Device | Sequence[jax.Device] | Mesh | None
"""Where programs run: `None`, `"cpu"`, `"gpu"`, `"tpu"`, a device, devices or a `Mesh`."""

Layout = Literal["split", "even", "whole"]
"""How a program's batch lies on the mesh: split, split where that is even, or on every device."""

MODEL = "model"
"""The mesh axis that layers split their parameters over, where a mesh has it."""

StateSharding = Literal["optimizer", "full"] | None
"""What of a training state is split over the axis `"data"`: what the optimizer keeps (ZeRO-1), the
parameters too (FSDP), or nothing."""

LEAST_SPLIT = 4096
"""Arrays of fewer numbers stay whole: what they would save is less than a message costs."""

Specs: TypeAlias = "PartitionSpec | Iterable[Specs] | Mapping[Any, Specs]"
"""How the arrays of a pytree lie on the mesh, one spec for a part of it or for each."""


def make_mesh(place: Place) -> Mesh:
    """Return the mesh a place stands for, whose axis `"data"` batches are split over.

    `None` is every device of the default backend, a platform name every device of that platform.
    """
    if isinstance(place, Mesh):
        if AXIS not in place.axis_names:
            raise ValueError(
                f"place got a Mesh with axes {place.axis_names}, expected one named {AXIS!r}. "
                f"Batches are split over it. Make it with jax.sharding.Mesh(devices, ({AXIS!r},))."
            )
        processes = {device.process_index for device in place.devices.flat}
        # To one process alone the devices of others are described only.
        if jax.process_count() > 1 and (without := sorted(processes - {*owners(place)})):
            raise ValueError(
                f"place got a Mesh of {dict(place.shape)} in which process {without[0]} has no "
                f"part of the axis {AXIS!r} of its own, expected one for each. Each brings a part "
                "of a batch. Let other axes lie inside a process, over at most its devices."
            )
        # `jax.make_mesh` makes axes of which the program would have to say how every array lies.
        return Mesh(place.devices, place.axis_names)
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


def mesh(*, data: int = -1, model: int = 1) -> Mesh:
    """Return a grid of every device with the axes `"data"` and `"model"`, as `place=` takes it.

    Batches are split over the first, parameters over the second, as `parameter_sharding` says.

    Arguments:
      data, model: how many devices along each axis; one of them may be -1, for all that are left.

    Raises:
      ValueError: the axes do not take every device.

    >>> mesh(data=-1, model=1).axis_names
    ('data', 'model')
    """
    devices, sizes = jax.devices(), [data, model]
    if -1 in sizes:
        other = sizes[1 - sizes.index(-1)]
        sizes[sizes.index(-1)] = len(devices) // other if other > 0 else -1
    if min(sizes) < 1 or math.prod(sizes) != len(devices):
        raise ValueError(
            f"mesh got data={data} and model={model}, expected sizes whose product is the number "
            f"of devices, {len(devices)}; one of them may be -1. Pass a jax.sharding.Mesh with an "
            f"axis {AXIS!r} for some of the devices."
        )
    return Mesh(np.asarray(devices).reshape(sizes), (AXIS, MODEL))


@functools.lru_cache(maxsize=16)
def is_on_cpu(mesh: Mesh) -> bool:
    return mesh.devices.flat[0].platform == "cpu"


def is_on_gpu(mesh: Mesh) -> bool:
    return mesh.devices.flat[0].platform == "gpu"


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


def put_whole(tree: object, shardings: object) -> Any:
    """Return a pytree of arrays, of which each process has all values, on the devices."""
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings)

    def place(value: Any, sharding: NamedSharding) -> jax.Array:
        if isinstance(value, jax.Array) and value.sharding == sharding:
            return value
        host = np.asarray(value)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(place, tree, shardings)


def is_shared(x: object) -> bool:
    """Return whether an array is split over several processes: none has the whole."""
    return isinstance(x, jax.Array) and not (x.is_fully_replicated or x.is_fully_addressable)


def gather(tree: T) -> T:
    """Return arrays that this process can fetch whole. Collective where one is split over several.

    Those come on the host, one after the other, so that no device holds more than one of them.
    """
    from jax.experimental import multihost_utils

    def join(x: Any) -> Any:
        return multihost_utils.process_allgather(x, tiled=True) if is_shared(x) else x

    return jax.tree.map(join, tree)


def fetch_whole(tree: T) -> T:
    """Return arrays on the host, each whole. Collective, as `gather`."""
    return jax.device_get(gather(tree))


def split_further(shape: Sequence[int], spec: PartitionSpec, mesh: Mesh) -> PartitionSpec:
    """Return a layout of an array that is split over `"data"` too, along its largest free axis."""
    parts = count_parts(mesh)
    axes = [*spec, *[None] * (len(shape) - len(spec))]
    free = [k for k, size in enumerate(shape) if axes[k] is None and size % parts == 0]
    if math.prod(shape) < LEAST_SPLIT or not free or parts == 1:
        return spec
    axes[max(free, key=lambda k: shape[k])] = AXIS
    return PartitionSpec(*axes)


def make_shardings(mesh: Mesh, specs: Specs) -> Any:
    # A PartitionSpec is a leaf to JAX: it is no tuple.
    return jax.tree.map(functools.partial(NamedSharding, mesh), specs)


def find_memory(device: Any) -> float:
    """Return how many bytes a program can have on a device of this machine; inf if not known."""
    if device.platform != "cpu":
        return (device.memory_stats() or {}).get("bytes_limit", math.inf)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return machine // jax.local_device_count("cpu")


def count_parts(mesh: Mesh) -> int:
    return mesh.shape[AXIS]


def owners(mesh: Mesh) -> list[int]:
    """Return the process that each part of a batch comes from."""
    place = mesh.axis_names.index(AXIS)
    return [np.ravel(row)[0].process_index for row in np.moveaxis(mesh.devices, place, 0)]


def lay_out(tree: T, mesh: Mesh, specs: Specs) -> T:
    """Return arrays of a program, whole on every device or split as the specs say.

    Inside a program the parts may differ by a row.
    """
    if mesh.size == 1:
        return tree
    return jax.lax.with_sharding_constraint(tree, make_shardings(mesh, specs))
