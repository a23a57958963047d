"""What a run is, in JSON: enough to know later what was run, and to run it again."""

from __future__ import annotations

import functools
import json
import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from penstock._parameter_files import PARAMETER_NAMES
from penstock._version import __version__

if TYPE_CHECKING:
    from penstock.program_builder import ProgramBuilder
    from penstock.program_builder.engine import Engine
    from penstock.trainer._status import HandlerStates

FILE = "run.json"


def list_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide a run's bits."""
    packages = ["jax", "jaxlib", "flax", "optax", "numpy", "orbax-checkpoint"]
    return {
        "python": platform.python_version(),
        "penstock": __version__,
        **{name: _find_version(name) for name in packages},
    }


# Reading a package's metadata takes a millisecond, and every checkpoint has the versions in it.
@functools.cache
def _find_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def describe_checkpoint(handlers: HandlerStates, engine: Engine) -> dict[str, object]:
    """Return what a checkpoint holds beside the state and the position."""
    names = engine.programs.states.variable_paths
    return {"handlers": handlers.as_json(), "versions": list_versions(), PARAMETER_NAMES: names}


def describe_run(
    builder: ProgramBuilder, configuration: Mapping[str, object], directory: Path | None
) -> dict[str, object]:
    """Return the description of a run; process 0 writes it to `directory` too, if there is one."""
    rows = builder.parameter_table()
    trainable = sum(int(np.prod(row.shape)) for row in rows if row.is_trainable)
    devices = list(builder.mesh.devices.flat)
    description = {
        "versions": list_versions(),
        "devices": {
            "platform": devices[0].platform,
            "kind": devices[0].device_kind,
            "count": len(devices),
            "processes": jax.process_count(),
        },
        "configuration": configuration,
        "parameters": {
            "trainable": trainable,
            "all": sum(int(np.prod(row.shape)) for row in rows),
            "table": [
                {"name": row.name, "shape": list(row.shape), "dtype": row.dtype} for row in rows
            ],
        },
    }
    # The folder is shared by all processes, and what they would write is the same.
    if directory is not None and not jax.process_index():
        directory.mkdir(parents=True, exist_ok=True)
        temporary = directory / f".{FILE}.{os.getpid()}.tmp"
        temporary.write_text(json.dumps(description, indent=1) + "\n")
        # By a rename: whoever reads the folder meanwhile finds a whole file.
        os.replace(temporary, directory / FILE)
    return description
