"""A step of the site's build: files of the checkout that are no pages of docs/ become some.

The changelog, CONTRIBUTING.md, the programs in examples/ and the tables in benchmarks/results/ are
pages of the site, and links to them are right both in the checkout and on the site. A drawing in
mermaid's words, which GitHub draws by itself, is replaced by its picture: a browser would fetch
mermaid from the network.
"""

import ast
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ("CHANGELOG.md", "CONTRIBUTING.md")


def write_example_page(program: Path) -> str:
    """Return the page of a program: what its docstring says, then its source."""
    source = program.read_text(encoding="utf-8")
    about = ast.get_docstring(ast.parse(source)) or ""
    block = f'```python title="examples/{program.name}"\n{source}```'
    return f"# {program.name}\n\n{about}\n\n{block}\n"


def rewrite_links(markdown: str, name: str) -> str:
    """Return a page whose links lead to pages of the site.

    >>> rewrite_links("[a](docs/readers.md), [b](LICENSE)", "CHANGELOG.md")
    '[a](readers.md), [b](LICENSE)'
    >>> rewrite_links("[a](../examples/gan.py), [b](../CONTRIBUTING.md)", "readers.md")
    '[a](examples/gan.md), [b](CONTRIBUTING.md)'
    >>> rewrite_links("[a](../notebooks/digits.ipynb)", "tutorial.md")
    '[a](notebooks/digits.md)'
    """
    if name in TEXTS:
        return markdown.replace("](docs/", "](")
    markdown = markdown.replace("](../benchmarks/results/", "](benchmarks/results/")
    markdown = re.sub(r"\]\(\.\./examples/(\w+)\.py\)", r"](examples/\1.md)", markdown)
    markdown = re.sub(r"\]\(\.\./notebooks/(\w+)\.ipynb\)", r"](notebooks/\1.md)", markdown)
    return re.sub(rf"\]\(\.\./({'|'.join(TEXTS)})", r"](\1", markdown)


def replace_drawing(markdown: str, name: str) -> str:
    r"""Return a page with a picture, which opens in full, in place of its drawing.

    >>> fence = "`" * 3
    >>> replace_drawing(f"One.\n\n{fence}mermaid\na --> b\n{fence}\n\nTwo.", "ways.md")
    'One.\n\n[![ways](pictures/ways.svg)](pictures/ways.svg)\n\nTwo.'
    """
    stem = name.removesuffix(".md")
    path = f"pictures/{stem}.svg"
    picture = f"[![{stem}]({path})]({path})"
    return re.sub(r"^```mermaid\n.*?^```$", picture, markdown, flags=re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for name in TEXTS:
        files.append(File.generated(config, name, content=(ROOT / name).read_text("utf-8")))
    for program in sorted((ROOT / "examples").glob("*.py")):
        page = File.generated(
            config, f"examples/{program.stem}.md", content=write_example_page(program)
        )
        files.append(page)
    for table in sorted((ROOT / "benchmarks" / "results").glob("*.md")):
        name, text = table.relative_to(ROOT).as_posix(), table.read_text("utf-8")
        # Pages link to them; the navigation does not.
        page = File.generated(config, name, content=text, inclusion=InclusionLevel.NOT_IN_NAV)
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mend the links and the drawing of a page before it is rendered."""
    return replace_drawing(rewrite_links(markdown, page.file.src_uri), page.file.src_uri)
