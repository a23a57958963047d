"""Several processes: joined, agreed, started by launchers, and ended together."""

from typing import TYPE_CHECKING

from penstock._first_use import import_on_first_use as _import_on_first_use

if TYPE_CHECKING:
    from penstock.distributed.ray_runs import RayRunError as RayRunError
    from penstock.distributed.ray_runs import launch_on_ray as launch_on_ray
    from penstock.distributed.ray_runs import run_on_ray as run_on_ray
    from penstock.distributed.this_process import initialize as initialize

# Loaded when first used: a launcher needs no JAX.
_MODULE_OF = {
    "initialize": "penstock.distributed.this_process",
    "RayRunError": "penstock.distributed.ray_runs",
    "launch_on_ray": "penstock.distributed.ray_runs",
    "run_on_ray": "penstock.distributed.ray_runs",
}
__getattr__, __dir__ = _import_on_first_use(__name__, _MODULE_OF)
