"""Several processes: joined, agreed, started by launchers, and ended together."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.distributed.ray_runs import RayRunError as RayRunError
    from penstock.distributed.ray_runs import launch_on_ray as launch_on_ray
    from penstock.distributed.ray_runs import run_on_ray as run_on_ray
    from penstock.distributed.this_process import initialize as initialize

# Loaded when first used: a launcher needs no JAX.
_MODULE_OF = {
    "initialize": "this_process",
    "RayRunError": "ray_runs",
    "launch_on_ray": "ray_runs",
    "run_on_ray": "ray_runs",
}


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
