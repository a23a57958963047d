"""The sections that every page has: figures at its top, where time went, parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from penstock.handlers.report.page import Element, Page, add, add_details, add_table

_MAX_ROWS = 40
_PARTS = {
    "steps": "training steps",
    "data_wait": "waiting for data",
    "measure": "measuring gradients and updates",
    "compile": "compiling",
    "between": "between epochs: tests, saving, logs",
}


class ParameterRow(Protocol):
    """A row of `ProgramBuilder.parameter_table`."""

    @property
    def name(self) -> str:
        """Its name, parts between slashes."""
        ...

    @property
    def collection(self) -> str:
        """`params`, or the name of statistics."""
        ...

    @property
    def size(self) -> int:
        """How many numbers it has."""
        ...


def add_cards(parent: Element, cards: Mapping[str, str]) -> None:
    """Add figures that a reader looks at first, each with its name below it."""
    grid = add(parent, "div", class_="cards")
    for name, value in cards.items():
        card = add(grid, "div", class_="card")
        add(card, "b", value)
        add(card, "span", name)


def add_times(page: Page, secs: Mapping[str, float], why: str) -> None:
    """Add where the time went: steps, waiting for data, measuring, compiling, between epochs.

    Arguments:
      secs: as `RunTimes` counts them.
      why: what is said where nothing was counted.
    """
    title = "Where time went"
    total = sum(secs.get(name, 0.0) for name in _PARTS)
    if not total:
        page.leave_out(title, why)
        return
    section = page.add_section(title)
    add(section, "p", f"{format_secs(total)} in all.")
    bar = add(section, "div", class_="stack")
    # Most runs measure nothing.
    parts = {name: _PARTS[name] for name in _PARTS if name != "measure" or secs.get(name)}
    rows: list[tuple[str, ...]] = []
    for name, meaning in parts.items():
        share = secs.get(name, 0.0) / total
        add(bar, "i", class_=f"part-{name}", style=f"width: {100 * share:.2f}%", title=meaning)
        rows.append((meaning, format_secs(secs.get(name, 0.0)), f"{share:.1%}"))
    table = add_table(section, ("part", "time", "share"), rows, right={1, 2})
    for name, line in zip(parts, table.findall("tbody/tr"), strict=True):
        cell = line[0]
        swatch = add(cell, "span", class_=f"swatch part-{name}")
        swatch.tail, cell.text = cell.text, None
    add(
        section,
        "p",
        "The wait for data is sampled. It is 0 if epochs are too short to sample.",
        class_="note",
    )


def format_secs(secs: float) -> str:
    """Return seconds as a person reads them.

    >>> format_secs(0.5), format_secs(75), format_secs(7322)
    ('0.5 s', '1 min 15 s', '2 h 2 min')
    """
    if secs < 60:
        return f"{secs:.1f} s"
    minutes, seconds = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def add_parameters(page: Page, table: Sequence[ParameterRow]) -> None:
    """Add the parameters by layer, in the order of the network."""
    section = page.add_section("Parameters by layer")
    layers: dict[str, list[int]] = {}
    for row in table:
        layer = row.name.rpartition("/")[0] or row.name
        counts = layers.setdefault(layer, [0, 0])
        counts[row.collection != "params"] += row.size
    total = sum(counts[0] for counts in layers.values())
    statistics = sum(counts[1] for counts in layers.values())
    also = f", and {statistics:,} running statistics" if statistics else ""
    plural = "" if len(layers) == 1 else "s"
    add(section, "p", f"{total:,} parameters in {len(layers):,} layer{plural}{also}.")
    rows = [
        (name, f"{counts[0]:,}", f"{counts[0] / max(total, 1):.1%}")
        for name, counts in layers.items()
    ]
    shares = [counts[0] / max(total, 1) for counts in layers.values()]
    parent = section
    if len(rows) > _MAX_ROWS:
        parent = add_details(section, f"All {len(rows):,} layers")
    add_table(parent, ("layer", "parameters", "share"), rows, right={1, 2}, bars=(2, shares))
