"""Feeds: checked against what the program declared, padded to a static size, put on the devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from penstock import _mesh
from penstock._errors import FeedError, listed, nearest
from penstock.layers._frame import FeedSpec

HOST_FEED_LIMIT_BYTES = 1 << 16
"""Below this, on one device, a batch rides along with the launch: 11 us an array against 30 us for
`jax.device_put`, and a batch this small hides no transfer worth hiding. On one CPU device every
batch does, since there is no transfer at all."""


@dataclasses.dataclass(frozen=True)
class Placed:
    """A batch ready for a program: `feed` and `weights` padded to the program's batch size.

    With several steps in one launch every array has a leading step axis. `counts` is the number of
    valid examples of each step.
    """

    feed: dict[str, Any]
    weights: Any
    counts: tuple[int, ...]


def checked(
    feed: Mapping[str, Any], specs: Mapping[str, FeedSpec], known: Mapping[str, FeedSpec]
) -> tuple[dict[str, Any], int]:
    """Return the arrays that `specs` name, in their declared shapes and dtypes, and their length.

    Arguments:
      feed: name to array-like with a leading batch axis.
      specs: what the program needs.
      known: what any program of the builder declares; other names are errors.

    Raises:
      FeedError: a name is missing or unknown, or a shape or dtype does not fit; all at once.
    """
    if not isinstance(feed, Mapping):
        raise FeedError(
            f"feed got {type(feed).__name__}, expected a dict of input name to array. Tuples are "
            "named by feed_order, which trainer.train and trainer.test take."
        )
    problems, columns = [], {}
    for name in feed:
        if name not in known:
            problems.append(
                f"feed got the unknown input {name!r}, expected {listed(known)}."
                + nearest(str(name), known)
            )
    for name, spec in specs.items():
        if name not in feed:
            problems.append(f"feed got {listed(feed)}, expected also {name!r}.")
            continue
        column = _column(feed[name], spec)
        if isinstance(column, str):
            problems.append(column)
        else:
            columns[name] = column
    if problems:
        raise FeedError("\n".join(problems))
    sizes = {name: column.shape[0] for name, column in columns.items()}
    if len(set(sizes.values())) > 1:
        raise FeedError(
            f"feed got batches of different lengths {sizes}, expected one length for all inputs."
        )
    size = next(iter(sizes.values()), 1)
    if not size:
        raise FeedError("feed got a batch of 0 examples, expected at least 1.")
    return columns, size


def _column(value: Any, spec: FeedSpec) -> Any:
    """Return the input as a batch of `spec`, or what is wrong with it as a string."""
    if not isinstance(value, (np.ndarray, jax.Array)):
        try:
            value = np.asarray(value)
        except ValueError as error:
            return f"feed {spec.name!r} got what numpy makes no array of: {error}."
    if value.dtype == spec.dtype and value.shape[1:] == spec.shape and value.ndim:
        return value
    shaped = _shaped(value, spec)
    if isinstance(shaped, str):
        return shaped
    return _cast(shaped, spec)


def _shaped(value: Any, spec: FeedSpec) -> Any:
    expected = f"expected [batch, {', '.join(map(str, spec.shape))}]"
    if value.shape == spec.shape and spec.shape != (1,):
        return (
            f"feed {spec.name!r} got shape {list(value.shape)}, {expected}. This is one example "
            "without a batch axis. Use readers.batch, or value[None] for a batch of one."
        )
    if not value.ndim or value.size != value.shape[0] * int(np.prod(spec.shape)):
        return f"feed {spec.name!r} got shape {list(value.shape)}, {expected}."
    is_flat = value.ndim <= 2 or spec.shape == (1,)
    if value.shape[1:] != spec.shape and not is_flat:
        return (
            f"feed {spec.name!r} got shape {list(value.shape)}, {expected}. Only flat examples are "
            "reshaped; these axes are in another order or another grouping."
        )
    return value.reshape(value.shape[0], *spec.shape)


def _cast(value: Any, spec: FeedSpec) -> Any:
    """Return `value` in the declared dtype when that loses nothing but precision."""
    if value.dtype == spec.dtype:
        return value
    if value.dtype.kind in "OSUV" or not np.can_cast(value.dtype, spec.dtype, "same_kind"):
        return (
            f"feed {spec.name!r} got dtype {value.dtype}, expected {spec.dtype}. It is not "
            "converted, since that would lose information. Convert it in the reader."
        )
    is_narrowed = spec.dtype.kind in "iu" and value.dtype.itemsize > spec.dtype.itemsize
    if is_narrowed and value.size and isinstance(value, np.ndarray):
        limits = np.iinfo(spec.dtype)
        low, high = int(value.min()), int(value.max())
        if low < limits.min or high > limits.max:
            return (
                f"feed {spec.name!r} got {value.dtype} values from {low} to {high}, expected values "
                f"that fit {spec.dtype}."
            )
    return value.astype(spec.dtype)


class Feeder:
    """Pads and places the batches of one program; its batch size is the largest seen so far."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.batch_size = 0
        self._full_weights: dict[int, Any] = {}
        self.is_single_cpu = mesh.size == 1 and mesh.devices.flat[0].platform == "cpu"

    def fit(self, size: int) -> None:
        """Make the batch size at least `size`, rounded up to a multiple of the device count."""
        num_devices = self.mesh.local_mesh.size
        self.batch_size = max(self.batch_size, -(-size // num_devices) * num_devices)

    def place(self, batches: Sequence[tuple[dict[str, Any], int]]) -> Placed:
        """Return checked batches, padded and stacked if they are several, on the devices."""
        for _, size in batches:
            self.fit(size)
        counts = tuple(size for _, size in batches)
        padded = [self._padded(columns, size) for columns, size in batches]
        is_stacked = len(padded) > 1
        if is_stacked:
            feed = {name: np.stack([p[name] for p in padded]) for name in padded[0]}
        else:
            feed = padded[0]
        weights = self._weights(counts)
        if self._rides_along(feed):
            return Placed(feed, weights, counts)
        sharding = _mesh.split(self.mesh, int(is_stacked))
        return Placed(self._put(feed, sharding), weights, counts)

    def _padded(self, columns: dict[str, Any], size: int) -> dict[str, Any]:
        missing = self.batch_size - size
        if not missing:
            return columns
        # Copies of the last example rather than zeros: whatever the program computes of a real
        # example is as finite on its copy, so that 0 * nan cannot reach a gradient.
        return {
            name: np.concatenate([column, np.repeat(np.asarray(column[-1:]), missing, axis=0)])
            for name, column in columns.items()
        }

    def _weights(self, counts: tuple[int, ...]) -> Any:
        steps, size = len(counts), self.batch_size
        sharding = _mesh.split(self.mesh, int(steps > 1))
        is_full = all(count == size for count in counts)
        if is_full and self._full_weights.get(steps, np.empty(0)).shape[-1:] == (size,):
            return self._full_weights[steps]
        weights = (np.arange(size)[None, :] < np.asarray(counts)[:, None]).astype(np.float32)
        placed = self._put(weights if steps > 1 else weights[0], sharding)
        if is_full:
            self._full_weights[steps] = placed
        return placed

    def _rides_along(self, feed: Mapping[str, Any]) -> bool:
        if self.mesh.size > 1 or any(isinstance(x, jax.Array) for x in feed.values()):
            return False
        return self.is_single_cpu or sum(x.nbytes for x in feed.values()) <= HOST_FEED_LIMIT_BYTES

    def _put(self, tree: Any, sharding: Any) -> Any:
        if jax.process_count() == 1:
            return jax.device_put(tree, sharding)
        return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, x), tree)
