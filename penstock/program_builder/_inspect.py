"""Means to look at a program: its parameters, its trace, its compiled form, its cost."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
from jax.sharding import NamedSharding
from jax.stages import Traced

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParameterRow:
    """One entry of the parameter table."""

    name: str
    collection: str
    shape: tuple[int, ...]
    dtype: str
    is_trainable: bool

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def summary(rows: Sequence[ParameterRow]) -> str:
    """Return the parameter table as text, one entry a line, with the totals below it."""
    if not rows:
        return "no parameters"
    cells = [("name", "shape", "dtype", "elements", "")]
    for row in rows:
        kind = "statistic" if row.collection != "params" else "" if row.is_trainable else "frozen"
        cells.append((row.name, str(list(row.shape)), row.dtype, f"{row.size:,}", kind))
    widths = [max(len(line[column]) for line in cells) for column in range(5)]
    lines = []
    for name, shape, dtype, size, kind in cells:
        line = f"{name:<{widths[0]}}  {shape:<{widths[1]}}  {dtype:<{widths[2]}}  "
        lines.append((line + f"{size:>{widths[3]}}  {kind}").rstrip())
    params = [row for row in rows if row.collection == "params"]
    trained = sum(row.size for row in params if row.is_trainable)
    frozen = sum(row.size for row in params) - trained
    statistics = sum(row.size for row in rows) - trained - frozen
    lines.append(f"{trained:,} trained, {frozen:,} frozen, {statistics:,} in running statistics")
    return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Inspection:
    """What JAX and XLA say of one program at one batch size; each part is made when read.

    Arguments:
      traced: the stage that `jax.jit(...).trace(...)` returns.
    """

    traced: Traced

    @functools.cached_property
    # Any, as JAX's analyses may be None by their declaration.
    def _compiled(self) -> Any:
        return self.traced.lower().compile()

    @property
    def jaxpr(self) -> str:
        """The program as JAX traced it."""
        return str(self.traced.jaxpr)

    @property
    def lowered_text(self) -> str:
        """The program as handed to XLA (StableHLO)."""
        return self.traced.lower().as_text()

    @property
    def compiled_text(self) -> str:
        """The program as XLA compiled it, after its optimisations."""
        return self._compiled.as_text()

    @property
    def flops(self) -> float:
        """Floating point operations of one launch on one device, by XLA's cost analysis."""
        # XLA leaves out what it does not count: nan, and no 0 that could be believed.
        return float(self._cost().get("flops", float("nan")))

    @property
    def bytes_accessed(self) -> float:
        """Bytes read and written by one launch on one device, by XLA's cost analysis."""
        return float(self._cost().get("bytes accessed", float("nan")))

    @property
    def memory_bytes(self) -> dict[str, int]:
        """Bytes on one device by purpose, by XLA's memory analysis.

        `aliased` is the part of the arguments whose memory the outputs take over (donation).
        """
        analysis = self._compiled.memory_analysis()
        return {
            "arguments": analysis.argument_size_in_bytes,
            "outputs": analysis.output_size_in_bytes,
            "aliased": analysis.alias_size_in_bytes,
            "temporary": analysis.temp_size_in_bytes,
            "code": analysis.generated_code_size_in_bytes,
        }

    def _cost(self) -> dict[str, float]:
        cost = self._compiled.cost_analysis()
        # JAX has returned a list, a dict, and nothing, by version and backend.
        return cost[0] if isinstance(cost, (list, tuple)) else cost or {}

    def __str__(self) -> str:
        """Return cost and memory in three lines."""
        memory = ", ".join(f"{name} {size:,}" for name, size in self.memory_bytes.items())
        return (
            f"{self.flops:,.0f} floating point operations per launch and device\n"
            f"{self.bytes_accessed:,.0f} bytes accessed\n"
            f"memory in bytes: {memory}"
        )


def abstract(tree: T, sharding: NamedSharding) -> T:
    """Return a pytree's shapes and dtypes with a sharding, in place of its values."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)
