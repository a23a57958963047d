"""What a program asks for: inputs, parameters and their initial values; names, and their lines.

Automatic names are counted; scopes nest and share.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from traceback import FrameSummary, extract_tb
from typing import Any, Literal, TypeAlias, TypeVar

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.core import tracers
from jax.core import Tracer
from jax.sharding import Sharding
from jax.typing import DTypeLike

from penstock._errors import FeedError, NonFiniteError, ProgramError, listed
from penstock._parameter_names import Nested, Path, hash_path, spell
from penstock._program.inputs import (
    LEAST_BUCKET,
    LEAST_COUNT,
    PROBE_COUNT,
    PROBE_LENGTH,
    DeviceFeed,
    Fed,
    FeedSpec,
    Ids,
)
from penstock._program.sequences import NestedSequence, Sequence

T = TypeVar("T")

Initializer = Callable[[jax.Array, tuple[int, ...], np.dtype], jax.Array]

Params: TypeAlias = "Nested[jax.Array]"
"""One collection of the variables, or those entries of it that are trained."""

Variables: TypeAlias = "Mapping[str, Params]"
"""Parameters and running statistics by collection."""

Mode = Literal["train", "test", "infer"]


def build_input(
    spec: FeedSpec,
    sizes: tuple[int, int, int],
    make: Callable[[tuple[int, ...], DTypeLike], Any],
) -> Any:
    """Return an input made of arrays, of as many as it has.

    Arguments:
      sizes: of the batch, the number of sequences of an example, and their length, as far as
        they count.
      make: takes a shape and a dtype.
    """
    batch, *padded = sizes
    if not spec.lod_level:
        return make((batch, *spec.shape), spec.dtype)
    inner, length = padded
    outer = (batch,) if spec.lod_level == 1 else (batch, inner)
    values, lengths = make((*outer, length, *spec.shape), spec.dtype), make(outer, np.int32)
    if spec.lod_level == 1:
        return Sequence(values, lengths)
    return NestedSequence(values, lengths, make((batch,), np.int32))


def describe_input(spec: FeedSpec, batch_size: int, sharding: Sharding) -> Any:
    """Return an input without values: of sequences, as long as the last bucket given."""
    length = spec.buckets[-1] if spec.buckets else LEAST_BUCKET
    make = functools.partial(jax.ShapeDtypeStruct, sharding=sharding)
    return build_input(spec, (batch_size, LEAST_COUNT, length), make)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParameterSpec:
    """One entry of the parameter tree, as a layer asked for it.

    `learning_rate` multiplies the optimizer's update, `regularizer` maps the parameter to what is
    added to its gradient, `stack` the user's lines from the program function to the layer,
    `is_automatic` whether the layer's name was counted, `layer` the layer's function, `axes` the
    mesh axis that the layer splits each dimension over.
    """

    path: Path
    collection: str
    shape: tuple[int, ...]
    dtype: np.dtype
    initializer: Initializer
    trainable: bool = True
    learning_rate: float = 1.0
    regularizer: Callable[[jax.Array], jax.Array] | None = None
    stack: tuple[str, ...] = ()
    is_automatic: bool = False
    layer: str = ""
    axes: tuple[str | None, ...] = ()

    @property
    def site(self) -> str:
        """The user's line that made the layer, as `file:line`."""
        return self.stack[-1] if self.stack else "unknown"

    @property
    def name(self) -> str:
        """The path as people write it, e.g. `generator/fc_0/w`."""
        return spell(self.path)

    def agrees_with(self, other: ParameterSpec) -> bool:
        """Return whether two uses of one name ask for the same.

        A line that runs twice may make another regularizer each time, e.g. a lambda.
        """
        is_same = (
            self.shape == other.shape
            and self.dtype == other.dtype
            and self.trainable == other.trainable
            and self.learning_rate == other.learning_rate
        )
        return is_same and (self.regularizer == other.regularizer or self.site == other.site)


class Requests:
    """What one run of a program function asks for, and what it is answered.

    On a probe parameters have no values yet: a request is recorded and answered with zeros. From
    the record the builder initialises parameters outside the program function, which is why layers
    may be called inside `lax.scan` bodies: no initialiser ever runs inside the traced body.

    Arguments:
      is_automatic: of a parameter's path, whether the name of its layer was counted.
      variables: the values by collection, nested; on a probe, where there are any.
      feed: the batch by input name, None on a probe.
      lay_out: says of a parameter how it lies on several devices while it is used.
      anchor: what a probe's inputs are made of, so that their uses can be traced.

    Attributes:
      variables: the values it reads.
      feed_specs: the inputs by name, in the order of their declarations.
      has_sequences: whether one of them is of sequences.
      specs: on a probe, the parameters and statistics by path, in the order of their creation.
      updates: the new values of running statistics by path.
      used: the parameters that were asked for, by path, as the state has them.
      lookups: on a probe, of ids that the program computes, which no check of a feed sees.
    """

    def __init__(
        self,
        mode: Mode,
        is_automatic: Callable[[Path], bool],
        variables: Variables,
        feed: DeviceFeed | None,
        batch_size: int,
        *,
        lay_out: Callable[[ParameterSpec, jax.Array], jax.Array] | None = None,
        anchor: jax.Array | None = None,
    ) -> None:
        self.feed_specs: dict[str, FeedSpec] = {}
        self.has_sequences = False
        self.specs: dict[Path, ParameterSpec] = {}
        self.updates: dict[Path, jax.Array] = {}
        self.used: dict[Path, jax.Array] = {}
        self.lookups: list[Ids] = []
        self._mode, self._is_automatic = mode, is_automatic
        self.variables, self._feed = variables, feed
        self._batch_size, self._anchor = batch_size, anchor
        self._lay_out = lay_out
        self._scanned: tuple[Path, Params] = ((), {})
        self._prefixes: dict[Path, Path] = {}
        # The arrays too: an id is unique only while its object lives.
        self._fed: dict[int, tuple[jax.Array, str]] = {}
        self._trace = tracers.current_trace()

    def input(self, spec: FeedSpec) -> Fed:
        """Return what is fed under `spec.name`: `[B, *spec.shape]`, or a sequence of such words."""
        first = self.feed_specs.setdefault(spec.name, spec)
        if first != spec:
            raise ProgramError(
                f"layers.data {spec.name!r} got {spec.declaration}, expected {first.declaration}, "
                "as declared before in the same program. One input has one shape. Use another name "
                "for another input."
            )
        self.has_sequences |= spec.lod_level > 0
        if self._feed is None:
            # Made of an input of the trace: what follows from it is told from constants.
            anchor = jnp.zeros(()) if self._anchor is None else self._anchor
            fed = build_input(
                spec,
                (self._batch_size, PROBE_COUNT, PROBE_LENGTH),
                lambda shape, dtype: jnp.full(shape, anchor.astype(dtype)),
            )
            values = fed.values if spec.lod_level else fed
            self._fed[id(values)] = (values, spec.name)
            return fed
        if spec.name not in self._feed:
            raise FeedError(
                f"feed got {listed(self._feed)}, expected also {spec.name!r}, which the "
                f"{self._mode} program declares with layers.data."
            )
        fed = self._feed[spec.name]
        if isinstance(fed, (Sequence, NestedSequence)):
            return dataclasses.replace(fed, values=fed.values.astype(spec.dtype))
        return fed.astype(spec.dtype)  # bytes of images are cast here

    def look_up(self, ids: Any, table: Ids) -> None:
        """Note on a probe that a layer looks ids up: those of a feed are then checked before."""
        if not isinstance(ids, Tracer) and np.size(ids):
            low, high = int(np.min(ids)), int(np.max(ids))
            if not table.holds(low, high):
                raise NonFiniteError(f"a program got {table.refuse(low, high)}")
        _, name = self._fed.get(id(ids), (None, None))
        if name is not None:
            self.feed_specs[name] = self.feed_specs[name].limited(table)
        elif self._feed is None:
            self.lookups.append(table)

    def parameter(self, spec: ParameterSpec) -> jax.Array:
        """Return the value of a parameter or statistic; on a probe record it and return zeros."""
        is_probe = self._feed is None
        if is_probe:
            self._record(spec)
        # A statistic that was moved in this run is read as moved.
        value: Any = self.updates.get(spec.path)
        if value is None and self.variables:
            above, values = self._scanned
            is_scanned = above and spec.path[: len(above)] == above
            tree = values if is_scanned else self.variables.get(spec.collection, {})
            value = find_entry(tree, spec.path[len(above) :] if is_scanned else spec.path)
        if value is None and is_probe:
            value = jnp.zeros(spec.shape, spec.dtype)
        if value is None:
            raise ProgramError(
                f"the {self._mode} program asks for the parameter {spec.name!r}, which was not "
                "there when the program was first traced. A program function must create the same "
                "parameters at every call; does it depend on the batch size or on outside state?"
            )
        if value.shape != spec.shape:
            remedy = " Is the batch axis among the features?"
            if self.has_sequences:
                remedy = (
                    f" Sequences were padded to {PROBE_LENGTH} then. Give layers the sequence "
                    "itself, or pool it first: layers.sequence_pool."
                )
            raise ProgramError(
                f"the {self._mode} program asks for the parameter {spec.name!r} in shape "
                f"{spec.shape}, expected {value.shape}, as when it was first traced. A parameter "
                "has one shape, whatever the lengths and the size of a batch." + remedy
            )
        if spec.collection == "params":
            self.used.setdefault(spec.path, value)
            # Here and nowhere else is it said how a parameter lies on the devices while it is used.
            # XLA chose 20 times the memory where nobody said so (docs/decisions.md).
            if self._lay_out is not None:
                value = self._lay_out(spec, value)
        return value

    @contextlib.contextmanager
    def reading(self, path: Path, values: Params) -> Iterator[None]:
        """Read parameters below `path` from `values`, nested, inside the `with` block."""
        before, self._scanned = self._scanned, (path, values)
        try:
            yield
        finally:
            self._scanned = before

    def _record(self, spec: ParameterSpec) -> None:
        # On probes only: real runs need no lines.
        stack, is_automatic = find_user_lines(), self._is_automatic(spec.path)
        spec = dataclasses.replace(spec, stack=stack, is_automatic=is_automatic)
        first = self.specs.setdefault(spec.path, spec)
        if first is not spec and not first.agrees_with(spec):
            raise ProgramError(
                f"parameter {spec.name!r} got shape {spec.shape}, dtype {spec.dtype}, trainable="
                f"{spec.trainable}, learning_rate={spec.learning_rate}, regularizer="
                f"{spec.regularizer} at {spec.site}, expected shape {first.shape}, dtype "
                f"{first.dtype}, trainable={first.trainable}, learning_rate={first.learning_rate}, "
                f"regularizer={first.regularizer} as at {first.site}. The same name in the same "
                "scope is the same parameter. Give one of the two layers another name."
            )
        if first is not spec:
            return
        shorter, longer = spec.path, self._prefixes.get(spec.path)
        # In a nested dict a name is either a leaf or a folder.
        for length in range(1, len(spec.path)):
            prefix = spec.path[:length]
            self._prefixes.setdefault(prefix, spec.path)
            if prefix in self.specs:
                shorter, longer = prefix, spec.path
        if longer is not None:
            raise ProgramError(
                f"parameter {spell(shorter)!r} got the name of the layer that owns "
                f"{spell(longer)!r}. A name is either a parameter or a layer. Rename one."
            )

    @contextlib.contextmanager
    def collecting(self) -> Iterator[dict[Path, jax.Array]]:
        """Take new values of statistics inside a transformation, which must return them."""
        outer, trace = self.updates, self._trace
        # What was moved before is read as moved.
        self.updates, self._trace = dict(outer), tracers.current_trace()
        collected: dict[Path, jax.Array] = {}
        try:
            yield collected
            new = self.updates.items()
            collected.update({path: value for path, value in new if outer.get(path) is not value})
        finally:
            self.updates, self._trace = outer, trace

    def update(self, path: Path, value: jax.Array) -> None:
        """Keep a new value of a running statistic; the step stores it."""
        if tracers.current_trace() != self._trace:
            raise ProgramError(
                f"{spell(path)!r} got an update inside lax.scan, vmap, grad or another "
                "transformation, expected the program function itself: a running statistic cannot "
                "leave a transformed function. Move the layer out of it."
            )
        self.updates[path] = value


def find_entry(tree: Params, path: Path) -> Any:
    """Return the entry of a nested dict at `path`, or None."""
    node: Any = tree
    for key in path:
        if not isinstance(node, Mapping) or key not in node:
            return None
        node = node[key]
    return node


Drawn: TypeAlias = dict[str, dict[Path, jax.Array]]
"""Initial values by collection and path."""


def group_alike(specs: Iterable[ParameterSpec]) -> list[list[ParameterSpec]]:
    """Return the parameters in groups that are drawn together: of one initialiser and shape.

    A program is as long as there are groups, 35 for the 1,436 entries of NASNet-CIFAR.
    """
    alike: dict[tuple[object, ...], list[ParameterSpec]] = {}
    for spec in specs:
        alike.setdefault((spec.initializer, spec.shape, spec.dtype), []).append(spec)
    return list(alike.values())


def initialize(groups: Iterable[list[ParameterSpec]], key: jax.Array) -> Drawn:
    """Return initial values; each depends on the key and its path alone."""
    values: Drawn = {"params": {}, "batch_stats": {}}
    for group in groups:
        for spec, value in zip(group, _draw_group(group, key), strict=True):
            values[spec.collection][spec.path] = value
    return values


def _draw_group(group: list[ParameterSpec], key: jax.Array) -> list[jax.Array]:
    """Return initial values of parameters that have the initialiser, shape and dtype in common."""
    spec = group[0]

    def draw(path_hash: jax.Array) -> jax.Array:
        own_key = jax.random.fold_in(key, path_hash)
        return jnp.asarray(spec.initializer(own_key, spec.shape, spec.dtype))

    # By name, not by order: a layer that is added changes no other's initial value.
    hashes = jnp.asarray([hash_path(entry.path) for entry in group], jnp.uint32)
    # The bits are the same either way.
    values = [draw(hashes[0])] if len(group) == 1 else jax.vmap(draw)(hashes)
    # One stands for the group, whose shapes and dtypes are the same.
    value = values[0]
    if value.shape != spec.shape or value.dtype != spec.dtype:
        raise ValueError(
            f"the initializer of {spec.name!r} returned shape {value.shape} and dtype "
            f"{value.dtype}, expected {spec.shape} and {spec.dtype}. An initializer is called "
            "as initializer(key, shape, dtype)."
        )
    return [values[number] for number in range(len(group))]


# JAX keeps the trace of a scan body or a jitted function and uses it again where the same function
# meets the same shapes: in another program too, with the mode and the parameters of this one.
# This context is a part of the key it is kept under; it changes with each frame and with each
# automatic name, so that a checkpointed block called three times makes three layers.
_TRACE_KEY = jax.make_user_context(None)


def check_name(owner: str, name: str) -> None:
    if not isinstance(name, str) or not name or "/" in name:
        raise ProgramError(
            f"{owner} got the name {name!r}, expected a non-empty string without '/'. Slashes "
            "separate scopes. Use layers.scope for a nested name."
        )


class Scope:
    """Names in use while one scope is open; calling the scope again starts from a fresh one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counters: dict[str, int] = {}
        self.owners: dict[str, tuple[str, bool]] = {}


class ScopeModule(nn.Module):
    """The flax module behind the program and behind each `layers.scope`.

    It exists so that flax.linen modules made inside land under the scope's name.
    """

    @nn.compact
    def __call__(self, function: Callable[[], T]) -> T:
        return function()


class Names:
    """The names that one run of a program function has given."""

    def __init__(self) -> None:
        self.scope = Scope(())
        self._modules: dict[Path, ScopeModule] = {}
        self._trace_keys = contextlib.ExitStack()

    def separate_traces(self) -> contextlib.ExitStack:
        """Return a context in which JAX uses no traces of other runs."""
        self._trace_keys = contextlib.ExitStack()
        self._trace_keys.enter_context(_TRACE_KEY(object()))
        return self._trace_keys

    def layer(self, kind: str, name: str | None) -> Path:
        """Return the path of a layer: automatic names count per kind, explicit ones are kept."""
        scope, is_explicit = self.scope, name is not None
        if name is None:
            # A body traced once for two calls would give both the names of the first.
            self._trace_keys.enter_context(_TRACE_KEY(object()))
            count = scope.counters.get(kind, 0)
            scope.counters[kind] = count + 1
            name = f"{kind}_{count}"
        else:
            check_name(f"layers.{kind}", name)
        # An automatic name that an explicit one took would share parameters by accident.
        owner = scope.owners.setdefault(name, (kind, is_explicit))
        if owner != (kind, is_explicit):
            raise ProgramError(
                f"layers.{kind} got the name {name!r}, which a layers.{owner[0]} in the same scope "
                f"has already ({'explicit' if owner[1] else 'automatic'} name). Two layers share "
                "parameters only when both are given the same name. Rename one of them."
            )
        return (*scope.path, name)

    def is_automatic(self, path: Path) -> bool:
        """Return whether the name of a layer of the open scope was counted."""
        return not self.scope.owners.get(path[len(self.scope.path)], ("", True))[1]

    def run_scope(self, name: str, function: Callable[[], T]) -> T:
        """Run `function` with names below `name`; running a scope again shares its parameters."""
        with self.open_scope(name):
            path = self.scope.path
            # One module for a path: flax refuses a second of the same name.
            if path not in self._modules:
                self._modules[path] = ScopeModule(name=name)
            # A scope run again gives its flax children new parents: forget the old children.
            self._modules = {p: m for p, m in self._modules.items() if p[:-1] != path}
            return self._modules[path](function)

    @contextlib.contextmanager
    def open_scope(self, name: str) -> Iterator[None]:
        """Put penstock's own layers below `name`; flax modules need `run_scope`."""
        check_name("layers.scope", name)
        outer = self.scope
        if outer.owners.setdefault(name, ("scope", True))[0] != "scope":
            raise ProgramError(
                f"layers.scope got the name {name!r}, which a layer in the same scope has already. "
                "Rename one of them."
            )
        # A fresh one each time: its counters begin at 0, and so the same layers have the same
        # names.
        self.scope = Scope((*outer.path, name))
        try:
            yield
        finally:
            self.scope = outer


_PACKAGE = pathlib.Path(__file__).parents[1]
_CALLER = str(_PACKAGE / "_tracing" / "probe.py")
"""What calls the program function."""
_SKIPPED_FOLDERS = (
    *(
        str(_PACKAGE / name)
        for name in ("_program", "_tracing", "layers", "fluid", "program_builder", "trainer")
    ),
    *(str(pathlib.Path(str(module.__file__)).parent) for module in (jax, flax, optax, np)),
)
_PYTHON = str(pathlib.Path(contextlib.__file__).parent)


def find_user_lines(depth: int = 1) -> tuple[str, ...]:
    """Return `file:line` of every user's frame from the program function down to here.

    Arguments:
      depth: how many frames above this one to begin.
    """
    # Not `traceback` or `inspect`, which read source files: this runs for every layer.
    lines, frame = [], sys._getframe(depth)
    # What the builder puts around flax modules stands between the user's lines.
    while frame is not None and frame.f_code.co_filename != _CALLER:
        if not frame.f_code.co_filename.startswith(_SKIPPED_FOLDERS):
            lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(reversed(lines))


def find_user_line(traceback: object, is_wanted: Callable[[str], bool] = lambda file: True) -> str:
    """Return `file:line` of the user's innermost frame in a traceback of JAX's, or nothing.

    Arguments:
      is_wanted: of a file, whether it is the user's after all.
    """
    for frame in getattr(traceback, "frames", ()):
        if is_user_file(frame.file_name) and is_wanted(frame.file_name):
            return f"{frame.file_name}:{frame.line_num}"
    return ""


def find_raising_frame(error: BaseException) -> FrameSummary | None:
    """Return the user's innermost frame that raised an exception; those above it only call it."""
    frames = [frame for frame in extract_tb(error.__traceback__) if is_user_file(frame.filename)]
    return frames[-1] if frames else None


def is_user_file(name: str) -> bool:
    """Return whether a file of Python is neither a layer nor JAX's, numpy's or the builder's."""
    # What is installed lies in Python's own folder too, and may hold program functions.
    is_python = name.startswith(_PYTHON) and "site-packages" not in name
    return not is_python and not name.startswith(_SKIPPED_FOLDERS)
