"""The programs derived from a network: step functions, sharded and ready to compile."""

from __future__ import annotations

import logging
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from penstock import _mesh
from penstock._errors import UnknownNameError, nearest
from penstock.program_builder import _steps
from penstock.program_builder._inspect import Inspection, abstract
from penstock.program_builder._network import Network
from penstock.program_builder._objective import State
from penstock.program_builder._probe import Probe
from penstock.program_builder._programs import REPLICATED, Program


def train_program(
    network: Network, rounds: tuple[str, ...], steps: int, tree: Any, *, is_donated: bool = True
) -> Program:
    """Return `(leaves, feed, weights) -> (leaves, values, flag, rates)`.

    Arguments:
      rounds: names of objectives, one for each update of a batch.
      steps: batches in one launch; with several, feed and weights have a leading step axis.
      tree: the structure of the state that the leaves belong to.
      is_donated: whether the leaves are used up.

    Raises:
      ProgramError: an objective has no optimizer.
    """
    updates = network.updates_of(rounds)
    is_unrolled = any(update.is_unrolled for update in updates)

    def function(leaves: list[Any], feed: Any, weights: Any) -> Any:
        state = jax.tree.unflatten(tree, leaves)
        if steps == 1:
            state, launched = _steps.train_step(updates, state, feed, weights)
        else:
            state, launched = _steps.train_steps(
                updates, state, feed, weights, is_unrolled=is_unrolled
            )
        return jax.tree.leaves(state), *launched

    cut = PartitionSpec(*([] if steps == 1 else [None]), _mesh.AXIS)
    values = {name: _value_specs(network.train[name], cut) for name in dict.fromkeys(rounds)}
    label = "+".join(rounds) if len(network.objectives) > 1 else "train"
    return Program(
        label if steps == 1 else f"{label} x{steps}",
        function,
        network.mesh,
        in_specs=(REPLICATED, cut, cut),
        out_specs=(REPLICATED, values, REPLICATED, REPLICATED),
        donated=(0,) if is_donated else (),
    )


def test_program(network: Network, objective: str) -> Program:
    """Return `(variables, key, sums, feed, weights) -> (sums, values)`."""
    each, num_devices = network.test[objective], network.mesh.size

    def function(variables: Any, key: Any, sums: Any, feed: Any, weights: Any) -> Any:
        return _steps.test_step(each, variables, key, sums, feed, weights, num_devices)

    cut = PartitionSpec(_mesh.AXIS)
    return Program(
        "test" if len(network.objectives) == 1 else f"test {objective}",
        function,
        network.mesh,
        in_specs=(REPLICATED, REPLICATED, REPLICATED, cut, cut),
        out_specs=(REPLICATED, _value_specs(each, cut)),
    )


def infer_program(network: Network) -> Program:
    """Return `(variables, feed, weights) -> values` of a network with an infer function."""
    each, num_devices = network.infer, network.mesh.size
    assert each is not None

    def function(variables: Any, feed: Any, weights: Any) -> Any:
        return _steps.infer_step(each, variables, feed, weights, num_devices)

    cut = PartitionSpec(_mesh.AXIS)
    return Program(
        "infer",
        function,
        network.mesh,
        in_specs=(REPLICATED, cut, cut),
        out_specs=_value_specs(each, cut),
        recompile_level=logging.DEBUG,  # one compile for each bucket is meant
    )


def reset_program(network: Network) -> Program:
    """Return `() -> metrics`: empty sums for every objective."""
    zeros = network.zeros
    return Program(
        "reset",
        lambda: {name: zeros(each) for name, each in network.train.items()},
        network.mesh,
        in_specs=(),
        out_specs=REPLICATED,
        is_quick=True,
    )


def inspected(
    network: Network, state: State, mode: str, objective: str, batch_size: int
) -> Inspection:
    """Return the trace of a program, for a state without values.

    Raises:
      UnknownNameError: there is no such mode, or no infer function.
    """
    whole, cut = _mesh.replicated(network.mesh), _mesh.split(network.mesh)
    state = abstract(state, whole)
    if mode == "infer" and network.infer is not None:
        specs = network.infer.feed_specs
        program, args = infer_program(network), [state.variables]
    elif mode == "test":
        specs = network.needed(mode)
        zeros = jax.eval_shape(lambda: network.zeros(network.test[objective]))
        program = test_program(network, objective)
        args = [state.variables, state.key, abstract(zeros, whole)]
    elif mode == "train":
        specs = network.needed(mode)
        program = train_program(network, (objective,), 1, jax.tree.structure(state))
        args = [jax.tree.leaves(state)]
    else:
        raise UnknownNameError(
            f"inspect got the mode {mode!r}, expected 'train', 'test' or, with an infer_func, "
            "'infer'." + nearest(mode, ["train", "test", "infer"])
        )
    feed = {
        name: jax.ShapeDtypeStruct((batch_size, *spec.shape), spec.dtype, sharding=cut)
        for name, spec in specs.items()
    }
    weights = jax.ShapeDtypeStruct((batch_size,), np.float32, sharding=cut)
    return Inspection(program.jitted.trace(*args, feed, weights))


def _value_specs(each: Probe, cut: PartitionSpec) -> tuple[PartitionSpec, ...]:
    return tuple(cut if rows else REPLICATED for rows in each.structure.rows)
