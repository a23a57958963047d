"""An optimizer tried without data: how a step can run it, and what it refuses."""

from __future__ import annotations

import dataclasses
import functools
import traceback
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from penstock._errors import ProgramError, listed
from penstock._parameter_names import Nested, Path, spell
from penstock._program import parameter_tree
from penstock._program.requests import ParameterSpec, Params
from penstock.program_builder._optimizer_rule import (
    OFFERS,
    PENALTIES,
    Rule,
    name_maker,
    name_public,
)

# Most optimizers let pass what they do not know. A line search takes its own alone, SAM grad_fn.
_OFFERED = (OFFERS, OFFERS[:3], OFFERS[:1], ("grad_fn",), ())

_EXAMPLES = 5
"""How many examples' gradients an optimizer is tried with."""


def make_rule(
    owner: str,
    transformation: optax.GradientTransformationExtraArgs,
    trained: Nested[jax.ShapeDtypeStruct],
) -> Rule:
    """Return how to run an optimizer; it is run without values, for parameters without values.

    Raises:
      ProgramError: no train program can run it.
    """
    # Adam of 1,400 parameters is traced for seconds. Some of each kind tell, but for masks that
    # are trees, which fit all of them alone.
    entries = parameter_tree.flatten(trained)
    few = _some_of_each(entries)
    trees = [parameter_tree.nest(few), trained] if len(few) < len(entries) else [trained]
    errors: list[Exception] = []
    for tree in trees:
        errors = []
        for takes_examples in (False, True):
            for offered in _OFFERED:
                try:
                    rule = _try_rule(transformation, offered, takes_examples, tree)
                except Exception as error:
                    errors.append(error)
                else:
                    return dataclasses.replace(rule, params=trained)
    # That an argument is unknown is no reason where less on offer failed for another.
    refusals = [error for error in errors if not _is_of_arguments(error)] or errors
    raise _explain_refusal(owner, transformation, trained, refusals[0]) from refusals[0]


def _some_of_each(
    entries: dict[Path, jax.ShapeDtypeStruct],
) -> dict[Path, jax.ShapeDtypeStruct]:
    """Return one parameter of each name, number of axes and dtype."""
    kinds = {(path[-1], x.ndim, str(x.dtype)): path for path, x in reversed(entries.items())}
    kept = set(kinds.values())
    return {path: value for path, value in entries.items() if path in kept}


def check_rule(
    owner: str,
    rule: Rule,
    specs: Sequence[ParameterSpec],
    statistics: Sequence[Path],
) -> None:
    """Raise unless an optimizer can do what the attributes of its parameters ask for.

    Arguments:
      specs: of penstock's parameters that it trains.
      statistics: paths of the running statistics that the program moves.

    Raises:
      ProgramError: naming the first parameter that it cannot train so.
    """
    compares_losses = rule.compares_losses
    for spec in specs:
        if rule.positions and spec.learning_rate != 1.0:
            raise ProgramError(
                f"{owner} got learning_rate={spec.learning_rate} for {spec.name!r} and the "
                f"optimizer {rule.name}, expected 1. The optimizer keeps where its updates lead "
                f"({rule.positions}), and a part of an update leads elsewhere. Give the parameter "
                "a rate inside the optimizer, with optax.partition."
            )
        # A line search compares losses, and of a gradient alone nobody knows the loss.
        is_told = spec.regularizer is None or isinstance(spec.regularizer, PENALTIES)
        if compares_losses and not is_told:
            raise ProgramError(
                f"{owner} got the regularizer {spec.regularizer!r} for {spec.name!r} and the "
                f"optimizer {rule.name}, expected L1Decay or L2Decay. The optimizer compares "
                "losses, and the regularizer gives a gradient alone. Add it to the loss."
            )
        if rule.takes_examples and spec.regularizer is not None:
            raise ProgramError(
                f"{owner} got a regularizer for {spec.name!r} and the optimizer {rule.name}, "
                "expected none. The optimizer takes the gradient of each example, which has no "
                "share of it. Put optax.add_decayed_weights after the optimizer's first part."
            )
    if rule.takes_examples and statistics:
        raise ProgramError(
            f"{owner} got the running statistics {spell(statistics[0])!r} and the optimizer "
            f"{rule.name}, expected none. The optimizer takes the gradient of each example by "
            "itself, and batch norm mixes them. Use layers.layer_norm, or freeze the layer."
        )


class _Misfit(Exception):
    """What an optimizer returned does not fit the parameters or its state."""


def _try_rule(
    transformation: optax.GradientTransformationExtraArgs,
    offered: tuple[str, ...],
    takes_examples: bool,
    trained: Nested[jax.ShapeDtypeStruct],
) -> Rule:
    """Return the rule with what a run of it, without values, tells."""
    rule = Rule(
        transformation=transformation,
        offered=offered,
        is_slow=_keeps_slow_params(transformation, trained),
        takes_examples=takes_examples,
    )
    # Notes by a side effect of tracing which functions the optimizer calls.
    called: set[str] = set()

    def value_fn(name: str, params: Params) -> jax.Array:
        called.add(name)
        leaves = jax.tree.leaves(params)
        return sum((jnp.sum(jnp.real(x)).astype(jnp.float32) for x in leaves), jnp.zeros(()))

    def grad_fn(params: Params, *_: object) -> Params:
        called.add("grad_fn")
        return params

    def step(trained: Params) -> tuple[optax.OptState, Params, optax.OptState]:
        gradients = trained
        if rule.takes_examples:
            stacked = lambda x: jnp.broadcast_to(x, (_EXAMPLES, *x.shape))  # noqa: E731
            gradients = jax.tree.map(stacked, trained)
        offers = {
            "value": jnp.zeros(()),
            "grad": gradients,
            "value_fn": functools.partial(value_fn, "value_fn"),
            "grad_fn": grad_fn,
            "obj_fn": functools.partial(value_fn, "obj_fn"),
        }
        state = rule.init(trained)
        return state, *rule.update(gradients, state, trained, offers)

    # Nothing is computed or compiled: shapes tell whether it can run.
    state, steps, after = jax.eval_shape(step, trained)
    # An update in a wider dtype is cast by optax when it is applied.
    _check_fits("updates", steps, "the parameters", trained, has_dtypes=False)
    _check_fits("a state", after, "its initial state", state, has_dtypes=True)
    return dataclasses.replace(rule, called=frozenset(called), state=state)


def _check_fits(what: str, tree: object, like: str, wanted: object, *, has_dtypes: bool) -> None:
    found, expected = jax.tree.structure(tree), jax.tree.structure(wanted)
    if found != expected:
        raise _Misfit(f"its update returns {what} with the structure {found}, not that of {like}")
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    for (path, leaf), other in zip(leaves, jax.tree.leaves(wanted), strict=True):
        if leaf.shape != other.shape or (has_dtypes and leaf.dtype != other.dtype):
            where = jax.tree_util.keystr(path, simple=True, separator="/") or "its top"
            raise _Misfit(
                f"its update returns {what} with {_describe_array(leaf)} at {where}, where {like} "
                f"has {_describe_array(other)}"
            )


def _describe_array(array: jax.ShapeDtypeStruct) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _keeps_slow_params(transformation: optax.GradientTransformation, trained: Any) -> bool:
    # Optimizers that are no lookahead take any tree, but for masks, which fit another.
    try:
        state = jax.eval_shape(transformation.init, optax.LookaheadParams(trained, trained))
    except Exception:
        return False
    is_state = lambda node: isinstance(node, optax.LookaheadState)  # noqa: E731
    return any(is_state(node) for node in jax.tree.leaves(state, is_leaf=is_state))


def _explain_refusal(
    owner: str,
    transformation: optax.GradientTransformation,
    trained: Nested[jax.ShapeDtypeStruct],
    error: Exception,
) -> ProgramError:
    names = [spell(path) for path in parameter_tree.flatten(trained)]
    shown = listed(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    if isinstance(error, _Misfit):
        problem = str(error)
    else:
        # The first line: JAX explains at length, and the whole is the exception's cause.
        told = next(iter(str(error).splitlines()), "")
        problem = f"{name_culprit(error)} raised {type(error).__name__}: {told}"
    return ProgramError(
        f"the optimizer of {owner} got {name_maker(transformation.update)}, expected one that a "
        f"train program can run. Tried without data, {problem.rstrip('.')}. It is given gradients, "
        f"the parameters that are trained ({shown}) and, where it takes them, {', '.join(OFFERS)}. "
        "Choose another optimizer, or make masks and labels functions of the parameters; "
        "`penstock docs optimizers` says what runs."
    )


def _is_of_arguments(error: Exception) -> bool:
    """Return whether an optimizer only says that it does not take what it was offered."""
    return isinstance(error, TypeError) and "unexpected keyword argument" in str(error).lower()


def name_culprit(error: Exception) -> str:
    """Return the optimizer whose function an exception came out of, the innermost one."""
    found = "it"
    # The last one that fits is the innermost.
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
        if "<locals>" in name and not module.startswith(("jax", "penstock.program_builder")):
            found = name_public(module, name)
    return found
