"""The network behind a builder: its probes, its one parameter tree, its updates."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import logging
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

import jax
import optax
from jax.sharding import PartitionSpec

from penstock import _mesh, _parameter_names
from penstock._errors import ProgramError, UnknownNameError, listed, nearest
from penstock._parameter_names import Key, Path, check_patterns, parse, spell
from penstock._program.inputs import FeedSpec
from penstock._program.precision import ProgramOptions
from penstock._tracing.probe import (
    Named,
    Probe,
    ShapeTable,
    Stack,
    mixes_axes,
    probe,
    warn_of_whole,
)
from penstock.program_builder._inspect import ParameterRow
from penstock.program_builder._objective import Objective
from penstock.program_builder._optimizer import Rule, check_rule, make_rule, trace_rule
from penstock.program_builder._step import Update

_LOGGER = logging.getLogger("penstock")


class Network:
    """What program functions amount to, learned by probing each once.

    `owners` are the probes whose parameters make the tree `table`. Where a layer reads a parameter
    it lies on the mesh by `used_specs`, what the optimizer keeps of it by `split_specs`.
    """

    def __init__(
        self,
        objectives: Mapping[str, Objective],
        infer_func: Callable[[], object] | None,
        options: ProgramOptions,
    ) -> None:
        self.objectives, self.mesh, self.options = objectives, options.mesh, options
        self.train: dict[str, Probe] = {}
        self.test: dict[str, Probe] = {}
        for name, objective in objectives.items():
            self.train[name] = probe(objective.program_func, "train", options)
            self.test[name] = self._probe_test(objective.program_func, self.train[name])
        self.infer = probe(infer_func, "infer", options) if infer_func else None
        # The inputs that a batch must have, by what is made of it.
        self.inputs = {
            "train": _join_inputs(self.train.values()),
            "test": _join_inputs(self.test.values()),
            "predict": self.infer.feed_specs if self.infer else {},
        }
        programs = [*self.train.values(), *([self.infer] if self.infer else [])]
        self.owners = list(self.train.values()) or programs
        # Of several objectives none is the one that the infer function belongs to.
        is_one = len(self.train) == 1
        check = _check_modes if is_one else _check_objectives
        for first, second in itertools.combinations(programs, 2):
            check(first, second)
        self.table = _join_tables(self.owners)
        if self.infer:
            _check_entries(self.infer, self.table, "the objectives")
        self.largest_kernel = 0
        if any(map(operator.attrgetter("has_convolution"), (*programs, *self.test.values()))):
            for shape, _ in self.table.values():
                is_kernel = len(shape) == 4 and shape[:2] != (1, 1)
                self.largest_kernel = max(self.largest_kernel, math.prod(shape) * is_kernel, 1)
        # flax's modules have no specs: their entries are in the table alone.
        self.specs = {path: spec for owner in self.owners for path, spec in owner.specs.items()}
        # Only now are the names known that a pattern may match.
        check_patterns("freeze", options.freeze, self.table)
        self.used_specs, self.split_specs = self._lay_out()
        trained = self._list_trained()
        # Updates are made once and shared by all programs: trying an optimizer out takes 0.1 s.
        self.updates = {name: self._make_update(name, paths) for name, paths in trained.items()}

    def _lay_out(self) -> tuple[dict[Path, PartitionSpec], dict[Path, PartitionSpec]]:
        shapes = {path: shape for (c, path), (shape, _) in self.table.items() if c == "params"}
        used = dict.fromkeys(shapes, _mesh.WHOLE)
        rules, state_sharding = self.options.parameter_sharding, self.options.state_sharding
        if self.mesh.axis_names != (_mesh.AXIS,) or rules:
            check_patterns("parameter_sharding", [pattern for pattern, _ in rules], self.table)
            for path, shape in shapes.items():
                axes = self.specs[path].axes if path in self.specs else ()
                used[path] = self.options.split(path, shape, axes)
        if state_sharding is None:
            return used, used
        split = {p: _mesh.split_further(shapes[p], used[p], self.mesh) for p in shapes}
        return used, split

    def _probe_test(self, function: Callable[[], object], train: Probe) -> Probe:
        if not train.is_mode_read:
            return dataclasses.replace(train, mode="test")
        test = probe(function, "test", self.options)
        # Layers that one mode alone has would shift the automatic names of the others.
        _check_modes(train, test)
        return test

    @functools.cached_property
    def feed_specs(self) -> dict[str, FeedSpec]:
        """The inputs of all programs by name, in the order they are declared."""
        infer = [self.infer] if self.infer else []
        return _join_inputs([*self.train.values(), *self.test.values(), *infer])

    def with_freeze(self, patterns: Sequence[str]) -> Network:
        """Return the network with other frozen parameters; itself where they are the same."""
        options = dataclasses.replace(self.options, freeze=tuple(patterns))
        paths = [path for _, path in self.table]
        if [*map(options.is_frozen, paths)] == [*map(self.options.is_frozen, paths)]:
            return self
        # Probed anew: batch norm computes in another way where it is frozen.
        infer_func = self.infer and self.infer.function
        return Network(self.objectives, infer_func, options)

    def for_accelerators(self) -> Network:
        plain, change = copy.copy(self), functools.partial(dataclasses.replace, is_on_cpu=False)
        plain.train = {name: change(program) for name, program in self.train.items()}
        plain.test = {name: change(program) for name, program in self.test.items()}
        plain.infer = change(self.infer) if self.infer else None
        plain.updates = {
            name: dataclasses.replace(update, program=plain.train[name])
            for name, update in self.updates.items()
        }
        return plain

    def _list_trained(self) -> dict[str, frozenset[Path]]:
        """Return the parameters that each objective with an optimizer updates."""
        trained: dict[str, frozenset[Path]] = {}
        paths = [path for collection, path in self.table if collection == "params"]
        for name, objective in self.objectives.items():
            for wanted in objective.updates or ():
                prefix = parse(str(wanted))
                if not any(path[: len(prefix)] == prefix for path in paths):
                    tops = sorted({path[0] for path in paths})
                    raise UnknownNameError(
                        f"Objective {name!r} got updates={wanted!r}, expected the name of a scope, "
                        f"layer or parameter: {listed(tops)}."
                        + nearest(str(wanted), _parameter_names.list_prefixes(paths))
                    )
            if objective.optimizer is None:
                continue
            covered = list(filter(objective.covers, paths))
            chosen = list(filter(self._is_trainable, covered))
            if not chosen:
                raise ProgramError(
                    f"Objective {name!r} got nothing to train, expected at least one trainable "
                    "parameter. Is everything it updates frozen, by trainable=False or freeze=...?"
                )
            trained[name] = frozenset(chosen)
        return trained

    def _make_update(self, name: str, trained: frozenset[Path]) -> Update:
        return Update(
            name=name,
            objective=self.objectives[name],
            rule=self._make_rule(name, trained),
            program=self.train[name],
            specs=self.specs,
            trained=trained,
            gradient_specs=self.split_specs if self.options.state_sharding else {},
            is_unrolled=_mesh.is_on_cpu(self.mesh) and self.train[name].has_convolution,
            # XLA's GPU compiler fuses a kernel's update with that kernel's cast for the backward
            # pass, which then waits for the all-reduce of each gradient: ResNet-50 on 8 H100 has
            # 134 all-reduces, and 100 so (JAX 0.10.2). In float32 there is no cast, and of a split
            # state are no fewer messages.
            waits_for_gradients=self.mesh.size > 1
            and _mesh.is_on_gpu(self.mesh)
            and self.options.precision.compute != "float32"
            and not self.options.state_sharding,
        )

    def _make_rule(self, name: str, trained: Set[Path]) -> Rule:
        program, transformation = self.train[name], self.objectives[name].optimizer
        assert isinstance(transformation, optax.GradientTransformationExtraArgs)
        shapes = {
            # Without values: a rule is tried out before there are any.
            path: jax.ShapeDtypeStruct(*entry)
            for (_, path), entry in self.table.items()
            if path in trained
        }
        owner, params = program.name, _parameter_names.nest(shapes)
        rule = make_rule(owner, transformation, params)
        specs = [self.specs[path] for path in shapes if path in self.specs]
        statistics = [
            path
            for collection, path in program.shape_table
            if collection == "batch_stats" and not self.options.is_frozen(path)
        ]
        check_rule(owner, rule, specs, statistics)
        if rule.is_evaluated_elsewhere:
            _LOGGER.warning(
                "%s is to be evaluated at other parameters than it trains: pass averaged=True to "
                "test, save_params and handlers.Evaluate",
                rule.name,
            )
        is_split = (
            rule.takes_examples
            # Its state may be split where no parameter is: one vector of many that are small.
            or self.options.state_sharding is not None
            or not {_mesh.WHOLE}.issuperset(self.split_specs.values())
        )
        # Of all parameters, unlike where it was tried: it may choose them by name or shape.
        is_doubted = self.mesh.size > 1 and is_split
        if not is_doubted or not any(map(mixes_axes, trace_rule(rule, params)[0])):
            return rule
        price = "Its update takes the memory of a state that is not split"
        warn_of_whole(f"{rule.name} is computed", price)
        return dataclasses.replace(rule, whole_on=self.mesh)

    def _is_trainable(self, path: Path) -> bool:
        spec = self.specs.get(path)
        return (spec is None or spec.trainable) and not self.options.is_frozen(path)

    def parameter_rows(self) -> list[ParameterRow]:
        """Return the parameter table, parameters first, in the order of their creation."""
        return [
            ParameterRow(
                name=spell(path),
                collection=collection,
                shape=tuple(shape),
                dtype=str(dtype),
                is_trainable=collection == "params" and self._is_trainable(path),
            )
            for (collection, path), (shape, dtype) in sorted(
                self.table.items(), key=lambda item: item[0][0] != "params"
            )
        ]

    def check_update_scale(self, scale: float) -> None:
        """Raise unless the updates of every optimizer can be multiplied by `scale`."""
        for update in self.updates.values():
            # Half of SAM's way back, or of a schedule-free step, would be a wrong place.
            if scale != 1.0 and update.rule.positions:
                raise ProgramError(
                    f"update_scale got {scale}, expected 1 with the optimizer {update.rule.name}. "
                    f"It keeps where its updates lead ({update.rule.positions}), and a part of an "
                    "update leads elsewhere. Give it a schedule of learning rates instead."
                )


def _join_inputs(programs: Iterable[Probe]) -> dict[str, FeedSpec]:
    inputs: dict[str, FeedSpec] = {}
    for program in programs:
        for name, spec in program.feed_specs.items():
            first = inputs.setdefault(name, spec)
            if first != spec:
                raise ProgramError(
                    f"layers.data {name!r} got {spec.declaration}, expected {first.declaration} as "
                    "in another program. One name is one input."
                )
            # One batch goes to all of them: the smallest table holds.
            if spec.ids != first.ids:
                inputs[name] = first.limited(spec.ids)
    return inputs


_SHIFTED = (
    "A layer that only one of them has shifts automatic names. Name it, create it last, or put it "
    "in a layers.scope."
)


def _check_entry(program: Probe, key: Key, table: ShapeTable, owner: str, why: str) -> None:
    entry, first = program.shape_table[key], table[key]
    if entry != first:
        raise ProgramError(
            f"{program.name} got {spell(key[1])!r} with shape {entry[0]} and dtype {entry[1]}, "
            f"expected shape {first[0]} and dtype {first[1]} as in {owner}. {why}"
        )


def _join_tables(probes: Sequence[Probe]) -> ShapeTable:
    table: ShapeTable = {}
    why = "All programs share one parameter tree. Put each network into a layers.scope of its own."
    for program in probes:
        for key, entry in program.shape_table.items():
            if key in table:
                _check_entry(program, key, table, "another program", why)
            table[key] = entry
    twice = {path for c, path in table if c == "params"} & {p for c, p in table if c != "params"}
    if twice:
        raise ProgramError(
            f"{spell(sorted(twice)[0])!r} got used for a parameter and for a running statistic, "
            "expected one use of a name. Give one of the two layers another name."
        )
    return table


# Automatic names are counted, so a layer that only one program has shifts the names after it; where
# shapes agree, that program would silently use other parameters. The lines of user code tell.


def _check_modes(train: Probe, other: Probe) -> None:
    """Raise unless `other` asks for a part of the parameter tree of `train`, under its names."""
    # Before shapes are compared: a shift is the cause, another shape only its sign.
    _check_stacks(train.named, other.named, train.name, other.name)
    _check_entries(other, train.shape_table, train.name)


def _check_entries(program: Probe, table: ShapeTable, expected: str) -> None:
    """Raise unless a program asks for a part of the parameter tree of others alone."""
    for collection, path in program.shape_table:
        name = spell(path)
        if (collection, path) not in table:
            names = [spell(p) for c, p in table if c == collection]
            raise ProgramError(
                f"{program.name} got the parameter {name!r}, expected only parameters of "
                f"{expected}: {listed(names)}. All programs share one parameter tree. Create the "
                "same layers in the same order in every mode, or name them." + nearest(name, names)
            )
        _check_entry(program, (collection, path), table, expected, _SHIFTED)


def _check_stacks(train: Named, other: Named, expected: str, owner: str) -> None:
    """Raise if a stack of lines made other names in another mode than in the train program."""
    places = _group(train)
    for (stack, scope), names in _group(other).items():
        candidates = [
            made
            for (other_stack, other_scope), made in places.items()
            if scope == other_scope and _is_same_place(stack, other_stack)
        ]
        # One that agrees is enough: a function called twice has two places of the same lines.
        if candidates and not any(_agree(names, made) for made in candidates):
            _raise_shifted(names, candidates[0], stack[-1], owner, expected)


def _check_objectives(first: Probe, second: Probe) -> None:
    """Raise if two programs of several objectives use a name differently."""
    expected, owner = first.name, second.name
    # The innermost line alone: two networks may call one function from different places.
    places = _group(first.named, is_innermost=True)
    for (line, scope), names in _group(second.named, is_innermost=True).items():
        made = places.get((line, scope), names)
        if not _agree(names, made):
            _raise_shifted(names, made, line[-1], owner, expected)
    for path, spec in second.specs.items():
        first_spec = first.specs.get(path, spec)
        if first_spec.shape == spec.shape and not first_spec.agrees_with(spec):
            raise ProgramError(
                f"{owner} got {spec.name!r} with {spec.attributes}, expected "
                f"{first_spec.attributes} as in {expected}. One parameter has one set of "
                "attributes. Use the same param_attr in both."
            )


def _group(named: Named, *, is_innermost: bool = False) -> dict[tuple[Stack, Path], list[str]]:
    """Return the names made at each stack of lines, or at each innermost line, by scope."""
    groups: dict[tuple[Stack, Path], dict[str, None]] = {}
    for stack, path in named:
        lines = stack[-1:] if is_innermost else stack
        groups.setdefault((lines, path[:-1]), {})[spell(path)] = None
    return {place: list(names) for place, names in groups.items()}


def _is_same_place(one: Stack, other: Stack) -> bool:
    # The shorter stack is the end of the longer where one function calls the other.
    shorter = min(len(one), len(other))
    return bool(shorter) and one[-shorter:] == other[-shorter:]


def _agree(names: list[str], other_names: list[str]) -> bool:
    shorter = min(len(names), len(other_names))
    return names[:shorter] == other_names[:shorter]


def _raise_shifted(
    names: list[str], other_names: list[str], line: str, owner: str, expected: str
) -> None:
    got, wanted = next((n, o) for n, o in zip(names, other_names, strict=False) if n != o)
    raise ProgramError(
        f"{owner} got the name {got!r} for what is {wanted!r} in {expected}, both made at {line}. "
        f"{_SHIFTED}"
    )
