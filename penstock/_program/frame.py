"""The frame: what one run of a program function asks for, and what it is answered.

Layers reach it through a context variable. It lives for one call of the function, that is for one
trace, so there are no global counters. A *probe* runs first, without values, and records what is
asked for; real frames answer. Arrays are those of the whole batch: a layer knows nothing of
devices, of padding or of other processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Items
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.core import tracers
from jax import lax
from jax.core import Tracer
from jax.typing import ArrayLike, DTypeLike

from penstock._errors import FeedError, LayerContextError, NonFiniteError, ProgramError, listed
from penstock._parameter_names import Nested, Path, flatten, hash_path, nest, spell
from penstock._program.inputs import PROBE_COUNT, PROBE_LENGTH, DeviceFeed, Fed, FeedSpec, Ids
from penstock._program.sequences import NestedSequence, Sequence, spoil_unequal
from penstock._program.user_lines import find_user_lines

T = TypeVar("T")

Initializer = Callable[[jax.Array, tuple[int, ...], np.dtype], jax.Array]

Params: TypeAlias = "Nested[jax.Array]"
"""One collection of the variables, or those entries of it that are trained."""

Variables: TypeAlias = "Mapping[str, Params]"
"""Parameters and running statistics by collection."""

Mode = Literal["train", "test", "infer"]


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

    @property
    def attributes(self) -> str:
        """What its `ParamAttr` says of updates, as errors have it."""
        rate = f"learning_rate={self.learning_rate}"
        return f"trainable={self.trainable}, {rate}, regularizer={self.regularizer}"

    def agrees_with(self, other: ParameterSpec) -> bool:
        """Return whether two uses of one name ask for the same.

        A line that runs twice may make another regularizer each time, e.g. a lambda.
        """
        names = ("shape", "dtype", "trainable", "learning_rate")
        is_same = all(getattr(self, name) == getattr(other, name) for name in names)
        return is_same and (self.regularizer == other.regularizer or self.site == other.site)


# JAX keeps the trace of a scan body or a jitted function and uses it again where the same function
# meets the same shapes: in another program too, with the mode and the parameters of this one.
# This context is a part of the key it is kept under; it changes with each frame, automatic
# name and `layers.scope`, so that a checkpointed block called three times makes three layers, and
# where layers draw from another key. Not with `open_scope`: the networks' own layers share traces
# of functions without parameters, which makes a probe of ResNet-50 four times as fast.
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
    def __call__(self, function: Callable[[], T], frame: Frame | None = None) -> T:
        """Run a function in it, a program's in a frame that is told of it."""
        if frame is not None:
            frame.module = self
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
        # A path may be of another scope, and shorter: that of a weight that two modules share.
        name = "".join(path[len(self.scope.path) :][:1])
        return not self.scope.owners.get(name, ("", True))[1]

    def run_scope(self, name: str, function: Callable[[], T]) -> T:
        """Run `function` with names below `name`; running a scope again shares its parameters."""
        with self.open_scope(name), _TRACE_KEY(object()):
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
                f"layers.scope got the name {name!r}, which a layer of that scope has. Rename one."
            )
        # A fresh one each time: its counters begin at 0, and so the same layers have the same
        # names.
        self.scope = Scope((*outer.path, name))
        try:
            yield
        finally:
            self.scope = outer


class MicroBatch(NamedTuple):
    """A part of a batch, which has a `fraction` of its examples.

    `word_counts` are the words of the whole batch, for each mean over words in the order of asking;
    None where they are still to be counted.
    """

    fraction: float
    word_counts: jax.Array | None = None


class Mean(NamedTuple):
    """A mean that a layer has taken: the array, and the words it is over where it is of words.

    Those are of the whole batch, or where it `is_of_part` of the micro-batch.
    """

    value: jax.Array
    num_words: jax.Array | None = None
    is_of_part: bool = False


class Frame:
    """One run of a program function.

    On a probe parameters have no values yet: a request is recorded and answered with zeros. From
    the record the builder initialises parameters outside the program function, which is why layers
    may be called inside `lax.scan` bodies: no initialiser ever runs inside the traced body.

    Arguments:
      feed: the batch by input name; None makes a probe.
      lay_out: says of a parameter how it lies on several devices while it is used.
      stack: joins a parameter of layers alike along a new first axis.
      anchor: what a probe's inputs are made of, so that their uses can be traced.
      compute_dtype: what products are computed in; None leaves every dtype as it is.
      is_frozen: whether the parameter or statistic at a path stays as it is.
      is_on_cpu: whether the run is compiled for CPUs, where layers compute some things another way.

    Attributes:
      specs: on a probe, the parameters and statistics by path, in the order of their creation.
      updates: the new values of running statistics by path.
      used: the parameters that were asked for, by path, as the state has them.
      lookups: on a probe, of ids that the program computes, which no check of a feed sees.
      is_mode_read: whether the function has asked for the mode; it does the same in all otherwise.
      is_drawing: whether what drops elements in training drops them in every mode.
      means: the means that layers have taken, by the id of their array.
      word_counts: the words of each mean over words, in the order of asking.
      logits: what probabilities were computed from, by the id of their array.
      scanned: the paths of layers that a scan runs, and which of them runs.
      nnx_paths, nnx_draws: nnx modules by id, and how often each path has drawn.
    """

    def __init__(
        self,
        *,
        mode: Mode,
        variables: Variables,
        feed: DeviceFeed | None,
        batch_size: int,
        key: jax.Array,
        lay_out: Callable[[ParameterSpec, jax.Array], jax.Array] | None = None,
        stack: Callable[[Items[Path], Items[jax.Array]], jax.Array] | None = None,
        anchor: jax.Array | None = None,
        step: jax.Array | None = None,
        compute_dtype: DTypeLike | None = None,
        micro_batch: MicroBatch | None = None,
        is_frozen: Callable[[Path], bool] = lambda path: False,
        is_on_cpu: bool = False,
    ) -> None:
        self.mode: Mode = mode
        self.variables, self.batch_size, self.key = variables, batch_size, key
        self.is_frozen, self.is_on_cpu, self.is_probe = is_frozen, is_on_cpu, feed is None
        self.is_mode_read = self.is_drawing = self.has_sequences = False
        self.global_step = jnp.zeros((), jnp.int32) if step is None else step
        self.compute_dtype, self.names = compute_dtype, Names()
        self.feed_specs: dict[str, FeedSpec] = {}
        self.specs: dict[Path, ParameterSpec] = {}
        self.updates: dict[Path, jax.Array] = {}
        self.used: dict[Path, jax.Array] = {}
        self.lookups: list[Ids] = []
        self.means: dict[int, Mean] = {}
        self.word_counts: list[jax.Array] = []
        self.logits: dict[int, tuple[jax.Array, jax.Array]] = {}
        self.module: nn.Module | None = None
        self.sown: set[str] = set()
        self.scanned: tuple[Items[Path], jax.Array] | None = None
        self.nnx_paths: dict[int, tuple[Path, object]] = {}
        self.nnx_draws: dict[Path, int] = {}
        self._feed, self._anchor = feed, anchor
        self._lay_out, self._stack, self._micro_batch = lay_out, stack, micro_batch
        self._stacked: tuple[Path, Params] = ((), {})
        self._prefixes: dict[Path, Path] = {}
        # The arrays too: an id is unique only while its object lives.
        self._fed: dict[int, tuple[jax.Array, str]] = {}
        self._trace = tracers.current_trace()

    @property
    def is_training(self) -> bool:
        """Whether this is the train program; that it was asked for is noted."""
        self.is_mode_read = True
        return self.mode == "train"

    @property
    def is_dropping(self) -> bool:
        """Whether dropout drops."""
        return self.is_training or self.is_drawing

    @contextlib.contextmanager
    def drawing(self, key: jax.Array) -> Iterator[None]:
        """Draw from another key, and drop elements in every mode, inside the `with` block."""
        before = self.key, self.is_drawing
        self.key, self.is_drawing = key, True
        try:
            with _TRACE_KEY(object()):
                yield
        finally:
            self.key, self.is_drawing = before

    def input(self, spec: FeedSpec) -> Fed:
        """Return what is fed under `spec.name`: `[B, *spec.shape]`, or a sequence of such words."""
        first = self.feed_specs.setdefault(spec.name, spec)
        if first != spec:
            raise ProgramError(
                f"layers.data {spec.name!r} got {spec.declaration}, expected {first.declaration}, "
                "as before in the program. One input has one shape. Use another name for another."
            )
        self.has_sequences |= spec.lod_level > 0
        if self._feed is None:
            # Made of an input of the trace: what follows from it is told from constants.
            anchor = jnp.zeros(()) if self._anchor is None else self._anchor
            fed = spec.build(
                (self.batch_size, PROBE_COUNT, PROBE_LENGTH),
                lambda shape, dtype: jnp.full(shape, anchor.astype(dtype)),
            )
            values = fed.values if spec.lod_level else fed
            self._fed[id(values)] = (values, spec.name)
            return fed
        if spec.name not in self._feed:
            raise FeedError(
                f"feed got {listed(self._feed)}, expected also {spec.name!r}, which the "
                f"{self.mode} program declares with layers.data."
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
        elif self.is_probe:
            self.lookups.append(table)

    def parameter(self, spec: ParameterSpec) -> jax.Array:
        """Return the value of a parameter or statistic; on a probe record it and return zeros."""
        if self.is_probe:
            self._record(spec)
        # A statistic that was moved in this run is read as moved.
        value: Any = self.updates.get(spec.path)
        if value is None and self.variables:
            above, values = self._stacked
            is_scanned = above and spec.path[: len(above)] == above
            tree = values if is_scanned else self.variables.get(spec.collection, {})
            value = find_entry(tree, spec.path[len(above) :] if is_scanned else spec.path)
        if value is None and self.is_probe:
            value = lax.full(spec.shape, 0, spec.dtype)
        if value is None:
            raise ProgramError(
                f"the {self.mode} program asks for the parameter {spec.name!r}, which was not "
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
                f"the {self.mode} program asks for the parameter {spec.name!r} in shape "
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
        before, self._stacked = self._stacked, (path, values)
        try:
            yield
        finally:
            self._stacked = before

    def _record(self, spec: ParameterSpec) -> None:
        # On probes only: real runs need no lines.
        is_automatic = self.names.is_automatic(spec.path)
        spec = dataclasses.replace(spec, stack=find_user_lines(), is_automatic=is_automatic)
        first = self.specs.setdefault(spec.path, spec)
        if first is not spec and not first.agrees_with(spec):
            raise ProgramError(
                f"parameter {spec.name!r} got shape {spec.shape}, dtype {spec.dtype}, "
                f"{spec.attributes} at {spec.site}, expected shape {first.shape}, dtype "
                f"{first.dtype}, {first.attributes} as at {first.site}. The same name in the same "
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
                f"{spell(path)!r} got an update inside lax.scan, vmap, grad or the like, expected "
                "the program function itself: a running statistic cannot leave a transformed "
                "function. Move the layer out of it, or use layers.remat for jax.checkpoint."
            )
        self.updates[path] = value

    def mean(self, value: ArrayLike) -> jax.Array:
        """Return the mean of all numbers of an array, a scalar; what it is, is noted."""
        # Widened: a sum of float16 overflows where the mean does not.
        mean = jnp.mean(widen(value))
        self.means[id(mean)] = Mean(mean)
        return mean

    def mean_words(self, words: Sequence) -> jax.Array:
        """Return the mean over the words of a batch, a scalar; 0 where there is no word."""
        masked = widen(words.masked())
        count = jnp.sum(words.lengths).astype(jnp.float32)
        whole = self._micro_batch
        if whole is not None and whole.word_counts is not None:
            count = whole.word_counts[len(self.word_counts)]
        self.word_counts.append(count)
        num_elements = masked.size // max(words.mask.size, 1)
        mean = jnp.sum(masked) / (jnp.maximum(count, 1) * num_elements).astype(masked.dtype)
        if whole is not None and whole.word_counts is not None:
            # The step weights a micro-batch by its share of the examples, of which this is the
            # inverse.
            mean = mean / whole.fraction
        self.means[id(mean)] = Mean(mean, count)
        return mean

    def mean_counted(self, values: jax.Array, counts: jax.Array) -> jax.Array:
        """Return the mean of values where `counts`, a scalar; 0 where that is nowhere."""
        # In the dtype of the other sums: XLA joins only all-reduces of one.
        count = jnp.sum(counts.astype(jnp.float32))
        mean = jnp.sum(jnp.where(counts, values, 0)) / jnp.maximum(count, 1)
        self.means[id(mean)] = Mean(mean, count, is_of_part=True)
        return mean

    def run_transformed(
        self, transform: Callable[..., Any], function: Callable[..., Any], *args: Any
    ) -> Any:
        """Return what a function of arrays gives inside a transformation that calls it once.

        What its layers have noted comes out with it, as results of their own: running statistics,
        counts of words, which of its results are means or have logits.
        """
        static: dict[str, Any] = {}

        def body(*args: Any) -> tuple[Any, ...]:
            num_counts = len(self.word_counts)
            with self.collecting() as updates:
                result = function(*args)
            counts = self.word_counts[num_counts:]
            del self.word_counts[num_counts:]
            leaves = jax.tree.leaves(result)
            means = {n: self.means[id(x)] for n, x in enumerate(leaves) if id(x) in self.means}
            static["means"] = {n: mean.is_of_part for n, mean in means.items()}
            num_words = {n: mean.num_words for n, mean in means.items()}
            logits = {
                n: self.logits[id(x)][1] for n, x in enumerate(leaves) if id(x) in self.logits
            }
            return result, dict(updates), counts, num_words, logits

        result, updates, counts, num_words, logits = transform(body)(*args)
        for path, value in updates.items():
            self.update(path, value)
        self.word_counts.extend(counts)
        leaves = jax.tree.leaves(result)
        for number, is_of_part in static["means"].items():
            value = leaves[number]
            self.means[id(value)] = Mean(value, num_words[number], is_of_part)
        for number, array in logits.items():
            self.logits[id(leaves[number])] = (leaves[number], array)
        return result

    def scan(
        self,
        paths: Items[Path],
        layer: Callable[[Path, jax.Array], jax.Array],
        x: jax.Array,
        *,
        rematerialize: bool,
    ) -> jax.Array:
        """Return what layers alike make of an array, one after the other; one is traced."""
        if self.is_probe or self._stack is None:
            return functools.reduce(lambda x, path: layer(path, x), paths, x)
        first, params = paths[0], self.variables["params"]
        stacked: dict[Path, jax.Array] = {}
        for leaf in flatten(find_entry(params, first)):
            leaf_paths = [(*path, *leaf) for path in paths]
            values = [find_entry(params, path) for path in leaf_paths]
            stacked[leaf] = self._stack(leaf_paths, values)
            self.used.update(zip(leaf_paths, values, strict=True))
        counters, outer = dict(self.names.scope.counters), self.scanned

        def body(x: jax.Array, own: tuple[jax.Array, Any]) -> tuple[jax.Array, None]:
            self.scanned = paths, own[0]
            with self.reading(first, own[1]):
                x = layer(first, x).astype(x.dtype)
            self.scanned = outer
            return x, None

        run = jax.checkpoint(body, prevent_cse=False) if rematerialize else body
        x, _ = jax.lax.scan(run, x, (jnp.arange(len(paths)), nest(stacked)))
        if new := dict(self.names.scope.counters.items() - counters.items()):
            raise ProgramError(
                f"scan_layers=True got a block with layers of automatic names, {listed(new)}, "
                "expected none in act: one trace stands for all blocks, and each would have one of "
                "its own. Give the layer a name to share it, or leave out scan_layers."
            )
        return x

    def layer_key(self, path: Path, seed: int = 0) -> jax.Array:
        """Return the random key of a layer for this step; it depends on names alone.

        With a seed of its own, as Fluid's layers may have, it is the same at every step.
        """
        if seed:
            return jax.random.key(seed, impl=IMPLEMENTATION)
        if self.scanned is None:
            return jax.random.fold_in(self.key, hash_path(path))
        paths, number = self.scanned
        # Layers inside a block are called by its path, see `dropout_name`.
        first, *later = ["_".join(block[len(self.names.scope.path) :]) + "_" for block in paths]
        *above, own = path
        names = [own.replace(first, other, 1) for other in (first, *later)]
        hashes = jnp.asarray([hash_path((*above, name)) for name in names], jnp.uint32)
        return jax.random.fold_in(self.key, hashes[number])

    def promote(self, x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the operands of a product in one dtype: that of the program's precision, if any.

        Parameters stay float32 in the state; what a step computes with is cast here.
        """
        # First to one dtype, as products take it: a program may have no precision of its own.
        dtype = jnp.result_type(x, w)
        x, w = x.astype(dtype), w.astype(dtype)
        if self.compute_dtype is None or not jnp.issubdtype(dtype, jnp.floating):
            return x, w
        return x.astype(self.compute_dtype), w.astype(self.compute_dtype)

    def cast(self, x: jax.Array) -> jax.Array:
        """Return floats in the dtype of the program's precision, if it has one."""
        has_one = self.compute_dtype is not None and jnp.issubdtype(x.dtype, jnp.floating)
        return x.astype(self.compute_dtype) if has_one else x

    def align(self, vector: jax.Array, y: jax.Array, axis: int) -> jax.Array:
        """Return a parameter shaped to meet an axis of `y`, in the program's precision."""
        aligned = align(vector, y.ndim, axis)
        return aligned if self.compute_dtype is None else spread(aligned, y)


def find_entry(tree: Params, path: Path) -> Any:
    """Return the entry of a nested dict at `path`, or None."""
    node: Any = tree
    for key in path:
        if not isinstance(node, Mapping) or key not in node:
            return None
        node = node[key]
    return node


_CURRENT: ContextVar[Frame | None] = ContextVar("penstock_frame", default=None)


@contextlib.contextmanager
def open_frame(frame: Frame) -> Iterator[Frame]:
    """Make `frame` the current one inside the `with` block."""
    token = _CURRENT.set(frame)
    try:
        # A body that JAX has traced in another program has that program's mode and parameters.
        with frame.names.separate_traces():
            yield frame
    finally:
        _CURRENT.reset(token)


def find_frame() -> Frame | None:
    return _CURRENT.get()


def current_frame(layer: str) -> Frame:
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


def find_logits(layer: str, probabilities: jax.Array) -> jax.Array | None:
    """Return the logits under the result of a softmax of this program, or None."""
    entry = current_frame(layer).logits.get(id(probabilities))
    return None if entry is None else entry[1]


IMPLEMENTATION = "threefry2x32"
"""What numbers are drawn by, whatever `jax_default_prng_impl` says: they depend on the key and the
shape alone, and not, as those of `rbg`, on how arrays lie on devices."""


def make_root(seed: int) -> np.ndarray:
    """Return the raw root key of a seed, uint32.

    Raises:
      ValueError: `seed` is no integer of 64 bits.
    """
    number = -1
    # An array of one integer is one too.
    if not isinstance(seed, bool):
        with contextlib.suppress(TypeError):
            number = operator.index(seed)
    if not 0 <= number < 1 << 64:
        raise ValueError(
            f"seed got {seed!r}, expected an integer from 0 to 2**64 - 1. It makes the key that "
            "initial values and the programs' noise are drawn from. Pass another."
        )
    # As jax.random.key makes it of 64 bits; of 32, JAX's default, 2**32 would be seed 0 again.
    return np.array(divmod(number, 1 << 32), np.uint32)


def wrap_key(raw: jax.typing.ArrayLike) -> jax.Array:
    return jax.random.wrap_key_data(jnp.asarray(raw), impl=IMPLEMENTATION)


V = TypeVar("V", jax.Array, Sequence)
"""An array whose rows are examples, or a sequence, whose rows are the words of its examples."""


def over_words(function: Callable[..., Any], first: V, *rest: Any) -> V:
    """Return what a function of rows gives, for the words of sequences where there are any.

    Without a sequence this is `function(first, *others)`. Sequences become rows `[B * T, ...]`, as
    Fluid's tensors of sequences are, and what comes back a sequence of the first one's lengths. An
    array among them, `[B, ...]`, is repeated for each word of its example.
    """
    operands = (first, *rest)
    if Sequence not in map(type, operands):
        return function(*operands)
    words = [operand for operand in operands if isinstance(operand, Sequence)]
    length = min(operand.max_length for operand in words)
    result = function(*[_as_rows(operand, words[0], length) for operand in operands])
    return jax.tree.map(lambda rows: _as_sequence(rows, words, length), result)


def _as_rows(operand: Any, like: Sequence, length: int) -> Any:
    if isinstance(operand, Sequence):
        values = operand.values[:, :length]
        return _reshape(values, operand.values, (-1, *values.shape[2:]))
    if not isinstance(operand, jax.Array) or not operand.ndim:
        return operand
    # As many axes as rows of words have, one in front for the examples.
    batch_size, num_axes = like.values.shape[0], like.values.ndim - 1
    is_per_example = operand.shape[0] == batch_size and operand.ndim >= num_axes
    return jnp.repeat(operand, length, axis=0) if is_per_example else operand


def _as_sequence(rows: jax.Array, words: list[Sequence], length: int) -> Sequence:
    values = _reshape(rows, rows, (-1, length, *rows.shape[1:]))
    spoiled, frame = spoil_unequal(values, words), find_frame()
    if frame is not None and id(values) in frame.logits:
        remember_logits(spoiled, spoil_unequal(frame.logits[id(values)][1], words))
    return Sequence(spoiled, words[0].lengths)


def _reshape(values: jax.Array, before: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return values in another shape; if `known` are probabilities, so are they."""
    reshaped = values.reshape(shape)
    frame = find_frame()
    entry = None if frame is None else frame.logits.get(id(before))
    if frame is not None and entry is not None:
        logits = entry[1][:, : values.shape[1]] if values is not before else entry[1]
        frame.logits[id(reshaped)] = (reshaped, logits.reshape(shape))
    return reshaped


def align(vector: jax.Array, num_axes: int, axis: int = -1) -> jax.Array:
    """Return a vector shaped to meet axis `axis` of an array of `num_axes` axes.

    Written out because users may run JAX with `jax_numpy_rank_promotion="raise"`.
    """
    shape = [1] * num_axes
    shape[axis] = vector.shape[0]
    return vector.reshape(shape)


def spread(x: jax.Array, y: jax.Array | jax.ShapeDtypeStruct) -> jax.Array:
    """Return what meets all of `y` along some axes in its dtype, if it has floats.

    A float32 bias would widen a bfloat16 product again. In half precision it is spread before it is
    narrowed, so that its gradient is summed in float32: in bfloat16 a sum of 32,768 numbers of one
    sign is 44 % off (CPU, JAX 0.10.2).
    """
    if not jnp.issubdtype(y.dtype, jnp.floating):
        return x
    is_half = jnp.finfo(y.dtype).bits < 32
    return (jnp.broadcast_to(widen(x), y.shape) if is_half else x).astype(y.dtype)


def traced_once(*static: str, inline: bool = False) -> Callable[[T], T]:
    """Return a decorator of a function of arrays, which is then traced once for each shape.

    For what comes often in one network and is long. It compiles nothing by itself: it runs inside
    the trace of a program.

    Arguments:
      static: the names of the arguments that are no arrays.
      inline: leave no trace of it in the program's operations.
    """
    decorate: Any = functools.partial(jax.jit, static_argnames=static, inline=inline)
    return decorate


def widen(x: ArrayLike) -> jax.Array:
    """Return the values in float32, or in their own dtype where that is wider.

    Sums, statistics and losses are computed in it, whatever products are computed in.
    """
    x = jnp.asarray(x)
    # Not by `promote_types`, which refuses with `jax_numpy_dtype_promotion="strict"`.
    is_wide = jnp.issubdtype(x.dtype, jnp.inexact) and jnp.finfo(x.dtype).bits >= 32
    return x if is_wide else x.astype(jnp.float32)
