"""The training states that a network has: the first, their arrays as a list, their means."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax
from jax.typing import ArrayLike

from penstock import _metrics, optimizers
from penstock._parameter_names import Nested
from penstock._program.keys import make_root
from penstock._program.requests import Params
from penstock.program_builder._compilation import (
    announce_compilation,
    call_compiled,
    compile_function,
    copy_to,
)
from penstock.program_builder._objective import State

if TYPE_CHECKING:
    from penstock.program_builder._network import Network

_MANY_VALUES = 1_000_000
"""From so many values on for each shape, to draw them takes longer than to compile what draws."""


class States:
    """The training states that a network has.

    A state travels through launches and into files as a flat list of its arrays; here is which of
    them is what.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.mesh = network.mesh

    def init(self, seed: int) -> State:
        """Return the initial state."""
        root = np.asarray(make_root(seed))
        shapes = [shape for shape, _ in self.network.table.values()]
        with announce_compilation("the initial values"):
            # Threefry, which initialisers draw from, is compiled for each shape of a parameter. For
            # 13-8-1 that takes 0.3 s as other programs are compiled, 0.17 at level 1, 0.1 at level
            # 0; for NASNet-Mobile, of 45 shapes, 12 s at level 1 and 6.5 at level 0. A value is
            # drawn in 18 ns, at level 0 in 75, so a network of few large arrays gains nothing.
            many = _MANY_VALUES * len(set(shapes))
            level = 0 if sum(map(math.prod, shapes)) < many else 1
            return call_compiled(self._initial_state, self.mesh, root, level=level)

    def mean_metrics(self, state: State) -> Any:
        """Return the example-weighted means of the metrics since the last reset.

        Raises:
          ValueError: there is no example.
        """
        programs = {name: each.program for name, each in self.network.train.items()}
        means = {
            name: _metrics.compute_means(sums, programs[name].structure, programs[name].shapes)
            for name, sums in jax.device_get(state.metrics).items()
            if len(state.metrics) == 1 or sums.scalars[0, -1]
        }
        return next(iter(means.values())) if len(self.network.train) == 1 else means

    def copy(self, tree: Mapping[str, Nested[ArrayLike]]) -> dict[str, Params]:
        """Return arrays copied to the devices, in buffers of their own that may be donated."""
        return copy_to(tree, self.mesh)

    def adopt(self, variables: Mapping[str, Nested[ArrayLike]], state: State) -> State:
        """Return the state with other variables, copied into buffers that may be donated.

        Where an optimizer's state holds parameters, it holds the new ones then.
        """
        after = state._replace(variables=copy_to(dict(variables), self.mesh))
        if not self.network.has_positions:
            return after
        before, params = state.variables["params"], after.variables["params"]
        return after._replace(opt_state=self._follow(state.opt_state, before, params))

    @functools.cached_property
    def _follow(
        self,
    ) -> Callable[[dict[str, optax.OptState], Params, Params], dict[str, optax.OptState]]:
        return compile_function(self.network.follow, self.mesh)

    def average(self, state: State) -> State:
        """Return the state with the moving averages of its parameters in their place.

        Raises:
          ValueError: no optimizer keeps a moving average.
        """
        params = self._average(state.opt_state, state.variables["params"])
        return state._replace(variables={**state.variables, "params": params})

    @functools.cached_property
    def _average(self) -> Callable[[optax.OptState, Params], Params]:
        return compile_function(optimizers.averaged_params, self.mesh)

    @functools.cached_property
    def _initial_state(self) -> Callable[[jax.Array], State]:
        """The same function each time, so that it compiles once."""
        return self.network.initial_state

    @functools.cached_property
    def abstract_state(self) -> State:
        """The state without its values."""
        root = jax.eval_shape(lambda: make_root(0))
        return jax.eval_shape(self._initial_state, root)

    @functools.cached_property
    def _state_tree(self) -> Any:
        return jax.tree.structure(self.abstract_state)

    @functools.cached_property
    def num_changed(self) -> int:
        """How many of the state's arrays, from the first, a step changes; see `State`."""
        options = self.network.options
        counts_skipped = options.skips_non_finite or options.precision.is_dynamic
        return len(jax.tree.leaves(self.abstract_state)) - (2 if counts_skipped else 3)

    def unpack(self, leaves: Sequence[ArrayLike]) -> State:
        """Return the state that a flat list of its arrays makes."""
        return jax.tree.unflatten(self._state_tree, leaves)

    @functools.cached_property
    def leaf_names(self) -> list[str]:
        """A name of its own for each array of the state, such as `variables.params.fc_0.w`."""
        names: dict[str, None] = {}
        for path, _ in jax.tree_util.tree_leaves_with_path(self.abstract_state):
            plain = jax.tree_util.keystr(path, simple=True, separator=".")
            name = plain = re.sub(r"[^\w.\-]", "_", plain)
            while name in names:
                name = f"{plain}_{len(names)}"
            names[name] = None
        return list(names)

    @functools.cached_property
    def variable_paths(self) -> dict[str, list[str]]:
        """Collection and path of each parameter and running statistic, by its leaf's name."""
        leaves = jax.tree_util.tree_leaves_with_path(self.abstract_state)
        paths = [[jax.tree_util.keystr((key,), simple=True) for key in path] for path, _ in leaves]
        return {
            name: path[1:]
            for name, path in zip(self.leaf_names, paths, strict=True)
            if path[0] == "variables"
        }
