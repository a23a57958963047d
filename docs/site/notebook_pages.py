"""A step of the site's build: the notebooks become pages, with the outputs they were saved with."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def write_page(name: str, cells: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, bytes]]:
    r"""Return a notebook's page, and its pictures by their names.

    >>> output = {"output_type": "stream", "name": "stdout", "text": ["3\n"]}
    >>> code = {"cell_type": "code", "source": ["print(3)"], "outputs": [output]}
    >>> page, pictures = write_page("a", [{"cell_type": "markdown", "source": ["# A"]}, code])
    >>> print(page.replace("`", "'"))
    # A
    <BLANKLINE>
    [Download this notebook](a.ipynb){ .md-button }
    <BLANKLINE>
    '''python
    print(3)
    '''
    <BLANKLINE>
    '''text
    3
    '''
    <BLANKLINE>
    """
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(rewrite_links(source))
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            parts.append(_write_output(output, name, pictures))
    parts.insert(1, f"[Download this notebook]({name}.ipynb){{ .md-button }}")
    return "\n\n".join(parts) + "\n", pictures


def _write_output(output: Mapping[str, Any], name: str, pictures: dict[str, bytes]) -> str:
    """Return an output as Markdown, the richest form of it; add it to `pictures` if it is one."""
    forms = output.get("data", {"text/plain": output.get("text", "")})
    if "image/png" in forms:
        path = f"{name}_{len(pictures) + 1}.png"
        pictures[path] = base64.b64decode("".join(forms["image/png"]))
        text = "".join(forms.get("text/plain", ""))
        # matplotlib's "<Figure size 1000x140 with 10 Axes>" tells a reader nothing.
        return f"![{'' if text.startswith('<') else text}]({path})"
    if "text/html" in forms:
        return "".join(forms["text/html"])
    return f"```text\n{''.join(forms['text/plain']).rstrip()}\n```"


def rewrite_links(markdown: str) -> str:
    """Return text whose links lead from a page of `notebooks/` to pages of the site.

    >>> rewrite_links("[a](../docs/readers.md), [b](../examples/gan.py), [c](gan.ipynb)")
    '[a](../readers.md), [b](../examples/gan.md), [c](gan.md)'
    """
    markdown = markdown.replace("](../docs/", "](../")
    markdown = re.sub(r"\]\(\.\./examples/(\w+)\.py\)", r"](../examples/\1.md)", markdown)
    return re.sub(r"\]\((\w+)\.ipynb\)", r"](\1.md)", markdown)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook, its pictures, and the notebook itself."""
    from mkdocs.structure.files import File  # tests of the rest do without mkdocs

    for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
        text = notebook.read_text(encoding="utf-8")
        page, pictures = write_page(notebook.stem, json.loads(text)["cells"])
        contents = {f"{notebook.stem}.md": page, notebook.name: text, **pictures}
        for name, content in contents.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files
