"""Pages of HTML, as tests look at them."""

from html.parser import HTMLParser
from pathlib import Path


class HtmlPage(HTMLParser):
    """The elements of a page, and what is said in them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep an element."""
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Keep a text."""
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of each element of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def said(self) -> str:
        """All text, with single spaces."""
        return " ".join(" ".join(self.texts).split())
