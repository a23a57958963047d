"""How one layer is called, for batteries over all of them."""

import dataclasses
from collections.abc import Callable
from typing import Any

Call = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """How one layer is called.

    Attributes:
      call: takes an array `[B, *shape]`, labels `[B, 1]` and, where it has parameters, `name`.
      shape: of the first input; `other`: a shape for which its parameters differ.
      needs_program: whether it raises outside a program.
    """

    call: Call
    shape: tuple[int, ...] = (4,)
    other: tuple[int, ...] | None = None
    needs_program: bool = True


def pure(call: Call, *shape: int) -> Case:
    return Case(call, shape or (4,), needs_program=False)
