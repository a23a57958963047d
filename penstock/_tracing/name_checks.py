"""Which lines of user code make which names, and whether two programs agree about it.

Automatic names are counted, so a layer that only one program has shifts the names after it; where
shapes agree, that program would silently use other parameters. The lines tell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from flax import linen as nn

from penstock._errors import ProgramError
from penstock._program.names import ScopeModule
from penstock._program.requests import ParameterSpec, find_user_lines

Path = tuple[str, ...]
Stack = tuple[str, ...]
Named = list[tuple[Stack, Path]]
"""The user's lines from the program function down, and the path of what they made."""


def note_modules(named: Named) -> AbstractContextManager[None]:
    """Return a context that adds flax modules with automatic names to `named`."""

    def note(
        call: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        context: nn.module.InterceptorContext,
    ) -> object:
        module, path = context.module, tuple(context.module.path)
        # Scopes are modules too, of ours; and a module's other methods make no new name.
        is_ours = isinstance(module, ScopeModule) or context.method_name != "__call__"
        if not is_ours and path and re.fullmatch(rf"{type(module).__name__}_\d+", path[-1]):
            named.append((find_user_lines(2), path))
        return call(*args, **kwargs)

    return nn.intercept_methods(note)


def list_names(specs: Mapping[str, ParameterSpec], modules: Named) -> Named:
    """Return everything in a program that has an automatic name, with the lines that made it."""
    layers = [(spec.stack, spec.path[:-1]) for spec in specs.values() if spec.is_automatic]
    return [*layers, *modules]


def check_modes(train: Named, other: Named, expected: str, owner: str) -> None:
    """Raise if a stack of lines made other names in another mode than in the train program.

    The lines of an infer function are the last ones of a train program that calls it; called twice
    it makes two sets of names, of which the infer program must have one.

    Raises:
      ProgramError: naming the first difference.
    """
    ours = _group(train)
    for (stack, scope), names in _group(other).items():
        candidates = [
            each
            for (other_stack, other_scope), each in ours.items()
            if scope == other_scope and _is_same_place(stack, other_stack)
        ]
        # One that agrees is enough: a function called twice has two places of the same lines.
        if candidates and not any(_agree(names, each) for each in candidates):
            _raise_shifted(names, candidates[0], stack[-1], owner, expected)


def check_objectives(first: Named, second: Named, expected: str, owner: str) -> None:
    """Raise if one line made differently named parameters for two objectives.

    Raises:
      ProgramError: naming the first difference.
    """
    # The innermost line alone: two networks may call one function from different places.
    ours = _group(first, is_innermost=True)
    for (line, scope), names in _group(second, is_innermost=True).items():
        each = ours.get((line, scope), names)
        if not _agree(names, each):
            _raise_shifted(names, each, line[-1], owner, expected)


def _group(named: Named, *, is_innermost: bool = False) -> dict[tuple[Stack, Path], list[str]]:
    """Return the names made at each stack of lines, or at each innermost line, by scope."""
    groups: dict[tuple[Stack, Path], dict[str, None]] = {}
    for stack, path in named:
        lines = stack[-1:] if is_innermost else stack
        groups.setdefault((lines, path[:-1]), {})["/".join(path)] = None
    return {place: list(names) for place, names in groups.items()}


def _is_same_place(one: Stack, other: Stack) -> bool:
    # The shorter stack is the end of the longer where one function calls the other.
    shorter = min(len(one), len(other))
    return bool(shorter) and one[-shorter:] == other[-shorter:]


def _agree(names: list[str], others: list[str]) -> bool:
    shorter = min(len(names), len(others))
    return names[:shorter] == others[:shorter]


def _raise_shifted(
    names: list[str], others: list[str], line: str, owner: str, expected: str
) -> None:
    got, wanted = next((n, o) for n, o in zip(names, others, strict=False) if n != o)
    raise ProgramError(
        f"{owner} got the name {got!r} for what is {wanted!r} in {expected}, both made at {line}. "
        "A layer that only one of them has shifts automatic names. Give it a name, create it last, "
        "or put it in a layers.scope."
    )
