"""`penstock docs`: the pages of the documentation, in the terminal."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from pathlib import Path

from penstock._errors import nearest
from penstock._text_tables import print_table
from penstock.commands._argument_parser import parse, positional
from penstock.commands._failures import UsageError, command

_PACKAGE = Path(__file__).resolve().parents[1]
# In a wheel, and in a checkout.
_FOLDERS = (_PACKAGE / "_pages", _PACKAGE.parent / "docs")
# The page on which a site begins: its columns and buttons are for a browser.
_FRONT = "index"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DocsFlags:
    """List the pages of the documentation, or show one.

    In a terminal, the page is laid out and shown by $PAGER. Elsewhere it is printed as it is
    written, in Markdown.

    Arguments:
      page: the name of a page, such as tutorial.
    """

    page: str | None = positional("PAGE", "?")


def find_pages() -> dict[str, Path]:
    """Return the pages that were installed, by name.

    Raises:
      FileNotFoundError: there are none.

    >>> find_pages()["tutorial"].name
    'tutorial.md'
    """
    for folder in _FOLDERS:
        pages = {path.stem: path for path in sorted(folder.glob("*.md")) if path.stem != _FRONT}
        if pages:
            return pages
    raise FileNotFoundError(
        f"{str(_FOLDERS[0])!r} got no pages, expected those of the documentation. The installation "
        "is not whole. Install penstock again."
    )


@command()
def run(argv: list[str]) -> None:
    """Run `penstock docs` with the arguments after the command's name."""
    flags, _ = parse(DocsFlags, argv)
    pages = find_pages()
    if flags.page is None:
        rows = [(name, _read_title(path)) for name, path in pages.items()]
        print_table(("page", "title"), rows, right=())
        print("`penstock docs PAGE` shows one, such as `penstock docs tutorial`.")
        return
    # As a link names it, `docs/train_command.md#every-flag`, or with dashes.
    name = Path(flags.page.partition("#")[0]).name.removesuffix(".md").replace("-", "_")
    if name not in pages:
        raise UsageError(
            f"got the page {flags.page!r}, expected one of `penstock docs`.{nearest(name, pages)}"
        )
    text = pages[name].read_text(encoding="utf-8")
    if sys.stdout.isatty():
        _show(text)
    else:
        print(text, end="")


def _read_title(path: Path) -> str:
    title = re.search(r"^# (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return path.stem if title is None else title[1]


def _show(text: str) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    # As git does: less ends by itself where all fits, and passes colours on.
    os.environ.setdefault("LESS", "FRX")
    # What a page says to the site that shows it; its HTML rich leaves out by itself.
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    console = Console()
    with console.pager(styles=True):
        # Links as text: pages link to pages, which no terminal can open.
        console.print(Markdown(text, hyperlinks=False))
