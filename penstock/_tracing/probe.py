"""A program function, run: with values, or without, to learn what it needs and what it returns.

A probe is an abstract run. Where a function returns more than single numbers it is probed with two
batch sizes: what differs is the batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import logging
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import starmap
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from penstock import _mesh, _metrics
from penstock._errors import ProgramError
from penstock._mesh import Layout
from penstock._parameter_names import Key, Path, flatten, nest, nest_variables, spell
from penstock._program.frame import (
    Frame,
    MicroBatch,
    Mode,
    ParameterSpec,
    ScopeModule,
    Variables,
    make_root,
    open_frame,
    wrap_key,
)
from penstock._program.inputs import PROBE_COUNT, PROBE_LENGTH, DeviceFeed, FeedSpec, Ids
from penstock._program.precision import ProgramOptions
from penstock._program.user_lines import find_raising_frame, find_user_lines
from penstock._tracing import untrained
from penstock.metrics import Metric, RowMetric

_LOGGER = logging.getLogger("penstock")

Stack = tuple[str, ...]
Named = list[tuple[Stack, Path]]
"""The user's lines from the program function down, and the path of what they made."""

ShapeTable: TypeAlias = dict[Key, tuple[tuple[int, ...], np.dtype]]
"""Shape and dtype of every entry of the parameter tree, by collection and path."""


def name_program(function: Callable[[], object], mode: str) -> str:
    return f"the {mode} program of {getattr(function, '__name__', repr(function))}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """What one program function does in one mode.

    Attributes:
      counts_words: whether there is a mean over words, which micro-batches must know the number of.
      specs: the entries that penstock's layers asked for, by path, in order.
      named: everything with an automatic name, and the user's lines that made it.
      shape_table: shape and dtype of every entry of the tree, those of flax modules among them.
      splits_features: whether parameters lie split over a second axis of the mesh while used.
      is_mode_read: whether the function has asked for the mode; it does the same in all otherwise.
      has_size: whether an infer function computes with the number of examples, as `x * len(x)`.
      lookups: tables of ids that the program computes.
    """

    function: Callable[[], object]
    mode: Mode
    feed_specs: dict[str, FeedSpec]
    structure: _metrics.Structure
    layout: Layout
    splits_features: bool
    sown: frozenset[str]
    options: ProgramOptions
    is_on_cpu: bool
    counts_words: bool
    specs: dict[Path, ParameterSpec]
    named: Named
    shape_table: ShapeTable
    is_mode_read: bool
    has_size: bool
    has_convolution: bool
    trace: ClosedJaxpr
    lookups: tuple[Ids, ...]

    @property
    def name(self) -> str:
        return name_program(self.function, self.mode)

    def on_one_device(self) -> Probe:
        """Return the program for the first device of this process alone."""
        mesh = _mesh.make_mesh(jax.local_devices()[:1])
        return dataclasses.replace(self, options=dataclasses.replace(self.options, mesh=mesh))


def run_program(
    program: Probe,
    variables: Variables,
    feed: DeviceFeed,
    batch_size: int,
    key: jax.Array,
    *,
    step: jax.Array | None = None,
    micro_batch: MicroBatch | None = None,
) -> Evaluated:
    """Run a program function on a batch."""
    options = program.options
    lay_out = functools.partial(options.lay_out, is_split=program.splits_features)
    frame = Frame(
        mode=program.mode,
        variables=_lay_out_modules(program, variables),
        # A batch may hold inputs of other programs of the builder.
        feed={name: feed[name] for name in program.feed_specs},
        batch_size=batch_size,
        key=key,
        lay_out=lay_out if options.mesh.size > 1 else None,
        stack=lambda paths, values: options.stack([program.specs[p] for p in paths], values),
        step=step,
        compute_dtype=options.precision.compute_dtype,
        micro_batch=micro_batch,
        is_frozen=options.is_frozen,
        is_on_cpu=program.is_on_cpu,
    )
    result = evaluate(program.function, frame, program.sown)
    values = result.returned.values
    for number, (value, item) in enumerate(zip(values, program.structure.items, strict=True)):
        if not isinstance(value, jax.Array):
            continue
        if frame.has_sequences:
            _check_lengths(program, value, item, batch_size)
        # As a float, of which batches make a mean. Answers have none: an id stays what it is.
        is_averaged = program.mode != "infer" and not item.rows
        if is_averaged and not jnp.issubdtype(value.dtype, jnp.inexact):
            values[number] = value.astype(jnp.float32)
    return result


def _lay_out_modules(program: Probe, variables: Variables) -> Variables:
    """Return variables with those of flax modules whole, which read them without us."""
    if program.options.state_sharding is None and program.splits_features:
        return variables
    params = flatten(variables["params"])
    for path in params.keys() - program.specs.keys():
        params[path] = _mesh.lay_out(params[path], program.options.mesh, _mesh.WHOLE)
    return {**variables, "params": nest(params)}


def _check_lengths(program: Probe, value: jax.Array, item: _metrics.Item, batch_size: int) -> None:
    """Raise if the shape of a returned value depends on how long its sequences are padded.

    Of an infer program's, which are not averaged, only the rows of an example may not.
    """
    is_infer, shape = program.mode == "infer", item.shape.shape
    expected = (item.rows * batch_size, *shape[1:]) if item.rows else shape
    end = 1 if is_infer else None
    if (item.rows or not is_infer) and value.shape[:end] != expected[:end]:
        raise ProgramError(
            f"{program.name} has {item.label} of shape "
            f"{list(value.shape)}, and of {list(expected)} where sequences are padded to "
            f"{PROBE_LENGTH}, expected one shape whatever their lengths. Padding would count. "
            "Return layers.mean or layers.sequence_pool of the sequence"
            + (", or the sequence itself." if is_infer else ".")
        )


class Evaluated(NamedTuple):
    """One run of a program function: its frame, its values in order, the loss a scalar.

    On a probe `module_updates` holds every variable that flax modules asked for, otherwise their
    new running statistics; `named` holds the modules with automatic names.
    """

    frame: Frame
    returned: _metrics.Returned
    structure: _metrics.Structure
    named: Named
    module_updates: Variables


def evaluate(
    function: Callable[[], object], frame: Frame, sown: frozenset[str] = frozenset()
) -> Evaluated:
    """Run a program function inside `frame`, in the trace that is current."""
    owner = name_program(function, frame.mode)
    rngs = {
        # flax's modules draw from these; ours from keys by their own paths.
        "params": jax.random.fold_in(frame.key, 0),
        "dropout": jax.random.fold_in(frame.key, 1),
    }
    frame.sown, module = set(sown), ScopeModule()
    named: Named = []
    try:
        with (
            open_frame(frame),
            # What is drawn depends on the key and the shape alone, on any number of devices.
            jax.threefry_partitionable(True),
            _note_modules(named) if frame.is_probe else contextlib.nullcontext(),
        ):
            if frame.is_probe:
                # All collections: what a module sows would be left out, without a word.
                made: Any = module.init_with_output(rngs, function, frame, mutable=True)
            else:
                # In the other modes a module that moves statistics raises, as flax has it.
                statistics = ["batch_stats"] if frame.mode == "train" else []
                options: Any = {"rngs": rngs, "mutable": [*statistics, *sown]}
                made = module.apply(dict(frame.variables), function, frame, **options)
            returned, updates = made
    except Exception as error:
        advise(error, owner)
        raise
    arranged, structure = _find_means(returned, frame, owner)
    # Without the names of axes that `nn.with_partitioning` puts around an array: we lay it out.
    kept = nn.meta.unbox({name: updates[name] for name in set(updates) - frame.sown})
    return Evaluated(frame, arranged, structure, named, kept)


def _find_means(
    returned: object, frame: Frame, owner: str
) -> tuple[_metrics.Returned, _metrics.Structure]:
    """Return the values of a program function and their structure: the loss, and the means."""
    is_averaged = frame.mode != "infer"  # an infer function's predictions are not, nor minimised
    structure, values = _metrics.flatten_returned(returned, owner, is_averaged=is_averaged)
    if is_averaged:
        loss_index = _loss_index(structure, owner)
        structure = dataclasses.replace(structure, loss_index=loss_index)
        values[loss_index] = _scalar_loss(values[loss_index], frame, owner)
    items, counts = [], []
    for item, value in zip(structure.items, values, strict=True):
        mean = frame.means.get(id(value))
        count = None if mean is None else mean.num_words
        if count is not None:
            counts.append(count)
        item = dataclasses.replace(
            item,
            shape=jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), value),
            is_mean=mean is not None,
            counts_words=count is not None,
            is_of_part=mean is not None and mean.is_of_part,
        )
        items.append(item)
    return _metrics.Returned(values, counts), dataclasses.replace(structure, items=tuple(items))


def _loss_index(structure: _metrics.Structure, owner: str) -> int:
    """Return which of the returned values is the loss: the one of that name, else the first."""
    keys = [item.key for item in structure.items]
    index = keys.index("loss") if "loss" in keys else 0
    item = structure.items[index]
    if item.is_nested:
        raise ProgramError(
            f"{owner} has {item.label} where the loss is expected: an array, first or under the "
            "key 'loss', and not nested. It is minimised. Return the loss first, metrics after it."
        )
    return index


def _scalar_loss(loss: _metrics.Value, frame: Frame, owner: str) -> jax.Array:
    got = f"the metric {type(loss).__name__}"
    if not isinstance(loss, Metric):
        is_floating = jnp.issubdtype(loss.dtype, jnp.floating)
        if is_floating and loss.ndim == 0:
            return loss
        # `[B]` and `[B, 1]`: a value for each example, of which the mean is meant.
        if is_floating and loss.size == loss.shape[0] == frame.batch_size:
            return frame.mean(loss)
        got = f"{loss.dtype} of shape {list(loss.shape)}"
    raise ProgramError(
        f"{owner} got {got} as its loss, expected a scalar, [B] or [B, 1] of a floating dtype. The "
        "first value is minimised. Return the loss first, as by layers.mean, and metrics after it."
    )


def _note_modules(named: Named) -> contextlib.AbstractContextManager[None]:
    """Return a context that adds flax modules with automatic names to `named`."""

    def note(
        call: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        context: Any,
    ) -> object:
        module = context.module
        # One without a scope was made outside of the program, and flax knows no path of it.
        path = () if module.scope is None else tuple(module.path)
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


_OUTSIDE = (
    "A module of flax.linen that was made outside of the program function has no parameters in its "
    "tree. Make it inside, as in Net()(x)."
)

# What is in the error of JAX or flax: of a module that is compact, of one with setup.
_NOTES = (
    (
        "unbound axis name",
        "A program function sees the whole batch, on any number of devices: leave out axis "
        "names and collectives over devices, such as axis_name= of flax's BatchNorm.",
    ),
    ("CallCompactUnboundModuleError", _OUTSIDE),
    ("defined in '.setup()'", _OUTSIDE),
    (
        "ModifyScopeVariableError",
        "Test and infer programs change no statistics. Tell the module which it is in, such as "
        "use_running_average=not layers.is_training().",
    ),
)


def advise(error: Exception, owner: str) -> None:
    """Say in an error, in place of JAX's words, what to do where a function asked for values."""
    # The last is a base class of the first, so their order counts.
    for kind, what, remedy in _REMEDIES:
        if isinstance(error, kind):
            frame = find_raising_frame(error)
            line = f"{frame.filename}:{frame.lineno}" if frame else "an unknown line"
            error.args = (_NO_VALUES.format(owner=owner, line=line, what=what, remedy=remedy),)
            return
    error.add_note(f"While tracing {owner}.")
    for sign, note in _NOTES:
        if sign in f"{type(error).__name__}: {error}":
            error.add_note(note)


# One probe of a prime size took a parameter of [502, 3] for a batch. The second costs 10 ms for a
# small network, and 0.7 s for ResNet-50.
PROBE_BATCH_SIZES = (480, 672)
"""The batch sizes of the two probes of a program. They share many divisors, so that a function that
takes its batch apart in halves or eighths is traced too."""


_SHAPE_WITH_BATCH = re.compile(r"\(((?:[\d.*B]+, )*(?:\d+\*)?B(?:, [\d.*B]+)*),?\)")
"""A tuple such as `(B, 3)`, which is shown as `[B, 3]`."""


def name_batch(message: str, other: str) -> str:
    """Return a message of the first probe with `B` where that of the second has its batch size."""
    first, second = PROBE_BATCH_SIZES
    parts, other_parts = re.split(r"(\d+)", message), re.split(r"(\d+)", other)
    # Another text, and not only other numbers: nothing can be told.
    if parts[::2] != other_parts[::2]:
        return message
    for number in range(1, len(parts), 2):
        a, b = int(parts[number]), int(other_parts[number])
        if a != b and a * second == b * first:
            count = a // first if a % first == 0 else a / first
            parts[number] = "B" if count == 1 else f"{count}*B"
    return _SHAPE_WITH_BATCH.sub(r"[\1]", "".join(parts))


def compare_rows(shape: tuple[int, ...], other: tuple[int, ...]) -> int | None:
    """Return the rows per example, from the shapes of one array in both probes.

    0 without a batch axis, None where the batch axis is not the first alone.
    """
    if shape == other:
        return 0
    first, second = PROBE_BATCH_SIZES
    rows = shape[0] // first if shape else 0
    both = (rows * first, *shape[1:]), (rows * second, *shape[1:])
    return rows if rows and both == (shape, other) else None


def probe(function: Callable[[], object], mode: Mode, options: ProgramOptions) -> Probe:
    """Run a program function without values, with two batch sizes: what differs is the batch."""
    mesh, (first, second) = options.mesh, PROBE_BATCH_SIZES

    def build(size: int) -> tuple[Any, ...]:
        sizes = (size, PROBE_COUNT, PROBE_LENGTH)
        feed = {n: s.build(sizes, jax.ShapeDtypeStruct) for n, s in frame.feed_specs.items()}
        return _nest_table(table), feed, frozenset(frame.sown)

    @functools.cache
    def trace(size: int, has_variables: bool) -> tuple[Evaluated, ClosedJaxpr]:
        run = functools.partial(_trace, function, mode, options)
        try:
            return run(size, *(build(size) if has_variables else ()))
        except Exception as error:
            if size == first:
                _name_batch(error, lambda: run(second, *(build(second) if has_variables else ())))
            raise

    result, _ = trace(first, False)
    frame, owner = result.frame, name_program(function, mode)
    structure = _find_rows(result, lambda: trace(second, False)[0], owner)
    table = _make_table(frame.specs, result.module_updates)

    def list_traces(size: int) -> list[Any]:
        # flax's modules make variables in a probe, and may do else where they have them.
        operations = trace(size, len(table) > len(frame.specs))[1]
        return [operations, *untrained.list_traces(operations.eqns)]

    traces = list_traces(first)
    names = {e.primitive.name for part in traces for e in part.eqns}
    has_convolution = _CONVOLUTION in names
    if mode == "train":
        # Of values, of which a metric is several results.
        before = structure.items[: structure.loss_index]
        place = len(jax.tree.leaves([item.shape for item in before]))
        untrained.check_constants(function, traces, place, owner)
    layout, add = "split", _add_own_gradients if mode == "train" else list
    num_parts = _mesh.count_parts(mesh)
    if mesh.size > 1:
        traces = add(traces)
    if num_parts > 1:
        layout = choose_layout(traces, lambda: add(list_traces(second)))
    if layout == "split" and len(mesh.axis_names) > 1:
        # XLA (of JAX 0.10.2) takes rows twice in the gradient of a lookup where a batch is split
        # unevenly and the mesh has a second axis: 21 rows on 4 x 2 devices.
        layout = "even"
    if 1 < num_parts < mesh.size and _convolves_in_groups(traces):
        layout = "whole"
    if layout == "whole":
        warn_of_whole(f"{owner} is computed", "More devices make it no faster")
    splits_features = not _mixes_features(traces, mesh.size // num_parts)
    if splits_features and len(mesh.axis_names) > 1 and names & _WINDOWED:
        splits_features = not _slides_over_features(trace(first, True)[1], table, frame, options)
    if not splits_features:
        price = "The other axes of the mesh make it no faster"
        warn_of_whole(f"{owner} uses its parameters", price)
    counted = [(spec.stack, path[:-1]) for path, spec in frame.specs.items() if spec.is_automatic]
    return Probe(
        function=function,
        mode=mode,
        feed_specs=frame.feed_specs,
        structure=structure,
        layout=layout,
        splits_features=splits_features,
        sown=frozenset(frame.sown),
        options=options,
        is_on_cpu=_mesh.is_on_cpu(mesh),
        counts_words=bool(frame.word_counts),
        specs=frame.specs,
        named=[*counted, *result.named],
        shape_table=table,
        is_mode_read=frame.is_mode_read,
        # Where a value has no rows, no batch is padded, and there may be no second trace.
        has_size=mode == "infer"
        and all(item.rows for item in structure.items)
        and _has_other_floats(trace(first, False)[1], trace(second, False)[1]),
        has_convolution=has_convolution,
        trace=traces[0],
        lookups=tuple(frame.lookups),
    )


def _has_other_floats(*traces: ClosedJaxpr) -> bool:
    """Return whether a float that stands in one trace of a function is another in the other.

    An integer may be: indices count from the end.
    """
    floats = []
    for trace in traces:
        parts = (trace, *untrained.list_traces(trace.eqns))
        read: list[Any] = [x for part in parts for equation in part.eqns for x in equation.invars]
        literals = [(x.val, x.aval.dtype) for x in read if hasattr(x, "val")]
        floats.append([str(x) for x, dtype in literals if jnp.issubdtype(dtype, jnp.floating)])
    return floats[0] != floats[1]


def warn_of_whole(what: str, price: str) -> None:
    """Log that something is done whole on every device, and what that costs."""
    _LOGGER.warning(
        "%s whole on every device: XLA splits one of its operations wrongly (a cumulative one, a "
        "maximum over windows, a reduction of its own, a Fourier transform, a sort of a part, a "
        "convolution). %s",
        what,
        price,
    )


def _find_rows(
    result: Evaluated, run_again: Callable[[], Evaluated], owner: str
) -> _metrics.Structure:
    """Return the structure of what is returned, with what of it has a batch axis."""
    structure, items = result.structure, []
    leaves = jax.tree.leaves([item.shape for item in structure.items])
    has_axes = any(map(operator.attrgetter("shape"), leaves))
    again = run_again().structure if has_axes else structure
    for item, other in zip(structure.items, again.items, strict=True):
        rows = 0
        if item.is_metric:
            _check_metric(item, other.shape, owner)
        elif item.shape.shape or other.shape.shape:
            rows = _find_returned_rows(item, other.shape.shape, owner, result.frame.mode)
        items.append(dataclasses.replace(item, rows=rows))
    return dataclasses.replace(structure, items=tuple(items))


def _check_metric(item: _metrics.Item, other: object, owner: str) -> None:
    shapes = [[leaf.shape for leaf in jax.tree.leaves(sums)] for sums in (item.shape, other)]
    if isinstance(item.shape, RowMetric):
        if not all(starmap(compare_rows, zip(*shapes, strict=True))):
            raise ProgramError(
                f"{owner} has a metric that keeps rows as {item.label}, with shapes {shapes[0]} "
                f"for {PROBE_BATCH_SIZES[0]} examples, expected rows of examples in front of each: "
                "a test joins them along axis 0. Hold sums in a penstock.metrics.Metric."
            )
    elif shapes[0] != shapes[1]:
        raise ProgramError(
            f"{owner} has a metric with a batch axis as {item.label}, expected sums over the "
            "batch: batches of any size add them up. Sum over axis 0, or derive it from RowMetric. "
            "Those of penstock.metrics are made by their of(...)."
        )


def _trace(
    function: Callable[[], object],
    mode: Mode,
    options: ProgramOptions,
    batch_size: int,
    variables: Variables | None = None,
    feed: DeviceFeed | None = None,
    sown: frozenset[str] = frozenset(),
) -> tuple[Evaluated, ClosedJaxpr]:
    """Run a program function without values: as a probe, or with variables and a feed."""
    seen: list[Evaluated] = []

    # The key and the step go in, so that what each step draws is told from constants.
    def body(
        root: jax.Array,
        step: jax.Array,
        anchor: jax.Array,
        variables: Variables,
        feed: DeviceFeed | None,
    ) -> list[_metrics.Value]:
        frame = Frame(
            mode=mode,
            variables=variables,
            feed=feed,
            batch_size=batch_size,
            key=wrap_key(root),
            anchor=anchor,
            step=step,
            compute_dtype=options.precision.compute_dtype,
            is_frozen=options.is_frozen,
        )
        seen.append(evaluate(function, frame, sown))
        return seen[0].returned.values

    step, anchor = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((), jnp.float32)
    operands = (jax.eval_shape(lambda: make_root(0)), step, anchor, variables or {}, feed)
    # What is evaluated holds tracers; the program itself is looked through for leaks.
    with jax.check_tracer_leaks(False):
        trace = jax.make_jaxpr(body)(*operands)
    return seen[0], trace


def _nest_table(table: ShapeTable) -> Any:
    return nest_variables({key: jax.ShapeDtypeStruct(*entry) for key, entry in table.items()})


def _make_table(specs: Mapping[Path, ParameterSpec], of_modules: Variables) -> ShapeTable:
    """Return the shapes of what layers and flax modules asked for."""
    if unknown := sorted(set(of_modules) - {"params", "batch_stats"}):
        raise ProgramError(
            f"a flax module got the variable collections {unknown}, expected 'params' and "
            "'batch_stats' only. A program carries nothing else from step to step. Of what modules "
            f"sow ask for it: layers.sown({unknown[0]!r})."
        )
    table: ShapeTable = {
        (spec.collection, path): (spec.shape, spec.dtype) for path, spec in specs.items()
    }
    for collection, tree in of_modules.items():
        for path, value in flatten(tree).items():
            # A path that is a leaf of ours cannot be a folder of a module's.
            for prefix in specs.keys() & {path[: n + 1] for n in range(len(path))}:
                raise ProgramError(
                    f"a flax module got the name of penstock's own {spell(prefix)!r}. Rename one."
                )
            table[collection, path] = (value.shape, value.dtype)
    return table


def _name_batch(error: Exception, rerun: Callable[[], object]) -> None:
    try:
        rerun()
    except Exception as other:
        # Only the same error with other numbers tells which of them is the batch size.
        text, other_text = (raised.args[0] if raised.args else None for raised in (error, other))
        if type(error) is type(other) and isinstance(text, str) and isinstance(other_text, str):
            error.args = (name_batch(text, other_text), *error.args[1:])


def _find_returned_rows(item: _metrics.Item, other: tuple[int, ...], owner: str, mode: Mode) -> int:
    """Return how many rows of a returned value belong to one example, 0 without a batch axis."""
    shape = item.shape.shape
    rows, shown = compare_rows(shape, other), name_batch(str(shape), str(other))
    if rows is None and mode != "infer":
        raise ProgramError(
            f"{owner} has {item.label} of shape {shown}, expected the batch axis B first and "
            "nowhere else, or a value without one. Over batches it is averaged along axis 0. Move "
            "the batch axis to the front, e.g. with jnp.moveaxis, or reduce it with layers.mean."
        )
    return rows or 0


_CUMULATIVE = {"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"}
"""Two of different kinds over one array: the second is silently wrong."""

_OF_NUMBERS = " of whole numbers"

_REDUCTIONS = {"reduce", "reduce_xor"}
"""Of an operation that the devices' all-reduce does not know: an error on CPU."""

_LOOKUP = "lookup"
"""By unsigned numbers, as in the gradient of a sort: an uneven split of them ends the process."""


_WINDOW = "maximum over windows of features"
"""Its gradient is silently wrong where they overlap. Height, width and words lie further inside:
they lie split where an image is made of split features, see `_slides_over_features`."""

_PAD = "pad"

_TRANSFORM = "fft"
"""The gradient of a transformed product of features: an error on CPU, in XLA's layouts."""

_LINEAR = "linear_call"
"""A linear function whose transpose the user wrote."""

_ACTIVATIONS = inspect.unwrap(jax.nn.relu).__code__.co_filename
"""Where JAX has functions with gradients of their own."""


def _list_operations(traces: Iterable[Any]) -> list[Any]:
    """Return the operations of traces but those in a `shard_map`, on a device's own part."""
    operations = [equation for trace in traces for equation in trace.eqns]
    return [e for e in operations if _mesh.AXIS not in e.ctx.cur_abstract_mesh.manual_axes]


def _count_mixed_axes(traces: Iterable[Any]) -> Counter[tuple[str, int]]:
    """Return operation and size of each axis along which XLA may split an operation wrongly."""
    counts: Counter[tuple[str, int]] = Counter()
    for equation in _list_operations(traces):
        name, params = equation.primitive.name, equation.params
        shape = getattr(equation.invars[0].aval, "shape", ()) if equation.invars else ()
        if name == "sort":
            name, axes = _LOOKUP, range(len(shape))
        elif name in _CUMULATIVE:
            axes = [params["axis"]]
            is_of_numbers = not jnp.issubdtype(equation.invars[0].aval.dtype, jnp.inexact)
            name += _OF_NUMBERS if is_of_numbers else ""
        elif name in _REDUCTIONS:
            axes = params.get("dimensions", params.get("axes", ()))
        elif name.startswith(("reduce_window", "select_and_scatter")):
            # The gradient of a maximum over windows of several examples is silently wrong.
            sizes = params.get("window_dimensions", ())
            axes = [axis for axis, size in enumerate(sizes) if size > 1]
            if name != "reduce_window_sum" and {0, len(sizes) - 1}.intersection(axes):
                name = _WINDOW
        elif name == _TRANSFORM:
            axes = range(len(shape) - len(params["fft_lengths"]), len(shape))
        elif name == _PAD:
            # Rows put between those that are left of rows cut off in front end the process.
            padding = enumerate(params["padding_config"])
            axes = [axis for axis, (low, _, between) in padding if low < 0 and between]
        elif name.startswith(("gather", "scatter")):
            places: Any = equation.invars[1].aval
            is_unsigned = jnp.issubdtype(places.dtype, jnp.unsignedinteger)
            name, shape, axes = _LOOKUP, places.shape, range(places.ndim if is_unsigned else 0)
        else:
            continue
        counts.update([(name, shape[axis]) for axis in axes])
    return counts


def _mixes_features(traces: Iterable[Any], number: int) -> bool:
    """Return whether XLA may split an operation wrongly over `number` devices of a second axis.

    An axis of any size may be one of features, and lie so. Positions, which are whole numbers added
    up, do not; nor do windows over the height and width of images.
    """
    if number == 1:
        return False
    axes = _count_mixed_axes(traces)
    primitives = {*_CUMULATIVE, *_REDUCTIONS, _WINDOW, _TRANSFORM, _PAD}
    kinds = Counter(size for name, size in axes if name.endswith(_OF_NUMBERS))
    return any(
        name in primitives or (name == _LOOKUP and size % number) or kinds[size] > 1
        for name, size in axes
    )


_CONVOLUTION = "conv_general_dilated"

_WINDOWED = {
    *(_CONVOLUTION, "reduce_window", "reduce_window_max", "reduce_window_min"),
    *("select_and_scatter", "select_and_scatter_add", "select_and_gather_add"),
}
"""Over windows, with a gradient that is wrong where they slide along split features."""


def _convolves_in_groups(traces: Iterable[Any]) -> bool:
    """Return whether channels are convolved in groups, as in a depthwise convolution.

    XLA (of JAX 0.10.2) adds up the gradient of such a kernel over devices that hold the same rows:
    on 2 x 4 devices it was four times too large.
    """
    return any(
        equation.primitive.name == _CONVOLUTION
        and max(equation.params["feature_group_count"], equation.params["batch_group_count"]) > 1
        for equation in _list_operations(traces)
    )


def _slides_over_features(
    trace: ClosedJaxpr, table: ShapeTable, frame: Frame, options: ProgramOptions
) -> bool:
    """Return whether windows may slide over an image, or with a kernel, split over a second axis.

    XLA (of JAX 0.10.2) computes gradients of kernels wrongly where they or the height of an image
    lie split, as that of a generator does, made of the split features of `fc`; also where features
    made of an image meet a parameter whose rows lie split. A convolution before split features is
    right. The gradient of a maximum over windows is wrong in the same places (20 % off). So a
    network for images keeps a split head, or a transformer behind one convolution.
    """
    variables, split = _nest_table(table), set[Path]()
    for (collection, path), (shape, _) in table.items():
        if collection == "params":
            axes = frame.specs[path].axes if path in frame.specs else ()
            if any(options.split(path, shape, axes)):
                split.add(path)
            if any(options.split(path, shape)[: len(shape) - 1]):
                return True
    # The inputs of a trace: a key, a step, an anchor, variables, a feed.
    paths = [[key.key for key in keys] for keys, _ in jax.tree.leaves_with_path(variables)]
    inputs = zip(paths, trace.jaxpr.invars[3:], strict=False)
    traces = _list_dependent(trace, [var for (_, *path), var in inputs if tuple(path) in split])
    return any(e.primitive.name in _WINDOWED for part in traces for e in part.eqns)


def _list_dependent(trace: ClosedJaxpr, inputs: Iterable[Any]) -> list[Any]:
    """Return a trace of the operations that depend on some inputs, and the traces in those."""
    varying, operations = set(inputs), []
    for equation in trace.eqns:
        if varying.intersection(x for x in equation.invars if not isinstance(x, Literal)):
            varying.update(equation.outvars)
            operations.append(equation)
    return [trace.jaxpr.replace(eqns=operations), *untrained.list_traces(operations)]


def mixes_axes(trace: ClosedJaxpr) -> bool:
    """Return whether XLA may split an operation on the inputs wrongly, not differentiated."""
    # What depends on none with axes, such as a learning rate, lies split nowhere.
    shaped = [var for var in trace.jaxpr.invars if getattr(var.aval, "shape", ())]
    traces = _list_dependent(trace, shaped)
    # A sort is right, and a transform is, and only their gradients are not.
    return any(name not in (_LOOKUP, _TRANSFORM) for name, _ in _count_mixed_axes(traces))


def _add_own_gradients(traces: Iterable[Any]) -> list[Any]:
    """Return traces, and those of the gradients that users wrote themselves, in no other trace."""
    added, operations = list(traces), filter(_has_rule, _list_operations(traces))
    # By their ids: what a function does is listed for each of its calls.
    for equation in {id(equation): equation for equation in operations}.values():
        # One that cannot be differentiated may be where nothing is.
        with contextlib.suppress(Exception):
            rule = _trace_gradient(equation)
            added += [rule, *untrained.list_traces(rule.eqns)]
    return added


def _has_rule(equation: JaxprEqn) -> bool:
    if equation.primitive.name not in ("custom_jvp_call", "custom_vjp_call"):
        return equation.primitive.name == _LINEAR
    # JAX's are known, and many: 5 ms for each of the 49 in ResNet-50.
    info = equation.params["call_jaxpr"].jaxpr.debug_info
    return info.func_filename != _ACTIVATIONS


def _trace_gradient(equation: JaxprEqn) -> ClosedJaxpr:
    """Return the trace of the gradient of an operation by all that it may have one by."""
    if equation.primitive.name == _LINEAR:
        return equation.params["transpose_thunk"]()[0]
    operands: list[Any] = [var.aval for var in equation.invars]
    # The first are values that its function closes over: there is none by them.
    first = equation.params["num_consts"]
    places = [
        n for n, x in enumerate(operands) if n >= first and jnp.issubdtype(x.dtype, jnp.inexact)
    ]

    def differentiate(values: list[jax.Array]) -> list[jax.Array]:
        def add_up(chosen: list[jax.Array]) -> jax.Array:
            inputs = dict(enumerate(values)) | dict(zip(places, chosen, strict=True))
            params = equation.primitive.get_bind_params(equation.params)
            results = equation.primitive.bind(*inputs.values(), **params)
            results = [x.real for x in results if jnp.issubdtype(x.dtype, jnp.inexact)]
            return sum((jnp.sum(x.astype(jnp.float32)) for x in results), jnp.float32(0))

        return jax.grad(add_up)([values[n] for n in places])

    return jax.make_jaxpr(differentiate)(operands)


def _takes_fixed_part(traces: Iterable[Any], again: Iterable[Any]) -> bool:
    """Return whether a part of the batch has one size in both probes, as `h[:16]`."""
    for pair in zip(_list_operations(traces), _list_operations(again), strict=False):
        if {equation.primitive.name for equation in pair} in ({"slice"}, {"reshape"}):
            shapes = [x.aval.shape for e in pair for x in (e.invars[0], e.outvars[0])]
            axes = zip(*shapes, strict=False)
            if any(size != other and part == same > 1 for size, part, other, same in axes):
                return True
    return False


def choose_layout(traces: Iterable[Any], trace_again: Callable[[], Iterable[Any]]) -> Layout:
    """Return how the batch of a program may lie, from its operations in both probes.

    An axis whose size differs is made of the batch axis: also that of `h[1:]`, `h.reshape(-1, 2)`.
    Where a part of a fixed size is taken, as in `h[:16]` or `h.reshape(8, -1)`, any axis may be.
    """
    axes = _count_mixed_axes(traces)
    if axes:
        # Where the function does not take another size, every axis may be of the batch.
        with contextlib.suppress(Exception):
            again = list(trace_again())
            if not _takes_fixed_part(traces, again):
                axes -= _count_mixed_axes(again)
    layout: Layout = "split"
    for name, size in axes:
        if name == _TRANSFORM:
            continue
        # A part of the batch may be split unevenly where the batch is not.
        if name != _LOOKUP or size % PROBE_BATCH_SIZES[0]:
            return "whole"
        layout = "even"
    return layout
