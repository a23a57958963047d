"""The checkout's Python files and what they import, for the tests that read source."""

import ast
import functools
from pathlib import Path, PurePosixPath
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "penstock"

parse = functools.cache(ast.parse)
"""Each source is parsed once, however many tests look at it."""


@functools.cache
def import_nodes(source: str) -> list[ast.Import | ast.ImportFrom]:
    """Return every import statement of a source, wherever it stands."""
    return [
        node for node in ast.walk(parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)
    ]


def read_sources(*folders: str) -> dict[str, str]:
    """Return path within the checkout -> source, for the Python files in `folders` that exist."""
    files = sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}


def module_name(path: str) -> str:
    """Return the dotted name of a file.

    >>> module_name("penstock/layers/conv.py"), module_name("penstock/layers/__init__.py")
    ('penstock.layers.conv', 'penstock.layers')
    """
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Import(NamedTuple):
    """One import of a module of ours: the file and line it stands in, and what it imports."""

    path: str
    line: int
    module: str


def absolute_base(node: ast.ImportFrom, path: str) -> str:
    """Return the module that a `from ... import` of the file names, its leading dots resolved."""
    if not node.level:
        return node.module or ""
    above = path.removesuffix(".py").split("/")[: -node.level]
    return ".".join([*above, node.module] if node.module else above)


def imported_modules(node: ast.AST, path: str, modules: set[str]) -> set[str]:
    """Return those of our `modules`, packages included, that one statement of the file imports."""
    if isinstance(node, ast.Import):
        names = {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
        base = absolute_base(node, path)
        submodules = {f"{base}.{alias.name}" for alias in node.names}
        names = {name if name in modules else base for name in submodules}
    else:
        names = set()
    return {name for name in names if name.split(".")[0] == PACKAGE}


def find_imports(sources: dict[str, str]) -> list[Import]:
    """Return every import of ours; one in a function or for an annotation is a dependency too."""
    modules = {module_name(path) for path in sources}
    return [
        Import(path, node.lineno, module)
        for path, source in sources.items()
        for node in import_nodes(source)
        for module in sorted(imported_modules(node, path, modules))
    ]


def lines_for_types(source: str) -> set[int]:
    """Return the lines below an `if TYPE_CHECKING:`."""
    if "TYPE_CHECKING" not in source:
        return set()
    guards = [
        node
        for node in ast.walk(parse(source))
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
    ]
    return {line for node in guards for line in range(node.lineno, (node.end_lineno or 0) + 1)}
