"""One run of a program function, in the trace that is current: what it returns and leaves.

And what flax modules do otherwise inside it: they follow the example, not the device.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from penstock import _mesh, _metrics
from penstock._errors import ProgramError
from penstock._parameter_names import Path
from penstock._program import draws
from penstock._program.examples import MicroBatch, RowAnswers
from penstock._program.frame import Frame, open_frame
from penstock._program.names import ScopeModule
from penstock._program.options import ProgramOptions
from penstock._program.requests import (
    PROBE_LENGTH,
    DeviceFeed,
    FeedSpec,
    Mode,
    Params,
    Variables,
)
from penstock._program.statistics import has_example_axis, sync_statistics
from penstock._program.user_lines import find_user_lines
from penstock._tracing.advice import advise

Stack = tuple[str, ...]
Named = list[tuple[Stack, Path]]
"""The user's lines from the program function down, and the path of what they made."""


def name_program(function: Callable[[], object], mode: str) -> str:
    """Return how errors name a program."""
    return f"the {mode} program of {getattr(function, '__name__', repr(function))}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runnable:
    """A program function in one mode, and what its probes have found that every run of it needs.

    Attributes:
      feed_specs: the inputs, by name, in the order of their `layers.data` calls.
      structure: how the returned values are arranged.
      shapes: of the returned values, as probed, where the program takes sequences.
      rows: which arrays had a batch axis; real runs repeat it.
      sown: collections of flax modules whose values the function asks for.
      options: of the builder; the precision is one of them.
      is_on_cpu: whether it is compiled for CPUs.
      counts_words: whether there is a mean over words, which micro-batches must know the number of.
      reduces_once: each device may compute its share apart, as a micro-batch, since the means of
        the devices make up those of the batch. What they have is then added up in one all-reduce.
    """

    function: Callable[[], object]
    mode: Mode
    feed_specs: dict[str, FeedSpec]
    structure: _metrics.Structure
    shapes: tuple[tuple[int, ...], ...]
    rows: RowAnswers
    sown: frozenset[str]
    options: ProgramOptions
    is_on_cpu: bool
    counts_words: bool
    reduces_once: bool

    @property
    def name(self) -> str:
        """What errors call it."""
        return name_program(self.function, self.mode)


def run_program(
    program: Runnable,
    variables: Variables,
    feed: DeviceFeed,
    weights: jax.Array,
    key: jax.Array,
    num_devices: int,
    step: jax.Array | None = None,
    micro_batch: MicroBatch | None = None,
) -> tuple[Evaluated, Frame]:
    """Run a program function on one device's share of a batch.

    Returns:
      What it returns, and the frame it ran in. Values without a batch axis are averaged over the
      devices, but those of a micro-batch.
    """
    frame = Frame(
        mode=program.mode,
        variables=variables,
        # A batch may hold inputs of other programs of the builder.
        feed={name: feed[name] for name in program.feed_specs},
        weights=weights,
        key=key,
        num_devices=num_devices,
        rows=RowAnswers(weights.shape[0], known=program.rows),
        step=step,
        compute_dtype=program.options.precision.compute_dtype,
        micro_batch=micro_batch,
        is_frozen=program.options.is_frozen,
        is_on_cpu=program.is_on_cpu,
    )
    result = evaluate(program.function, frame, program.sown)
    if program.shapes:
        _check_lengths(program, result.values, weights.shape[0])
    for number, rows in enumerate(program.structure.rows):
        if not rows:
            value = result.values[number]
            # As a float, in which devices may be averaged, on one device too.
            value = value if jnp.issubdtype(value.dtype, jnp.inexact) else value.astype(jnp.float32)
            result.values[number] = _mesh.pmean(value, frame.examples.num_averaged)
    return result, frame


def _check_lengths(program: Runnable, values: Sequence[jax.Array], batch_size: int) -> None:
    """Raise if the shape of a returned value depends on how long its sequences are padded.

    Of an infer program's, which are not averaged, only the rows of an example may not.

    Raises:
      ProgramError: naming the value.
    """
    known = zip(program.shapes, program.structure.rows, strict=True)
    for number, (value, (shape, rows)) in enumerate(zip(values, known, strict=True)):
        expected = (rows * batch_size, *shape[1:]) if rows else shape
        is_checked = rows > 0 or program.mode != "infer"
        end = 1 if program.mode == "infer" else None
        if is_checked and value.shape[:end] != expected[:end]:
            raise ProgramError(
                f"{program.name} has {program.structure.label(number)} of shape "
                f"{list(value.shape)}, and of {list(expected)} where sequences are padded to "
                f"{PROBE_LENGTH}, expected one shape whatever their lengths. Padding would count. "
                "Return layers.mean or layers.sequence_pool of the sequence"
                + (", or the sequence itself." if program.mode == "infer" else ".")
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluated:
    """One run of a program function: values in order, the loss reduced to a scalar.

    `word_counts` are the words of the global batch, of each value that is a mean over words.
    """

    values: list[jax.Array]
    word_counts: list[jax.Array]
    structure: _metrics.Structure
    modules: Named
    module_updates: dict[str, Params]
    sown: frozenset[str]


def evaluate(
    function: Callable[[], object], frame: Frame, sown: frozenset[str] = frozenset()
) -> Evaluated:
    """Run a program function inside `frame`, in the trace that is current.

    On a probe `module_updates` holds every variable that flax modules asked for, otherwise their
    new running statistics.

    Raises:
      ProgramError: nothing is returned, or the loss is neither a scalar nor a vector over examples.
        Errors of the function itself pass, with a note that names the program.
    """
    owner = name_program(function, frame.mode)
    rngs = {
        # flax's modules draw from these; ours from keys by their own paths.
        "params": jax.random.fold_in(frame.key, 0),
        "dropout": jax.random.fold_in(frame.key, 1),
    }
    frame.sown, module = set(sown), ScopeModule()
    modules: Named = []

    def run(bound: ScopeModule) -> object:
        frame.module = bound
        return bound(function)

    try:
        with (
            open_frame(frame),
            # First, so that it sees modules that the next one runs itself.
            _note_modules(modules) if frame.is_probe else contextlib.nullcontext(),
            _follow_examples(frame),
        ):
            options: Any = {"rngs": rngs, "method": run}
            if frame.is_probe:
                # All collections: what a module sows would be left out, without a word.
                returned, updates = module.init_with_output(mutable=True, **options)
            else:
                # In the other modes a module that moves statistics raises, as flax has it.
                statistics = ["batch_stats"] if frame.mode == "train" else []
                returned, updates = module.apply(
                    dict(frame.requests.variables), mutable=[*statistics, *sown], **options
                )
    except Exception as error:
        advise(error, owner)
        raise
    is_averaged = frame.mode != "infer"  # an infer function's predictions are not, nor minimised
    structure, values = _metrics.flatten_returned(returned, owner, is_averaged=is_averaged)
    structure, counts = _find_means(structure, values, frame, owner)
    return Evaluated(
        values=values,
        word_counts=counts,
        structure=structure,
        modules=modules,
        module_updates={name: updates[name] for name in set(updates) - frame.sown},
        sown=frozenset(frame.sown),
    )


def _find_means(
    structure: _metrics.Structure, values: list[jax.Array], frame: Frame, owner: str
) -> tuple[_metrics.Structure, list[jax.Array]]:
    """Reduce the loss; return which values are means over words, and the words of those."""
    if frame.mode != "infer":
        loss_index = _loss_index(structure, owner)
        structure = dataclasses.replace(structure, loss_index=loss_index)
        values[loss_index] = _scalar_loss(values[loss_index], frame, owner)
    if not frame.examples.word_means:
        return structure, []
    means = [frame.examples.word_means.get(id(value)) for value in values]
    structure = dataclasses.replace(
        structure, is_word_mean=tuple([each is not None for each in means])
    )
    return structure, [each[1] for each in means if each is not None]


def _loss_index(structure: _metrics.Structure, owner: str) -> int:
    """Return which of the returned values is the loss: the one of that name, else the first."""
    keys = structure.keys or ()
    index = keys.index("loss") if "loss" in keys else 0
    if structure.is_nested[index]:
        raise ProgramError(
            f"{owner} has {structure.label(index)} where the loss is expected: an array, first or "
            "under the key 'loss', and not nested. It is minimised. Return the loss first, nested "
            "metrics after it."
        )
    return index


def _scalar_loss(loss: jax.Array, frame: Frame, owner: str) -> jax.Array:
    if not jnp.issubdtype(loss.dtype, jnp.floating):
        raise ProgramError(
            f"{owner} got a loss of dtype {loss.dtype}, expected a floating dtype. The first value "
            "returned is minimised. Return the loss first, metrics after it."
        )
    if loss.ndim == 0:
        return loss
    # `[B]` and `[B, 1]`: a value for each example, of which the mean is meant.
    if loss.size == loss.shape[0] and frame.examples.count_rows(loss) == 1:
        return frame.examples.mean(loss)
    raise ProgramError(
        f"{owner} got a loss of shape {list(loss.shape)}, expected a scalar, [B] or [B, 1]. The "
        "first value returned is minimised. Reduce it, e.g. with layers.mean."
    )


def _note_modules(named: Named) -> contextlib.AbstractContextManager[None]:
    """Return a context that adds flax modules with automatic names to `named`."""

    def note(
        call: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        context: Any,
    ) -> object:
        module, path = context.module, tuple(context.module.path)
        # Scopes are modules too, of ours; and a module's other methods make no new name.
        is_ours = isinstance(module, ScopeModule) or context.method_name != "__call__"
        if not is_ours and path and re.fullmatch(rf"{type(module).__name__}_\d+", path[-1]):
            named.append((find_user_lines(2), path))
        return call(*args, **kwargs)

    return nn.intercept_methods(note)


def _follow_examples(frame: Frame) -> contextlib.AbstractContextManager[None]:
    """Return the context in which flax modules follow the example, not the device.

    Their dropout draws by the examples' places in the global batch, as `layers.dropout` does. Their
    batch norm normalises by the statistics of the valid examples of the global batch, as
    `layers.batch_norm` does with `sync=True`: flax's own count padding, and average means of
    devices.
    """

    def intercept(
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        context: Any,
    ) -> object:
        module = context.module
        # A subclass with a call of its own does as it says.
        is_call = context.method_name == "__call__"
        if is_call and type(module).__call__ is nn.Dropout.__call__:
            return _drop(frame, module, call, *args, **kwargs)
        if is_call and type(module).__call__ is nn.BatchNorm.__call__:
            return _normalize(frame, module, call, *args, **kwargs)
        return call(*args, **kwargs)

    return nn.intercept_methods(intercept)


def _drop(
    frame: Frame,
    module: nn.Dropout,
    call: Callable[..., jax.Array],
    inputs: jax.Array,
    deterministic: bool | None = None,
    rng: jax.Array | None = None,
) -> jax.Array:
    is_off = module.deterministic if deterministic is None else deterministic
    # Nothing is drawn here; without either argument flax's own call raises.
    if is_off is None or is_off or module.rate in (0.0, 1.0):
        return call(inputs, deterministic, rng)
    key = module.make_rng(module.rng_collection) if rng is None else rng
    dims = module.broadcast_dims
    return draws.drop_elements(frame, inputs, key, module.rate, dims, tuple(module.path))


def _normalize(
    frame: Frame,
    module: nn.BatchNorm,
    call: Callable[..., jax.Array],
    x: jax.Array,
    use_running_average: bool | None = None,
    *,
    mask: jax.Array | None = None,
) -> jax.Array:
    is_running = module.use_running_average if use_running_average is None else use_running_average
    path = tuple(module.path)
    # A mask of the user's says which rows count, and flax follows it.
    if is_running is not False or mask is not None:
        return call(x, use_running_average, mask=mask)
    if not has_example_axis(frame, x, module.axis, path):
        return call(x, use_running_average)
    with _use_running_statistics(module):
        if module.is_initializing():  # on a probe: what it makes is asked for, not its values
            return call(x)
        running = tuple(module.get_variable("batch_stats", leaf) for leaf in ("mean", "var"))
        # flax is given the batch's statistics as if they were the running ones: normalisation,
        # dtypes and parameters remain its own.
        *batch, after = sync_statistics(frame, x, module.axis, running, module.momentum)
        _put(module, batch)
        y = call(x)
    # After the call, which has read the batch's in their place.
    _put(module, after)
    return y


@contextlib.contextmanager
def _use_running_statistics(module: nn.BatchNorm) -> Iterator[None]:
    # A module is frozen, and refuses the argument in a call where its constructor had it.
    before = module.use_running_average
    object.__setattr__(module, "use_running_average", True)
    try:
        yield
    finally:
        object.__setattr__(module, "use_running_average", before)


def _put(module: nn.BatchNorm, statistics: Sequence[jax.Array]) -> None:
    for leaf, value in zip(("mean", "var"), statistics, strict=True):
        module.put_variable("batch_stats", leaf, value)
