"""The programs of a network, made at their first use, and the states that they take."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import logging
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec
from jax.typing import ArrayLike

from penstock import _mesh, _metrics, optimizers
from penstock._errors import ProgramError
from penstock._mesh import SPLIT, WHOLE
from penstock._padded_batches import NUM_SPOILED, DeviceBatch, Feeder, HostBatch, Rows, Share
from penstock._parameter_names import (
    Key,
    Nested,
    Path,
    flatten_variables,
    hash_path,
    nest_variables,
    split,
)
from penstock._parameter_updates import describe_updates
from penstock._program.frame import Frame, ParameterSpec, Params, Variables, make_root, wrap_key
from penstock._program.inputs import DeviceFeed, Feed
from penstock._program.precision import LossScale, ProgramOptions
from penstock._program.sequences import cut_all
from penstock._tracing.probe import PROBE_BATCH_SIZES, Probe, evaluate, mixes_axes, warn_of_whole
from penstock.distributed.this_process import find_group_of
from penstock.program_builder import _memory, _step
from penstock.program_builder._compilation import (
    Compilation,
    CompileTime,
    Program,
    announce_compilation,
    compile_function,
    copy_arrays,
    copy_to,
)
from penstock.program_builder._network import Network
from penstock.program_builder._step import Launched, State

T = TypeVar("T")

Leaves = list[jax.Array]
"""The state as it travels through launches and into files.

JAX takes a nested tree apart and puts it together in every launch, which is 5 us of 33 for the
smallest network and grows with the number of layers. A flat list costs nothing."""

LaunchResult = tuple[Leaves, Launched]


class Answer(NamedTuple):
    """What an infer program was asked, and what it answers, on the devices."""

    batch: HostBatch
    rows: Rows
    values: Sequence[jax.Array]


class Programs:
    """What a network can be asked to run."""

    def __init__(self, network: Network) -> None:
        self.compile_time = CompileTime()
        self._told: set[str] = set()
        self.compiled: dict[Hashable, Program] = {}
        self._earlier: list[Compilation] = []
        self.use(network)

    def use(self, network: Network) -> None:
        """Run a network from here on: another of the same functions and devices, or the first."""
        self.network, self.states = network, States(network)
        self.mesh: Mesh = network.mesh
        self.options: ProgramOptions = network.options
        self.group = find_group_of(self.mesh)
        self.structures = {name: program.structure for name, program in network.train.items()}
        # Several processes tell each other how much they bring.
        exchange = self.group.exchange if self.group.count > 1 else None
        self._make_feeder = functools.partial(Feeder, self.mesh, exchange=exchange)
        declared = network.feed_specs  # refuses one name that two programs declare otherwise
        names = declared if self.options.strict else None
        # The records alone: the programs of the network before may leave memory.
        if self.compiled:
            self._earlier, self.compiled = self.compilations, {}
        self.feeders = {
            mode: self._make_feeder(network.inputs[mode], names) for mode in ("train", "test")
        }
        # Batches stay on the host until their launch, and what a launch returns is there too.
        self.is_single_cpu = self.mesh.size == 1 and _mesh.is_on_cpu(self.mesh)
        # Of sequences one compile for each bucket is meant.
        level = logging.INFO if self.feeders["train"].has_sequences else logging.WARNING
        how: Any = {"mesh": self.mesh, "recompile_level": level, "compile_time": self.compile_time}
        self.make_program = functools.partial(Program, largest_kernel=network.largest_kernel, **how)
        # Whether the infer program gives each example its own rows, by the number that it pads to.
        self._is_by_rows: dict[int, bool] = {}

    def place(
        self, mode: str, batches: Sequence[Feed], shares: Sequence[Share] | None = None
    ) -> DeviceBatch:
        """Check, pad and place the batches of one launch, `mode` being `"train"` or `"test"`."""
        return self.feeders[mode].place(batches, shares)

    def launch(
        self, leaves: Leaves, batch: DeviceBatch, update_order: tuple[str, ...]
    ) -> LaunchResult:
        """Update by each named objective and placed batch, in one launch; donates what changes."""
        key = (update_order, batch.num_steps)
        program = self.compiled.get(key)
        if program is None:
            program = self.compiled[key] = self.train_program(*key)
        number = self.states.num_changed
        changed, launched = program(leaves[:number], leaves[number:], batch.feed, batch.rows)
        return changed + leaves[number:], launched

    def _refuse(
        self, total: float, changed: Leaves, kept: Leaves, feed: DeviceFeed, rows: Rows
    ) -> None:
        state = self.states.unpack(changed + kept)
        _memory.refuse(total, state, feed, rows.num_examples, self.options)

    def choose_updates(self, update_order: Sequence[str]) -> list[_step.Update]:
        """Return the updates of these objectives, each of which must have an optimizer."""
        for name in update_order:
            if self.network.objectives[name].optimizer is None:
                raise ProgramError(
                    f"the train program of {name!r} got no optimizer, expected one such as "
                    "optax.adam(1e-3)."
                )
        return [self.network.updates[name] for name in update_order]

    def train_program(
        self, update_order: tuple[str, ...], num_steps: int, *, measures: bool = False
    ) -> Program:
        """Return the train program of these updates, or what measures them; not compiled yet."""
        chosen = self.choose_updates(update_order)
        updates = [dataclasses.replace(u, measures=True) for u in chosen] if measures else chosen
        split = SPLIT if num_steps == 1 else PartitionSpec(None, *SPLIT)
        values = {update.name: _value_specs(update.program, split) for update in updates}
        label = "+".join(update_order) if len(self.network.objectives) > 1 else "train"
        label = label if num_steps == 1 else f"{label} x{num_steps}"
        train = self.train_function(updates, num_steps)
        changed, kept = self.states.divide(self.states.leaf_specs)
        returned: Any = Launched(values, *[WHOLE] * 3)  # pyright: ignore
        return self.make_program(
            "measuring" if measures else label,
            (lambda *operands: train(*operands)[1].sizes) if measures else train,
            in_specs=(changed, kept, split),
            out_specs=WHOLE if measures else (changed, returned),
            donated=() if measures else (0,),
            has_gradients=True,
            refuse=None if measures else self._refuse,
            saves_memory=num_steps > 1 and any(update.is_unrolled for update in updates),
        )

    def train_function(
        self, updates: Sequence[_step.Update], num_steps: int
    ) -> Callable[..., LaunchResult]:
        """Return `(changed, kept, feed, rows) -> (changed, launched)`."""
        states = self.states  # those of now: other trainers may share the program after a `use`

        def train(changed: Leaves, kept: Leaves, feed: DeviceFeed, rows: Rows) -> LaunchResult:
            state = states.unpack(changed + kept)
            if num_steps == 1:
                state, launched = _step.train_step(updates, state, feed, rows)
            else:
                state, launched = _step.train_steps(updates, state, feed, rows, num_steps)
            return jax.tree.leaves(state)[: len(changed)], launched

        return train

    def make_zeros(self, probe: Probe) -> _metrics.Sums:
        """Return the empty sums of a program."""
        return self._put_zeros(_metrics.zeros(probe.structure, np.zeros))

    def _put_zeros(self, like: Any, *leading: int) -> Any:
        """Return zeros in the shapes of arrays, with some axes in front."""
        # Made on the host: a program that returned them would compile longer than all of them take.
        zeros = jax.tree.map(lambda x: np.zeros((*leading, *x.shape), x.dtype), like)
        return _mesh.put(zeros, _mesh.make_shardings(self.mesh, WHOLE))

    def test(
        self,
        state: State,
        sums: _metrics.Sums,
        batch: DeviceBatch,
        objective: str,
    ) -> tuple[_metrics.Sums, tuple[_metrics.Value, ...]]:
        """Run the test program on a placed batch; returns the new sums and the values."""
        program = self.keep(("test", objective), functools.partial(self.test_program, objective))
        return program(state.variables, state.key, sums, batch.feed, batch.rows)

    def test_program(
        self, objective: str, step: Callable[..., Any] = _step.test_step, what: str = "test"
    ) -> Program:
        """Return the test program of an objective, or another of its function; not compiled yet."""
        program, is_test = self.network.test[objective], step is _step.test_step
        of = f" {objective}" if is_test else f" of {objective}"
        num_whole = 3 if step is _step.resample_step else 2
        return self.make_program(
            what if len(self.network.objectives) == 1 else what + of,
            functools.partial(step, program),
            in_specs=(self.states.variable_specs, *[WHOLE] * num_whole, SPLIT),
            out_specs=(WHOLE, _value_specs(program)) if is_test else WHOLE,
        )

    def test_halves(self, state: State, batch: DeviceBatch, objective: str) -> np.ndarray:
        """Return the doubted numbers of the test program, `[2, N]`, for both halves of a batch."""
        make = functools.partial(self.test_program, objective, _step.half_step, "test of halves")
        program, feed, rows = self.keep(("halves", objective), make), batch.feed, batch.rows
        begins = np.array([0, rows.num_examples // 2], np.int32)
        run = functools.partial(program, state.variables, state.key)
        # One after the other: two programs at a time may deadlock on several CPU devices.
        return np.stack([jax.device_get(run(begin, feed, rows)) for begin in begins])

    def resample(
        self,
        state: State,
        sums: _metrics.Sums | None,
        batch: DeviceBatch,
        objective: str,
        number: int,
        num_resamples: int,
    ) -> _metrics.Sums:
        """Return the sums of resampled data sets with a batch added, None before the first."""
        if sums is None:
            zeros = _metrics.zeros(self.network.test[objective].structure, np.zeros)
            arrays = tuple([x for x in zeros.arrays if _metrics.is_resampled(x[0])])
            sums = self._put_zeros(zeros._replace(arrays=arrays), num_resamples + 2)
        make = functools.partial(
            self.test_program, objective, _step.resample_step, "test of examples"
        )
        program, place = self.keep(("examples", objective), make), np.array(number, np.int32)
        return program(state.variables, state.key, sums, place, batch.feed, batch.rows)

    def infer(self, variables: Variables, feed: Feed) -> Any:
        """Return what the infer function returns for a feed of any length, as numpy arrays."""
        return cut_all(self.fetch_answer(variables, self.launch_infer(variables, feed)))

    def launch_infer(
        self,
        variables: Variables,
        feed: Feed,
        shares: Sequence[Share] | None = None,
        num_rows: int | None = None,
    ) -> Answer:
        """Run the infer program on a feed; returns as soon as it is enqueued.

        Arguments:
          num_rows: pad to so many rows at least, where each row is made of its own example alone.
        """
        batch = self._infer_feeder.prepare([feed], shares)
        program = self.keep("infer", self.infer_program)
        bucket = self._find_bucket(batch.rows, num_rows)
        # Compiled for few sizes where each row is made of its own example.
        if bucket is not None and bucket.size not in self._is_by_rows:
            self._is_by_rows[bucket.size] = self._try_padding(variables, batch, bucket)
        if bucket is not None and not self._is_by_rows[bucket.size]:
            bucket = None
        placed = self._infer_feeder.put(batch, bucket)
        return Answer(batch, placed.rows, program(variables, placed.feed, placed.rows))

    def fetch_answer(self, variables: Variables, answer: Answer) -> Any:
        """Return what a launch returned, in numpy; sequences are padded still. Waits for it."""
        probe, batch = self.infer_probe, answer.batch
        # What one CPU device has is on the host, and `device_get` would copy it: a tenth of a small
        # network's time.
        to_numpy = functools.partial(jax.tree.map, np.asarray)
        fetch = to_numpy if self.is_single_cpu else _metrics.fetch
        outputs = _metrics.arrange(
            {"infer": probe.structure}, batch.size, "infer", fetch(answer.values)
        )
        # Ids of a feed that was on the devices were not checked. Of nan alone `x != x` holds.
        looks_up = probe.lookups or any(spec.ids for spec in probe.feed_specs.values())
        is_doubted = looks_up and any(np.any(x != x) for x in jax.tree.leaves(cut_all(outputs)))
        # All processes gather what is split over them, whichever of them has a nan.
        is_shared = looks_up and self.states.is_split
        if any(self.group.exchange("infer", is_doubted)) if is_shared else is_doubted:
            whole = _mesh.fetch_whole(variables)
            if is_doubted:
                _step.check_ids(probe, whole, self._infer_feeder.put(batch))
        return outputs

    @property
    def infer_probe(self) -> Probe:
        """The probe of the infer function."""
        if self.network.infer is None:
            raise ProgramError(
                "infer got no infer_func, expected one. Pass infer_func=... to the ProgramBuilder "
                "or Trainer, or use an Inferencer."
            )
        return self.network.infer

    @functools.cached_property
    def _infer_feeder(self) -> Feeder:
        specs = self.infer_probe.feed_specs
        return self._make_feeder(specs, specs if self.options.strict else None)

    def takes_padding(self, variables: Variables, feed: Feed) -> bool:
        """Return whether each of up to three examples has its own rows of answers. Collective."""
        batch = self._infer_feeder.prepare([feed])
        size = max(4, _mesh.count_parts(self.mesh) * 2)
        bucket = self._find_bucket(batch.rows, size)
        # Tried anew, and kept for this alone: of other parameters it may have been another.
        return bucket is not None and self._try_padding(variables, batch, bucket)

    def _find_bucket(self, rows: Rows, num_rows: int | None) -> Rows | None:
        """Return the power of two to pad a feed to; None where it is that, or cannot be padded."""
        parts, probe = _mesh.count_parts(self.mesh), self.infer_probe
        size = parts << (rows.size // parts - 1).bit_length()
        if num_rows is not None:
            size = max(rows.size, num_rows)
        is_cut = all(item.rows for item in probe.structure.items) and not probe.has_size
        if rows.num_examples == size or not is_cut:
            return None
        return Rows(size, size, ((0, size),))

    def _try_padding(self, variables: Variables, batch: HostBatch, bucket: Rows) -> bool:
        """Return whether the rows of examples are the same beside any padding. Collective."""
        program = self.keep("infer", self.infer_program)

        def run(spoiled: int | None) -> list[np.ndarray]:
            placed = self._infer_feeder.put(batch, bucket, spoiled=spoiled)
            return _metrics.fetch(program(variables, placed.feed, placed.rows))

        def is_same(spoiled: Sequence[np.ndarray]) -> bool:
            return all(
                np.array_equal(x[: n * batch.size], y[: n * batch.size], equal_nan=True)
                for x, y, n in zip(plain, spoiled, num_rows, strict=True)
            )

        num_rows = [item.rows for item in self.infer_probe.structure.items]
        with jax.debug_nans(False), jax.debug_infs(False):
            plain = run(None)
            is_by_rows = all(is_same(run(kind)) for kind in range(NUM_SPOILED))
        return all(self.group.exchange("infer", is_by_rows))

    def infer_program(self) -> Program:
        """Return the infer program, not compiled yet."""
        program = self.infer_probe
        return self.make_program(
            "infer",
            functools.partial(_step.infer_step, program),
            in_specs=(self.states.variable_specs, SPLIT),
            out_specs=_value_specs(program),
            recompile_level=logging.DEBUG,  # one compile for each bucket is meant
        )

    def reset_metrics(self, state: State) -> State:
        """Return the state with empty metric sums."""
        return state._replace(metrics=self._put_zeros(state.metrics))

    def keep(self, key: Hashable, make: Callable[[], Program]) -> Program:
        """Return the program of a key, made at its first use."""
        program = self.compiled.get(key)
        if program is None:
            program = self.compiled[key] = make()
        return program

    def is_first_time(self, warning: str) -> bool:
        """Return whether a warning is due: once, and not in every epoch."""
        is_first = warning not in self._told
        self._told.add(warning)
        return is_first

    @property
    def num_compiles(self) -> dict[str, int]:
        """How often each program was compiled, by the program's name."""
        return dict(Counter(compilation.program for compilation in self.compilations))

    @property
    def compilations(self) -> list[Compilation]:
        """What was compiled, program by program, that before `freeze` and `unfreeze` first."""
        now = [record for program in self.compiled.values() for record in program.compilations]
        return [*self._earlier, *now]


def describe(programs: Programs, mode: str, batch_size: int) -> tuple[State, dict[str, Any], Rows]:
    """Return what a program of a mode is given, without values: the state, a batch, its rows."""
    states, mesh, network = programs.states, programs.mesh, programs.network
    shardings = _mesh.make_shardings(mesh, states.specs)
    state = jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        states.abstract_state,
        shardings,
    )
    parts, split = _mesh.count_parts(mesh), _mesh.batch_sharding(mesh)
    rows = Rows(-(-batch_size // parts) * parts, batch_size, ((0, batch_size),))
    inputs = network.inputs["predict" if mode == "infer" else mode]
    return state, {n: spec.describe(rows.size, split) for n, spec in inputs.items()}, rows


def _value_specs(program: Probe, split: PartitionSpec = SPLIT) -> tuple[PartitionSpec, ...]:
    """Return how the values of a program lie on the devices, those with a batch axis by `split`."""
    return tuple([split if item.rows else WHOLE for item in program.structure.items])


def _describe(x: jax.Array | np.ndarray, size: int | None = None) -> jax.ShapeDtypeStruct:
    """Return an array without its values, of another number of rows where one is given."""
    shape = x.shape if size is None else (size, *x.shape[1:])
    sharding = x.sharding if isinstance(x, (jax.Array, jax.ShapeDtypeStruct)) else None
    return jax.ShapeDtypeStruct(shape, x.dtype, sharding=sharding)


_MANY_GROUPS, _MANY_VALUES = 8, 1_000_000

Entries = dict[Key, Any]
"""Values by collection and path."""


def _draw(groups: Sequence[Sequence[ParameterSpec]], root: jax.Array) -> Entries:
    """Return initial values; each depends on the key and its path alone."""
    values, number = Entries(), 0
    # By name, not by order: a layer that is added changes no other's initial value. All at once,
    # since threefry takes 20 ms to lower wherever it stands.
    hashes = [hash_path(spec.path) for group in groups for spec in group]
    fold_in = functools.partial(jax.random.fold_in, wrap_key(root))
    all_keys = jax.vmap(fold_in)(jnp.asarray(hashes, jnp.uint32))
    for group in groups:
        spec, keys = group[0], all_keys[number : number + len(group)]
        number += len(group)

        def draw(key: jax.Array, spec: ParameterSpec = spec) -> jax.Array:
            return jnp.asarray(spec.initializer(key, spec.shape, spec.dtype))

        # The bits are the same either way.
        drawn = [draw(keys[0])] if len(group) == 1 else jax.vmap(draw)(keys)
        value = drawn[0]
        if value.shape != spec.shape or value.dtype != spec.dtype:
            raise ValueError(
                f"the initializer of {spec.name!r} returned shape {value.shape} and dtype "
                f"{value.dtype}, expected {spec.shape} and {spec.dtype}. An initializer is called "
                "as initializer(key, shape, dtype)."
            )
        for place, entry in enumerate(group):
            values[entry.collection, entry.path] = drawn[place]
    return values


def _choose_level(shapes: Sequence[tuple[int, ...]]) -> int:
    """Return how much LLVM is to optimise a program that draws values of some shapes.

    Threefry, which initialisers draw from, is compiled for each shape. For 13-8-1 that takes 0.3 s
    as other programs are compiled, 0.17 at level 1, 0.1 at level 0; for NASNet-Mobile, of 45
    shapes, 12 s at level 1 and 6.5 at level 0. A value is drawn in 18 ns, at level 0 in 75: from a
    million of a shape on that takes longer than to compile what draws them. Not by whether what is
    compiled is kept: the last bits are others.
    """
    return int(sum(map(math.prod, shapes)) > _MANY_VALUES * len(set(shapes)))


class States:
    """The training states that a network has.

    A state travels through launches and into files as a flat list of its arrays; here is which of
    them is what.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.mesh = network.mesh
        self._is_told = False

    def init(self, seed: int) -> State:
        """Return the initial state."""
        root = make_root(seed)
        allowed = jax.transfer_guard_host_to_device("allow")  # of the root key alone
        with announce_compilation("the initial values"), allowed:
            drawn = self._draw_apart(root)
            done = drawn[0] if drawn else {}
            level = _choose_level([s for k, (s, _) in self.network.table.items() if k not in done])
            donated = (1,) if drawn else ()
            operands, place = (root, *drawn), {"donated": donated, "level": level}
            initial = compile_function(self._initial_state, self.mesh, self.specs, **place)
            if self.mesh.size > 1 and self._mixes_axes(initial, *operands):
                whole = compile_function(self._initial_state, self.mesh, **place)
                return copy_to(whole(*operands), self.mesh, self.specs)
            return initial(*operands)

    def _mixes_axes(self, program: Any, *operands: Any) -> bool:
        """Return whether initial values are to be made whole, and laid out then."""
        is_whole = self.is_split and mixes_axes(program.trace(*operands).jaxpr)
        if is_whole and not self._is_told:
            self._is_told = True  # once, of all the programs that draw
            price = "For a moment they take the memory of a state that is not split"
            warn_of_whole("the initial values are made", price)
        return is_whole

    @functools.cached_property
    def _groups(self) -> list[list[ParameterSpec]]:
        """Our own parameters, together those of one initialiser and shape, which are drawn at once.

        A program is as long as there are groups, 35 for the 1,436 entries of NASNet-CIFAR.
        """
        alike: dict[tuple[object, ...], list[ParameterSpec]] = {}
        for spec in self.network.specs.values():
            alike.setdefault((spec.initializer, spec.shape, spec.dtype), []).append(spec)
        return list(alike.values())

    @functools.cached_property
    def _draws(self) -> list[tuple[list[list[ParameterSpec]], int, Callable[[jax.Array], Entries]]]:
        """Groups that one program draws, the level it is compiled at, and its function.

        The same functions each time, so that they compile once; none for few groups.
        """
        if len(self._groups) < _MANY_GROUPS:
            return []
        levels: dict[int, list[list[ParameterSpec]]] = {1: [], 0: []}
        for group in self._groups:
            levels[_choose_level([spec.shape for spec in group])].append(group)
        halves = [(groups[first::2], n) for n, groups in levels.items() for first in (0, 1)]
        return [(half, n, functools.partial(_draw, half)) for half, n in halves if half]

    def _draw_apart(self, root: np.ndarray) -> list[Entries]:
        """Return the values of our own parameters, by programs that are compiled side by side."""
        values = Entries()
        with ThreadPoolExecutor() as pool:
            programs: list[Any] = []
            for groups, level, draw in self._draws:
                specs = {
                    (spec.collection, spec.path): self._param_specs.get(spec.path, WHOLE)
                    for spec in itertools.chain.from_iterable(groups)
                }
                # Traced here: an initializer may be the user's.
                program: Any = compile_function(draw, self.mesh, specs, level=level)
                if is_whole := self.mesh.size > 1 and self._mixes_axes(program, root):
                    program = compile_function(draw, self.mesh, level=level)
                programs.append((pool.submit(program.lower(root).compile), specs, is_whole))
            for compiling, specs, is_whole in programs:
                drawn = compiling.result()(root)
                values |= copy_to(drawn, self.mesh, specs) if is_whole else drawn
        return [values] if programs else []

    def _make_initial(self, root: jax.Array, values: Entries | None = None) -> State:
        """Return the state before the first step.

        Arguments:
          root: the raw random key.
          values: those of our own parameters, where they were drawn before.
        """
        # Ours first: flax's modules are then made in a run that finds them in place.
        values = values or _draw(self._groups, root)
        for owner in self.network.owners:
            values = {**values, **self._initial_modules(owner, values, root)}
        variables = nest_variables(values)
        opt_state = self._initial_opt_state(variables["params"])
        is_dynamic = self.network.options.precision.is_dynamic
        trained = self.network.train.items()
        return State(
            step=jnp.zeros((), jnp.int32),
            variables=variables,
            opt_state=opt_state,
            key=root,
            metrics={name: _metrics.zeros(program.structure) for name, program in trained},
            update_scale=jnp.ones((), jnp.float32),
            num_skipped=jnp.zeros((), jnp.int32),
            # An empty dict in other precisions: a leaf costs a microsecond in each launch.
            loss_scale={name: LossScale.initial() for name in opt_state if is_dynamic},
        )

    def _initial_opt_state(self, params: Params) -> dict[str, optax.OptState]:
        # Of what is trained alone: frozen parameters take no moments.
        return {
            name: update.rule.init(split(params, update.trained)[0])
            for name, update in self.network.updates.items()
        }

    def _initial_modules(self, owner: Probe, values: Entries, root: jax.Array) -> Entries:
        """Return the initial variables of flax modules, which only running the function makes."""
        if len(owner.shape_table) == len(owner.specs):
            return {}
        frame = Frame(
            mode=owner.mode,
            variables=nest_variables(values),
            feed=None,
            # The probe's, whose shapes they were checked with; the values do not depend on it.
            batch_size=PROBE_BATCH_SIZES[0],
            key=wrap_key(root),
            is_frozen=self.network.options.is_frozen,
        )
        return flatten_variables(evaluate(owner.function, frame).module_updates)

    def mean_metrics(self, state: State) -> Any:
        """Return the example-weighted means of the metrics since the last reset."""
        programs, values = self.network.train, self.list_means(state)
        means = {name: programs[name].structure.build(values[name]) for name in values}
        return next(iter(means.values())) if len(programs) == 1 else means

    def list_means(self, state: State) -> dict[str, list[Any]]:
        """Return the means of each objective that had an example, one after the other."""
        return {
            name: _metrics.compute_values(sums, self.network.train[name].structure)
            for name, sums in jax.device_get(state.metrics).items()
            if len(state.metrics) == 1 or sums.scalars[0, -1]
        }

    def copy(self, tree: Mapping[str, Nested[ArrayLike]]) -> dict[str, Params]:
        """Return arrays copied to the devices, in buffers of their own that may be donated."""
        return copy_to(tree, self.mesh, self.variable_specs)

    def adopt(self, variables: Mapping[str, Nested[ArrayLike]], state: State) -> State:
        """Return the state with other variables, copied into buffers that may be donated.

        Where an optimizer's state holds parameters, it holds the new ones then.
        """
        after = state._replace(variables=self.copy(variables))
        updates = self.network.updates
        if not any(update.rule.keeps_values for update in updates.values()):
            return after
        before, params = state.variables["params"], after.variables["params"]
        return after._replace(opt_state=self._follow(state.opt_state, before, params))

    def take_over(self, state: State) -> State:
        """Return this network's state for one of the same network with another `freeze`.

        What an optimizer keeps of a parameter that is trained in both, and of all of them, such as
        a count of updates, stays bit for bit. The rest is as before the first update.
        """
        kept = dict(jax.tree_util.tree_leaves_with_path(state.opt_state))
        wanted, tree = jax.tree_util.tree_flatten_with_path(self.abstract_state.opt_state)
        for path, leaf in wanted:
            if path in kept and kept[path].shape != leaf.shape:
                rule = self.network.updates[jax.tree_util.keystr(path[:1], simple=True)].rule
                raise ProgramError(
                    f"freeze got another choice of parameters with the optimizer {rule.name}, "
                    f"expected an optimizer that keeps a state by parameter. It keeps "
                    f"{jax.tree_util.keystr(path[1:])} for all of them together. Save the "
                    "parameters, and make a Trainer with freeze=... and param_path=..."
                )

        def begin(params: Params) -> list[jax.Array]:
            made = jax.tree_util.tree_leaves_with_path(self._initial_opt_state(params))
            return [leaf for path, leaf in made if path not in kept]

        specs = jax.tree.leaves(self.specs.opt_state)
        new = [spec for (path, _), spec in zip(wanted, specs, strict=True) if path not in kept]
        fresh = iter(compile_function(begin, self.mesh, new)(state.variables["params"]))
        leaves = [kept[path] if path in kept else next(fresh) for path, _ in wanted]
        return state._replace(opt_state=jax.tree.unflatten(tree, leaves))

    @functools.cached_property
    def _follow(self) -> Callable[..., dict[str, optax.OptState]]:
        """What optimizers' states hold of values begins again; momentum, for one, is kept."""

        def choose(kept: jax.Array, old: jax.Array, new: jax.Array) -> jax.Array:
            return jnp.where(jnp.any(old != new), new, kept)

        def follow(opt_state: Any, before: Params, after: Params) -> dict[str, optax.OptState]:
            return jax.tree.map(choose, opt_state, *map(self._initial_opt_state, (before, after)))

        return compile_function(follow, self.mesh, self.specs.opt_state)

    def check_average(self) -> None:
        """Raise ValueError unless an optimizer keeps an average of the parameters."""
        state = self.abstract_state
        jax.eval_shape(optimizers.averaged_params, state.opt_state, state.variables["params"])

    def average(self, state: State) -> State:
        """Return the state with the moving averages of its parameters in their place."""
        params = self._average(state.opt_state, state.variables["params"])
        return state._replace(variables={**state.variables, "params": params})

    @functools.cached_property
    def _average(self) -> Callable[[optax.OptState, Params], Params]:
        params = self.specs.variables["params"]
        return compile_function(optimizers.averaged_params, self.mesh, params)

    @functools.cached_property
    def _initial_state(self) -> Callable[..., State]:
        """The same function each time, so that it compiles once."""
        return self._make_initial

    @functools.cached_property
    def abstract_state(self) -> State:
        """The state without its values."""
        root = jax.eval_shape(lambda: make_root(0))
        if not self._draws:
            return jax.eval_shape(self._initial_state, root)
        # As `init` calls it, with values on the mesh, whose trace is then found.
        describe = functools.partial(
            jax.ShapeDtypeStruct, sharding=_mesh.make_shardings(self.mesh, WHOLE)
        )
        specs = self.network.specs.values()
        drawn = {(spec.collection, spec.path): describe(spec.shape, spec.dtype) for spec in specs}
        return jax.eval_shape(self._initial_state, root, drawn)

    @functools.cached_property
    def _param_specs(self) -> dict[Path, PartitionSpec]:
        """How each parameter lies on the mesh between steps, by path."""
        is_full = self.network.options.state_sharding == "full"
        return self.network.split_specs if is_full else self.network.used_specs

    @functools.cached_property
    def specs(self) -> Any:
        """How the state lies on the mesh: a `State` of specs."""
        is_sharded = self.network.options.state_sharding is not None
        if not is_sharded and {WHOLE}.issuperset(self._param_specs.values()):
            number = len(jax.tree.leaves(self.abstract_state))
            return self.unpack([WHOLE] * number)  # pyright: ignore
        shapes = {path: shape for (_, path), (shape, _) in self.network.table.items()}

        def choose(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> PartitionSpec:
            names = tuple(str(getattr(key, "key", "")) for key in path)
            if path[0].name == "variables":  # pyright: ignore
                return self._param_specs[names[2:]] if names[1] == "params" else WHOLE
            if path[0].name != "opt_state":
                return WHOLE
            # What an optimizer keeps by parameter has its path at the end, and lies as it does.
            ends = (names[first:] for first in range(2, len(names)))
            param = next((end for end in ends if shapes.get(end) == leaf.shape), None)
            if param is not None:
                return self.network.split_specs[param]
            return _mesh.split_further(leaf.shape, WHOLE, self.mesh) if is_sharded else WHOLE

        return jax.tree_util.tree_map_with_path(choose, self.abstract_state)

    @functools.cached_property
    def leaf_specs(self) -> list[PartitionSpec]:
        """How each array of the state lies on the mesh."""
        return jax.tree.leaves(self.specs)

    @functools.cached_property
    def is_split(self) -> bool:
        """Whether a device holds a part alone of some array."""
        return not {WHOLE}.issuperset(self.leaf_specs)

    @functools.cached_property
    def copies(self) -> tuple[Callable[[Leaves], Leaves], Callable[[Leaves, Leaves], Leaves]]:
        """The programs of a snapshot: in memory of its own, and in that of one before it.

        They run on all devices where the state is split over them.
        """
        mesh, specs = self.mesh, self.leaf_specs
        if not self.is_split:
            mesh, specs = _mesh.make_mesh(mesh.local_devices[:1]), WHOLE
        over = lambda _, own: copy_arrays(own)  # noqa: E731
        copy = functools.partial(compile_function, mesh=mesh, out_specs=specs)
        return copy(copy_arrays), copy(over, donated=(0,))

    @property
    def variable_specs(self) -> Any:
        """How variables lie on the mesh, in a tree or one spec for all."""
        # One for all fits those of a larger network too.
        return WHOLE if {WHOLE}.issuperset(self._param_specs.values()) else self.specs.variables

    @functools.cached_property
    def _state_tree(self) -> Any:
        return jax.tree.structure(self.abstract_state)

    @functools.cached_property
    def num_changed(self) -> int:
        """How many of the state's arrays, from the first, a step changes; see `State`."""
        state, options = self.abstract_state, self.network.options
        counts_skipped = options.skips_non_finite or state.loss_scale
        return len(jax.tree.leaves(state)) - (2 if counts_skipped else 3)

    def divide(self, leaves: list[T]) -> tuple[list[T], list[T]]:
        """Return what a step changes, of the state's arrays or of what is for each; the rest."""
        return leaves[: self.num_changed], leaves[self.num_changed :]

    def unpack(self, leaves: Sequence[ArrayLike]) -> State:
        """Return the state that a flat list of its arrays makes."""
        return jax.tree.unflatten(self._state_tree, leaves)

    def arrange(self, leaves: Mapping[str, Any]) -> State:
        """Return the state of arrays by their names, None where there is none."""
        return self.unpack([leaves.get(name) for name in self.leaf_names])  # pyright: ignore

    @functools.cached_property
    def leaf_names(self) -> list[str]:
        """A name of its own for each array of the state, such as `variables.params.fc_0.w`."""
        names: dict[str, None] = {}
        for path, _ in jax.tree_util.tree_leaves_with_path(self.abstract_state):
            plain = jax.tree_util.keystr(path, simple=True, separator=".")
            name = plain = re.sub(r"[^\w.\-]", "_", plain)
            while name in names:
                name = f"{plain}_{len(names)}"
            names[name] = None
        return list(names)

    @functools.cached_property
    def variable_paths(self) -> dict[str, list[str]]:
        """Collection and path of each parameter and running statistic, by its leaf's name."""
        leaves = jax.tree_util.tree_leaves_with_path(self.abstract_state)
        paths = [[jax.tree_util.keystr((key,), simple=True) for key in path] for path, _ in leaves]
        return {
            name: path[1:]
            for name, path in zip(self.leaf_names, paths, strict=True)
            if path[0] == "variables"
        }


class Engine:
    """A training state on the devices, and the programs that advance it in an order of updates."""

    def __init__(self, programs: Programs, state: State, update_order: tuple[str, ...]) -> None:
        self.programs, self.update_order = programs, update_order
        self.leaves: Leaves = jax.tree.leaves(state)
        self._launching = threading.Lock()

    @property
    def state(self) -> State:
        """The state; valid until the next launch takes its arrays."""
        return self.programs.states.unpack(self.leaves)

    @state.setter
    def state(self, state: State) -> None:
        self.leaves = jax.tree.leaves(state)

    @property
    def is_lost(self) -> bool:
        """Whether the state went into a launch that failed."""
        return any(leaf.is_deleted() for leaf in self.leaves)

    def run(self, batch: DeviceBatch) -> Launched:
        """Update the state by placed batches; returns as soon as the launch is enqueued."""
        with self._launching:
            self.leaves, launched = self.programs.launch(self.leaves, batch, self.update_order)
        return launched

    def compile_ahead(self, batch: DeviceBatch, num_examples: int | None = None) -> None:
        """Compile the train program for a batch in a thread, so that its launch need not wait.

        Or for one alike of another number of examples.
        """
        programs, rows, feed = self.programs, batch.rows, batch.feed
        program = programs.compiled.get((self.update_order, batch.num_steps))
        if num_examples is not None:
            rows = programs.feeders["train"].choose_rows((num_examples,))
        if program is None or rows in program.sizes:
            return
        if num_examples is not None:
            feed = jax.tree.map(lambda x: _describe(x, rows.size), dict(feed))
        described = jax.tree.map(_describe, (*programs.states.divide(self.leaves), feed))
        program.compile_ahead(rows, *described)

    def run_eagerly(
        self, batch: DeviceBatch, watch: Callable[[], contextlib.AbstractContextManager[object]]
    ) -> None:
        """Run one launch operation by operation, each compiled by itself and slow.

        An exception of `jax.debug_nans`, which `watch` turns on, then shows the operation's lines,
        or those of what a gradient is of; both get lost on the way out of `jax.jit`.
        """
        chosen = self.programs.choose_updates(self.update_order)
        updates = [dataclasses.replace(update, watch=watch) for update in chosen]
        step = self.programs.train_function(updates, batch.num_steps)
        step(*self.programs.states.divide(self.leaves), batch.feed, batch.rows)

    def measure(self, batch: DeviceBatch) -> tuple[_metrics.StepValues, float]:
        """Return what the launch of a batch will do to parameters, and the seconds that this took.

        Takes nothing of the state. Waits for the steps before it, and for the sizes. So its own
        time is known, and no part of training's; and of several CPU devices, on which two programs
        at a time may deadlock, none runs another.
        """
        programs, num_steps = self.programs, batch.num_steps
        program = programs.keep(
            ("measuring", self.update_order, num_steps),
            lambda: programs.train_program(self.update_order, num_steps, measures=True),
        )
        jax.block_until_ready(self.leaves)
        start, compiled = time.perf_counter(), programs.compile_time.secs
        sizes = program(*programs.states.divide(self.leaves), batch.feed, batch.rows)
        jax.block_until_ready(sizes)
        secs = time.perf_counter() - start - (programs.compile_time.secs - compiled)
        paths = {name: sorted(programs.network.updates[name].trained) for name in sizes}
        show, is_single = functools.partial(describe_updates, paths), len(programs.structures) == 1
        return _metrics.StepValues(sizes, num_steps, is_single, show), max(secs, 0.0)

    @contextlib.contextmanager
    def between_launches(self) -> Iterator[State]:
        """Have the state, whose arrays no launch of another thread takes meanwhile."""
        with self._launching:
            # Two programs at a time may deadlock on several CPU devices.
            jax.block_until_ready(self.leaves)
            yield self.state

    def freeze(self, patterns: Sequence[str]) -> None:
        """Train all parameters but these from here on; see `States.take_over`."""
        network = self.programs.network.with_freeze(patterns)
        if network is self.programs.network:
            return
        # Infer in another thread sees network and state of before, or both of after.
        with self._launching:
            state = States(network).take_over(self.state)
            self.programs.use(network)
            self.state = state

    def reset_metrics(self) -> None:
        """Empty the metric sums: an epoch begins."""
        self.state = self.programs.reset_metrics(self.state)

    def copy(self, leaves: Sequence[ArrayLike] | None = None) -> Engine:
        """Return an engine of its own with a copy of the state, or of other arrays as one."""
        states = self.programs.states
        copied = copy_to(list(leaves or self.leaves), self.programs.mesh, states.leaf_specs)
        return Engine(self.programs, states.unpack(copied), self.update_order)

    @property
    def reuses_snapshots(self) -> bool:
        """Whether a `snapshot` is made in the memory of one before it: on CPU.

        There fresh memory costs more than the copy: 50 ms of a core for 96 MB, on top of 12. On an
        accelerator it costs nothing, and is dear.
        """
        return _mesh.is_on_cpu(self.programs.mesh)

    def snapshot(self, spare: Sequence[jax.Array] = ()) -> Leaves:
        """Return a copy of the state that later launches leave alone, in `spare` where that pays.

        On one device where each holds the whole state: one process may make it alone. Does not
        wait, but for several CPU devices: two programs at a time may deadlock there.
        """
        states, own = self.programs.states, self.leaves
        if not states.is_split:
            own = [leaf.addressable_data(0) for leaf in own]
        copy, copy_over = states.copies
        is_reused = spare and self.reuses_snapshots
        copied = copy_over(list(spare), own) if is_reused else copy(own)
        if self.programs.mesh.size > 1 and self.reuses_snapshots:
            jax.block_until_ready(copied)
        return copied

    def health(self, flag: jax.Array) -> jax.Array:
        """Return a launch's flag and whether every variable after it is finite, `[2]`; no wait.

        In the step this would read every parameter once more, where the flag costs nothing.
        """
        is_compiled = "_health" in vars(self)
        with nullcontext() if is_compiled else announce_compilation("the check of the state"):
            return self._health(flag, self.state.variables)

    def find_non_finite(self) -> list[str]:
        """Return the names of parameters and statistics that are not finite; waits."""
        return [
            jax.tree_util.keystr(path[1:], simple=True, separator="/")
            for path, value in jax.tree_util.tree_leaves_with_path(self.state.variables)
            if not np.all(np.isfinite(_mesh.fetch_whole(value)))
        ]

    @functools.cached_property
    def _health(self) -> Callable[[jax.Array, Variables], jax.Array]:
        return compile_function(_check_health, self.programs.mesh, level=None)


def _check_health(flag: jax.Array, variables: Variables) -> jax.Array:
    # Zeros, but for nan and infinities, and no comparison of each: for ResNet-50 that compiles in
    # 0.6 s instead of 2.1.
    zeros = [jnp.sum(jnp.real(x * 0).astype(flag.dtype)) for x in jax.tree.leaves(variables)]
    return jnp.stack([flag, jnp.isfinite(sum(zeros, jnp.zeros(()))).astype(flag.dtype)])


def digest(engine: Engine) -> list[str]:
    """Return a text for each whole array of this process's state that changes with any bit."""
    leaves = [x.addressable_data(0) if x.is_fully_replicated else 0 for x in engine.leaves]
    leaves = map(np.asarray, jax.device_get(leaves))
    return [hashlib.sha256(leaf.tobytes()).hexdigest()[:16] for leaf in leaves]
