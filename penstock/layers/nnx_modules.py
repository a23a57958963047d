"""The bridge to flax.nnx: its modules as layers.

`nnx.bridge.ToLinen` takes a class and draws new weights; users have a module with weights. It also
makes the module again in every trace, leaves train and eval mode to the caller, and cannot share
variables between two calls.

`penstock.layers` loads this file on first use: flax.nnx takes half a second to import.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from penstock._errors import ProgramError
from penstock._parameter_names import Path
from penstock._program.frame import Frame, ParameterSpec, current_frame
from penstock.layers.parameters import weight_spec

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Keys = tuple[Hashable, ...]
"""The attributes and items that lead to a variable of a module."""


def nnx_module(module: Callable[P, R], name: str | None = None) -> Callable[P, R]:
    """Use a flax.nnx module, or one of its methods, as a layer.

    Every `nnx.Param` becomes a parameter and every `nnx.BatchStat` a running statistic of the
    program. Their initial values are those of the module, whatever the seed. The module itself
    does not change: the program calls a copy. Modules that share a variable share it here too,
    whatever their names.

    The train program calls `train()` on the copy, the test and infer programs call `eval()`. Where
    its statistics are frozen, `nnx.BatchNorm` uses them in training too.

    Arguments:
      module: an `nnx.Module`, or a bound method such as `model.encode`.
      name: the scope at the start of the weights' paths; by default `nnx_module_0` and so on.

    Returns:
      A function with the module's arguments and results.

    Raises:
      ProgramError: `module` is not an nnx module or a method of one. Or, when the function is
        called: the module changes variables other than its running statistics.

    >>> from flax import nnx
    >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    >>> def program():
    ...     return layers.nnx_module(model, name="linear")(layers.data("x", [2]))
    >>> params = ps.ProgramBuilder(infer_func=program).init().variables["params"]
    >>> sorted(params["linear"]), params["linear"]["kernel"].shape
    (['bias', 'kernel'], (2, 3))
    """
    owner, method = getattr(module, "__self__", module), getattr(module, "__name__", "__call__")
    if not isinstance(owner, nnx.Module):
        kind = f"the class {module.__name__}" if isinstance(module, type) else type(module).__name__
        raise ProgramError(
            f"layers.nnx_module got {kind}, expected an nnx.Module or a method of one. It takes "
            "over the weights that a module has. Make it outside the program function, e.g. "
            "nnx.Linear(2, 3, rngs=nnx.Rngs(0)); call a flax.linen module as it is."
        )
    frame = current_frame("nnx_module")
    path = frame.names.layer("nnx_module", name)

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = _Bound(frame, path, owner)
        args, kwargs = jax.tree.map(bound.in_precision, (args, kwargs))
        result = getattr(bound.copy, method)(*args, **kwargs)
        bound.keep()
        return result

    return call


class _Bound:
    """One call of a module: its copy, and what the copy's variables were before."""

    def __init__(self, frame: Frame, path: Path, module: nnx.Module) -> None:
        self.frame = frame
        self.specs: dict[Keys, ParameterSpec] = {}
        # A copy for each call: nnx modules change in place, and a tracer must not stay in the
        # user's.
        graph, state = nnx.split(module)
        own = dict(nnx.to_flat_state(state))
        # Read from the module itself, so that a variable that two of its parts share has one path.
        self.before = {
            keys: self._value(_at(module, keys), (*path, *map(str, keys)), keys) for keys in own
        }
        leaves = {keys: _put(own[keys], value) for keys, value in self.before.items()}
        self.copy: Any = nnx.merge(graph, nnx.from_flat_state(leaves), copy=True)
        if frame.is_training:
            self.copy.train()
        else:
            self.copy.eval()
        for keys, part in nnx.iter_modules(self.copy):
            if isinstance(part, nnx.BatchNorm):
                self._prepare_norm(part, keys)

    def in_precision(self, value: T) -> T | jax.Array:
        return self.frame.cast(value) if isinstance(value, jax.Array) else value

    def keep(self) -> None:
        """Store the new running statistics; raise where the call has changed anything else."""
        after = {keys: _take(leaf) for keys, leaf in nnx.to_flat_state(nnx.state(self.copy))}
        changed = {
            keys: value
            for keys, value in after.items()
            # By identity: a traced value that was set is another object, whatever it holds.
            if keys not in self.before or value is not self.before[keys]
        }
        for keys, value in changed.items():
            spec = self.specs.get(keys)
            if spec is not None and spec.collection == "batch_stats":
                self.frame.update(spec.path, value.astype(spec.dtype))
            # A counter of random draws is begun anew in each call, and may change.
            elif keys[-1] != "count" or keys not in self.before:
                raise ProgramError(
                    f"layers.nnx_module got a module that changes {'.'.join(map(str, keys))!r} "
                    "when it is called, expected changes of nnx.BatchStat only. A program carries "
                    "parameters and running statistics from step to step. Return from the module "
                    "what it notes, e.g. by sow, and pass what it should know. nnx.remat and "
                    "nnx.jit set all variables again, also those that stay as they are: pass them "
                    "graph_updates=False."
                )

    def _value(self, variable: Any, path: Path, keys: Keys) -> jax.Array:
        frame = self.frame
        value = _take(variable)
        if isinstance(variable, nnx.RngKey):
            # Two calls draw differently, as two layers do.
            number = frame.nnx_draws[path] = frame.nnx_draws.get(path, -1) + 1
            key = jax.random.fold_in(frame.layer_key(path), number)
            # Split streams hold an array of keys.
            return jax.random.split(key, value.shape) if value.shape else key
        if isinstance(variable, nnx.RngCount):
            return jnp.zeros_like(value)
        if isinstance(variable, (nnx.Param, nnx.BatchStat)):
            collection = "params" if isinstance(variable, nnx.Param) else "batch_stats"
            # The variable itself is kept too: an id is unique only while its object lives.
            path = frame.nnx_paths.setdefault(id(variable), (path, variable))[0]
            self.specs[keys] = spec = weight_spec(path, value, collection)
            parameter = frame.parameter(spec)
            return frame.cast(parameter) if collection == "params" else parameter
        return value

    def _prepare_norm(self, norm: nnx.BatchNorm, keys: Keys) -> None:
        spec = self.specs.get((*keys, "mean"))
        if spec is not None and self.frame.is_frozen(spec.path):
            norm.use_running_average = True
        # Statistics are float32, and would widen what comes out, and all products after it.
        if norm.dtype is None:
            norm.dtype = self.frame.compute_dtype


def _take(leaf: Any) -> Any:
    # An array that is no variable, such as a table of positions, is a constant of nnx.
    return leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf


def _put(leaf: Any, value: Any) -> Any:
    return leaf.replace(value) if isinstance(leaf, nnx.Variable) else value


def _at(module: Any, keys: Keys) -> Any:
    for key in keys:
        is_item = isinstance(key, int) or isinstance(module, dict)
        module = module[key] if is_item else getattr(module, str(key))
    return module
