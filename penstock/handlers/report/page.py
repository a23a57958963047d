"""A page of HTML in one file: no scripts, nothing from elsewhere, every text escaped."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from penstock._files import replacing
from penstock._image_resizing import encode_png, resize

STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1c2024; --soft: #60666c;
  --line: #dcdfe3; --panel: #f5f6f8; --train: #1f6fd0; --test: #d9480f; --bad: #c92a2a;
  --good: #2b8a3e; --heat: 31 111 208; --miss: 217 72 15; }
@media screen and (prefers-color-scheme: dark) { :root { --back: #15181c; --text: #e6e8ea;
  --soft: #9aa1a8; --line: #343a40; --panel: #1e2227; --train: #6cb0ff; --test: #ff9a5c;
  --bad: #ff8787; --good: #69db7c; --heat: 88 160 255; --miss: 255 140 80; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 16px; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .3em 0 .5em; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 1.4em 0 .4em; }
h2 { font-size: 1.2rem; margin: 2em 0 .6em; padding-bottom: .25em;
  border-bottom: 1px solid var(--line); }
p { max-width: 46em; overflow-wrap: anywhere; }
nav { display: flex; flex-wrap: wrap; gap: 4px 14px; font-size: .9rem; margin: 1em 0; }
a { color: var(--train); text-decoration: none; }
a:hover { text-decoration: underline; }
.missing, .note { color: var(--soft); }
.missing { border-left: 3px solid var(--line); padding-left: 12px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 10px; }
.card { background: var(--panel); border-radius: 8px; padding: 10px 14px; }
.card b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: .85rem; }
.scroll { overflow-x: auto; margin: .8em 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 12px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
.left { text-align: left; }
.right { text-align: right; white-space: nowrap; }
td.left { max-width: 34em; overflow-wrap: break-word; }
td.left:first-child { min-width: 7em; }
td.bar { min-width: 120px; padding-left: 8px; background: linear-gradient(rgb(var(--heat) / .28),
  rgb(var(--heat) / .28)) 0 5px / var(--bar) 1.4em no-repeat; }
table.matrix { font-size: .8rem; }
table.matrix th, table.matrix td { padding: 3px 7px; text-align: right; border: 0; }
table.matrix td { min-width: 34px; background: rgb(var(--miss) / var(--share)); }
table.matrix td.hit { font-weight: 600; background: rgb(var(--heat) / var(--share)); }
table.matrix tbody th { position: sticky; left: 0; background: var(--back); max-width: 9em;
  overflow: hidden; text-overflow: ellipsis; }
table.matrix thead th { max-width: 6em; overflow: hidden; text-overflow: ellipsis; }
.figures { display: grid; gap: 14px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); }
figure { margin: 0; break-inside: avoid; }
figcaption { font-size: .9rem; }
svg { display: block; width: 100%; height: auto; max-width: 560px; }
svg text { fill: var(--soft); font-size: 11px; }
@media (max-width: 480px) { svg text { font-size: 13px; } }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .train { stroke: var(--train); fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .raw { stroke: var(--train); fill: none; stroke-width: 1; opacity: .3; }
svg .test { stroke: var(--test); fill: none; stroke-width: 1.5; stroke-dasharray: 5 3; }
svg circle { fill: var(--test); }
svg circle.train-dot { fill: var(--train); }
svg .ideal { stroke: var(--soft); stroke-dasharray: 4 4; }
svg rect.bin { fill: rgb(var(--heat) / .55); }
.train-key, .test-key { font-weight: 600; }
.train-key { color: var(--train); }
.test-key { color: var(--test); }
.pictures { display: grid; gap: 14px;
  grid-template-columns: repeat(auto-fill, minmax(132px, 1fr)); }
.pictures figcaption { font-size: .85rem; line-height: 1.35; margin-top: 4px;
  overflow-wrap: anywhere; }
.picture { display: block; width: 100%; border-radius: 4px; background: var(--panel); }
.small { image-rendering: pixelated; }
.said { color: var(--bad); }
.truth { color: var(--good); }
.class-row { margin: .9em 0; break-inside: avoid; }
.class-row > div { display: flex; gap: 6px; overflow-x: auto; margin-top: 3px; }
.class-row img { width: 84px; flex: none; }
.class-row img.wrong { outline: 3px solid var(--bad); outline-offset: -3px; }
.matrix-picture { max-width: 560px; border: 1px solid var(--line); }
.stack { display: flex; height: 26px; border-radius: 6px; overflow: hidden; margin: .6em 0; }
.stack i { min-width: 1px; }
.part-steps { background: #1f6fd0; } .part-data_wait { background: #d9480f; }
.part-measure { background: #9c36b5; } .part-compile { background: #868e96; }
.part-between { background: #2b8a3e; }
.swatch { display: inline-block; width: 10px; height: 10px; border-radius: 2px;
  margin-right: 6px; }
pre { background: var(--panel); padding: 12px 14px; border-radius: 8px; overflow-x: auto;
  font-size: .85rem; white-space: pre-wrap; overflow-wrap: anywhere; }
details { margin: .8em 0; }
summary { cursor: pointer; color: var(--train); }
@media print {
  :root { --text: #000; --soft: #444; --line: #bbb; --panel: #f2f2f2; }
  body { font-size: 11pt; } main { max-width: none; padding: 0; } nav { display: none; }
  .scroll, .class-row > div { overflow: visible; flex-wrap: wrap; }
  tr, .card { break-inside: avoid; } h2 { break-after: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""


Element = ElementTree.Element
# The browser itself refuses scripts and addresses, should a text ever become markup.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
# Pixels of smaller pictures are shown as squares, not as a blur.
_SMALL_PIXELS = 64


def add(parent: Element, tag: str, text: str | None = None, **attributes: object) -> Element:
    """Add an element to another and return it.

    `class_` is `class`, and other underscores are dashes. The text is escaped when the page is
    written.

    >>> body = ElementTree.Element("body")
    >>> add(body, "p", "<b>", class_="note").get("class"), ElementTree.tostring(body)
    ('note', b'<body><p class="note">&lt;b&gt;</p></body>')
    """
    names = {name.rstrip("_").replace("_", "-"): str(value) for name, value in attributes.items()}
    element = ElementTree.SubElement(parent, tag, names)
    element.text = text
    return element


def add_note(parent: Element, text: str) -> Element:
    """Add a sentence in small print."""
    return add(parent, "p", text, class_="note")


class Page:
    """A page that is filled section by section; `missing` says what it does not have."""

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
        """Write the page; the file appears whole, and its folder is made."""
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
    """Add a table that scrolls; `bars` draws shares in 0..1, of its rows, behind one column."""
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
    data = base64.b64encode(encode_png(image)).decode()
    is_small = max(height, width) < _SMALL_PIXELS
    classes = "picture small" if is_small else "picture"
    return add(parent, "img", src=f"data:image/png;base64,{data}", alt=alt, class_=classes)
