"""Recurrent layers of one's own: a step run over the words of sequences, and Fluid's single steps.

`dynamic_rnn` takes the step as a function, Fluid's `DynamicRNN` and `StaticRNN` as a `with` block;
`lstm_unit` and `gru_unit` are steps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core
from jax.nn import initializers
from jax.typing import ArrayLike, DTypeLike

from penstock._errors import ProgramError
from penstock._program import sequences
from penstock._program.frame import align, current_frame, find_frame, remember_logits, widen
from penstock.layers.arguments import check_shape
from penstock.layers.initializers import XAVIER
from penstock.layers.parameters import Attr, parameter
from penstock.layers.recurrent import Gate, Hold, find_gate, multiply, scan_words, update_gru

Memories = TypeVar("Memories")


def dynamic_rnn(
    step: Callable[[Memories, Any], tuple[Memories, Any]],
    memories: Memories,
    input: Any,
    is_reverse: bool = False,
) -> tuple[Memories, Any]:
    """Scan a step function over the words of sequences, as `lax.scan` does over an array.

    The function is traced once, and its layers share their parameters over all words. After the
    last word of an example, its memories keep their values. Arrays and sequences from outside the
    function are the same at every word. The function also runs on padding, where it sees the first
    word of the example, or zeros if the example is empty.

    Arguments:
      step: takes the memories and one word of each example, arrays `[B, ...]` in the structures of
        `memories` and `input`. It returns the new memories and a pytree of outputs `[B, ...]`.
      memories: a pytree of arrays `[B, ...]`, the values before the first word. Floats narrower
        than float32 are widened, because sums may be accumulated in them.
      input: a sequence, or a pytree of sequences of equal lengths.
      is_reverse: whether each sequence is read from its last word to its first.

    Returns:
      The memories after the last word of each example, and the outputs as sequences.

    >>> words = ps.Sequence(jnp.array([[1.0, 2.0, 3.0], [4.0, 0.0, 0.0]]), jnp.array([3, 1]))
    >>> total, totals = dynamic_rnn(lambda old, x: (old + x, old + x), jnp.zeros([2]), words)
    >>> total.tolist(), totals.cut()
    ([6.0, 4.0], [array([1., 3., 6.], dtype=float32), array([4.], dtype=float32)])
    """
    inputs = _find_sequences(input)
    lengths = inputs[0].lengths
    batch, longest = lengths.shape[0], min(sequence.max_length for sequence in inputs)
    memories = jax.tree.map(lambda memory: _widen(_check_rows("a memory", memory, batch)), memories)
    words = jax.tree.map(
        lambda leaf: _fill(sequences.spoil_unequal(leaf.values[:, :longest], inputs), lengths),
        input,
        is_leaf=_is_sequence,
    )

    def held(state: Any, word: Any, hold: Hold) -> tuple[Any, Any]:
        new, outputs = step(state, word)
        _check_memories(new, state)
        outputs = jax.tree.map(lambda x: _check_rows("an output", x, batch), outputs)
        step_results = (outputs, [recall_logits(x) for x in jax.tree.leaves(outputs)])
        zeros = jax.tree.map(jnp.zeros_like, step_results)
        return hold(new, state), hold(step_results, zeros)

    last, results = scan_words(held, memories, words, lengths, is_reverse=is_reverse)
    # A cross entropy of the outputs is computed from the logits under them, as without a loop.
    for values, logits in zip(jax.tree.leaves(results[0]), results[1], strict=True):
        if logits is not None:
            remember_logits(values, logits)
    return last, jax.tree.map(lambda values: sequences.Sequence(values, lengths), results[0])


def _find_sequences(input: object) -> list[sequences.Sequence]:
    leaves = jax.tree.leaves(input, is_leaf=_is_sequence)
    if not leaves or not all(map(_is_sequence, leaves)):
        raise ProgramError(
            f"layers.dynamic_rnn got an input of {[type(leaf).__name__ for leaf in leaves]}, "
            "expected a Sequence, or several nested in lists or dicts. It takes a word of each at "
            "every step. Declare the input with lod_level=1; the step may use arrays from outside "
            "as they are."
        )
    return leaves


def _is_sequence(value: object) -> bool:
    return isinstance(value, sequences.Sequence)


def recall_logits(probabilities: jax.Array) -> jax.Array | None:
    """Return the logits under the result of a softmax of this program, None otherwise."""
    frame = find_frame()
    entry = frame.logits.get(id(probabilities)) if frame else None
    return None if entry is None else entry[1]


def _widen(memory: jax.Array) -> jax.Array:
    return widen(memory) if jnp.issubdtype(memory.dtype, jnp.floating) else memory


def _fill(values: jax.Array, lengths: jax.Array) -> jax.Array:
    """Return values whose padding is the first word, so that a step computes nothing new there.

    A step may divide by what it gets: of zeros its gradient would be nan, and 0 * nan too.
    """
    places = align(lax.iota(lengths.dtype, values.shape[1]), values.ndim, 1)
    first = jnp.where(align(lengths, values.ndim, 0) > 0, values[:, :1], 0)
    return jnp.where(places < align(lengths, values.ndim, 0), values, first)


def _check_rows(what: str, value: ArrayLike, batch: int) -> jax.Array:
    array = jnp.asarray(value)
    why = "Each example has its own. Make it of as many rows as the input has examples."
    check_shape(f"layers.dynamic_rnn got {what}", array, why, [batch, ...])
    return array


def _check_memories(new: Any, old: Any) -> None:
    shapes = [jax.tree.map(jnp.shape, memories) for memories in (new, old)]
    if shapes[0] != shapes[1]:
        raise ProgramError(
            f"layers.dynamic_rnn got new memories of shapes {shapes[0]}, expected {shapes[1]}, as "
            "at the first word. The next word is computed with them. Let the step return memories "
            "nested and shaped as it gets them."
        )
    for value, memory in zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True):
        # Floats are rounded to the memory's; a float in an integer would lose more.
        to_float = jnp.issubdtype(memory.dtype, jnp.floating)
        if not to_float and jnp.result_type(value, memory) != memory.dtype:
            raise ProgramError(
                f"layers.dynamic_rnn got a new memory of dtype {jnp.result_type(value)}, expected "
                f"{memory.dtype}, as at the first word. It would be cut to it. Begin with zeros of "
                "the new memory's dtype."
            )


class RecordedBlock:
    """Record what runs inside a `with` block as a function of inputs that are named there.

    JAX traces functions, and Python runs a block once, where it stands. So another thread traces a
    function that waits, and the block runs with that function's trace as the current one. What the
    block uses from outside becomes constants of the trace. Inputs are such constants too, which
    `call` puts values in place of: the block may name them in any order.

    >>> block = RecordedBlock()
    >>> with block:
    ...     x = block.input((2,), "float32")
    ...     block.return_values([2 * x])
    >>> block.call([jnp.array([1.0, 3.0])])[0].tolist()
    [2.0, 6.0]
    """

    def __init__(self) -> None:
        # JAX promises nothing of `jax.extend` from one version to the next.
        if not hasattr(core, "set_current_trace"):
            raise NotImplementedError(
                f"a block of layers.DynamicRNN or StaticRNN got JAX {jax.__version__}, expected "
                "jax.extend.core.set_current_trace in it. It runs the block as a loop. Use "
                "layers.dynamic_rnn, which takes a function."
            )
        self._placeholders: list[jax.Array] = []
        self._values: list[jax.Array] = []
        self._jaxpr: Any = None
        self._failure: BaseException | None = None
        self._is_tracing, self._is_left = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._trace_jaxpr, daemon=True)
        self._outer: Any = None
        self._inner: Any = None
        self._context: Any = None

    def _trace_jaxpr(self) -> None:
        def wait() -> list[jax.Array]:
            with core.take_current_trace() as self._inner:
                self._is_tracing.set()
                self._is_left.wait()
            return self._values

        try:
            self._jaxpr = jax.make_jaxpr(wait)()
        except BaseException as failure:  # raised again in the thread of the block
            self._failure = failure
            self._is_tracing.set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._is_tracing.wait()
        self._raise_failure()
        with core.take_current_trace() as self._outer:
            pass
        self._context = core.set_current_trace(self._inner)
        self._context.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._context.__exit__(kind, error, traceback)
        if error is not None:
            self._values = []
        self._is_left.set()
        self._thread.join()
        # No cycle through a trace that has ended: JAX would report it as leaked.
        self._context = self._inner = self._outer = None
        if error is None:
            self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    @property
    def is_open(self) -> bool:
        """Whether operations belong to the block now."""
        return self._inner is not None

    def outside(self) -> Any:
        """Return a context in which operations belong to what is around the block."""
        return core.set_current_trace(self._outer)

    def is_inside(self, value: object) -> bool:
        """Return whether a value was computed in the block, and so means nothing around it."""
        return self.is_open and getattr(value, "_trace", None) is self._inner

    def input(self, shape: Sequence[int], dtype: DTypeLike) -> jax.Array:
        """Return a new input, in the block; its number is the count of those before."""
        with self.outside():
            placeholder = jnp.zeros(shape, dtype)
        self._placeholders.append(placeholder)
        # A value of the block's trace: used behind the block, JAX refuses it.
        return jnp.copy(placeholder)

    def return_values(self, values: Sequence[jax.Array]) -> None:
        """Set what `call` returns, in the block."""
        self._values = [jnp.asarray(value) for value in values]

    def call(self, inputs: Sequence[jax.Array]) -> list[jax.Array]:
        """Return what the block computes of these inputs."""
        values = {id(p): x for p, x in zip(self._placeholders, inputs, strict=True)}
        constants = [values.get(id(constant), constant) for constant in self._jaxpr.consts]
        return core.jaxpr_as_fun(core.ClosedJaxpr(self._jaxpr.jaxpr, constants))()


@dataclasses.dataclass(eq=False)
class _Memory:
    """A memory of a block: before the first word, as the block sees it, and its update."""

    initial: jax.Array
    value: jax.Array
    new: jax.Array | None = None


class _Steps:
    """What `DynamicRNN` and `StaticRNN` have in common: the step that a block describes."""

    _block = "block"

    def __init__(self) -> None:
        self._recorded: RecordedBlock | None = None
        self._inputs: list[sequences.Sequence] = []
        self._memories: list[_Memory] = []
        # Of the inputs of the recording, by position: the others are words.
        self._are_memories: list[bool] = []
        self._outputs: list[jax.Array] = []
        self._results: list[sequences.Sequence] | None = None

    @contextlib.contextmanager
    def _record(self) -> Iterator[None]:
        if self._recorded is not None:
            got = f"a second {self._block} block"
            self._refuse(got, "one", "Make another one for another step")
        recorded = self._recorded = RecordedBlock()
        with recorded:
            yield
            self._check_complete()
            logits = [recall_logits(output) for output in self._outputs]
            recorded.return_values(
                [memory.new for memory in self._memories if memory.new is not None]
                + self._outputs
                + [value for value in logits if value is not None]
            )
        self._results = self._run(recorded, [value is not None for value in logits])

    def _check_complete(self) -> None:
        if not self._inputs:
            self._refuse("no step_input", "at least one", "It says how many steps there are")
        if not self._outputs:
            self._refuse("no output", "at least one", "Name what each step gives with output()")
        for number, memory in enumerate(self._memories):
            if memory.new is None:
                self._refuse(
                    f"no update of memory number {number}",
                    "update_memory for each memory",
                    "It would stay as it was. Use a value from outside the block for a constant",
                )

    def _run(self, recorded: RecordedBlock, has_logits: list[bool]) -> list[sequences.Sequence]:
        memories = self._memories

        def step(state: list[jax.Array], words: list[jax.Array]) -> tuple[Any, Any]:
            of_memories, of_inputs = iter(state), iter(words)
            values = recorded.call(
                [next(of_memories if is_memory else of_inputs) for is_memory in self._are_memories]
            )
            return values[: len(memories)], values[len(memories) :]

        _, outputs = dynamic_rnn(step, [memory.initial for memory in memories], self._inputs)
        results, logits = outputs[: len(has_logits)], outputs[len(has_logits) :]
        for output, has_one in zip(results, has_logits, strict=True):
            if has_one:
                remember_logits(output.values, logits.pop(0).values)
        return results

    def _require_open(self, method: str) -> RecordedBlock:
        if self._recorded is None or not self._recorded.is_open:
            expected = f"a call inside `with rnn.{self._block}():`"
            self._refuse(f"{method}() outside its block", expected, "It describes one step")
        return self._recorded

    def _refuse(self, got: str, expected: str, why: str) -> NoReturn:
        name = type(self).__name__
        raise ProgramError(f"layers.{name} got {got}, expected {expected}. {why}.")

    def _add_input(self, words: sequences.Sequence) -> jax.Array:
        block = self._require_open("step_input")
        self._inputs.append(words)
        self._are_memories.append(False)
        shape = words.values.shape
        return block.input((shape[0], *shape[2:]), words.values.dtype)

    def _add_memory(
        self,
        init: jax.Array | None,
        shape: Sequence[int] | None,
        value: float,
        dtype: DTypeLike,
    ) -> jax.Array:
        block = self._require_open("memory")
        if (init is None) == (shape is None):
            self._refuse(
                f"memory(init={init!r}, shape={shape!r})",
                "one of them",
                "A memory begins with an array, or with a number in a shape without the batch axis",
            )
        if block.is_inside(init):
            self._refuse(
                "memory(init=...) of a value computed in the block",
                "one from outside",
                "It is there before the first step. Compute it before the block",
            )
        if init is None and not self._inputs:
            self._refuse(
                "memory(shape=...) before any step_input",
                "step_input first",
                "It says how many examples there are",
            )
        with block.outside():
            if shape is not None:
                rows = self._inputs[0].lengths.shape[0]
                initial = jnp.full((rows, *shape), value, dtype)
            else:
                initial = jnp.asarray(init)
            if jnp.issubdtype(initial.dtype, jnp.floating):
                initial = widen(initial)
        memory = _Memory(initial, block.input(initial.shape, initial.dtype))
        self._memories.append(memory)
        self._are_memories.append(True)
        return memory.value

    def _update_memory(self, old: jax.Array, new: jax.Array) -> None:
        self._require_open("update_memory")
        memory = next((memory for memory in self._memories if memory.value is old), None)
        if memory is None:
            got, expected = "update_memory of what is no memory", "what memory() returned"
            self._refuse(got, expected, "Give the memory first, its new value second")
        if jnp.shape(new) != old.shape:
            got = f"update_memory of shape {old.shape} with {jnp.shape(new)}"
            self._refuse(got, "the same shape", "The next step begins with it")
        memory.new = new

    def output(self, *outputs: jax.Array) -> None:
        """Declare one or more outputs of each step, `[B, ...]`."""
        self._require_open("output")
        self._outputs += map(jnp.asarray, outputs)

    def _find_results(self) -> list[sequences.Sequence]:
        if self._results is None:
            got, why = (
                "called before its block has ended",
                "The outputs of all steps are there then",
            )
            self._refuse(got, "a call behind it", why)
        return self._results


class DynamicRNN(_Steps):
    """Run the step that a `with` block describes over the words of sequences.

    The block runs once in Python. Parameters, memories, values from outside and padding are as in
    `dynamic_rnn`, which takes a function instead. Source: Fluid's `DynamicRNN`.

    >>> words = ps.Sequence(jnp.array([[1.0, 2.0, 3.0], [4.0, 0.0, 0.0]]), jnp.array([3, 1]))
    >>> rnn = DynamicRNN()
    >>> with rnn.block():
    ...     word = rnn.step_input(words)
    ...     total = rnn.memory(shape=[], value=10.0)
    ...     rnn.update_memory(total, total + word)
    ...     rnn.output(total + word)
    >>> rnn().cut()
    [array([11., 13., 16.], dtype=float32), array([14.], dtype=float32)]
    """

    def block(self) -> contextlib.AbstractContextManager[None]:
        """Return the context manager for the block that describes one step."""
        return self._record()

    def step_input(self, x: sequences.Sequence) -> jax.Array:
        """Return the current word of each example of a sequence, `[B, ...]`."""
        self._require_open("step_input")
        if not isinstance(x, sequences.Sequence):
            self._refuse(
                f"step_input of an array of shape {jnp.shape(x)}",
                "a Sequence",
                "A step takes one word of each example. Use values from outside as they are",
            )
        return self._add_input(x)

    def static_input(self, x: Any) -> Any:
        """Return `x`, an array `[B, ...]` or a sequence that is the same at every word."""
        self._require_open("static_input")
        return x

    def memory(
        self,
        init: jax.Array | None = None,
        shape: Sequence[int] | None = None,
        value: float = 0.0,
        need_reorder: bool = False,
        dtype: DTypeLike = "float32",
    ) -> jax.Array:
        """Return a memory `[B, ...]` with its value after the previous word.

        Arguments:
          init: the value before the first word, `[B, ...]`.
          shape: instead of `init`, the shape without the batch axis. The memory is then filled with
            `value` of `dtype`.
          need_reorder: has no effect. Fluid sorts examples by length; here they are not sorted.
        """
        del need_reorder
        return self._add_memory(init, shape, value, dtype)

    def update_memory(self, ex_mem: jax.Array, new_mem: jax.Array) -> None:
        """Set the value of a memory at the next word, in the same shape."""
        self._update_memory(ex_mem, new_mem)

    def __call__(self) -> Any:
        """Return the outputs of all steps, a sequence or a list of sequences."""
        results = self._find_results()
        return results[0] if len(results) == 1 else results


class StaticRNN(_Steps):
    """Run the step that a `with` block describes over the first axis of arrays `[T, B, ...]`.

    It is like `DynamicRNN`, but every example has the same number of steps. Source: Fluid's
    `StaticRNN`.

    >>> rnn = StaticRNN()
    >>> with rnn.step():
    ...     word = rnn.step_input(jnp.array([[1.0], [2.0], [3.0]]))
    ...     total = rnn.memory(shape=[-1], batch_ref=word)
    ...     rnn.update_memory(total, total + word)
    ...     rnn.step_output(total + word)
    >>> rnn().tolist()
    [[1.0], [3.0], [6.0]]
    """

    _block = "step"

    def step(self) -> contextlib.AbstractContextManager[None]:
        """Return the context manager for the block that describes one step."""
        return self._record()

    def step_input(self, x: jax.Array) -> jax.Array:
        """Return the current step `[B, ...]` of an array `[T, B, ...]`."""
        block = self._require_open("step_input")
        is_sequence = isinstance(x, sequences.Sequence)
        shape: Any = () if is_sequence else jnp.shape(x)
        if len(shape) < 2:
            self._refuse(
                "step_input of a Sequence" if is_sequence else f"step_input of shape {shape}",
                "an array [T, B, ...]",
                "All examples have as many steps. Use DynamicRNN for sequences",
            )
        with block.outside():
            lengths = jnp.full(shape[1:2], shape[0], jnp.int32)
            words = sequences.Sequence(jnp.swapaxes(x, 0, 1), lengths)
        return self._add_input(words)

    def memory(
        self,
        init: jax.Array | None = None,
        shape: Sequence[int] | None = None,
        batch_ref: jax.Array | None = None,
        init_value: float = 0.0,
    ) -> jax.Array:
        """Return a memory `[B, ...]` with its value after the previous step.

        Arguments:
          init: the value before the first step, `[B, ...]`.
          shape: instead of `init`, the shape. The memory is then filled with `init_value`. A
            leading -1 stands for the batch.
          batch_ref: has no effect. The batch size is that of the inputs.
        """
        del batch_ref
        row_shape = shape[1:] if shape and shape[0] == -1 else shape
        return self._add_memory(init, row_shape, init_value, "float32")

    def update_memory(self, mem: jax.Array, var: jax.Array) -> None:
        """Set the value of a memory at the next step, in the same shape."""
        self._update_memory(mem, var)

    def step_output(self, o: jax.Array) -> None:
        """Declare one or more outputs of each step, `[B, ...]`."""
        self.output(o)

    def __call__(self) -> Any:
        """Return the outputs of all steps, an array `[T, B, ...]` or a list of arrays."""
        results = [jnp.swapaxes(sequence.values, 0, 1) for sequence in self._find_results()]
        return results[0] if len(results) == 1 else results


def lstm_unit(
    x_t: jax.Array,
    hidden_t_prev: jax.Array,
    cell_t_prev: jax.Array,
    forget_bias: float = 0.0,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    name: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Apply one step of an LSTM without peepholes (Zaremba et al. 2014).

    Parameters: `w` `[features + hidden, 4 * hidden]`, Xavier uniform, for the input and the state
    joined; `b` `[4 * hidden]`, zeros. The gates are in the order input, forget, output, candidate,
    unlike in `dynamic_lstm`. Source: Fluid's `lstm_unit`.

    Arguments:
      x_t: the input, `[B, features]`.
      hidden_t_prev: the hidden state, `[B, hidden]`.
      cell_t_prev: the cell state, `[B, hidden]`.
      forget_bias: added to the forget gate before its sigmoid.

    Returns:
      The new hidden state and the new cell state, `[B, hidden]` each; the cell state is float32
      whatever the program's precision.

    >>> def program():
    ...     x, state = layers.data("x", [3]), layers.data("state", [2])
    ...     return layers.lstm_unit(x, state, state)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> hidden, cell = builder.infer(builder.init(), {"x": [[0.0] * 3], "state": [[0.0] * 2]})
    >>> hidden.shape, cell.shape
    ((1, 2), (1, 2))
    """
    frame = current_frame("lstm_unit")
    x, hidden, cell = map(jnp.asarray, (x_t, hidden_t_prev, cell_t_prev))
    why = "One step takes one word of each example. Use layers.dynamic_lstm for sequences."
    check_shape("layers.lstm_unit got x_t", x, why, ["B", "features"])
    check_shape("layers.lstm_unit got hidden_t_prev", hidden, why, [x.shape[0], "hidden"])
    check_shape("layers.lstm_unit got cell_t_prev", cell, why, hidden.shape)
    size = hidden.shape[1]
    path = frame.names.layer("lstm_unit", name)
    shape = [x.shape[1] + size, 4 * size]
    w = parameter(frame, path, "w", shape, XAVIER, param_attr, layer="lstm_unit")
    x, hidden = frame.cast(x), frame.cast(hidden)
    gates = multiply(frame, jnp.concatenate([x, hidden.astype(x.dtype)], axis=1), w)
    if bias_attr is not False:
        zeros = initializers.zeros
        b = parameter(frame, path, "b", [4 * size], zeros, bias_attr, layer="lstm_unit")
        gates = gates + b.reshape(1, 4 * size)
    take, forget, give, candidate = jnp.split(gates, 4, axis=1)
    kept = jax.nn.sigmoid(forget + forget_bias) * widen(cell)
    new_cell = kept + jax.nn.sigmoid(take) * jnp.tanh(candidate)
    return (jax.nn.sigmoid(give) * jnp.tanh(new_cell)).astype(x.dtype), new_cell


def gru_unit(
    input: jax.Array,
    hidden: jax.Array,
    size: int,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    activation: Gate = "tanh",
    gate_activation: Gate = "sigmoid",
    origin_mode: bool = False,
    name: str | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Apply one step of a GRU to a projected input.

    The parameters and the formula are those of `dynamic_gru`. Source: Fluid's `gru_unit`.

    Arguments:
      input: `[B, 3 * hidden]`: the input projected to the update gate, reset gate and candidate.
      hidden: the state, `[B, hidden]`.
      size: `3 * hidden`.
      activation: the activation of the candidate.
      origin_mode: as in `dynamic_gru`: the update gate weights the old state, not the candidate.

    Returns:
      The new state `[B, hidden]`, the state after the reset gate `[B, hidden]`, and the gates and
      the candidate `[B, 3 * hidden]`.

    >>> def program():
    ...     return layers.gru_unit(layers.data("x", [6]), layers.data("state", [2]), size=6)
    >>> builder = ps.ProgramBuilder(infer_func=program)
    >>> out = builder.infer(builder.init(), {"x": [[0.0] * 6], "state": [[2.0, 4.0]]})
    >>> [each.shape for each in out]
    [(1, 2), (1, 2), (1, 6)]
    """
    frame = current_frame("gru_unit")
    x, state = jnp.asarray(input), jnp.asarray(hidden)
    is_size = isinstance(size, int) and size > 0 and size % 3 == 0
    if not is_size or x.ndim != 2 or x.shape[1] != size or state.shape != (x.shape[0], size // 3):
        raise ProgramError(
            f"layers.gru_unit got an input of shape {x.shape}, hidden {state.shape} and size="
            f"{size!r}, expected [B, 3 * hidden], [B, hidden] and 3 * hidden. The input is "
            "projected to 3 gates before. Apply layers.fc of that size first."
        )
    gate = find_gate("gru_unit", "gate_activation", gate_activation)
    candidate = find_gate("gru_unit", "activation", activation)
    path = frame.names.layer("gru_unit", name)
    w = parameter(frame, path, "w", [size // 3, size], XAVIER, param_attr, layer="gru_unit")
    projected = widen(x)
    if bias_attr is not False:
        zeros = initializers.zeros
        projected += parameter(frame, path, "b", [1, size], zeros, bias_attr, layer="gru_unit")
    results = update_gru(frame, projected, widen(state), w, gate, candidate, origin_mode)
    dtype = frame.cast(state).dtype
    return results[0].astype(dtype), results[1].astype(dtype), results[2].astype(dtype)
