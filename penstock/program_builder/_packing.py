"""The state as a flat list of arrays: how it travels through launches and into files."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from penstock import _mesh, optimizers
from penstock.program_builder._network import Network
from penstock.program_builder._objective import State
from penstock.program_builder._programs import compiled, owned


class Packing:
    """What a `ProgramBuilder` does with states as a whole."""

    mesh: Mesh
    _network: Network
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

    @functools.cached_property
    def leaf_names(self) -> list[str]:
        """A name of its own for each array of a packed state, such as `variables.params.fc_0.w`."""
        names: dict[str, None] = {}
        for path, _ in jax.tree_util.tree_leaves_with_path(self._abstract_state):
            plain = jax.tree_util.keystr(path, simple=True, separator=".")
            name = plain = re.sub(r"[^\w.\-]", "_", plain)
            while name in names:
                name = f"{plain}_{len(names)}"
            names[name] = None
        return list(names)

    @functools.cached_property
    def variable_paths(self) -> dict[str, list[str]]:
        """Collection and path of each parameter and running statistic, by its leaf's name."""
        leaves = jax.tree_util.tree_leaves_with_path(self._abstract_state)
        paths = [[jax.tree_util.keystr((key,), simple=True) for key in path] for path, _ in leaves]
        return {
            name: path[1:]
            for name, path in zip(self.leaf_names, paths, strict=True)
            if path[0] == "variables"
        }

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
        """Return the state with other variables, copied into buffers that may be donated.

        Where an optimizer's state holds parameters, it holds the new ones then.
        """
        owned_variables = self.own(dict(variables))
        after = state._replace(variables=owned_variables)
        if not self._network.has_positions:
            return after
        before, params = state.variables["params"], owned_variables["params"]
        return after._replace(opt_state=self._follow(state.opt_state, before, params))

    def averaged(self, state: State) -> State:
        """Return the state with the moving averages of its parameters in their place.

        Its other arrays are those of the state that goes in, which a launch takes.

        Raises:
          ValueError: no optimizer keeps a moving average.
        """
        params = self._averaged(state.opt_state, state.variables["params"])
        return state._replace(variables={**state.variables, "params": params})

    @functools.cached_property
    def _follow(self) -> Callable[..., Any]:
        return compiled(self._network.follow, self.mesh)

    @functools.cached_property
    def _averaged(self) -> Callable[..., Any]:
        return compiled(optimizers.averaged_params, self.mesh)

    def copy(self, leaves: Sequence[jax.Array]) -> list[jax.Array]:
        """Return a copy of a packed state, which launches take as well; does not wait."""
        return self._copy(list(leaves))

    @property
    def reuses_snapshots(self) -> bool:
        """Whether a `snapshot` is made in the memory of one before it: on CPU.

        There fresh memory costs more than the copy: 50 ms of a core for 96 MB, on top of 12. On an
        accelerator it costs nothing, and is dear.
        """
        return self.mesh.devices.flat[0].platform == "cpu"

    def snapshot(
        self, leaves: Sequence[jax.Array], spare: Sequence[jax.Array] = ()
    ) -> list[jax.Array]:
        """Return a copy of a packed state on one device, which later launches leave alone.

        One is enough, since each holds the whole state; and it takes nothing of other processes, so
        that one of them may make it alone. Does not wait, but for several CPU devices: two programs
        at a time may deadlock there.

        Arguments:
          spare: a snapshot that nobody reads any more, to be overwritten where that pays.
        """
        own = [leaf.addressable_data(0) for leaf in leaves]
        if spare and self.reuses_snapshots:
            copied = self._copy_over(list(spare), own)
        else:
            copied = self._copy_one(own)
        if self.mesh.size > 1 and self.reuses_snapshots:
            jax.block_until_ready(copied)
        return copied

    @functools.cached_property
    def _copy(self) -> Callable[..., list[jax.Array]]:
        return compiled(_copied, self.mesh)

    @functools.cached_property
    def _copy_one(self) -> Callable[..., list[jax.Array]]:
        return compiled(_copied, _mesh.mesh_of(self.mesh.local_devices[:1]))

    @functools.cached_property
    def _copy_over(self) -> Callable[..., list[jax.Array]]:
        mesh = _mesh.mesh_of(self.mesh.local_devices[:1])
        return compiled(lambda _, leaves: _copied(leaves), mesh, donated=(0,))

    def with_health(self, leaves: Sequence[jax.Array], flag: jax.Array) -> jax.Array:
        """Return a launch's flag and whether every variable after it is finite, `[2]`.

        In the step this would read every parameter once more, where the flag costs nothing. Does
        not wait.
        """
        return self._with_health(flag, self.unpack(leaves).variables)

    @functools.cached_property
    def _with_health(self) -> Callable[..., jax.Array]:
        return compiled(_with_health, self.mesh)


def _copied(leaves: list[jax.Array]) -> list[jax.Array]:
    return [jnp.copy(leaf) for leaf in leaves]


def _with_health(flag: jax.Array, variables: Any) -> jax.Array:
    is_finite = [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(variables)]
    return jnp.stack([flag, jnp.all(jnp.stack([jnp.bool_(True), *is_finite])).astype(flag.dtype)])
