"""One run of a program function in the current trace, and advice where it fails."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import Mesh

from penstock import _mesh, _metrics
from penstock._errors import ProgramError
from penstock._parameter_names import Path
from penstock._program.frame import Frame, MicroBatch, open_frame
from penstock._program.names import ScopeModule, find_raising_line, find_user_lines
from penstock._program.precision import ProgramOptions
from penstock._program.requests import (
    PROBE_LENGTH,
    DeviceFeed,
    FeedSpec,
    Mode,
    Params,
    Variables,
)
from penstock.metrics import Metric

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
      shapes: of the returned values, as probed.
      has_sequences: whether it takes sequences.
      layout: how its batch lies on the devices.
      sown: collections of flax modules whose values the function asks for.
      options: of the builder; the precision is one of them.
      is_on_cpu: whether it is compiled for CPUs.
      counts_words: whether there is a mean over words, which micro-batches must know the number of.
    """

    function: Callable[[], object]
    mode: Mode
    feed_specs: dict[str, FeedSpec]
    structure: _metrics.Structure
    shapes: tuple[Any, ...]
    sown: frozenset[str]
    options: ProgramOptions
    is_on_cpu: bool
    counts_words: bool
    has_sequences: bool
    layout: _mesh.Layout

    @property
    def name(self) -> str:
        """What errors call it."""
        return name_program(self.function, self.mode)


def run_program(
    program: Runnable,
    variables: Variables,
    feed: DeviceFeed,
    batch_size: int,
    key: jax.Array,
    mesh: Mesh,
    *,
    step: jax.Array | None = None,
    micro_batch: MicroBatch | None = None,
) -> tuple[Evaluated, Frame]:
    """Run a program function on a batch; return what it returns, and the frame it ran in."""
    frame = Frame(
        mode=program.mode,
        variables=variables,
        # A batch may hold inputs of other programs of the builder.
        feed={name: feed[name] for name in program.feed_specs},
        batch_size=batch_size,
        key=key,
        mesh=mesh,
        step=step,
        compute_dtype=program.options.precision.compute_dtype,
        micro_batch=micro_batch,
        is_frozen=program.options.is_frozen,
        is_on_cpu=program.is_on_cpu,
    )
    result = evaluate(program.function, frame, program.sown)
    values = result.returned.values
    if program.has_sequences:
        _check_lengths(program, values, batch_size)
    for number, (value, rows) in enumerate(zip(values, program.structure.rows, strict=True)):
        # As a float, of which batches make a mean.
        if not rows and isinstance(value, jax.Array) and value.dtype.kind != "f":
            is_float = jnp.issubdtype(value.dtype, jnp.inexact)
            values[number] = value if is_float else value.astype(jnp.float32)
    return result, frame


def _check_lengths(program: Runnable, values: Sequence[_metrics.Value], batch_size: int) -> None:
    """Raise if the shape of a returned value depends on how long its sequences are padded.

    Of an infer program's, which are not averaged, only the rows of an example may not.

    Raises:
      ProgramError: naming the value.
    """
    known = zip(program.shapes, program.structure.rows, strict=True)
    for number, (value, (known_value, rows)) in enumerate(zip(values, known, strict=True)):
        if not isinstance(value, jax.Array):
            continue
        shape = known_value.shape
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
    """One run of a program function: values in order, the loss reduced to a scalar."""

    returned: _metrics.Returned
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
            # What is drawn depends on the key and the shape alone, on any number of devices.
            jax.threefry_partitionable(True),
            _note_modules(modules) if frame.is_probe else contextlib.nullcontext(),
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
    return Evaluated(
        **_find_means(returned, frame, owner),
        modules=modules,
        module_updates={name: updates[name] for name in set(updates) - frame.sown},
        sown=frozenset(frame.sown),
    )


def _find_means(returned: object, frame: Frame, owner: str) -> dict[str, Any]:
    """Return the values of a program function and their structure: the loss, and the means."""
    is_averaged = frame.mode != "infer"  # an infer function's predictions are not, nor minimised
    structure, values = _metrics.flatten_returned(returned, owner, is_averaged=is_averaged)
    if is_averaged:
        loss_index = _loss_index(structure, owner)
        structure = dataclasses.replace(structure, loss_index=loss_index)
        values[loss_index] = _scalar_loss(values[loss_index], frame, owner)
    means = [frame.means.get(id(value)) for value in values]
    words = [None if mean is None else mean.num_words for mean in means]
    counts = [count for count in words if count is not None]
    structure = dataclasses.replace(
        structure,
        is_mean=tuple([mean is not None for mean in means]),
        is_word_mean=tuple([count is not None for count in words]) if counts else (),
        is_of_part=tuple([m is not None and m.is_of_part for m in means]) if counts else (),
    )
    return {"returned": _metrics.Returned(values, counts), "structure": structure}


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


def _scalar_loss(loss: _metrics.Value, frame: Frame, owner: str) -> jax.Array:
    if isinstance(loss, Metric):
        raise ProgramError(
            f"{owner} got the metric {type(loss).__name__} as its loss, expected an array. The "
            "first value returned is minimised. Return the loss first, metrics after it."
        )
    if not jnp.issubdtype(loss.dtype, jnp.floating):
        raise ProgramError(
            f"{owner} got a loss of dtype {loss.dtype}, expected a floating dtype. The first value "
            "returned is minimised. Return the loss first, metrics after it."
        )
    if loss.ndim == 0:
        return loss
    # `[B]` and `[B, 1]`: a value for each example, of which the mean is meant.
    if loss.size == loss.shape[0] == frame.batch_size:
        return frame.mean(loss)
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


_NO_VALUES = (
    "{owner} asked for the values of an array at {line}, in {what}. A program is traced once, "
    "before there are any: no Python branch, loop or number can depend on them. {remedy}"
)

_REMEDIES: list[tuple[type[Exception], str, str]] = [
    (
        jax.errors.TracerBoolConversionError,
        "an if, a while, an assert, and, or, not",
        "Use jnp.where(condition, a, b) to choose for each example, jax.lax.cond to choose once, "
        "jax.lax.while_loop for a while, & | ~ for and, or, not.",
    ),
    (
        jax.errors.NonConcreteBooleanIndexError,
        "an index of True and False",
        "It would give an array of a length that depends on them. Use jnp.where(mask, x, 0).",
    ),
    (
        jax.errors.TracerIntegerConversionError,
        "range() or the index of a Python list",
        "Use jax.lax.fori_loop or jax.lax.scan for the loop, jnp.take for the index.",
    ),
    (
        jax.errors.TracerArrayConversionError,
        "a function of NumPy",
        "Use that of jax.numpy: jnp.sum for np.sum.",
    ),
    (
        jax.errors.ConcretizationTypeError,
        "float(), int(), .item() or a shape",
        "Leave it an array: jnp functions take it as a number; return it to see it in the metrics.",
    ),
]


def advise(error: Exception, owner: str) -> None:
    """Say in an error what to do where a program function asked for values, and where that was.

    In place of JAX's own words, which name what we trace and a file of ours. Other errors get a
    note that names the program.
    """
    # The last is a base class of the first, so their order counts.
    for kind, what, remedy in _REMEDIES:
        if isinstance(error, kind):
            line = find_raising_line(error) or "an unknown line"
            error.args = (_NO_VALUES.format(owner=owner, line=line, what=what, remedy=remedy),)
            return
    error.add_note(f"While tracing {owner}.")
    if isinstance(error, NameError) and "unbound axis name" in str(error):
        error.add_note(
            "A program function sees the whole batch, on any number of devices: leave out axis "
            "names and collectives over devices, such as axis_name= of flax's BatchNorm."
        )


def check_without_arguments(function: Callable[..., object]) -> None:
    """Raise unless a function can be called without arguments.

    Raises:
      TypeError: it needs some.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some that are written in C
        return
    try:
        signature.bind()
    except TypeError:
        name = getattr(function, "__name__", type(function).__name__)
        # A user most often wrote the data as an argument: the remedy names it.
        first = next(
            each.name
            for each in signature.parameters.values()
            if each.default is each.empty and not each.kind.name.startswith("VAR_")
        )
        raise TypeError(
            f"a program got {name}{signature}, expected a function without arguments. Data comes "
            f"in by layers.data: {first} = layers.data({first!r}, shape=[...]), fed by that "
            f"name. What is no data is bound before: functools.partial({name}, ...)."
        ) from None
