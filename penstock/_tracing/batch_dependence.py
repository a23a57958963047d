"""Whether what a program returns depends on how its batch is split over devices.

Two traces of one program function, which differ in the batch size alone, are read side by side: an
axis that differs between them is a batch axis, a number that differs in their ratio counts the
batch. What meets other examples by anything but a sum is different on one and on several devices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var
from jax.typing import ArrayLike

from penstock._errors import ProgramError
from penstock._metrics import Structure
from penstock._program.examples import PER_DEVICE_SCOPE, PROBE_BATCH_SIZES, REDUCED_SCOPE
from penstock._program.user_lines import find_user_line
from penstock._tracing.kinds import (
    MEAN,
    SAME,
    Kind,
    Reason,
    classify_constant,
    combine,
    make_other,
)
from penstock._tracing.operation import Operation, Shapes, batch_axes, get_aval, get_body
from penstock._tracing.operation_rules import follow

_CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_COLLECTIVES = {"psum", "psum2", "psum_invariant", "pmax", "pmin", "all_gather", "all_to_all"}
_COLLECTIVES |= {"all_gather_invariant", "ppermute", "reduce_scatter", "psum_scatter"}
_NAMED = {"median", "quantile", "nanmedian", "_std", "_var", "std", "var", "nanstd", "nanvar"}


class DivergedError(Exception):
    """Two traces differ in more than their sizes."""


class _Place(NamedTuple):
    """Where an equation stands: the functions and scopes around it, and the user's line."""

    names: str = ""
    site: str = ""

    def enter(self, equation: JaxprEqn) -> _Place:
        # `jnp.median` and its like are jitted: their names say more than the sort inside.
        called = equation.params.get("name", "")
        site = find_user_line(equation.source_info.traceback) or self.site
        return _Place(f"{self.names}/{equation.source_info.name_stack}/{called}/", site)

    def make_reason(self, operation: str) -> Reason:
        called = [part.strip("_") for part in self.names.split("/") if part in _NAMED]
        return Reason(called[0] if called else operation, self.site)


_START = _Place()


@dataclasses.dataclass(frozen=True)
class Traces:
    """The walk over two traces.

    Attributes:
      sizes: the batch sizes of a device in both.
      has_micro_batches: whether the batch is cut into micro-batches, whose means are averaged.
      is_apart: whether devices compute without a word of the others, each its own micro-batch.
    """

    sizes: tuple[int, int]
    has_micro_batches: bool
    is_apart: bool = False

    def follow(
        self, first: Jaxpr, second: Jaxpr, kinds: Sequence[Kind], within: _Place = _START
    ) -> list[Kind]:
        """Return the kinds of a trace's results, given those of its inputs.

        Arguments:
          first, second: the two jaxprs.
          kinds: of the inputs.
          within: where the call of it stands.

        Raises:
          DivergedError: the traces are not the same operations.
        """
        known: dict[Var, Kind] = {}
        _require(len(first.eqns) == len(second.eqns) and len(first.outvars) == len(second.outvars))
        for variables in zip(first.constvars, second.constvars, strict=True):
            known[variables[0]] = Kind("index") if batch_axes(_read_shapes(*variables)) else SAME
        known.update(zip(first.invars, kinds, strict=True))

        def read(a: Var | Literal, b: Var | Literal) -> Kind:
            if isinstance(a, Literal):
                if not isinstance(b, Literal):
                    raise DivergedError
                return classify_constant(a.val, b.val, self.sizes)
            return known[a]

        for a, b in zip(first.eqns, second.eqns, strict=True):
            _require(a.primitive is b.primitive and len(a.invars) == len(b.invars))
            operands = [read(*pair) for pair in zip(a.invars, b.invars, strict=True)]
            known.update(zip(a.outvars, self._follow_equation(a, b, operands, within), strict=True))
        return [read(*pair) for pair in zip(first.outvars, second.outvars, strict=True)]

    def _follow_equation(
        self, a: JaxprEqn, b: JaxprEqn, kinds: list[Kind], within: _Place
    ) -> list[Kind]:
        name, place = a.primitive.name, within.enter(a)
        # Control flow first: its bodies run more than once, or not at all.
        if name == "scan":
            return self._follow_scan(a, b, kinds, place)
        if name == "while":
            return self._follow_while(a, b, kinds, place)
        if name == "cond":
            return self._follow_cond(a, b, kinds, place)
        for key in _CALLS:
            inner = get_body(a.params.get(key))
            # A call, of jit, checkpoint or custom derivatives: followed as if it were written out.
            if hasattr(inner, "eqns") and len(inner.invars) == len(kinds):
                return self.follow(inner, get_body(b.params[key]), kinds, place)
        operation = Operation(
            name,
            a.params,
            b.params,
            kinds,
            [_read_shapes(*pair) for pair in zip(a.invars, b.invars, strict=True)],
            [_read_shapes(*pair) for pair in zip(a.outvars, b.outvars, strict=True)],
            self.sizes,
            place.make_reason(name),
        )
        return self._follow_scoped(operation, place.names)

    def _follow_scoped(self, operation: Operation, scope: str) -> list[Kind]:
        """Return an operation's results; those of our own reductions are known to be right."""
        kinds = operation.kinds
        if operation.name == "axis_index":
            return [Kind("device")]
        if operation.name in _COLLECTIVES and REDUCED_SCOPE not in scope:
            if self.is_apart and PER_DEVICE_SCOPE not in scope:
                return operation.make_other()
            return self._follow_collective(operation)
        # Of ours, in a scope of its own; what it gathers is the whole batch everywhere.
        is_gathering = operation.name in _COLLECTIVES and any(map(batch_axes, operation.results))
        results = self._follow_collective(operation) if is_gathering else follow(operation)
        if PER_DEVICE_SCOPE in scope:
            return [_as_meant(k, s) for k, s in zip(results, operation.results, strict=True)]
        if REDUCED_SCOPE not in scope or any(k.form == "other" for k in kinds):
            return results
        if not all(map(_can_be_reduced, kinds)):
            return operation.make_other()
        # A micro-batch's reductions are over itself alone: what the step averages later.
        form = MEAN if self.has_micro_batches else SAME
        return [
            k
            if batch_axes(s) and k.form != "other"
            else dataclasses.replace(form, padding=k.padding)
            for k, s in zip(results, operation.results, strict=True)
        ]

    def _follow_collective(self, operation: Operation) -> list[Kind]:
        """Follow a user's own: whoever talks to the other devices answers for what is made of it.

        Of micro-batches only means can be put together.
        """
        found = combine("add", operation.kinds, operation.reason)
        if self.has_micro_batches and not {k.form for k in operation.kinds} <= {"same", "device"}:
            is_mean = found.form == "part" and operation.name.startswith("psum")
            return [found if is_mean else make_other([found], operation.reason)] * len(
                operation.results
            )
        return [
            dataclasses.replace(SAME, padding=found.padding, is_gathered=bool(batch_axes(shapes)))
            for shapes in operation.results
        ]

    def _follow_scan(
        self, a: JaxprEqn, b: JaxprEqn, kinds: list[Kind], place: _Place
    ) -> list[Kind]:
        num_consts, num_carry = _count_operands(a)
        bodies = a.params["jaxpr"].jaxpr, b.params["jaxpr"].jaxpr
        consts, carry = kinds[:num_consts], kinds[num_consts : num_consts + num_carry]
        items = kinds[num_consts + num_carry :]
        reason = place.make_reason("a scan over the examples")
        is_over_examples = a.params["length"] != b.params["length"]
        # What is carried from one example to the next depends on all before it.
        if is_over_examples and num_carry:
            return [make_other(kinds, reason).with_padding(reason)] * len(a.outvars)
        if is_over_examples:
            # The body sees one row of each: no axis of it is the batch's.
            rows = dataclasses.replace(self, sizes=(1, 1))
            results = rows.follow(*bodies, [*consts, *items], place)
            return (
                results
                if not any(k.form == "part" for k in results)
                else [make_other(kinds, reason)] * len(results)
            )
        while True:
            results = self.follow(*bodies, [*consts, *carry, *items], place)
            # Until nothing changes: a turn of the loop may make the carry depend on more. Kinds
            # only get worse, so it ends.
            joined = [_join(*pair, reason) for pair in zip(carry, results, strict=False)]
            if joined == carry:
                return results
            carry = joined

    def _follow_while(
        self, a: JaxprEqn, b: JaxprEqn, kinds: list[Kind], place: _Place
    ) -> list[Kind]:
        of_condition, of_body = a.params["cond_nconsts"], a.params["body_nconsts"]
        tests = a.params["cond_jaxpr"].jaxpr, b.params["cond_jaxpr"].jaxpr
        bodies = a.params["body_jaxpr"].jaxpr, b.params["body_jaxpr"].jaxpr
        consts = kinds[of_condition : of_condition + of_body]
        carry = kinds[of_condition + of_body :]
        reason = place.make_reason("a loop that ends by what is in the batch")
        while True:
            (test,) = self.follow(*tests, [*kinds[:of_condition], *carry], place)
            results = self.follow(*bodies, [*consts, *carry], place)
            # Devices would leave the loop after different numbers of turns.
            if test.form != "same":
                results = [make_other([test, k], reason) for k in results]
            joined = [_join(*pair, reason) for pair in zip(carry, results, strict=True)]
            if joined == carry:
                return joined
            carry = joined

    def _follow_cond(
        self, a: JaxprEqn, b: JaxprEqn, kinds: list[Kind], place: _Place
    ) -> list[Kind]:
        reason = place.make_reason("a choice by what is in the batch")
        found: list[Kind] | None = None
        for one, two in zip(a.params["branches"], b.params["branches"], strict=True):
            results = self.follow(one.jaxpr, two.jaxpr, kinds[1:], place)
            found = (
                results
                if found is None
                else [_join(*pair, reason) for pair in zip(found, results, strict=True)]
            )
        results = found or []
        return (
            results
            if kinds[0].form == "same"
            else [make_other([kinds[0], k], reason) for k in results]
        )


def follow_traces(
    jaxprs: Sequence[Jaxpr],
    constants: Sequence[Sequence[ArrayLike | None]],
    *,
    has_micro_batches: bool,
    is_apart: bool = False,
) -> list[Kind]:
    """Return what each returned value of a program is to the batch.

    Arguments:
      jaxprs: the traces with both batch sizes.
      constants: what each takes in front of its inputs, None where not known.
      has_micro_batches, is_apart: as in `Traces`.
    """
    first, second = jaxprs
    # Constants of the function come first.
    consts = [
        classify_constant(a, b, PROBE_BATCH_SIZES)
        if a is not None and b is not None
        else Kind("same" if get_aval(x).shape == get_aval(y).shape else "index")
        for a, b, x, y in zip(*constants, first.invars, second.invars, strict=False)
    ]
    # The inputs of a probe: root key, step, anchor and example weights.
    weights = Kind("rows", is_weighted=True, is_weights=True)
    traces = Traces(PROBE_BATCH_SIZES, has_micro_batches, is_apart)
    try:
        return traces.follow(first, second, [*consts, SAME, SAME, Kind("feed"), weights])
    # Not equation by equation the same: nothing is known of any result.
    except DivergedError:
        reason = Reason("Python code that does something else for another batch size", "")
        return [Kind("other", why=reason, padding=reason)] * len(first.outvars)


_REMEDIES = {
    "reduce_max": "layers.reduce_max",
    "reduce_min": "layers.reduce_min",
    "reduce_prod": "layers.reduce_prod",
    "reduce_sum": "layers.reduce_sum",
    "reduce_and": "layers.reduce_all",
    "reduce_or": "layers.reduce_any",
    "median": "layers.reduce_median",
    "std": "layers.reduce_std",
    "var": "layers.reduce_var",
    "one key for all rows": "layers.gaussian_random_batch_size_like or layers.example_keys",
}


def is_same_when_split(kind: Kind, rows: int) -> bool:
    """Return whether a returned value is the same however the batch is split.

    Arguments:
      rows: those of an example in the value, 0 where it has no batch axis.
    """
    is_right = kind.form == "same" or (rows and kind.form == "rows" and len(kind.blocks) == 1)
    # Values without a batch axis are averaged over devices, which makes a mean of means right, and
    # of a sum a part of it.
    is_mean = not rows and (kind.form, kind.degree) == ("part", -1)
    return is_mean or (is_right and not kind.degree) or kind.form == "feed"


def check_split(kinds: Sequence[Kind], structure: Structure, owner: str, num_devices: int) -> None:
    """Raise if a returned value depends on how the batch is split.

    Raises:
      ProgramError: naming every such value, what makes it so, and what to use.
    """
    found, remedies = [], []
    for number, (kind, rows) in enumerate(zip(kinds, structure.rows, strict=True)):
        if is_same_when_split(kind, rows):
            continue
        site = kind.padding.site if kind.padding else ""
        why = kind.why or Reason("reduce_sum" if kind.form == "part" else "the order of rows", site)
        found.append(f"{structure.label(number)} ({why})")
        remedies.append(_REMEDIES.get(why.operation, "layers.mean or layers.reduce_sum"))
    if found:
        split = f"over {num_devices} devices" if num_devices > 1 else "into micro-batches"
        raise ProgramError(
            f"{owner} got {', '.join(found)}, expected values that are the same on one device and "
            f"on several. A batch is split {split}, and this is computed from each part alone. Use "
            f"{' or '.join(dict.fromkeys(remedies))}, which follow the valid examples of the "
            'global batch, or collectives of jax.lax over the axis "data".'
        )


def _can_be_reduced(kind: Kind) -> bool:
    """Return whether our own reductions make the same of a value on any number of devices."""
    if kind.form == "part":
        return kind.degree == -1  # the mean of means
    return kind.form not in ("index", "device") and (kind.form != "rows" or not kind.degree)


def _as_meant(kind: Kind, shapes: Shapes) -> Kind:
    """Return what is meant to be a device's own, as if it were not: batch norm's statistics."""
    if kind.form == "rows" and batch_axes(shapes):
        return kind
    return Kind("rows") if batch_axes(shapes) else SAME


def _join(first: Kind, second: Kind, reason: Reason) -> Kind:
    """Return what is true of a value that may be either."""
    if first == second:
        return first
    if "other" in (first.form, second.form):
        return make_other([first, second], reason)
    # Zeros add to anything: an accumulator that begins with them takes the kind of what is added.
    if first.is_zero or second.is_zero:
        kept = second if first.is_zero else first
        return dataclasses.replace(kept, is_zero=False)
    joined = combine("select_n", [SAME, first, second], reason)
    # Weighted only where both are; `combine` asks whether any is.
    weighted = first.is_weighted and second.is_weighted
    return dataclasses.replace(joined, is_weighted=weighted) if joined.why is None else joined


def _count_operands(scan: JaxprEqn) -> tuple[int, int]:
    """Return how many operands of a scan are constants, and how many are carried."""
    if "num_consts" in scan.params:
        return scan.params["num_consts"], scan.params["num_carry"]
    consts, carry, _ = scan.params["ft_in"].unpack()  # since JAX 0.12
    return len(consts), len(carry)


def _require(holds: bool) -> None:
    if not holds:
        raise DivergedError


def _read_shapes(first: Var | Literal, second: Var | Literal) -> Shapes:
    shapes = tuple(get_aval(first).shape), tuple(get_aval(second).shape)
    _require(len(shapes[0]) == len(shapes[1]))
    return shapes
