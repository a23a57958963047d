"""An optimizer as a step runs it: what it is offered, what it keeps, and what is refused."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax.extend.core import ClosedJaxpr
from jax.interpreters.partial_eval import dce_jaxpr
from jax.sharding import Mesh

from penstock import _mesh, _parameter_names
from penstock._errors import ProgramError, listed
from penstock._parameter_names import Nested, Path, spell
from penstock._program.frame import ParameterSpec, Params
from penstock.layers.parameters import L1Decay, L2Decay
from penstock.optimizers import SlowParamsState

T = TypeVar("T")

OFFERS = ("value", "grad", "value_fn", "grad_fn", "obj_fn", "regularized")
"""What a step offers beside gradients and parameters, under the names optax has for it; and the
paths of parameters with a regularizer of their own."""

PENALTIES = (L1Decay, L2Decay)
"""Regularizers that tell what they add to the loss, not to its gradient alone."""

_HOLDS_POSITIONS = (
    optax.LookaheadState,
    optax.contrib.SAMState,
    optax.contrib.ScheduleFreeState,
    optax.contrib.MechanicState,
    optax.contrib.COCOBState,
    optax.contrib.MadgradState,
)
"""States of optimizers whose update leads to a place they chose: a part of it leads elsewhere."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """An optimizer, and how a step has to run it.

    Attributes:
      offered: the keyword arguments of its `update`, and `called` those functions that it calls.
      is_slow: it keeps a second set of parameters, optax's `LookaheadParams`.
      takes_examples: it takes the gradient of every example, stacked on a leading axis.
      state: its state for some parameters of each kind, without values.
      whole_on: the mesh each of whose devices computes it whole, since XLA splits one of its
        operations wrongly.
    """

    transformation: optax.GradientTransformationExtraArgs
    offered: tuple[str, ...]
    is_slow: bool
    takes_examples: bool
    called: frozenset[str] = frozenset()
    params: Nested[jax.ShapeDtypeStruct] | None = None
    state: optax.OptState | None = None
    whole_on: Mesh | None = None

    @property
    def name(self) -> str:
        """What errors call the optimizer, such as `optax.lookahead`."""
        return name_maker(self.transformation.update)

    @property
    def compares_losses(self) -> bool:
        """Whether it evaluates the loss at other parameters."""
        return bool(self.called & {"value_fn", "obj_fn"})

    @functools.cached_property
    def positions(self) -> str | None:
        """The kind of state that holds a place in parameter space; None where there is none."""
        is_held = lambda node: isinstance(node, _HOLDS_POSITIONS)  # noqa: E731
        for node in jax.tree.leaves(self.state, is_leaf=is_held):
            # SAM in opaque mode ends each update where it began it.
            if is_held(node) and getattr(node, "cache", node) is not None:
                return type(node).__name__
        return None

    @property
    def is_evaluated_elsewhere(self) -> bool:
        """Whether the parameters that it trains are not those to evaluate."""
        is_free = lambda node: isinstance(node, optax.contrib.ScheduleFreeState)  # noqa: E731
        nodes = jax.tree.leaves(self.state, is_leaf=is_free)
        return self.is_slow or any(is_free(node) for node in nodes)

    def init(self, trained: Params) -> optax.OptState:
        if self.whole_on is not None:
            split = dataclasses.replace(self, whole_on=None)
            return self.lay_out(split.init(self.lay_out(trained)))
        params = optax.LookaheadParams(trained, trained) if self.is_slow else trained
        state = self.transformation.init(params)
        # Copied: two donated arrays cannot share memory.
        return _as_kept(
            jax.tree.map(jnp.copy, SlowParamsState(trained, state) if self.is_slow else state)
        )

    def lay_out(self, tree: T) -> T:
        """Return what it is given or makes whole on every device, where it is computed so."""
        return tree if self.whole_on is None else _mesh.lay_out(tree, self.whole_on, _mesh.WHOLE)

    def update(
        self, gradients: Params, state: Any, trained: Params, offers: Mapping[str, object]
    ) -> tuple[Params, optax.OptState]:
        """Return what to add to the parameters, and the new state."""
        # Only what it was found to take: most optimizers ignore the rest, some refuse it.
        chosen = {name: offers[name] for name in self.offered}
        chosen |= {n: _mask_offer(f, trained, n) for n, f in chosen.items() if callable(f)}
        params: Any = trained
        inner = state
        if self.is_slow:
            params, inner = optax.LookaheadParams(trained, state.slow), state.inner
        steps: Any
        steps, after = self.transformation.update(gradients, _as_used(inner), params, **chosen)
        after = _cast_like(_as_kept(after), inner)
        if not self.is_slow:
            return steps, after
        # The slow ones never pass through the step: nothing scales or regularizes their update.
        return steps.fast, SlowParamsState(optax.apply_updates(state.slow, steps.slow), after)

    @functools.cached_property
    def keeps_values(self) -> bool:
        """Whether its first state holds anything of the values of parameters."""
        # Read off the trace of `init`, so that no list of optimizers' states has to be kept.
        jaxpr = jax.make_jaxpr(self.init)(self.params).jaxpr
        _, are_read = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
        return any(are_read)


def _mask_offer(offer: Callable[..., Any], trained: Params, name: str) -> object:
    """Return what is offered so that a masked optimizer may ask for it, or have it.

    `optax.masked` leaves `MaskedNode`s in place of what its optimizer is not to see: a loss is
    evaluated at the present values there, and gradients leave the same gaps.
    """
    is_gap = lambda node: isinstance(node, optax.MaskedNode)  # noqa: E731

    def fill_gaps(params: Params) -> Params:
        choose = lambda value, own: own if is_gap(value) else value  # noqa: E731
        return jax.tree.map(choose, params, trained, is_leaf=is_gap)

    def call_offer(params: Params, *args: object) -> Any:
        result = offer(fill_gaps(params), *args)
        if name != "grad_fn":
            return result
        keep = lambda value, gradient: value if is_gap(value) else gradient  # noqa: E731
        return jax.tree.map(keep, params, result, is_leaf=is_gap)

    return call_offer


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RandomKey:
    """A random key of an optimizer's state as plain numbers, which files and copies take."""

    data: jax.Array
    implementation: Any = dataclasses.field(metadata={"static": True})

    @property
    def key(self) -> jax.Array:
        return jax.random.wrap_key_data(self.data, impl=self.implementation)


def _as_kept(state: T) -> T:
    """Return an optimizer's state as a program keeps it: arrays of strong types alone."""

    def keep(leaf: Any) -> jax.Array | RandomKey:
        # Some optimizers keep Python numbers, which no file and no donation takes.
        leaf = leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf)
        # Neither copies by element nor files take typed keys.
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return RandomKey(jax.random.key_data(leaf), jax.random.key_impl(leaf))
        # The dtype is spelled out: a weak type would become a strong one in the first update, and
        # the step would compile twice.
        return jnp.asarray(leaf, leaf.dtype)

    return jax.tree.map(keep, state)


def _as_used(state: T) -> T:
    """Return a kept state as the optimizer made it."""
    is_kept = lambda node: isinstance(node, RandomKey)  # noqa: E731
    return jax.tree.map(lambda x: x.key if is_kept(x) else x, state, is_leaf=is_kept)


def _cast_like(state: T, before: object) -> T:
    """Return a state whose floating arrays have the dtypes they had: another would recompile."""
    if jax.tree.structure(state) != jax.tree.structure(before):
        return state

    def cast(new: jax.Array, old: jax.Array) -> jax.Array:
        is_floating = all(jnp.issubdtype(x.dtype, jnp.floating) for x in (new, old))
        return new.astype(old.dtype) if is_floating else new

    return jax.tree.map(cast, state, before)


def name_maker(update: Callable[..., object]) -> str:
    """Return what made an optimizer, such as `optax.chain(optax.clip, optax.sgd)`."""
    if not isinstance(update, FunctionType):
        return getattr(update, "__qualname__", type(update).__name__)
    # optax's transformations are closures: what made one is only in the names of its functions.
    inside = inspect.getclosurevars(update).nonlocals
    if "with_extra_args_support" in update.__qualname__ and "tx" in inside:
        return name_maker(inside["tx"].update)
    name = name_public(update.__module__, update.__qualname__)
    if name == "optax.chain" and "update_fns" in inside:
        return f"{name}({', '.join(name_maker(part) for part in inside['update_fns'])})"
    return name


def name_public(module: str, qualname: str) -> str:
    """Return how users write the function that a nested function belongs to."""
    name = qualname.split(".<locals>")[0]
    if module.split(".")[0] != "optax":
        return name
    return f"optax.contrib.{name}" if module.startswith("optax.contrib") else f"optax.{name}"


# Most optimizers let pass what they do not know. A line search takes its own alone, SAM grad_fn.
_OFFERED = (OFFERS, OFFERS[:3], OFFERS[:1], ("grad_fn",), ())

_EXAMPLES = 5
"""How many examples' gradients an optimizer is tried with."""


def make_rule(
    owner: str,
    transformation: optax.GradientTransformationExtraArgs,
    trained: Nested[jax.ShapeDtypeStruct],
) -> Rule:
    """Return how to run an optimizer; it is run without values, for parameters without values."""
    # Adam of 1,400 parameters is traced for seconds. Some of each kind tell, but for masks that
    # are trees, which fit all of them alone.
    entries = _parameter_names.flatten(trained)
    few = _some_of_each(entries)
    trees = [_parameter_names.nest(few), trained] if len(few) < len(entries) else [trained]
    errors: list[Exception] = []
    for tree in trees:
        errors = []
        for takes_examples in (False, True):
            for offered in _OFFERED:
                try:
                    rule = _try_rule(transformation, offered, takes_examples, tree)
                    # Masks and labels may choose by any part of a name.
                    if tree is not trained and not rule.is_slow:
                        jax.eval_shape(transformation.init, trained)
                except Exception as error:
                    errors.append(error)
                else:
                    return dataclasses.replace(rule, params=trained)
    # That an argument is unknown is no reason where less on offer failed for another.
    unknown = "unexpected keyword argument"
    refusals = [error for error in errors if unknown not in str(error).lower()] or errors
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
    """Raise unless an optimizer can do what the attributes of its parameters ask for."""
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
    _, (state, steps, after), called = trace_rule(rule, trained)
    # An update in a wider dtype is cast by optax when it is applied.
    _check_fits("updates", steps, "the parameters", trained, has_dtypes=False)
    _check_fits("a state", after, "its initial state", state, has_dtypes=True)
    return dataclasses.replace(rule, called=called, state=state)


def trace_rule(
    rule: Rule, trained: Any
) -> tuple[list[ClosedJaxpr], tuple[optax.OptState, Params, optax.OptState], frozenset[str]]:
    """Return the traces of an optimizer's first state and of an update of any state.

    Beside them are the shapes of that state, of the steps and of the state after, and which of the
    functions on offer the optimizer calls.
    """
    called: set[str] = set()

    def value_fn(name: str, params: Params) -> jax.Array:
        called.add(name)
        leaves = jax.tree.leaves(params)
        return sum((jnp.sum(jnp.real(x)).astype(jnp.float32) for x in leaves), jnp.zeros(()))

    def grad_fn(params: Params, *_: object) -> Params:
        called.add("grad_fn")
        return params

    def step(trained: Params, state: optax.OptState) -> tuple[Params, optax.OptState]:
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
            "regularized": frozenset[Path](),
        }
        return rule.update(gradients, state, trained, offers)

    # Nothing is computed or compiled: shapes tell whether it can run. The state is an input, as in
    # a step: what an operation does to zeros alone would be taken for a constant.
    begin, state = jax.make_jaxpr(rule.init, return_shape=True)(trained)
    update, (steps, after) = jax.make_jaxpr(step, return_shape=True)(trained, state)
    return [begin, update], (state, steps, after), frozenset(called)


def _check_fits(what: str, tree: object, like: str, wanted: object, *, has_dtypes: bool) -> None:
    structure, expected = jax.tree.structure(tree), jax.tree.structure(wanted)
    if structure != expected:
        raise _Misfit(f"its update returns {what} of structure {structure}, not that of {like}")
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    for (path, leaf), other in zip(leaves, jax.tree.leaves(wanted), strict=True):
        if leaf.shape != other.shape or (has_dtypes and leaf.dtype != other.dtype):
            where = jax.tree_util.keystr(path, simple=True, separator="/") or "its top"
            got, expected = (f"{x.dtype}{list(x.shape)}" for x in (leaf, other))
            raise _Misfit(f"its update returns {what} of {got} at {where}, {like} has {expected}")


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
    names = [spell(path) for path in _parameter_names.flatten(trained)]
    shown = listed(names, 6)
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


def name_culprit(error: Exception) -> str:
    """Return the optimizer whose function an exception came out of, the innermost one."""
    culprit = "it"
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
        if "<locals>" in name and not module.startswith(("jax", "penstock.program_builder")):
            culprit = name_public(module, name)
    return culprit
