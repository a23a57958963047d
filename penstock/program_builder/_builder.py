"""`ProgramBuilder`: program functions in, programs out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from penstock import _feeding, _mesh, _metrics, _parameters
from penstock._errors import ProgramError, UnknownNameError, listed, nearest
from penstock.layers._frame import FeedSpec
from penstock.program_builder import _derived, _inspect
from penstock.program_builder._network import Network
from penstock.program_builder._objective import (
    Objective,
    Optimizer,
    State,
    check_program_func,
    objectives_of,
)
from penstock.program_builder._options import ProgramOptions
from penstock.program_builder._packing import Packing
from penstock.program_builder._precision import Precision, PrecisionName, precision_of
from penstock.program_builder._probe import Probe
from penstock.program_builder._programs import Program, compiled_call, say_compilation


class ProgramBuilder(Packing):
    """Derive the train, test and infer programs from program functions.

    Program functions are traced once, without data, when the builder is made: whatever is wrong
    with them is said then. Programs compile at their first use, once for each batch size.

    Arguments:
      program_func: returns the loss, or the loss first and metrics after it, in a tuple, list or
        dict (there the loss is under `"loss"`, or first); or a dict of `Objective`s. The loss is a
        scalar or a vector over examples, whose mean is then minimised.
      optimizer: an optax transformation or a zero-argument function that returns one. Without one
        there is no train program.
      infer_func: returns what `infer` gives.
      place: where programs run, see `penstock.Trainer`.
      skips_non_finite: leave out the updates whose loss or gradient is not finite.
      precision: what layers compute products in, a name or a `Precision`; parameters, statistics
        and losses stay float32.
      gradient_accumulation_steps: the parts that a batch is cut into; each counts by its examples,
        and one after the other they take the memory of one.
      freeze: parameters that stay as they are, `"backbone"` with all that lies under it, or globs
        such as `"*/w"`. Batch norm whose running statistics match normalises by them.

    Raises:
      ProgramError: the functions do not make programs, or disagree about the parameter tree.

    >>> import optax
    >>> from penstock import layers
    >>> def train_program():
    ...     prediction = layers.fc(layers.data("x", shape=[2]), size=1)
    ...     return layers.mean(layers.square_error_cost(prediction, layers.data("y", shape=[1])))
    >>> builder = ProgramBuilder(train_program, optax.sgd(0.1))
    >>> state = builder.init(seed=0)
    >>> state, loss = builder.train(state, {"x": [[1.0, 2.0]], "y": [[3.0]]})
    >>> loss.shape, int(state.step)
    ((), 1)
    """

    def __init__(
        self,
        program_func: Callable[[], Any] | Mapping[str, Objective] | None = None,
        optimizer: Optimizer | None = None,
        *,
        infer_func: Callable[[], Any] | None = None,
        place: _mesh.Place = None,
        skips_non_finite: bool = False,
        precision: PrecisionName | Precision = "float32",
        gradient_accumulation_steps: int = 1,
        freeze: str | Sequence[str] = (),
    ) -> None:
        self.mesh = _mesh.mesh_of(place)
        self.objectives = objectives_of(program_func, optimizer)
        if infer_func is not None:
            check_program_func("infer_func", infer_func)
        if not self.objectives and infer_func is None:
            raise TypeError(
                "ProgramBuilder got neither program_func nor infer_func, expected at least one."
            )
        self.options = ProgramOptions(
            precision=precision_of(precision),
            skips_non_finite=skips_non_finite,
            freeze=(freeze,) if isinstance(freeze, str) else tuple(freeze),
            num_parts=gradient_accumulation_steps,
        ).on(self.mesh)
        self._network = Network(self.objectives, infer_func, self.mesh, self.options)
        self._programs: dict[Any, Program] = {}
        self._initial_state = self._network.initial_state
        self._test_zeros = {
            name: functools.partial(self._network.zeros, each)
            for name, each in self._network.test.items()
        }
        self._feeders = {
            mode: _feeding.Feeder(
                self.mesh, self._network.needed(mode), self._network.feed_specs, num_parts
            )
            for mode, num_parts in (("train", self.options.num_parts), ("test", 1))
        }
        self._infer_feeders: dict[int, _feeding.Feeder] = {}

    def init(self, seed: int = 0) -> State:
        """Return the initial state; needs no data.

        Every parameter's initial value depends on the seed and on its name alone.
        """
        root = np.asarray(jax.random.key_data(jax.random.key(seed)))
        with say_compilation("the initial values"):
            return compiled_call(self._initial_state, self.mesh, root)

    def reset_metrics(self, state: State) -> State:
        """Return the state with empty metric sums; `mean_metrics` starts anew from here."""
        program = self._programs.get("reset") or self._made(
            "reset", _derived.reset_program(self._network)
        )
        return state._replace(metrics=program())

    def mean_metrics(self, state: State) -> Any:
        """Return the example-weighted means of the metrics since the last reset.

        Waits for the device. In the structure the program function returned; with several
        objectives a dict of them by name. Objectives without an update since then are left out.
        """
        means = {
            name: _metrics.means(sums, self._network.train[name].structure)
            for name, sums in jax.device_get(state.metrics).items()
            if len(state.metrics) == 1 or sums.scalars[0, -1]
        }
        return next(iter(means.values())) if len(self.objectives) == 1 else means

    # The programs.

    def train(
        self, state: State, batch: Mapping[str, Any], objective: str | None = None
    ) -> tuple[State, Any]:
        """Update the state by one batch; returns as soon as the step is enqueued.

        The state that goes in is donated: its buffers are gone afterwards. A batch shorter than
        the longest so far is padded to its length; the padding has no influence.

        Arguments:
          batch: input name to array with a leading batch axis.
          objective: which one to train, where there are several.

        Returns:
          The new state, and the metrics as arrays on the device in the program's structure.

        Raises:
          FeedError: the batch does not fit the declared inputs.
        """
        name = self._objective_name(objective)
        placed = self.place("train", [batch])
        leaves, values, _, _ = self.launch(self.pack(state), placed, (name,))
        return self.unpack(leaves), _arranged(values[name], self._network.train[name], placed)

    def test(self, state: State, batch: Mapping[str, Any], objective: str | None = None) -> Any:
        """Return the metrics of one batch in test mode, as arrays on the device."""
        name = self._objective_name(objective)
        placed = self.place("test", [batch])
        _, values = self.test_launch(state, self.test_zeros(name), placed, name)
        return _arranged(values, self._network.test[name], placed)

    def infer(self, state: State | Mapping[str, Any], feed: Mapping[str, Any]) -> Any:
        """Return what `infer_func` returns for a feed of any length, as numpy arrays.

        The feed is padded to the next power of two (and to a multiple of the device count): one
        compile for each. Waits for the device.

        Arguments:
          state: the state, or its `variables`.
          feed: input name to array with a leading batch axis; only the inputs of `infer_func`.

        Raises:
          ProgramError: the builder has no `infer_func`.
          FeedError: the feed does not fit the declared inputs.
        """
        each = self._network.infer
        if each is None:
            raise ProgramError(
                "infer got no infer_func, expected one. Pass infer_func=... to the ProgramBuilder "
                "or Trainer, or use an Inferencer."
            )
        _, size = _feeding.checked(feed, each.feed_specs, each.feed_specs)
        bucket = 1 << (size - 1).bit_length()
        feeder = self._infer_feeders.get(bucket)
        if feeder is None:
            feeder = _feeding.Feeder(self.mesh, each.feed_specs, each.feed_specs)
            self._infer_feeders[bucket] = feeder
            feeder.fit(bucket)
        placed = feeder.place([feed])
        if size < feeder.batch_size:
            each.check_padding("infer", size, feeder.batch_size)
        program = self._programs.get("infer") or self._made(
            "infer", _derived.infer_program(self._network)
        )
        variables = state.variables if isinstance(state, State) else state
        values = program(variables, placed.feed, placed.weights)
        return _metrics.read(values, each.structure, size)

    # What a loop is built of; `train` and `test` above are the simplest one.

    def place(self, mode: str, batches: Sequence[Mapping[str, Any]]) -> _feeding.Placed:
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
        placed = feeder.place(batches)
        if min(placed.counts) < feeder.batch_size:
            # Of the test program too: in training batch norm brings the weights to everything.
            for each in [*self._network.train.values(), *self._network.test.values()]:
                each.check_padding(mode, min(placed.counts), feeder.batch_size)
            if mode == "train":
                self._network.check_padding(min(placed.counts), feeder.batch_size)
        return placed

    def check_update_scale(self, scale: float) -> None:
        """Raise a `ProgramError` unless every optimizer's updates can be scaled by this."""
        self._network.check_update_scale(scale)

    def check_rounds(self, rounds: Sequence[str]) -> None:
        """Raise a `ProgramError` unless each of the named objectives can be trained."""
        self._network.updates_of(rounds)

    def launch(
        self, leaves: list[jax.Array], placed: _feeding.Placed, rounds: tuple[str, ...]
    ) -> tuple[list[jax.Array], dict[str, tuple[jax.Array, ...]], jax.Array, dict[str, jax.Array]]:
        """Run one round of updates on each placed batch, in one launch.

        The state travels flat: JAX takes a nested tree apart and puts it together in every launch,
        which is 5 us of 33 for the smallest network and grows with the number of layers.

        Arguments:
          leaves: the packed state; donated.
          rounds: names of objectives, one for each update of a batch.

        Returns:
          The new packed state, the values of each objective's last update, a flag that is finite
          while every loss since the last reset was, and the learning rate of each objective whose
          optimizer tells it; of each step, where there are several.
        """
        key = ("train", rounds, len(placed.counts))
        program = self._programs.get(key)
        if program is None:
            program = self._made(
                key,
                _derived.train_program(self._network, rounds, len(placed.counts), self._state_tree),
            )
        return program(leaves, placed.feed, placed.weights)

    def debug(
        self, leaves: list[jax.Array], placed: _feeding.Placed, rounds: tuple[str, ...], mode: Any
    ) -> None:
        """Run one round operation by operation, `mode` being `jax.debug_nans` or `debug_infs`.

        Raises:
          FloatingPointError: an operation is not finite. The traceback, or that of the cause where
            it is of a gradient, shows the line of the program function.
        """
        program = _derived.train_program(
            self._network, rounds, len(placed.counts), self._state_tree, is_donated=False
        )
        program.run_eagerly(mode(True), leaves, placed.feed, placed.weights)

    def test_zeros(self, objective: str) -> _metrics.Accumulator:
        """Return the empty sums that `test_launch` starts from."""
        return compiled_call(self._test_zeros[objective], self.mesh)

    def test_launch(
        self,
        state: State,
        sums: _metrics.Accumulator,
        placed: _feeding.Placed,
        objective: str,
    ) -> tuple[_metrics.Accumulator, tuple[jax.Array, ...]]:
        """Run the test program on a placed batch; returns the new sums and the values."""
        program = self._programs.get(("test", objective))
        if program is None:
            program = self._made(
                ("test", objective), _derived.test_program(self._network, objective)
            )
        return program(state.variables, state.key, sums, placed.feed, placed.weights)

    def test_means(self, sums: _metrics.Accumulator, objective: str) -> Any:
        """Return the means over examples of what `test_launch` summed; waits for the device."""
        return _metrics.means(sums, self._network.test[objective].structure)

    @property
    def feeds_ride_along(self) -> bool:
        """Whether batches stay in host memory until their launch, as they do on one CPU device."""
        return self._feeders["train"].is_single_cpu

    @property
    def feed_specs(self) -> dict[str, FeedSpec]:
        """The inputs of all programs by name, in the order they are declared."""
        return self._network.feed_specs

    def inputs(self, mode: str) -> dict[str, FeedSpec]:
        """Return the inputs that a batch must have, `mode` being `"train"` or `"test"`."""
        return self._network.needed(mode)

    @property
    def batch_sizes(self) -> dict[str, int]:
        """The sizes that batches are padded to so far, by mode; on each process its share."""
        return {mode: feeder.batch_size for mode, feeder in self._feeders.items()}

    def fit_batches(self, sizes: Mapping[str, int]) -> None:
        """Pad batches to at least these sizes, by mode, as the run did that is resumed."""
        for mode, size in sizes.items():
            self._feeders[mode].fit(size)

    @property
    def num_compiles(self) -> dict[str, int]:
        """How often each program was compiled, by the program's name."""
        return {program.name: program.num_compiles for program in self._programs.values()}

    @property
    def structures(self) -> dict[str, _metrics.Structure]:
        """How each objective's metrics are arranged, by its name."""
        return {name: each.structure for name, each in self._network.train.items()}

    @property
    def parameter_shapes(self) -> _parameters.Table:
        """Shape and dtype of every entry of the parameter tree, by collection and path."""
        return self._network.table

    # Means to look at a program.

    def parameter_table(self) -> list[_inspect.ParameterRow]:
        """Return name, shape, dtype and role of every parameter and running statistic."""
        return self._network.rows()

    def summary(self) -> str:
        """Return the parameter table as text, with totals."""
        return _inspect.summary(self.parameter_table())

    def inspect(
        self, mode: str = "train", *, batch_size: int = 64, objective: str | None = None
    ) -> _inspect.Inspection:
        """Return a program's trace, compiled text, operations and memory.

        Arguments:
          mode: `"train"`, `"test"` or `"infer"`.
          batch_size: the global batch size, a multiple of the device count.
        """
        name = self._objective_name(objective) if mode in ("train", "test") else ""
        return _derived.inspected(self._network, self._abstract_state, mode, name, batch_size)

    # How programs are made; each is made once.

    def _made(self, key: Any, program: Program) -> Program:
        self._programs[key] = program
        return program

    def _objective_name(self, objective: str | None) -> str:
        if not self.objectives:
            raise ProgramError("this builder got no program_func, expected one to train or test.")
        if objective is None and len(self.objectives) == 1:
            return next(iter(self.objectives))
        if objective not in self.objectives:
            raise UnknownNameError(
                f"objective got {objective!r}, expected one of {listed(self.objectives)}."
                + nearest(str(objective), self.objectives)
            )
        return objective


def _arranged(values: Sequence[jax.Array], each: Probe, placed: _feeding.Placed) -> Any:
    """Return device values in the program's structure, rows of padding cut off."""
    count, size = placed.counts[0], placed.weights.shape[0]
    rows = each.structure.rows
    if count < size:
        # Not v[: count * r], which makes an array of the 0 it begins at: a transfer.
        values = [
            jax.lax.slice_in_dim(v, 0, count * r) if r else v
            for v, r in zip(values, rows, strict=True)
        ]
    return each.structure.build(list(values))
