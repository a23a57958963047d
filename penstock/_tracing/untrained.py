"""Weights that a program function holds itself, so that no optimizer sees them.

A module of flax.nnx, Equinox or Haiku that a program function closes over or makes is constants of
the trace. The trace tells: arrays it closed over, and numbers drawn from a key that is no part of
the state, which are the same at every step. What the loss has a gradient by is reported.
"""

from __future__ import annotations

import contextlib
import functools
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from penstock._errors import ProgramError
from penstock._program.user_lines import is_user_file

_REMEDIES = {
    "flax.nnx": "Call it through layers.nnx_module(model), which takes nnx.Params into the tree.",
    "Equinox": "Call the module that layers.create_parameters(model) returns.",
    "Haiku": "Apply it to what layers.create_parameters(params) returns.",
}
_CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_DRAWS = {"random_bits", "rng_bit_generator", "rng_uniform"}


def check_constants(
    function: Callable[[], object], traces: Sequence[Any], loss_index: int, owner: str
) -> None:
    """Raise or warn where the loss has a gradient by what no optimizer can update."""
    # Most programs have neither, and the search is long.
    if not any(getattr(trace, "consts", ()) for trace in traces) and not has_draw(traces):
        return
    whole: ClosedJaxpr = traces[0]
    body = whole.jaxpr
    needed, constants = _find_differentiable(body, [body.outvars[loss_index]])
    closed_over = zip(body.constvars, whole.consts, strict=True)
    constants += [value for var, value in closed_over if var in needed]
    arrays = {id(value): value for value in constants if _is_weight(value)}
    held = _find_holders(function, arrays) if arrays else []
    draws = _find_constant_draws(body, set(body.invars), needed)
    held += [_describe_draw(equation) for equation in draws]
    _report(held, owner)


def _report(held: list[Held], owner: str) -> None:
    # An error where a library says that it is a weight, a warning where nothing does.
    for library in sorted({constant.library for constant in held if constant.library}):
        of_library = [constant for constant in held if constant.library == library]
        raise ProgramError(
            f"{owner} got weights of {library} that no optimizer sees, {_list_some(of_library)}, "
            "expected parameters of the program only. They are constants of the program and would "
            f"stay as they are. {_REMEDIES[library]} If they are meant to stay, wrap them, or what "
            "is computed from them, in jax.lax.stop_gradient."
        )
    if held:
        warnings.warn(
            f"{owner} got constants that its loss has a gradient by, {_list_some(held)}, expected "
            "parameters of the program. No optimizer sees a constant. If it is a weight, use what "
            "layers.create_parameters returns for it. If it is not, say so: with "
            "jax.lax.stop_gradient, or as a numpy array.",
            stacklevel=2,
        )


def _list_some(held: Iterable[Held]) -> str:
    shown = list(dict.fromkeys(constant.label for constant in held))
    more = f" and {len(shown) - 5} more" if len(shown) > 5 else ""
    return ", ".join(shown[:5]) + more


def _is_weight(value: Any) -> TypeGuard[jax.Array]:
    """Return whether a constant may be a weight; numpy arrays and single numbers are data."""
    is_array = isinstance(value, jax.Array) and value.size > 1
    return is_array and jnp.issubdtype(value.dtype, jnp.inexact)


def _find_differentiable(
    jaxpr: Jaxpr, outputs: Sequence[Var | Literal]
) -> tuple[set[Var], list[object]]:
    """Return what `outputs` have a gradient by: variables, and constants of nested traces."""
    needed = {var for var in outputs if _is_differentiable(var)}
    constants: list[object] = []
    for equation in reversed(jaxpr.eqns):
        # `stop_gradient` is how a user says that a constant is meant.
        results = [number for number, var in enumerate(equation.outvars) if var in needed]
        if not results or equation.primitive.name == "stop_gradient":
            continue
        inner = _find_called(equation)
        if inner is None:  # a loop, a branch: all that goes in may matter
            needed.update(var for var in equation.invars if _is_differentiable(var))
            for nested in list_traces([equation]):
                constants += getattr(nested, "consts", ())
            continue
        body = _get_body(inner)
        used, inner_constants = _find_differentiable(
            body, [body.outvars[number] for number in results]
        )
        constants += inner_constants
        consts = zip(body.constvars, getattr(inner, "consts", ()), strict=False)
        constants += [value for var, value in consts if var in used]
        pairs = zip(equation.invars, body.invars, strict=True)
        needed.update(
            var for var, inner_var in pairs if inner_var in used and _is_differentiable(var)
        )
    return needed, constants


def _get_body(parameter: Any) -> Jaxpr:
    """Return a trace without its constants; any other parameter of an equation as it is."""
    return getattr(parameter, "jaxpr", parameter)


def _get_aval(var: Var | Literal) -> ShapedArray:
    """Return shape and dtype of a variable, whose declared type in JAX has neither."""
    return cast(ShapedArray, var.aval)


def _is_differentiable(var: Var | Literal) -> TypeGuard[Var]:
    return not isinstance(var, Literal) and jnp.issubdtype(_get_aval(var).dtype, jnp.inexact)


def _find_called(equation: JaxprEqn) -> Jaxpr | ClosedJaxpr | None:
    """Return the trace of the function that an equation calls once, with its own inputs."""
    for name in _CALLS:
        inner = equation.params.get(name)
        body = _get_body(inner)
        is_whole = hasattr(body, "eqns") and equation.primitive.name not in ("scan", "while")
        if (
            is_whole
            and len(body.invars) == len(equation.invars)
            and len(body.outvars) == len(equation.outvars)
        ):
            return inner
    return None


def list_traces(equations: Iterable[JaxprEqn]) -> list[Any]:
    """Return all traces inside operations, at any depth, with their constants."""
    traces, queue = [], list(equations)
    for equation in queue:  # which grows
        for value in equation.params.values():
            for trace in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(trace, "eqns"):
                    traces.append(trace)
                    queue += getattr(trace, "jaxpr", trace).eqns
    return traces


def _find_constant_draws(jaxpr: Jaxpr, inputs: set[Var], needed: set[Var]) -> list[JaxprEqn]:
    """Return the equations that give floating numbers drawn without regard to any input."""
    varying, drawn, draws = set(inputs), set(), []
    for equation in jaxpr.eqns:
        variables = [var for var in equation.invars if not isinstance(var, Literal)]
        if varying.intersection(variables):
            varying.update(equation.outvars)
            draws += _find_draws_inside(equation, varying, needed)
        elif drawn.intersection(variables) or _is_draw(equation):
            drawn.update(equation.outvars)
            # Only the draw itself is told, not what is computed from it.
            is_first = not any(v in drawn and _is_differentiable(v) for v in variables)
            wanted = [v for v in equation.outvars if v in needed and _get_aval(v).size > 1]
            draws += [equation] if wanted and is_first else []
    return draws


def _find_draws_inside(equation: JaxprEqn, varying: set[Var], needed: set[Var]) -> list[JaxprEqn]:
    inner = _find_called(equation)
    if inner is None:
        return []
    body = _get_body(inner)
    pairs = zip(equation.invars, body.invars, strict=True)
    inputs = {
        inner_var for var, inner_var in pairs if not isinstance(var, Literal) and var in varying
    }
    outputs = zip(equation.outvars, body.outvars, strict=True)
    used, _ = _find_differentiable(body, [inner_var for var, inner_var in outputs if var in needed])
    return _find_constant_draws(body, inputs, used)


def _is_draw(equation: JaxprEqn) -> bool:
    return equation.primitive.name in _DRAWS or has_draw(list_traces([equation]))


def has_draw(traces: Iterable[Any]) -> bool:
    """Return whether a program draws random numbers."""
    names = {equation.primitive.name for trace in traces for equation in _get_body(trace).eqns}
    return bool(names & _DRAWS)


_LIBRARIES = {"flax/nnx": "flax.nnx", "equinox": "Equinox", "haiku": "Haiku"}
_MAX_OBJECTS = 100_000
"""How many objects are looked at: what is found later is named by its shape alone."""


class Held(NamedTuple):
    """A constant: how a user knows it, and the library whose module holds it, if any."""

    label: str
    library: str | None = None


def _find_holders(function: Callable[[], object], arrays: Mapping[int, jax.Array]) -> list[Held]:
    """Return who holds the arrays, by their ids, that a function closes over."""
    holders: dict[int, Held] = {}
    seen: set[int] = set()
    queue: list[tuple[str, object, str | None]] = [("", function, None)]
    for path, value, library in queue:  # which grows: breadth first gives the shortest name
        if id(value) in arrays:
            holders.setdefault(id(value), Held(f"{path} {_show(value)}", library))
        if id(value) in seen or len(seen) > _MAX_OBJECTS or len(holders) == len(arrays):
            continue
        seen.add(id(value))
        # What a module holds is the module's, whatever its own type.
        of_value = _find_owner(value) or library
        queue += [(name, part, of_value) for name, part in _list_parts(path, value)]
    # Computed from others on the way, or held where nobody looks: its shape is all there is.
    return [
        holders.get(number, Held(f"an array {_show(value)}")) for number, value in arrays.items()
    ]


def _describe_draw(equation: JaxprEqn) -> Held:
    frames = getattr(equation.source_info.traceback, "frames", ())
    libraries = [_find_library(frame.file_name) for frame in frames]
    sites = [
        f"{frame.file_name}:{frame.line_num}"
        for frame, library in zip(frames, libraries, strict=True)
        if is_user_file(frame.file_name) and not library
    ]
    site = next(iter(sites), "an unknown line")
    label = f"{_show(equation.outvars[0].aval)} drawn at {site} from a key of its own"
    return Held(label, next(filter(None, libraries), None))


def _find_library(file: str) -> str | None:
    path = file.replace("\\", "/")
    return next((name for part, name in _LIBRARIES.items() if f"/{part}/" in path), None)


def _show(value: Any) -> str:
    return f"{list(value.shape)} {value.dtype}"


def _find_owner(value: object) -> str | None:
    """Return the library whose module or variable an object is, of a user's subclass too."""
    modules = [f"{base.__module__.replace('.', '/')}/" for base in type(value).__mro__]
    owners = [
        name for file in modules for p, name in _LIBRARIES.items() if file.startswith(f"{p}/")
    ]
    return owners[0] if owners else None


def _list_parts(path: str, value: Any) -> Iterator[tuple[str, object]]:
    # What holds nothing, and modules of Python, which hold everything.
    if isinstance(value, (jax.Array, np.ndarray, str, bytes, int, float, type, types.ModuleType)):
        return
    if isinstance(value, types.FunctionType):
        yield from _list_names(value)
    elif isinstance(value, functools.partial):
        yield from ((path, part) for part in (value.func, *value.args))
        yield from value.keywords.items()
    elif isinstance(value, types.MethodType):
        yield from ((path or "self", value.__self__), (path, value.__func__))
    elif isinstance(value, Mapping):
        yield from ((f"{path}[{key!r}]", part) for key, part in list(value.items()))
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"{path}[{number}]", part) for number, part in enumerate(value))
    # An nnx variable is known by the attribute that it is, not by the array inside.
    elif _find_owner(value) == "flax.nnx" and hasattr(value, "get_value"):
        yield path, value.get_value()
    elif hasattr(value, "__wrapped__"):
        yield path, value.__wrapped__  # what jax.jit returns
    else:
        attributes = list(getattr(value, "__dict__", {}).items())
        yield from ((f"{path}.{name}" if path else name, part) for name, part in attributes)


def _list_names(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the names outside a user's function that its code reads, and its defaults."""
    if not is_user_file(function.__code__.co_filename):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a name that is not bound yet
            yield name, cell.cell_contents
    codes = [function.__code__]
    for code in codes:  # which grows by the functions inside
        codes += [part for part in code.co_consts if isinstance(part, types.CodeType)]
        # Globals that the code never names cannot be in the trace.
        for name in code.co_names:
            if name in function.__globals__:
                yield name, function.__globals__[name]
    yield from (("a default", part) for part in function.__defaults__ or ())
    yield from (function.__kwdefaults__ or {}).items()
