"""Whether the programs of a builder agree about the names of the parameter tree that they share.

Automatic names are counted, so a layer that only one program has shifts the names after it; where
shapes agree, that program would silently use other parameters. The lines of user code tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._errors import ProgramError, listed, nearest
from penstock._parameter_names import Path, spell
from penstock._tracing.evaluation import Named, Stack

if TYPE_CHECKING:
    from penstock._tracing.probe import Probe


def check_modes(train: Probe, other: Probe) -> None:
    """Raise unless `other` asks for a part of the parameter tree of `train`, under its names.

    Raises:
      ProgramError: naming the first difference.
    """
    owner, expected = other.program.name, train.program.name
    ours, theirs = train.shape_table, other.shape_table
    # Before shapes are compared: a shift is the cause, another shape only its sign.
    _check_stacks(train.named, other.named, expected, owner)
    for (collection, path), entry in theirs.items():
        name = spell(path)
        if (collection, path) not in ours:
            raise ProgramError(
                f"{owner} got the parameter {name!r}, expected only parameters of {expected}: "
                f"{listed(spell(p) for c, p in ours if c == collection)}. All programs share "
                "one parameter tree. Create the same layers in the same order in every mode, or "
                "name them." + nearest(name, [spell(p) for _, p in ours])
            )
        if ours[collection, path] != entry:
            raise ProgramError(
                f"{owner} got {name!r} with shape {entry[0]} and dtype {entry[1]}, expected shape "
                f"{ours[collection, path][0]} and dtype {ours[collection, path][1]} as in "
                f"{expected}. A layer that only one of them has shifts automatic names. Give it a "
                "name, create it last, or put it in a layers.scope."
            )


def _check_stacks(train: Named, other: Named, expected: str, owner: str) -> None:
    """Raise if a stack of lines made other names in another mode than in the train program.

    The lines of an infer function are the last ones of a train program that calls it; called twice
    it makes two sets of names, of which the infer program must have one.
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


def check_objectives(first: Probe, second: Probe) -> None:
    """Raise if two programs of several objectives use a name differently.

    Raises:
      ProgramError: naming the first difference.
    """
    expected, owner = first.program.name, second.program.name
    # The innermost line alone: two networks may call one function from different places.
    ours = _group(first.named, is_innermost=True)
    for (line, scope), names in _group(second.named, is_innermost=True).items():
        each = ours.get((line, scope), names)
        if not _agree(names, each):
            _raise_shifted(names, each, line[-1], owner, expected)
    for path, spec in second.specs.items():
        known = first.specs.get(path, spec)
        if known.shape == spec.shape and not known.agrees_with(spec):
            raise ProgramError(
                f"{owner} got {spec.name!r} with trainable={spec.trainable}, learning_rate="
                f"{spec.learning_rate}, regularizer={spec.regularizer}, expected trainable="
                f"{known.trainable}, learning_rate={known.learning_rate}, regularizer="
                f"{known.regularizer} as in {expected}. One parameter has one set of attributes. "
                "Use the same param_attr in both."
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
