"""The frame: what a layer knows while a program function runs.

The builder opens a frame, calls the program function, and closes the frame. Layers reach it
through a context variable, so they need no argument for it. A frame lives for one call of the
program function (one trace); nothing survives it, hence no global counters.

Two kinds of frame exist. A *probe* runs first, abstractly (`jax.eval_shape`): parameters have no
values yet, a layer's request for one is recorded and answered with zeros. From the record the
builder initialises parameters outside the program function, which is why layers may be called
inside `lax.scan` bodies: no initialiser ever runs inside the traced body. Real frames then read
the values. A program is probed with two batch sizes, and what differs between the two has a batch
axis; real frames replay that decision.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.core import tracers

from penstock import _mesh
from penstock._errors import FeedError, LayerContextError, ProgramError, listed
from penstock.layers._names import check_choice as check_choice
from penstock.layers._names import check_name as check_name
from penstock.layers._names import find as find
from penstock.layers._names import path_hash as path_hash
from penstock.layers._rows import PROBE_BATCH_SIZES as PROBE_BATCH_SIZES
from penstock.layers._rows import ProbedRows as ProbedRows
from penstock.layers._rows import along as along
from penstock.layers._rows import rows_per_example as rows_per_example
from penstock.layers._specs import FeedSpec as FeedSpec
from penstock.layers._specs import Initializer as Initializer
from penstock.layers._specs import ParameterSpec as ParameterSpec
from penstock.layers._specs import site_of as site_of
from penstock.layers._specs import user_stack as user_stack

Mode = Literal["train", "test", "infer"]

REDUCED_SCOPE = "penstock.reduced"
"""The scope, in a probe's trace, of what is reduced over the whole batch, right on any device."""

PER_DEVICE_SCOPE = "penstock.per_device"
"""The scope of what each device is meant to have of its own: batch norm's statistics."""


class _Scope:
    """Names in use while one scope is open; calling the scope again starts from a fresh one."""

    def __init__(self, path: tuple[str, ...]) -> None:
        self.path = path
        self.counters: dict[str, int] = {}
        self.owners: dict[str, tuple[str, bool]] = {}


class MicroBatch(NamedTuple):
    """Where a frame's batch lies that is one part of a device's share of a batch.

    Means are those of the part alone; the builder weights them by the parts' examples, and adds
    them up over parts and devices after the last.

    Attributes:
      first_row: the position of its first row in the global batch.
      total_weight: the number of valid examples of the global batch.
    """

    first_row: jax.Array
    total_weight: jax.Array


class ScopeModule(nn.Module):
    """The flax module behind the program and behind each `layers.scope`.

    It exists so that flax.linen modules made inside land under the scope's name.
    """

    @nn.compact
    def __call__(self, function: Callable[[], Any]) -> Any:
        """Run `function` inside this module's compact method."""
        return function()


@dataclasses.dataclass(kw_only=True)
class Frame:
    """One run of a program function; see the module's docstring."""

    mode: Mode
    variables: Mapping[str, Any]
    feed: Mapping[str, jax.Array] | None
    weights: jax.Array
    key: jax.Array
    num_devices: int
    rows: list[int]
    anchor: jax.Array | None = None
    probed: ProbedRows | None = None
    is_cut_up: bool = False
    step: jax.Array | None = None
    compute_dtype: Any = None
    micro_batch: MicroBatch | None = None
    is_frozen: Callable[[tuple[str, ...]], bool] = lambda path: False

    feed_specs: dict[str, FeedSpec] = dataclasses.field(default_factory=dict)
    specs: dict[str, ParameterSpec] = dataclasses.field(default_factory=dict)
    updates: dict[tuple[str, ...], jax.Array] = dataclasses.field(default_factory=dict)
    module_rows: dict[tuple[str, ...], int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.batch_size: int = self.weights.shape[0]
        # Made here, in the outermost trace: made lazily inside a scan body it would leak from it.
        with self.noted(PER_DEVICE_SCOPE):  # not of the user's own, which micro-batches refuse
            self.total_weight = _mesh.psum(jnp.sum(self.weights), self.num_averaged)
        self.first_row = _mesh.device_index(self.num_devices) * self.batch_size
        if self.micro_batch is not None:
            self.first_row = self.micro_batch.first_row
            # One of nothing but padding counts nothing: its means must only not be nan.
            self.total_weight = jnp.where(self.total_weight > 0, self.total_weight, 1)
        self.logits: dict[int, tuple[jax.Array, jax.Array]] = {}
        self.nnx_paths: dict[int, tuple[tuple[str, ...], Any]] = {}
        self.nnx_draws: dict[tuple[str, ...], int] = {}
        self.global_step = jnp.zeros((), jnp.int32) if self.step is None else self.step
        self.trace, self.scope = tracers.current_trace(), _Scope(())
        self.used: dict[tuple[str, ...], jax.Array] = {}
        self._prefixes: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._modules: dict[tuple[str, ...], ScopeModule] = {}
        self._num_row_queries, self._traces = 0, contextlib.ExitStack()

    @property
    def is_probe(self) -> bool:
        """Whether this run only records what the program function asks for."""
        return self.feed is None

    @property
    def is_guessing(self) -> bool:
        """Whether this run may take a layer's width for the batch, so that nothing is refused."""
        return self.probed is not None and self.probed.is_guessing

    @property
    def num_averaged(self) -> int:
        """Over how many devices means are taken."""
        return self.num_devices if self.micro_batch is None else 1

    @property
    def is_training(self) -> bool:
        """Whether this is the train program."""
        return self.mode == "train"

    def input(self, spec: FeedSpec) -> jax.Array:
        """Return the array fed under `spec.name`, shape `[B, *spec.shape]`."""
        known = self.feed_specs.setdefault(spec.name, spec)
        if known != spec:
            raise ProgramError(
                f"layers.data {spec.name!r} got shape {spec.shape} and dtype {spec.dtype}, "
                f"expected shape {known.shape} and dtype {known.dtype}, as declared before in "
                "the same program. One input has one shape. Use another name for another input."
            )
        if self.feed is None:
            # A probe: the input is a function of the anchor, so that its uses can be traced.
            anchor = jnp.zeros(()) if self.anchor is None else self.anchor
            return jnp.full((self.batch_size, *spec.shape), anchor.astype(spec.dtype))
        if spec.name not in self.feed:
            raise FeedError(
                f"feed got {listed(self.feed)}, expected also {spec.name!r}, which the "
                f"{self.mode} program declares with layers.data."
            )
        return self.feed[spec.name].astype(spec.dtype)  # bytes of images are cast here

    def layer(self, kind: str, name: str | None) -> tuple[str, ...]:
        """Return the path of a layer: automatic names count per kind, explicit ones are kept."""
        scope, is_explicit = self.scope, name is not None
        if name is None:
            # A body traced once for two calls would give both the names of the first.
            self._traces.enter_context(_TRACES(object()))
            count = scope.counters.get(kind, 0)
            scope.counters[kind] = count + 1
            name = f"{kind}_{count}"
        check_name(f"layers.{kind}", name)
        owner = scope.owners.setdefault(name, (kind, is_explicit))
        if owner != (kind, is_explicit):
            raise ProgramError(
                f"layers.{kind} got the name {name!r}, which a layers.{owner[0]} in the same scope "
                f"has already ({'explicit' if owner[1] else 'automatic'} name). Two layers share "
                "parameters only when both are given the same name. Rename one of them."
            )
        return (*scope.path, name)

    def parameter(self, spec: ParameterSpec) -> jax.Array:
        """Return the value of a parameter or statistic; on a probe record it and return zeros."""
        if self.is_probe:
            self._record(spec)
        value: Any = self.updates.get(spec.path)
        if value is None:
            value = find(self.variables.get(spec.collection, {}), spec.path)
        if value is None and self.is_probe:
            value = jnp.zeros(spec.shape, spec.dtype)
        if value is None:
            raise ProgramError(
                f"the {self.mode} program asks for the parameter {spec.name!r}, which was not "
                "there when the program was first traced. A program function must create the same "
                "parameters at every call; does it depend on the batch size or on outside state?"
            )
        if spec.collection == "params":
            self.used.setdefault(spec.path, value)
        return value

    def _record(self, spec: ParameterSpec) -> None:
        own_name = spec.path[len(self.scope.path)]
        is_automatic = not self.scope.owners.get(own_name, ("", True))[1]
        spec = dataclasses.replace(spec, stack=user_stack(), is_automatic=is_automatic)
        known = self.specs.setdefault(spec.name, spec)
        if not known.agrees_with(spec):
            raise ProgramError(
                f"parameter {spec.name!r} got shape {spec.shape}, dtype {spec.dtype}, trainable="
                f"{spec.trainable}, learning_rate={spec.learning_rate}, regularizer="
                f"{spec.regularizer} at {spec.site}, expected shape {known.shape}, dtype "
                f"{known.dtype}, trainable={known.trainable}, learning_rate={known.learning_rate}, "
                f"regularizer={known.regularizer} as at {known.site}. The same name in the same "
                "scope is the same parameter. Give one of the two layers another name."
            )
        if known is not spec:
            return
        prefixes = [spec.path[:length] for length in range(1, len(spec.path))]
        clashes = [(path, spec.path) for path in prefixes if "/".join(path) in self.specs]
        if spec.path in self._prefixes:
            clashes.append((spec.path, self._prefixes[spec.path]))
        for shorter, longer in clashes:
            raise ProgramError(
                f"parameter {'/'.join(shorter)!r} got the name of the layer that owns "
                f"{'/'.join(longer)!r}. A name is either a parameter or a layer. Rename one."
            )
        for path in prefixes:
            self._prefixes.setdefault(path, spec.path)

    def update(self, spec: ParameterSpec, value: jax.Array) -> None:
        """Keep a new value of a running statistic; the builder stores it after the step."""
        if tracers.current_trace() != self.trace:
            raise ProgramError(
                f"{spec.name!r} got an update inside lax.scan, vmap, grad or another "
                "transformation, expected the program function itself: a running statistic cannot "
                "leave a transformed function. Move the layer out of it."
            )
        self.updates[spec.path] = value

    def layer_key(self, path: tuple[str, ...]) -> jax.Array:
        """Return the random key of a layer for this step; it depends on names alone."""
        return jax.random.fold_in(self.key, path_hash(path))

    def row_ids(self, num_rows: int) -> jax.Array:
        """Return the position in the global batch of this device's rows, shape `[num_rows]`."""
        with self.noted(PER_DEVICE_SCOPE):
            return jnp.arange(num_rows) + self.first_row * (num_rows // self.batch_size or 1)

    def rows_per_example(self, value: jax.Array) -> int:
        """Return how many rows of axis 0 belong to one example; 0 when axis 0 is no batch axis."""
        return self._decide(value.shape)

    def _decide(self, shape: tuple[int, ...]) -> int:
        if self.probed is not None:
            return self.probed.answer(shape)
        number = self._num_row_queries
        self._num_row_queries += 1
        if number < len(self.rows):
            return self.rows[number]
        return rows_per_example(shape, self.batch_size)

    def sum(
        self, value: jax.Array, axes: tuple[int, ...] | None = None, keep_axes: bool = False
    ) -> jax.Array:
        """Return the sum over axes, all by default; over axis 0 of the valid examples of the batch.

        A value without a batch axis is summed as it is.
        """
        value = jnp.asarray(value)
        if not self.rows_per_example(value) or (axes is not None and 0 not in axes):
            return jnp.sum(value, axes, keepdims=keep_axes)
        with self.noted(REDUCED_SCOPE):
            weights = along(self.row_weights(value.shape[0]), value.ndim, 0)
            total = jnp.sum(value * weights.astype(value.dtype), axes, keepdims=keep_axes)
            total = _mesh.psum(total, self.num_averaged)
            if self.micro_batch is None:
                return total
            return total * (self.micro_batch.total_weight / self.total_weight)

    def noted(self, scope: str) -> contextlib.AbstractContextManager[Any]:
        """Note in a probe's trace what is computed inside; other traces stay as they are."""
        return jax.named_scope(scope) if self.is_probe else contextlib.nullcontext()

    def row_weights(self, num_rows: int) -> jax.Array:
        """Return the example weights repeated to `num_rows`, shape `[num_rows]`."""
        return jnp.repeat(self.weights, num_rows // self.batch_size)

    def mean(self, value: jax.Array) -> jax.Array:
        """Return the mean over the valid examples of the global batch, a scalar.

        A value without a batch axis is averaged as it is.
        """
        value = jnp.asarray(value)
        rows = self.rows_per_example(value)
        with self.noted(REDUCED_SCOPE):
            if not rows:
                return _mesh.pmean(jnp.mean(value), self.num_averaged)
            weights = self.row_weights(value.shape[0])
            per_row = jnp.sum(value.reshape(value.shape[0], -1), axis=1)
            total = _mesh.psum(jnp.sum(per_row * weights), self.num_averaged)
            return total / (self.total_weight * (value.size // self.batch_size))

    def run_scope(self, name: str, function: Callable[[], Any]) -> Any:
        """Run `function` with names below `name`; running a scope again shares its parameters."""
        with self.inside(name):
            path = self.scope.path
            if path not in self._modules:
                self._modules[path] = ScopeModule(name=name)
            # A scope run again gives its flax children new parents: forget the old children.
            self._modules = {p: m for p, m in self._modules.items() if p[:-1] != path}
            return self._modules[path](function)

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Put penstock's own layers below `name`; flax modules need `run_scope`."""
        check_name("layers.scope", name)
        outer = self.scope
        if outer.owners.setdefault(name, ("scope", True))[0] != "scope":
            raise ProgramError(
                f"layers.scope got the name {name!r}, which a layer in the same scope has already. "
                "Rename one of them."
            )
        self.scope = _Scope((*outer.path, name))
        try:
            yield
        finally:
            self.scope = outer

    def promoted(self, x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the operands of a product in one dtype: that of the program's precision, if any.

        Parameters stay float32 in the state; what a step computes with is cast here.
        """
        dtype = jnp.result_type(x, w)
        return self.in_precision(x.astype(dtype)), self.in_precision(w.astype(dtype))

    def in_precision(self, x: jax.Array) -> jax.Array:
        """Return floats in the dtype of the program's precision, if it has one."""
        has_one = self.compute_dtype is not None and jnp.issubdtype(x.dtype, jnp.floating)
        return x.astype(self.compute_dtype) if has_one else x


_CURRENT: ContextVar[Frame | None] = ContextVar("penstock_frame", default=None)

# JAX keeps the trace of a scan body or a jitted function and uses it again where the same function
# meets the same shapes: in another program too, with the mode and the parameters of this one.
# This context is a part of the key it is kept under; it changes with each frame and with each
# automatic name, so that a checkpointed block called three times makes three layers.
_TRACES = jax.make_user_context(None)


@contextlib.contextmanager
def opened(frame: Frame) -> Iterator[Frame]:
    """Make `frame` the current one inside the `with` block."""
    token = _CURRENT.set(frame)
    try:
        with contextlib.ExitStack() as frame._traces:
            frame._traces.enter_context(_TRACES(object()))
            yield frame
    finally:
        _CURRENT.reset(token)


def current(layer: str) -> Frame:
    """Return the current frame, or raise an error that names the layer that asked."""
    frame = _CURRENT.get()
    if frame is None:
        raise LayerContextError(
            f"layers.{layer} got called outside a program, expected a call inside a program "
            "function. Layers need the parameters and the mode of a program. Put the call into a "
            "function and give that function to ps.Trainer, ps.ProgramBuilder or ps.Inferencer."
        )
    return frame


def remember_logits(probabilities: jax.Array, logits: jax.Array) -> None:
    """Note, in a program, that `probabilities` are the softmax of `logits` over the last axis."""
    frame = _CURRENT.get()
    if frame is not None:
        # The probabilities are kept too: an id is unique only while its object lives.
        frame.logits[id(probabilities)] = (probabilities, logits)


def logits_of(layer: str, probabilities: jax.Array) -> jax.Array | None:
    """Return the logits under the result of a softmax of this program, or None."""
    entry = current(layer).logits.get(id(probabilities))
    return None if entry is None else entry[1]
