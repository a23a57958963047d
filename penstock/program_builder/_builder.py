"""`ProgramBuilder`: program functions in, programs out."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import jax
from jax.typing import ArrayLike

from penstock import _mesh, _metrics
from penstock._errors import FixedAttributes, ProgramError, check_int, check_known
from penstock._mesh import StateSharding
from penstock._padded_batches import DeviceBatch
from penstock._parameter_names import Nested
from penstock._program.frame import Variables
from penstock._program.inputs import Feed, FeedSpec
from penstock._program.precision import ParameterSharding, Precision, PrecisionName, ProgramOptions
from penstock.program_builder import _inspect, _objective
from penstock.program_builder._network import Network
from penstock.program_builder._step import State
from penstock.program_builder.engine import Programs, describe

R = TypeVar("R")
"""What a program function returns, and so what `train` and `test` return for a batch."""


class ProgramBuilder(FixedAttributes, Generic[R]):
    """Derive the train, test and infer programs from program functions.

    Program functions are traced, without data, when the builder is made. Errors in them are
    reported then. Programs are compiled at their first use, once for each batch size.

    Arguments:
      program_func: a function that returns the loss, or a tuple, list or dict of the loss and
        metrics. The loss comes first; in a dict it can also have the key `"loss"`. It is a scalar,
        or a vector over examples, whose mean is minimised. Or a dict of `Objective`s by name.
      optimizer: an optax transformation, or a function without arguments that returns one. Without
        one there is no train program.
      infer_func: returns the outputs of `infer`.
      skips_non_finite: skip updates whose loss or gradient is not finite.
      place, precision, gradient_accumulation_steps, freeze, strict: as for `penstock.Trainer`; the
        precision is `"float32"` by default. Micro-batches are weighted by their examples.
      state_sharding, parameter_sharding: as for `penstock.Trainer`.

    Raises:
      ProgramError: no program can be made of the functions, or their parameters do not agree.

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

    __slots__ = ("mesh", "objectives", "programs")

    def __init__(
        self,
        program_func: Callable[[], R] | Mapping[str, _objective.Objective] | None = None,
        optimizer: _objective.Optimizer | None = None,
        *,
        infer_func: Callable[[], object] | None = None,
        place: _mesh.Place = None,
        skips_non_finite: bool = False,
        precision: PrecisionName | Precision = "float32",
        gradient_accumulation_steps: int = 1,
        freeze: str | Sequence[str] = (),
        strict: bool = False,
        state_sharding: StateSharding = None,
        parameter_sharding: ParameterSharding = (),
    ) -> None:
        # First: a place that is not there is said before any function is traced.
        self.mesh = _mesh.make_mesh(place)
        self.objectives = _objective.read_objectives(program_func, optimizer)
        if infer_func is not None:
            _objective.check_program_func("infer_func", infer_func)
        if not self.objectives and infer_func is None:
            raise TypeError("ProgramBuilder got neither program_func nor infer_func, expected one.")
        name = "gradient_accumulation_steps"
        number = check_int(name, gradient_accumulation_steps, 1, error=ProgramError)
        options = ProgramOptions(
            mesh=self.mesh,
            num_micro_batches=number,
            precision=precision if isinstance(precision, Precision) else Precision(precision),
            skips_non_finite=skips_non_finite,
            freeze=(freeze,) if isinstance(freeze, str) else tuple(freeze),
            strict=strict,
            state_sharding=state_sharding,
            parameter_sharding=tuple(parameter_sharding),
        )
        self.programs = Programs(Network(self.objectives, infer_func, options))

    def init(self, seed: int = 0) -> State:
        """Return the initial state, which needs no data.

        Every parameter's initial value depends only on the seed and on its name.
        """
        return self.programs.states.init(seed)

    def reset_metrics(self, state: State) -> State:
        """Return the state with its metric sums set to zero, to begin a new mean."""
        return self.programs.reset_metrics(state)

    def mean_metrics(self, state: State) -> Any:
        """Return the example-weighted means of the metrics since the last reset.

        They have the structure that the program function returned. With several objectives the
        result is a dict of such structures by name, without the objectives that have had no update
        since the reset. Waits for the device.

        Raises:
          ValueError: there has been no example since the last reset.
        """
        return self.programs.states.mean_metrics(state)

    def train(self, state: State, batch: Feed, objective: str | None = None) -> tuple[State, R]:
        """Update the state with one batch; returns as soon as the step is enqueued.

        The old state is donated and must not be used again. The program is compiled once for each
        batch size.

        Arguments:
          batch: a dict from input names to arrays with a leading batch axis.
          objective: the name of the objective to train, if there are several.

        Returns:
          The new state, and the metrics as arrays on the device in the program's structure.

        Raises:
          FeedError: the batch does not fit the declared inputs.
        """
        name, programs = self.choose_objective(objective), self.programs
        placed = programs.place("train", [batch])
        # A state of the user's own travels nested: only the trainer's engine saves the 5 us of
        # taking it apart.
        leaves, launched = programs.launch(jax.tree.leaves(state), placed, (name,))
        structure = programs.structures[name]
        return programs.states.unpack(leaves), _arrange(launched.values[name], structure, placed)

    def test(self, state: State, batch: Feed, objective: str | None = None) -> R:
        """Return the metrics of one batch in test mode, as arrays on the device."""
        name, programs = self.choose_objective(objective), self.programs
        placed = programs.place("test", [batch])
        # The sums of this one batch are dropped: `Trainer.test` adds up over many.
        zeros = programs.make_zeros(programs.network.test[name])
        _, values = programs.test(state, zeros, placed, name)
        return _arrange(values, programs.network.test[name].structure, placed)

    def infer(self, state: State | Variables, feed: Feed) -> Any:
        """Return the outputs of `infer_func` for a feed of any length, as numpy arrays.

        If every output has one row per example, and a row depends on its own example alone, the
        feed is padded to a power of two per device. The program is then compiled once for each
        padded size, otherwise once for each batch size. Waits for the device.

        Arguments:
          state: the state, or its `variables`.
          feed: a dict from the input names of `infer_func` to arrays with a leading batch axis.

        Raises:
          ProgramError: the builder has no `infer_func`.
          FeedError: the feed does not fit the declared inputs.
        """
        variables = state.variables if isinstance(state, State) else state
        return self.programs.infer(variables, feed)

    def adopt(self, variables: Mapping[str, Nested[ArrayLike]], state: State) -> State:
        """Return the state with other variables, copied into buffers that can be donated.

        Copies of the parameters in an optimizer's state are replaced too.
        """
        return self.programs.states.adopt(variables, state)

    def averaged(self, state: State) -> State:
        """Return the state with its parameters replaced by their moving averages.

        The two states share all other arrays, so `train` on either one donates them.

        Raises:
          ValueError: no optimizer keeps a moving average.
        """
        return self.programs.states.average(state)

    @property
    def feed_specs(self) -> dict[str, FeedSpec]:
        """The inputs of all programs by name, in the order of their declaration."""
        return self.programs.network.feed_specs

    @property
    def num_compiles(self) -> dict[str, int]:
        """How many times each program was compiled, by the program's name."""
        return self.programs.num_compiles

    def parameter_table(self) -> list[_inspect.ParameterRow]:
        """Return the name, shape, dtype and role of every parameter and running statistic."""
        return self.programs.network.parameter_rows()

    def summary(self) -> _inspect.ParameterSummary:
        """Return the parameter table as text with totals, which a notebook shows as a table."""
        return _inspect.summary(self.parameter_table())

    def __copy__(self) -> ProgramBuilder[R]:
        """Return a builder of the same programs, each compiled once for both."""
        other = type(self).__new__(type(self))
        other.mesh, other.objectives = self.mesh, self.objectives
        other.programs = copy.copy(self.programs)
        return other

    def __repr__(self) -> str:
        network, devices = self.programs.network, list(self.mesh.devices.flat)
        sizes = [math.prod(shape) for (c, _), (shape, _) in network.table.items() if c == "params"]
        return (
            f"<ProgramBuilder: inputs {', '.join(network.feed_specs)}, {sum(sizes):,} parameters, "
            f"on {len(devices)} x {devices[0].device_kind}>"
        )

    def inspect(
        self,
        mode: str = "train",
        *,
        batch_size: int = 64,
        objective: str | None = None,
        as_on_accelerators: bool = False,
    ) -> _inspect.Inspection:
        """Return a program's trace, compiled text, operations and memory.

        Arguments:
          mode: `"train"`, `"test"` or `"infer"`.
          batch_size: the global batch size. Sequences are as long as their last declared bucket, by
            default 16.
          objective: the name of the objective, if there are several.
          as_on_accelerators: on CPU, show convolutions and pooling as accelerators run them. Layers
            compute some of them in another way on CPU.

        Raises:
          UnknownNameError: there is no such mode or objective.
          ProgramError: the builder has no `infer_func`.
        """
        check_int("inspect(batch_size)", batch_size, 1)
        name = self.choose_objective(objective) if mode in ("train", "test") else ""
        programs = self.programs
        if as_on_accelerators:
            programs = Programs(programs.network.for_accelerators())
        return trace_program(programs, mode, name, batch_size)

    def choose_objective(self, objective: str | None = None) -> str:
        """Return the name of an objective, which may be left out where there is one alone.

        Raises:
          UnknownNameError: there is no such objective, or there are several and none was named.
        """
        if not self.objectives:
            raise ProgramError("this builder got no program_func, expected one to train or test.")
        if objective is None and len(self.objectives) == 1:
            return next(iter(self.objectives))
        check_known("objective", objective, self.objectives)
        # As it was given: the text of a str's subclass may be another.
        return cast(str, objective)


def trace_program(
    programs: Programs, mode: str, objective: str, batch_size: int
) -> _inspect.Inspection:
    network, states = programs.network, programs.states
    check_known("inspect(mode)", mode, ["train", "test", "infer"])
    state, feed, rows = describe(programs, mode, batch_size)
    if mode == "infer":
        program, args = programs.infer_program(), [state.variables]
    elif mode == "test":
        program = programs.test_program(objective)
        # Not `make_zeros`: nothing is placed, on devices that may be described only.
        make = functools.partial(
            jax.ShapeDtypeStruct, sharding=_mesh.make_shardings(programs.mesh, _mesh.WHOLE)
        )
        sums = _metrics.zeros(network.test[objective].structure, make)
        args = [state.variables, state.key, sums]
    else:
        program = programs.train_program((objective,), 1)
        args = [*states.divide(jax.tree.leaves(state))]
    return _inspect.Inspection(program.jitted.trace(*args, feed, rows))


def _arrange(
    values: Sequence[_metrics.Value], structure: _metrics.Structure, placed: DeviceBatch
) -> Any:
    """Return device values in the program's structure, rows of padding cut off."""
    number, shown = placed.size, list(values)
    if jax.process_count() == 1 and number < placed.rows.size:
        for place, item in enumerate(structure.items):
            if item.rows:
                # Not v[: number * rows], which makes an array of the 0 it begins at: a transfer.
                value: Any = values[place]
                shown[place] = jax.lax.slice_in_dim(value, 0, number * item.rows)
    return structure.build(shown)
