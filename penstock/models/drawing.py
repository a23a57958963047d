"""A network's blocks as a drawing: boxes in order, one for each block, in one SVG file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from xml.etree import ElementTree

from penstock.models.report import LayerRow

_WIDTH, _BOX, _GAP, _MARGIN = 460, 46, 16, 20
_HEAD = 34
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
# With at most so many boxes a network's drawing fits a page.
_MAX_BOXES = 24


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """Layers of a network that are drawn as one box.

    Arguments:
      name: the first parts of their paths.
      num_layers: those that have a product.
      output_shape: `[H, W, C]` or `[F]` of what leaves the block, without the batch axis; None
        where nobody tells.
    """

    name: str
    num_layers: int
    num_params: int
    output_shape: tuple[int, ...] | None


def find_blocks(
    rows: Sequence[LayerRow], outputs: Mapping[str, tuple[int, ...]] = MappingProxyType({})
) -> list[Block]:
    """Fold layers into blocks by the first parts of their paths.

    As many parts count as leave at most 24 blocks, two at most, and one where even that is more.

    Arguments:
      outputs: the shapes of end points by name, as `find_outputs` returns them.

    >>> from penstock.models.report import LayerRow
    >>> rows = [LayerRow(path=f"block1/unit_{n}/conv", num_macs=1) for n in (1, 2)]
    >>> [block.name for block in find_blocks(rows)]
    ['block1/unit_1', 'block1/unit_2']
    """
    folded = _fold(rows, 2)
    folded = folded if len(folded) <= _MAX_BOXES else _fold(rows, 1)
    # A block of several branches joins them behind its last layer. NASNet's cells are `Cell_0`
    # among the end points, and ResNet's units end in the name of their kind.
    shapes = {name.casefold(): shape for name, shape in outputs.items()}
    shapes |= {name.rpartition("/")[0]: shapes[name] for name in shapes if "bottleneck" in name}
    is_joined = any(each.num_layers > 1 and each.name.casefold() in shapes for each in folded)
    return [
        dataclasses.replace(block, output_shape=shapes.get(block.name.casefold(), own))
        for block in folded
        # Where some blocks join branches, others may too.
        for own in [None if is_joined and block.num_layers > 1 else block.output_shape]
    ]


def _fold(rows: Sequence[LayerRow], num_parts: int) -> list[Block]:
    groups: dict[str, list[LayerRow]] = {}
    for row in rows:
        parts = row.path.split("/")
        # The last part is the layer itself, such as the norm of a convolution.
        name = "/".join(parts[: max(min(num_parts, len(parts) - 1), 1)])
        groups.setdefault(name, []).append(row)
    return [
        Block(
            name=name,
            num_layers=sum(row.output_shape is not None for row in group),
            num_params=sum(row.num_params for row in group),
            output_shape=next((r.output_shape for r in group[::-1] if r.output_shape), None),
        )
        for name, group in groups.items()
    ]


def draw(
    title: str,
    image_shape: Sequence[int],
    rows: Sequence[LayerRow],
    outputs: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> str:
    """Return a drawing of a network as the text of an SVG file, which needs no other.

    Arguments:
      image_shape: `[H, W, C]` of its images, which the first box shows.
      rows: as `describe` returns them.
      outputs: as `find_outputs` returns them; a block without one shows its last layer's.

    >>> from penstock.models.report import LayerRow
    >>> text = draw("one", (8, 8, 3), [LayerRow(path="fc", num_macs=1, num_params=9)])
    >>> text.startswith("<svg"), text.count("<rect"), "9 parameters" in text
    (True, 3, True)
    """
    blocks = find_blocks(rows, outputs)
    height = _HEAD + 2 * _MARGIN + (len(blocks) + 1) * (_BOX + _GAP) - _GAP
    svg = ElementTree.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {_WIDTH} {height}",
            "width": f"{_WIDTH}",
            "height": f"{height}",
            "font-family": _FONT,
            "role": "img",
        },
    )
    ElementTree.SubElement(svg, "title").text = title
    _add(svg, "rect", x=0, y=0, width=_WIDTH, height=height, fill="#ffffff")
    _add_text(svg, title, _MARGIN, _MARGIN + 16, size=17, weight=600)
    largest = max((block.num_params for block in blocks), default=0)
    y = _HEAD + _MARGIN
    _draw_box(svg, y, "images", _format_shape(image_shape), "", 0.0)
    for block in blocks:
        x, bottom = _WIDTH / 2, y + _BOX
        y = bottom + _GAP
        _add(svg, "path", d=f"M{x} {bottom}V{y - 4}", stroke="#60666c", fill="none")
        _add(svg, "path", d=f"M{x - 4} {y - 6}L{x} {y}L{x + 4} {y - 6}Z", fill="#60666c")
        shape = "" if block.output_shape is None else _format_shape(block.output_shape)
        count = f"{block.num_params:,} parameters"
        if block.num_layers > 1:
            count += f" in {block.num_layers} layers"
        _draw_box(svg, y, block.name, shape, count, block.num_params / max(largest, 1))
    return ElementTree.tostring(svg, encoding="unicode")


def _draw_box(
    svg: ElementTree.Element, y: float, name: str, shape: str, count: str, share: float
) -> None:
    # The more of the parameters, the darker.
    red, green, blue = (round(a - share * b) for a, b in ((245, 75), (247, 45), (250, 5)))
    _add(
        svg,
        "rect",
        x=_MARGIN,
        y=y,
        width=_WIDTH - 2 * _MARGIN,
        height=_BOX,
        rx=7,
        fill=f"rgb({red},{green},{blue})",
        stroke="#aab1b8",
    )
    first, second = y + 20, y + 37
    _add_text(svg, name, _MARGIN + 12, first, size=14, weight=600)
    _add_text(svg, shape, _WIDTH - _MARGIN - 12, first, size=13, anchor="end")
    _add_text(svg, count, _MARGIN + 12, second, size=12, color="#50565c")


def _format_shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _add_text(
    svg: ElementTree.Element,
    text: str,
    x: float,
    y: float,
    *,
    size: int,
    weight: int = 400,
    anchor: str = "start",
    color: str = "#1c2024",
) -> None:
    element = _add(svg, "text", x=x, y=y, font_size=size, font_weight=weight, fill=color)
    element.set("text-anchor", anchor)
    element.text = text


def _add(svg: ElementTree.Element, tag: str, **attributes: object) -> ElementTree.Element:
    names = {name.replace("_", "-"): str(value) for name, value in attributes.items()}
    return ElementTree.SubElement(svg, tag, names)
