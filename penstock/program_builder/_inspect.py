"""Means to look at a program: its parameters, its trace, its compiled form, its cost."""

from __future__ import annotations

import dataclasses
import functools
import html
import math
from collections.abc import Sequence
from typing import Any

from jax.stages import Traced

from penstock._text_tables import align_rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParameterRow:
    """Describe one entry of the parameter table."""

    name: str
    collection: str
    shape: tuple[int, ...]
    dtype: str
    is_trainable: bool

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """The row as text: name, shape, dtype, number of elements, and `frozen` or `statistic`."""
        is_param = self.collection == "params"
        kind = "" if is_param and self.is_trainable else "frozen" if is_param else "statistic"
        return self.name, str(list(self.shape)), self.dtype, f"{self.size:,}", kind


_HEAD = ("name", "shape", "dtype", "elements", "")


class ParameterSummary(str):
    """The parameter table as text, which a notebook shows as an HTML table."""

    rows: Sequence[ParameterRow] = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        rows = [_html_row("th", _HEAD), *(_html_row("td", row.cells) for row in self.rows)]
        totals = html.escape(self.splitlines()[-1])
        return f"<table>{''.join(rows)}</table><p>{totals}</p>" if self.rows else f"<p>{totals}</p>"


def _html_row(tag: str, cells: Sequence[str]) -> str:
    aligned = zip(("left", "left", "left", "right", "left"), cells, strict=True)
    shown = [
        f'<{tag} style="text-align: {side}">{html.escape(cell)}</{tag}>' for side, cell in aligned
    ]
    return f"<tr>{''.join(shown)}</tr>"


def summary(rows: Sequence[ParameterRow]) -> ParameterSummary:
    """Return the parameter table as text, one entry a line, with the totals below it."""
    lines = align_rows([_HEAD, *(row.cells for row in rows)], right=(3,))
    params = [row for row in rows if row.collection == "params"]
    trained = sum(row.size for row in params if row.is_trainable)
    frozen = sum(row.size for row in params) - trained
    statistics = sum(row.size for row in rows) - trained - frozen
    lines.append(f"{trained:,} trained, {frozen:,} frozen, {statistics:,} in running statistics")
    text = ParameterSummary("\n".join(lines) if rows else "no parameters")
    text.rows = rows
    return text


@dataclasses.dataclass(frozen=True)
class Inspection:
    """Show how JAX and XLA see one program at one batch size; each part is computed when read.

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
        """The program that JAX passes to XLA, as StableHLO."""
        return self.traced.lower().as_text()

    @property
    def compiled_text(self) -> str:
        """The program as XLA compiled it, after its optimisations."""
        return self._compiled.as_text()

    @property
    def flops(self) -> float:
        """Floating-point operations of one launch on one device, from XLA's cost analysis."""
        # XLA leaves out what it does not count: nan, and no 0 that could be believed.
        return float(self._cost().get("flops", float("nan")))

    @property
    def bytes_accessed(self) -> float:
        """Bytes read and written by one launch on one device, from XLA's cost analysis."""
        return float(self._cost().get("bytes accessed", float("nan")))

    @property
    def memory_bytes(self) -> dict[str, int]:
        """Bytes of memory on one device by purpose, from XLA's memory analysis.

        `aliased` is the part of the arguments whose memory is reused for outputs (donation).
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
        return self._compiled.cost_analysis() or {}  # some backends have none

    def __str__(self) -> str:
        memory = ", ".join(f"{name} {size:,}" for name, size in self.memory_bytes.items())
        return (
            f"{self.flops:,.0f} floating point operations per launch and device\n"
            f"{self.bytes_accessed:,.0f} bytes accessed\n"
            f"memory in bytes: {memory}"
        )
