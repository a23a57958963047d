"""Modules of a user's own, imported before a command looks for what they register."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

from penstock.commands._checks import UsageError, split_words


def import_plugins(plugins: str) -> None:
    """Import modules by name, or files by path.

    Arguments:
      plugins: names and paths, between commas.

    Raises:
      UsageError: one cannot be imported.
    """
    # As `python -m` has it: the script's path has no modules of the current folder.
    sys.path.insert(0, "")
    try:
        for word in split_words(plugins):
            _import_file(Path(word)) if word.endswith(".py") else importlib.import_module(word)
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise UsageError(
            f"--plugin got {plugins!r}, expected modules that can be imported, by name or as a .py "
            f"file: {error}. Run in their folder, or set PYTHONPATH."
        ) from error
    finally:
        sys.path.remove("")


def _import_file(path: Path) -> None:
    name = path.stem
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) == str(path.resolve()):
        # Imported before: to register its networks twice would be an error.
        return
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    # Before it runs, as Python's own import has it: what it defines is found by the module's name.
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
