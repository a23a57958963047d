"""The state as a flat list of arrays: how it travels through launches and into files."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from penstock.program_builder._objective import State
from penstock.program_builder._programs import compiled, owned


class Packing:
    """What a `ProgramBuilder` does with states as a whole."""

    mesh: Mesh
    _initial_state: Callable[[jax.Array], State]

    @functools.cached_property
    def _abstract_state(self) -> State:
        """The state without its values."""
        root = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
        return jax.eval_shape(self._initial_state, root)

    @functools.cached_property
    def _state_tree(self) -> Any:
        return jax.tree.structure(self._abstract_state)

    @functools.cached_property
    def abstract_leaves(self) -> list[jax.ShapeDtypeStruct]:
        """Shape and dtype of each array of a packed state."""
        return jax.tree.leaves(self._abstract_state)

    def pack(self, state: State) -> list[jax.Array]:
        """Return the state as the flat list that `launch` takes."""
        return jax.tree.leaves(state)

    def unpack(self, leaves: Sequence[Any]) -> State:
        """Return the state of a flat list that `launch` returned."""
        return jax.tree.unflatten(self._state_tree, leaves)

    def own(self, tree: Any) -> Any:
        """Return arrays copied to the devices, in buffers of their own that may be donated."""
        return owned(tree, self.mesh)

    def adopt(self, variables: Mapping[str, Any], state: State) -> State:
        """Return the state with other variables, copied into buffers that may be donated."""
        return state._replace(variables=self.own(dict(variables)))

    def snapshot(self, leaves: Sequence[jax.Array]) -> list[jax.Array]:
        """Return a copy of a packed state on the devices, which later launches leave alone.

        Does not wait, but for several CPU devices: two programs at a time may deadlock there.
        """
        copied = self.own(list(leaves))
        if self.mesh.size > 1 and self.mesh.devices.flat[0].platform == "cpu":
            jax.block_until_ready(copied)
        return copied

    def with_health(self, leaves: Sequence[jax.Array], flag: jax.Array) -> jax.Array:
        """Return a launch's flag and whether every variable after it is finite, `[2]`.

        In the step this would read every parameter once more, where the flag costs nothing. Does
        not wait.
        """
        return self._with_health(flag, self.unpack(leaves).variables)

    @functools.cached_property
    def _with_health(self) -> Callable[..., jax.Array]:
        return compiled(_with_health, self.mesh)


def _with_health(flag: jax.Array, variables: Any) -> jax.Array:
    is_finite = [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(variables)]
    return jnp.stack([flag, jnp.all(jnp.stack([jnp.bool_(True), *is_finite])).astype(flag.dtype)])
