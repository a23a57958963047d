"""Checks of flags' values, made when a dataclass of flags is made."""

from __future__ import annotations

import math
from collections.abc import Sequence

from penstock._errors import nearest


class UsageError(ValueError):
    """A command was called wrongly: an unknown flag, or a value that it cannot have."""


def check_choice(flag: str, value: str, known: Sequence[str]) -> None:
    """Raise unless a value is one of those known.

    Raises:
      UsageError: it is not; names them and the nearest.
    """
    if value not in known:
        raise UsageError(
            f"--{flag} got {value!r}, expected one of: {', '.join(known)}.{nearest(value, known)}"
        )


def check_at_least(least: float, **flags: float | None) -> None:
    """Raise unless every flag is a finite number of at least `least`, or None.

    Raises:
      UsageError: naming the first that is not.
    """
    for flag, value in flags.items():
        if value is not None and not least <= value < math.inf:
            raise UsageError(f"--{flag} got {value!r}, expected a number of {least:g} or more.")


def check_above_zero(**flags: float | None) -> None:
    """Raise unless every flag is a finite number above 0, or None.

    Raises:
      UsageError: naming the first that is not.
    """
    for flag, value in flags.items():
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"--{flag} got {value!r}, expected a number above 0.")


def split_words(text: str | None) -> tuple[str, ...]:
    """Return the items of a list as flags have them: between commas, without blanks.

    >>> split_words("0.tfrecord, 1.tfrecord")
    ('0.tfrecord', '1.tfrecord')
    """
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())
