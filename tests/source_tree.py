"""The checkout's Python files, for the tests that read source."""

from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "penstock"


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
