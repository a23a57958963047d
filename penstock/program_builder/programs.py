"""The programs of a network: made at their first use, compiled once for each batch size."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from penstock import _device_batches, _mesh, _metrics
from penstock._errors import ProgramError, UnknownNameError, listed, nearest
from penstock._program.options import ProgramOptions
from penstock._program.requests import Feed, Variables
from penstock._tracing.probe import Probe
from penstock.program_builder import _step
from penstock.program_builder._compilation import Program
from penstock.program_builder._inspect import Inspection, abstract
from penstock.program_builder._network import Network
from penstock.program_builder._objective import State
from penstock.program_builder._step import SPLIT, WHOLE, Launched, value_specs
from penstock.program_builder.states import Leaves, States

LaunchResult = tuple[Leaves, Launched]


class Programs:
    """What a network can be asked to run.

    Attributes:
      states: the states that the programs take and return.
      structures: how each objective's metrics are arranged, by its name.
    """

    def __init__(self, network: Network) -> None:
        self.network, self.states = network, States(network)
        self.mesh: Mesh = network.mesh
        self.options: ProgramOptions = network.options
        self.structures = {name: each.program.structure for name, each in network.train.items()}
        self._compiled: dict[Hashable, Program] = {}
        self._feeders = {
            mode: _device_batches.Feeder(
                self.mesh, network.inputs(mode), network.feed_specs, num_micro_batches
            )
            for mode, num_micro_batches in (("train", self.options.num_micro_batches), ("test", 1))
        }
        self._infer_feeders: dict[int, _device_batches.Feeder] = {}

    # Batches.

    def place(self, mode: str, batches: Sequence[Feed]) -> _device_batches.DeviceBatch:
        """Check, pad and place the batches of one launch, `mode` being `"train"` or `"test"`.

        Raises:
          FeedError: a batch does not fit the declared inputs.
          ProgramError: a batch is short, and the program averages its padding.
        """
        feeder = self._feeders.get(mode)
        if feeder is None:
            raise UnknownNameError(
                f"place got the mode {mode!r}, expected one of {listed(self._feeders)}."
                + nearest(str(mode), self._feeders)
            )
        batch = feeder.place(batches)
        if min(batch.counts) < feeder.batch_size:
            self.network.check_padding(mode, min(batch.counts), feeder.batch_size)
        return batch

    @property
    def keeps_feeds_on_host(self) -> bool:
        """Whether batches stay in host memory until their launch, as they do on one CPU device."""
        return self._feeders["train"].is_single_cpu

    @property
    def batch_sizes(self) -> dict[str, int]:
        """The sizes that batches are padded to so far, by mode; on each process its share."""
        return {mode: feeder.batch_size for mode, feeder in self._feeders.items()}

    def fit_batches(self, sizes: Mapping[str, int]) -> None:
        """Pad batches to at least these sizes, by mode, as the run did that is resumed."""
        for mode, size in sizes.items():
            self._feeders[mode].fit(size)

    # Training.

    def launch(
        self, leaves: Leaves, batch: _device_batches.DeviceBatch, update_order: tuple[str, ...]
    ) -> LaunchResult:
        """Run one update of each named objective on each placed batch, in one launch.

        Arguments:
          leaves: the state; what a step changes of it is donated.
        """
        key = (update_order, len(batch.counts))
        program = self._compiled.get(key)
        if program is None:
            program = self._keep(key, self._train_program(*key))
        number = self.states.num_changed
        changed, launched = program(leaves[:number], leaves[number:], batch.feed, batch.weights)
        return changed + leaves[number:], launched

    def run_eagerly(
        self,
        leaves: Leaves,
        batch: _device_batches.DeviceBatch,
        update_order: tuple[str, ...],
        watch: Callable[[], contextlib.AbstractContextManager[object]],
    ) -> None:
        """Run one launch operation by operation, each compiled by itself and slow.

        An exception of `jax.debug_nans` then shows the lines of an operation, and of a gradient the
        lines of what it is the gradient of; both get lost on the way out of `jax.jit`.

        Arguments:
          watch: makes the context that raises it.
        """
        updates = [
            dataclasses.replace(update, watch=watch)
            for update in self.network.choose_updates(update_order)
        ]
        step = self._train_function(updates, len(batch.counts))
        number = self.states.num_changed
        step(leaves[:number], leaves[number:], batch.feed, batch.weights)

    def _train_program(self, update_order: tuple[str, ...], num_steps: int) -> Program:
        split = SPLIT if num_steps == 1 else PartitionSpec(None, *SPLIT)
        values = {
            name: tuple(split if spec == SPLIT else spec for spec in value_specs(each.program))
            for name, each in self.network.train.items()
            if name in update_order
        }
        updates = self.network.choose_updates(update_order)
        label = "+".join(update_order) if len(self.network.objectives) > 1 else "train"
        return Program(
            label if num_steps == 1 else f"{label} x{num_steps}",
            self._train_function(updates, num_steps),
            self.mesh,
            in_specs=(WHOLE, WHOLE, split, split),
            out_specs=(WHOLE, Launched(values, WHOLE, WHOLE)),  # pyright: ignore
            donated=(0,),
            saves_memory=num_steps > 1 and _step.is_unrolled(updates),
        )

    def _train_function(
        self, updates: Sequence[_step.Update], num_steps: int
    ) -> Callable[..., LaunchResult]:
        """Return `(changed, kept, feed, weights) -> (changed, launched)`."""

        def train(
            changed: Leaves, kept: Leaves, feed: Mapping[str, jax.Array], weights: jax.Array
        ) -> LaunchResult:
            state = self.states.unpack(changed + kept)
            if num_steps == 1:
                state, launched = _step.train_step(updates, state, feed, weights)
            else:
                state, launched = _step.train_steps(updates, state, feed, weights)
            return jax.tree.leaves(state)[: len(changed)], launched

        return train

    # Testing and inference.

    def test_zeros(self, objective: str) -> _metrics.Accumulator:
        """Return the empty sums that `test` starts from."""
        return self._make_zeros(self.network.test[objective])

    def _make_zeros(self, probe: Probe) -> _metrics.Accumulator:
        # Made on the host: a program that returned them would compile longer than all of them take.
        zeros = self.network.zeros(probe, np.zeros)
        return _device_batches.put(zeros, _mesh.replicated_sharding(self.mesh))

    def test(
        self,
        state: State,
        sums: _metrics.Accumulator,
        batch: _device_batches.DeviceBatch,
        objective: str,
    ) -> tuple[_metrics.Accumulator, tuple[jax.Array, ...]]:
        """Run the test program on a placed batch; returns the new sums and the values."""
        program = self._compiled.get(("test", objective))
        if program is None:
            program = self._keep(("test", objective), self._test_program(objective))
        return program(state.variables, state.key, sums, batch.feed, batch.weights)

    def _test_program(self, objective: str) -> Program:
        program = self.network.test[objective].program
        return Program(
            "test" if len(self.network.objectives) == 1 else f"test {objective}",
            functools.partial(_step.test_step, program, self.mesh),
            self.mesh,
            in_specs=(WHOLE, WHOLE, WHOLE, SPLIT, SPLIT),
            out_specs=(WHOLE, value_specs(program)),
        )

    def infer(self, variables: Variables, feed: Feed) -> Any:
        """Return what the infer function returns for a feed of any length, as numpy arrays.

        Raises:
          ProgramError: there is no infer function.
          FeedError: the feed does not fit the declared inputs.
        """
        probe = self.network.infer
        if probe is None:
            raise ProgramError(
                "infer got no infer_func, expected one. Pass infer_func=... to the ProgramBuilder "
                "or Trainer, or use an Inferencer."
            )
        specs = probe.program.feed_specs
        _, size = _device_batches.check_feed(feed, specs, specs)
        bucket = 1 << (size - 1).bit_length()
        feeder = self._infer_feeders.get(bucket)
        if feeder is None:
            feeder = _device_batches.Feeder(self.mesh, specs, specs)
            self._infer_feeders[bucket] = feeder
            feeder.fit(bucket)
        batch = feeder.place([feed])
        if size < feeder.batch_size:
            probe.check_padding("infer", size, feeder.batch_size)
        program = self._compiled.get("infer") or self._keep("infer", self._infer_program())
        values = program(variables, batch.feed, batch.weights)
        return _metrics.read(values, probe.program.structure, size)

    def _infer_program(self) -> Program:
        assert self.network.infer is not None
        program = self.network.infer.program
        return Program(
            "infer",
            functools.partial(_step.infer_step, program, self.mesh),
            self.mesh,
            in_specs=(WHOLE, SPLIT, SPLIT),
            out_specs=value_specs(program),
            recompile_level=logging.DEBUG,  # one compile for each bucket is meant
        )

    # Metrics of an epoch.

    def reset_metrics(self, state: State) -> State:
        """Return the state with empty metric sums."""
        probes = self.network.train
        return state._replace(metrics={name: self._make_zeros(probes[name]) for name in probes})

    # Means to look at programs.

    @property
    def num_compiles(self) -> dict[str, int]:
        """How often each program was compiled, by the program's name."""
        return {program.name: program.num_compiles for program in self._compiled.values()}

    def inspect(self, mode: str, objective: str, batch_size: int) -> Inspection:
        """Return the trace of a program, for a state without values.

        Raises:
          UnknownNameError: there is no such mode, or no infer function.
        """
        network = self.network
        state = abstract(self.states.abstract_state, _mesh.replicated_sharding(self.mesh))
        if mode == "infer" and network.infer is not None:
            specs = network.infer.program.feed_specs
            program, args = self._infer_program(), [state.variables]
        elif mode == "test":
            specs, program = network.inputs(mode), self._test_program(objective)
            zeros = jax.eval_shape(lambda: network.zeros(network.test[objective]))
            sums = abstract(zeros, _mesh.replicated_sharding(self.mesh))
            args = [state.variables, state.key, sums]
        elif mode == "train":
            specs, program = network.inputs(mode), self._train_program((objective,), 1)
            leaves = jax.tree.leaves(state)
            args = [leaves[: self.states.num_changed], leaves[self.states.num_changed :]]
        else:
            raise UnknownNameError(
                f"inspect got the mode {mode!r}, expected 'train', 'test' or, with an infer_func, "
                "'infer'." + nearest(mode, ["train", "test", "infer"])
            )
        split = _mesh.batch_sharding(self.mesh)
        feed = {
            name: jax.ShapeDtypeStruct((batch_size, *spec.shape), spec.dtype, sharding=split)
            for name, spec in specs.items()
        }
        weights = jax.ShapeDtypeStruct((batch_size,), np.float32, sharding=split)
        return Inspection(program.jitted.trace(*args, feed, weights))

    def _keep(self, key: Hashable, program: Program) -> Program:
        self._compiled[key] = program
        return program
