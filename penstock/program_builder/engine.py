"""The engine: the one owner of a training state, which it runs programs on."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from penstock import _mesh
from penstock._device_batches import DeviceBatch
from penstock._parameter_names import Nested
from penstock._program.requests import Variables
from penstock.program_builder._compilation import announce_compilation, compile_function, copy_to
from penstock.program_builder._objective import State
from penstock.program_builder._step import Launched
from penstock.program_builder.programs import Leaves, Programs


class Engine:
    """A training state on the devices, and the programs that advance it.

    Arguments:
      programs: what runs; several engines may share them, each with a state of its own.
      state: the one to begin with; it is donated at the first launch.

    Attributes:
      leaves: the state as a flat list of arrays.
    """

    def __init__(self, programs: Programs, state: State) -> None:
        self.programs = programs
        self.leaves: Leaves = jax.tree.leaves(state)
        self._is_health_compiled = False

    @property
    def state(self) -> State:
        """The state; valid until the next launch takes its arrays."""
        return self.programs.states.unpack(self.leaves)

    @state.setter
    def state(self, state: State) -> None:
        self.leaves = jax.tree.leaves(state)

    @property
    def is_lost(self) -> bool:
        """Whether the state went into a launch that failed."""
        return any(leaf.is_deleted() for leaf in self.leaves)

    def run(self, batch: DeviceBatch, update_order: tuple[str, ...]) -> Launched:
        """Update the state by placed batches; returns as soon as the launch is enqueued."""
        self.leaves, launched = self.programs.launch(self.leaves, batch, update_order)
        return launched

    def adopt(self, variables: Mapping[str, Nested[ArrayLike]]) -> None:
        """Take other variables; an optimizer that holds parameters holds the new ones then."""
        self.state = self.programs.states.adopt(variables, self.state)

    def set_update_scale(self, scale: np.ndarray) -> None:
        """Multiply every later update by a number, float32 without axes."""
        self.state = self.state._replace(update_scale=copy_to(scale, self.programs.mesh))

    def reset_metrics(self) -> None:
        """Empty the metric sums: an epoch begins."""
        self.state = self.programs.reset_metrics(self.state)

    def copy(self) -> Engine:
        """Return an engine of its own with a copy of the state; does not wait."""
        return Engine(self.programs, self.programs.states.unpack(self._copy(self.leaves)))

    def copy_from(self, leaves: Sequence[ArrayLike]) -> Engine:
        """Return an engine with a state of these arrays, copied to the devices."""
        copied = copy_to(list(leaves), self.programs.mesh)
        return Engine(self.programs, self.programs.states.unpack(copied))

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take the state of a checkpoint, arrays by leaf name, into buffers that may be donated."""
        leaves = [arrays[name] for name in self.programs.states.leaf_names]
        self.leaves = copy_to(leaves, self.programs.mesh)

    @property
    def reuses_snapshots(self) -> bool:
        """Whether a `snapshot` is made in the memory of one before it: on CPU.

        There fresh memory costs more than the copy: 50 ms of a core for 96 MB, on top of 12. On an
        accelerator it costs nothing, and is dear.
        """
        return _mesh.is_on_cpu(self.programs.mesh)

    def snapshot(self, spare: Sequence[jax.Array] = ()) -> Leaves:
        """Return a copy of the state on one device, which later launches leave alone.

        One is enough, since each holds the whole state; and it takes nothing of other processes, so
        that one of them may make it alone. Does not wait, but for several CPU devices: two programs
        at a time may deadlock there.

        Arguments:
          spare: a snapshot that nobody reads any more, to be overwritten where that pays.
        """
        shards = [leaf.addressable_data(0) for leaf in self.leaves]
        if spare and self.reuses_snapshots:
            copied = self._copy_over(list(spare), shards)
        else:
            copied = self._copy_shards(shards)
        if self.programs.mesh.size > 1 and self.reuses_snapshots:
            jax.block_until_ready(copied)
        return copied

    def health(self, flag: jax.Array) -> jax.Array:
        """Return a launch's flag and whether every variable after it is finite, `[2]`.

        In the step this would read every parameter once more, where the flag costs nothing. Does
        not wait.
        """
        if self._is_health_compiled:
            return self._health(flag, self.state.variables)
        with announce_compilation("the check of the state"):
            found = self._health(flag, self.state.variables)
        self._is_health_compiled = True
        return found

    def find_non_finite(self) -> list[str]:
        """Return the names of parameters and statistics that are not finite; waits."""
        return [
            jax.tree_util.keystr(path[1:], simple=True, separator="/")
            for path, value in jax.tree_util.tree_leaves_with_path(self.state.variables)
            if not np.all(np.isfinite(jax.device_get(value)))
        ]

    @functools.cached_property
    def _copy(self) -> Callable[[Leaves], Leaves]:
        return compile_function(_copy_leaves, self.programs.mesh)

    @functools.cached_property
    def _copy_shards(self) -> Callable[[Leaves], Leaves]:
        return compile_function(_copy_leaves, self._one_device)

    @functools.cached_property
    def _copy_over(self) -> Callable[[Leaves, Leaves], Leaves]:
        return compile_function(lambda _, own: _copy_leaves(own), self._one_device, donated=(0,))

    @property
    def _one_device(self) -> jax.sharding.Mesh:
        return _mesh.make_mesh(self.programs.mesh.local_devices[:1])

    @functools.cached_property
    def _health(self) -> Callable[[jax.Array, Variables], jax.Array]:
        return compile_function(_check_health, self.programs.mesh, level=None)


def _copy_leaves(leaves: Leaves) -> Leaves:
    return [jnp.copy(leaf) for leaf in leaves]


def _check_health(flag: jax.Array, variables: Variables) -> jax.Array:
    # Zeros, but for nan and infinities, and no comparison of each: for ResNet-50 that compiles in
    # 0.6 s instead of 2.1.
    zeros = [jnp.sum((x * 0).astype(flag.dtype)) for x in jax.tree.leaves(variables)]
    return jnp.stack([flag, jnp.isfinite(sum(zeros, jnp.zeros(()))).astype(flag.dtype)])


def digest(engine: Engine) -> list[str]:
    """Return a text for each array of a state that changes with any bit of it.

    Of this process's copy, on one of its devices.
    """
    leaves = jax.device_get([leaf.addressable_data(0) for leaf in engine.leaves])
    return [hashlib.sha256(np.ascontiguousarray(leaf)).hexdigest()[:16] for leaf in leaves]
