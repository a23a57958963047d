"""A page of HTML in one file: no scripts, nothing from elsewhere, every text escaped."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from penstock._images import encode_png, resize
from penstock._report.style import STYLE
from penstock._whole_files import replacing

Element = ElementTree.Element
# The browser itself refuses scripts and addresses, should a text ever become markup.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
# Pixels of smaller pictures are shown as squares, not as a blur.
_SMALL_PIXELS = 64


def add(parent: Element, tag: str, text: str | None = None, **attributes: object) -> Element:
    """Add an element to another and return it.

    Arguments:
      text: what it says; escaped when the page is written.
      attributes: by name; `class_` is `class`, and other underscores are dashes.

    >>> body = ElementTree.Element("body")
    >>> add(body, "p", "<b>", class_="note").get("class"), ElementTree.tostring(body)
    ('note', b'<body><p class="note">&lt;b&gt;</p></body>')
    """
    names = {name.rstrip("_").replace("_", "-"): str(value) for name, value in attributes.items()}
    element = ElementTree.SubElement(parent, tag, names)
    element.text = text
    return element


class Page:
    """A page that is filled section by section.

    Arguments:
      title: of the page and of its window.

    Attributes:
      missing: sentences about what the page does not have.
    """

    def __init__(self, title: str) -> None:
        self.missing: list[str] = []
        self._root = ElementTree.Element("html", {"lang": "en"})
        head = add(self._root, "head")
        add(head, "meta", charset="utf-8")
        add(head, "meta", http_equiv="Content-Security-Policy", content=_POLICY)
        add(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
        add(head, "title", title)
        add(head, "style", STYLE)
        self.main = add(add(self._root, "body"), "main")
        add(self.main, "h1", title)
        self._contents = add(self.main, "nav")

    def add_section(self, title: str) -> Element:
        """Begin a section; it is in the list of contents too."""
        name = title.lower().replace(",", "").replace(" ", "-")
        add(self._contents, "a", title, href=f"#{name}").tail = " "
        section = add(self.main, "section", id=name)
        add(section, "h2", title)
        return section

    def leave_out(self, title: str, why: str) -> None:
        """Say in the place of a section why it is not there."""
        add(self.add_section(title), "p", why, class_="missing")
        self.missing.append(f"{title}: {why}")

    def write(self, path: Path) -> None:
        """Write the page; the file appears whole, and its folder is made.

        Raises:
          OSError: it cannot be written.
        """
        html = ElementTree.tostring(self._root, encoding="unicode", method="html")
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            # A name of a file need not be text.
            temporary.write_bytes(f"<!DOCTYPE html>\n{html}\n".encode("utf-8", "replace"))


def add_table(
    parent: Element,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[int] = (),
    bars: tuple[int, Sequence[float]] | None = None,
) -> Element:
    """Add a table that scrolls where it is wider than the page.

    Arguments:
      right: the numbers of the columns that stand right.
      bars: the number of a column, and for each row a share in 0..1, drawn as a bar behind it.
    """
    table = add(add(parent, "div", class_="scroll"), "table")
    line = add(add(table, "thead"), "tr")
    for number, name in enumerate(head):
        add(line, "th", name, class_="right" if number in right else "left", scope="col")
    body = add(table, "tbody")
    for index, row in enumerate(rows):
        line = add(body, "tr")
        cells = [
            add(line, "td", text, class_="right" if number in right else "left")
            for number, text in enumerate(row)
        ]
        if bars is not None:
            column, shares = bars
            cells[column].set("style", f"--bar: {100 * shares[index]:.1f}%")
            cells[column].set("class", "right bar")
    return table


def add_details(parent: Element, summary: str) -> Element:
    """Add a part that is folded away until it is asked for."""
    details = add(parent, "details")
    add(details, "summary", summary)
    return details


def add_picture(parent: Element, image: np.ndarray, *, alt: str, max_pixels: int) -> Element:
    """Add an image `[H, W, 1 or 3]` uint8 as PNG, made no larger than `max_pixels` a side."""
    height, width = image.shape[:2]
    scale = max_pixels / max(height, width)
    if scale < 1:
        size = max(round(height * scale), 1), max(round(width * scale), 1)
        image = resize(image, *size, "area")
    data = base64.b64encode(encode_png(np.ascontiguousarray(image))).decode()
    is_small = max(height, width) < _SMALL_PIXELS
    classes = "picture small" if is_small else "picture"
    return add(parent, "img", src=f"data:image/png;base64,{data}", alt=alt, class_=classes)
