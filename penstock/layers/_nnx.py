"""Modules of flax.nnx inside a program: a copy whose variables are the program's."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from penstock import _mesh
from penstock._errors import ProgramError
from penstock._parameter_names import Path
from penstock._program import draws
from penstock._program.frame import Frame, current_frame
from penstock._program.requests import ParameterSpec
from penstock._program.statistics import has_example_axis, sync_statistics
from penstock.layers.parameter_trees import weight_spec

T = TypeVar("T")

Keys = tuple[Hashable, ...]
"""The attributes and items that lead to a variable of a module."""


def bind(
    frame: Frame, path: Path, module: nnx.Module | Callable[..., object]
) -> Callable[..., Any]:
    """Return a function that calls `module`, or a method of one, with the frame's variables."""
    owner, method = getattr(module, "__self__", module), getattr(module, "__name__", "__call__")
    if not isinstance(owner, nnx.Module):
        kind = f"the class {module.__name__}" if isinstance(module, type) else type(module).__name__
        raise ProgramError(
            f"layers.nnx_module got {kind}, expected an nnx.Module or a method of one. It takes "
            "over the weights that a module has. Make it outside the program function, e.g. "
            "nnx.Linear(2, 3, rngs=nnx.Rngs(0)); call a flax.linen module as it is."
        )

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
        leaves = {keys: own[keys].replace(value) for keys, value in self.before.items()}
        self.copy: Any = nnx.merge(graph, nnx.from_flat_state(leaves), copy=True)
        if frame.is_training:
            self.copy.train()
        else:
            self.copy.eval()
        # A list, as following changes the classes of what is iterated over.
        for keys, each in list(nnx.iter_modules(self.copy)):
            _follow_examples(each, (*path, *map(str, keys)), self._is_frozen(keys))

    def in_precision(self, value: T) -> T | jax.Array:
        return self.frame.cast(value) if isinstance(value, jax.Array) else value

    def keep(self) -> None:
        """Store the new running statistics; refuse what else the call has changed.

        Raises:
          ProgramError: it made or changed other variables.
        """
        after = {keys: leaf.get_value() for keys, leaf in nnx.to_flat_state(nnx.state(self.copy))}
        changed = {
            keys: value
            for keys, value in after.items()
            # By identity: a traced value that was set is another object, whatever it holds.
            if keys not in self.before or value is not self.before[keys]
        }
        for keys, value in changed.items():
            spec = self.specs.get(keys)
            if spec is not None and spec.collection == "batch_stats":
                self.frame.requests.update(spec, self._over_devices(value).astype(spec.dtype))
            # A counter of random draws is begun anew in each call, and may change.
            elif keys[-1] != "count" or keys not in self.before:
                raise ProgramError(
                    f"layers.nnx_module got a module that changes {'.'.join(map(str, keys))!r} "
                    "when it is called, expected changes of nnx.BatchStat only. A program carries "
                    "parameters and running statistics from step to step. Return from the module "
                    "what it notes, e.g. by sow, and pass what it should know."
                )

    def _value(self, variable: Any, path: Path, keys: Keys) -> jax.Array:
        """Return what a variable of the module is in this program."""
        frame = self.frame
        value = variable.get_value()
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
            found = frame.requests.parameter(spec)
            return frame.cast(found) if collection == "params" else found
        return value

    def _is_frozen(self, keys: Keys) -> bool:
        spec = self.specs.get((*keys, "mean"))
        return spec is not None and self.frame.is_frozen(spec.path)

    def _over_devices(self, value: jax.Array) -> jax.Array:
        """Return the mean of a statistic over the devices, each counted by its examples."""
        # A statistic of a user's module may be made of anything, and no trace of it is followed.
        self.frame.examples.needs_all_devices = True
        count, num_devices = jnp.sum(self.frame.examples.weights), self.frame.examples.num_averaged
        if num_devices == 1:
            return value
        return _mesh.psum(value * (count / self.frame.examples.total_weight), num_devices)


def _at(module: Any, keys: Keys) -> Any:
    """Return the variable of a module at a path."""
    for key in keys:
        is_item = isinstance(key, int) or isinstance(module, dict)
        module = module[key] if is_item else getattr(module, str(key))
    return module


class _Dropout(nnx.Dropout):
    """Draws by the places of the examples, as `layers.dropout` does."""

    _penstock_path: Path

    def __call__(
        self, inputs: Any, *, deterministic: bool | None = None, rngs: Any = None
    ) -> jax.Array:
        is_off = self.deterministic if deterministic is None else deterministic
        source = self.rngs if rngs is None else rngs
        if is_off is None or is_off or self.rate in (0.0, 1.0) or source is None:
            return super().__call__(inputs, deterministic=deterministic, rngs=rngs)
        # A module keeps a stream, a call may be given all of them, or a key.
        if isinstance(source, nnx.Rngs):
            source = source[self.rng_collection]
        key = source if isinstance(source, jax.Array) else source()
        frame = current_frame("nnx_module")
        path, dims = self._penstock_path, self.broadcast_dims
        return draws.drop_elements(frame, inputs, key, self.rate, dims, path)


class _BatchNorm(nnx.BatchNorm):
    """Normalises by the statistics of the valid examples of the global batch."""

    _penstock_path: Path
    _penstock_is_frozen: bool

    def __call__(
        self,
        x: jax.Array,
        use_running_average: bool | None = None,
        *,
        mask: jax.Array | None = None,
    ) -> jax.Array:
        frame = current_frame("nnx_module")
        given = self.use_running_average if use_running_average is None else use_running_average
        is_running = given or self._penstock_is_frozen
        if (
            is_running
            or mask is not None
            or not has_example_axis(frame, x, self.axis, self._penstock_path)
        ):
            return frame.cast(super().__call__(x, is_running, mask=mask))
        running = (self.mean.get_value(), self.var.get_value())
        *batch, after = sync_statistics(frame, x, self.axis, running, self.momentum)
        self.mean.set_value(batch[0])
        self.var.set_value(batch[1])
        y = super().__call__(x, True)
        self.mean.set_value(after[0])
        self.var.set_value(after[1])
        return frame.cast(y)


def _follow_examples(module: Any, path: Path, is_frozen: bool) -> None:
    """Make a module of the copy know the examples; a subclass with a call of its own stays."""
    for kind in (_Dropout, _BatchNorm):
        # The class itself and no subclass: one with a call of its own does as it says.
        if type(module) is kind.__mro__[1]:
            module.__class__ = kind
            module._penstock_path, module._penstock_is_frozen = path, is_frozen
