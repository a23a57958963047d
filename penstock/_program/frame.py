"""The frame: what a layer knows while a program function runs.

A frame is opened, the program function called, and the frame closed. Layers reach it through a
context variable, so they need no argument for it. A frame lives for one call of the program
function (one trace); nothing survives it, hence no global counters.

Two kinds of frame exist. A *probe* runs first, abstractly: it records what is asked for. Real
frames then answer with values. Arrays are those of the whole batch: a layer knows nothing of
devices, of padding or of other processes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import ArrayLike, DTypeLike

from penstock._errors import LayerContextError, ProgramError, listed
from penstock._parameter_names import Path, flatten, hash_path, nest
from penstock._program.inputs import DeviceFeed
from penstock._program.precision import widen
from penstock._program.requests import Mode, Names, ParameterSpec, Requests, Variables, find_entry
from penstock._program.sequences import Sequence, spoil_unequal


class MicroBatch(NamedTuple):
    """A batch that is one part of another, whose means the step weights by their examples.

    Attributes:
      fraction: the share of the examples that it has.
      word_counts: the words of the whole batch, for each mean over words in the order of asking;
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

    Arguments:
      variables: parameters and running statistics by collection, nested.
      feed: the batch by input name; None makes a probe.
      batch_size: the number of examples.
      key: the random key of the step.
      lay_out: says of a parameter how it lies on several devices while it is used.
      stack: joins a parameter of layers alike along a new first axis.
      anchor: what the inputs of a probe are made of.
      step: the global step, 0 by default.
      compute_dtype: what products are computed in; None leaves every dtype as it is.
      micro_batch: what part of a batch this one is, if it is one.
      is_frozen: whether the parameter or statistic at a path stays as it is.
      is_on_cpu: whether the run is compiled for CPUs, where layers compute some things another way;
        probes see what accelerators do.

    Attributes:
      names, requests: what layers are called, and what they ask for; see their modules.
      is_mode_read: whether the function has asked for the mode; it does the same in all otherwise.
      is_drawing: whether what drops elements in training drops them in every mode.
      means: the means that layers have taken, by the id of their array.
      word_counts: the words of each mean over words, in the order of asking.
      logits: what probabilities were computed from, by the id of their array.
      module: the outermost flax module, while it runs.
      sown: collections of what flax modules sow that the function asks for.
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
        self.key, self.is_frozen = key, is_frozen
        self.batch_size, self.is_on_cpu = batch_size, is_on_cpu
        self.is_probe = feed is None
        self.is_mode_read = self.is_drawing = False
        self.global_step = jnp.zeros((), jnp.int32) if step is None else step
        self.compute_dtype = compute_dtype
        self.names = Names()
        self.requests = Requests(
            mode,
            self.names.is_automatic,
            variables,
            feed,
            batch_size,
            lay_out=lay_out,
            anchor=anchor,
        )
        self.means: dict[int, Mean] = {}
        self.word_counts: list[jax.Array] = []
        self._micro_batch, self._stack = micro_batch, stack
        self.scanned: tuple[Items[Path], jax.Array] | None = None
        self.logits: dict[int, tuple[jax.Array, jax.Array]] = {}
        self.module: nn.Module | None = None
        self.sown: set[str] = set()
        self.nnx_paths: dict[int, tuple[Path, object]] = {}
        self.nnx_draws: dict[Path, int] = {}

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
            yield
        finally:
            self.key, self.is_drawing = before

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

        Arguments:
          transform: such as `jax.checkpoint`.
        """
        found: dict[str, Any] = {}

        def body(*args: Any) -> tuple[Any, ...]:
            num_counts = len(self.word_counts)
            with self.requests.collecting() as updates:
                result = function(*args)
            counts = self.word_counts[num_counts:]
            del self.word_counts[num_counts:]
            leaves = jax.tree.leaves(result)
            means = {n: self.means[id(x)] for n, x in enumerate(leaves) if id(x) in self.means}
            found["means"] = {n: mean.is_of_part for n, mean in means.items()}
            num_words = {n: mean.num_words for n, mean in means.items()}
            logits = {
                n: self.logits[id(x)][1] for n, x in enumerate(leaves) if id(x) in self.logits
            }
            return result, dict(updates), counts, num_words, logits

        result, updates, counts, num_words, logits = transform(body)(*args)
        for path, value in updates.items():
            self.requests.update(path, value)
        self.word_counts.extend(counts)
        leaves = jax.tree.leaves(result)
        for number, is_of_part in found["means"].items():
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
        """Return what layers alike make of an array, one after the other; one is traced.

        Arguments:
          paths: of the parameters of each.
          layer: called with the path of the first, whose parameters are then those of each.
          rematerialize: compute what lies inside a layer again for the gradients.
        """
        if self.is_probe or self._stack is None:
            return functools.reduce(lambda x, path: layer(path, x), paths, x)
        first, params = paths[0], self.requests.variables["params"]
        stacked: dict[Path, jax.Array] = {}
        for rest in flatten(find_entry(params, first)):
            each = [(*path, *rest) for path in paths]
            values = [find_entry(params, path) for path in each]
            stacked[rest] = self._stack(each, values)
            self.requests.used.update(zip(each, values, strict=True))
        counters, outer = dict(self.names.scope.counters), self.scanned

        def body(x: jax.Array, own: tuple[jax.Array, Any]) -> tuple[jax.Array, None]:
            self.scanned = paths, own[0]
            with self.requests.reading(first, own[1]):
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

    def layer_key(self, path: Path) -> jax.Array:
        """Return the random key of a layer for this step; it depends on names alone."""
        if self.scanned is None:
            return jax.random.fold_in(self.key, hash_path(path))
        paths, number = self.scanned
        # Layers inside a block are called by its path, see `dropout_name`.
        first, *others = ["_".join(each[len(self.names.scope.path) :]) + "_" for each in paths]
        *above, own = path
        names = [own.replace(first, other, 1) for other in (first, *others)]
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


def make_root(seed: int) -> jax.Array:
    """Return the raw root key of a seed, uint32."""
    return jax.random.key_data(jax.random.key(seed, impl=IMPLEMENTATION))


def wrap_key(raw: jax.Array) -> jax.Array:
    return jax.random.wrap_key_data(raw, impl=IMPLEMENTATION)


V = TypeVar("V", jax.Array, Sequence)
"""An array whose rows are examples, or a sequence, whose rows are the words of its examples."""


def over_words(function: Callable[..., Any], first: V, *rest: Any) -> V:
    """Return what a function of rows gives, for the words of sequences where there are any.

    Without a sequence this is `function(first, *others)`. Sequences become rows `[B * T, ...]`, as
    Fluid's tensors of sequences are, and what comes back a sequence of the first one's lengths. An
    array among them, `[B, ...]`, is repeated for each word of its example.

    Arguments:
      function: of rows, which returns as many, in an array or a tuple of arrays.
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
    return Sequence(spoil_unequal(values, words), words[0].lengths)


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
