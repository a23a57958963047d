"""Several processes: joined through the launcher that started them.

`initialize()` is one line in a script, before its first computation; the commands call it
themselves. On one process alone it does nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.distributed.joining import initialize as initialize

# Loaded on first use: a launcher imports this package, and needs no JAX.
_MODULE_OF = {"initialize": "joining"}


def __getattr__(name: str) -> object:
    """Import what is used for the first time (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Name what is imported and what would be."""
    return sorted({*globals(), *_MODULE_OF})
