"""Names of a package that are imported when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def import_on_first_use(
    package: str, module_of: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package.

    Arguments:
      package: its `__name__`.
      module_of: name -> the module that holds it, which may be the submodule of this name itself.
    """

    def find(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)
        module = import_module(module_of[name])
        value = module if module_of[name] == f"{package}.{name}" else getattr(module, name)
        # Also in place of a submodule that bears the name of its function.
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return find, list_names
