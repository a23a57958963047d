"""What a run is, in JSON: enough to know later what was run, and to run it again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from penstock._parameter_files import PARAMETER_NAMES
from penstock._version import list_versions
from penstock._whole_files import replacing

if TYPE_CHECKING:
    from penstock.program_builder import ProgramBuilder
    from penstock.program_builder.engine import Engine
    from penstock.trainer._status import HandlerStates

FILE = "run.json"


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
        with replacing(directory / FILE) as temporary:
            temporary.write_text(json.dumps(description, indent=1) + "\n")
    return description
