"""The precision of a program: what its layers compute products in."""

from __future__ import annotations

from typing import Any, Literal

import jax.numpy as jnp

from penstock.layers import _frame

Precision = Literal["float32", "bfloat16"]
_DTYPES: dict[str, Any] = {"float32": None, "bfloat16": jnp.bfloat16}


def compute_dtype_of(precision: Precision) -> Any:
    """Return the dtype of products; None leaves them in the dtype of their operands.

    Raises:
      ProgramError: there is no such precision.
    """
    _frame.check_choice("ProgramBuilder", "precision", precision, tuple(_DTYPES))
    return _DTYPES[precision]
