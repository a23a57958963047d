"""Reading checkpoints of before 0.1, whose arrays and description Orbax wrote."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax

from penstock._checkpoint import _contents
from penstock._checkpoint._contents import Contents
from penstock._errors import CheckpointError

NAMES = frozenset({"_CHECKPOINT_METADATA", "description", "state"})
"""What Orbax wrote into the folder of a checkpoint."""


def read_description(folder: Path) -> _contents.JSONObject:
    return json.loads((folder / "description" / "metadata").read_text())


def read(folder: Path) -> Contents:
    import orbax.checkpoint as ocp

    only_this = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=only_this,
        active_processes={only_this},
        barrier_sync_key_prefix=f"penstock_{only_this}",
    )
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
    try:
        with (
            _plain_name(folder) as path,
            ocp.Checkpointer(handler, multiprocessing_options=alone) as checkpointer,
        ):
            description, leaves = read_description(path), checkpointer.restore(path / "state")
    except Exception as error:  # whatever a damaged file makes the libraries below raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise CheckpointError(f"{folder}: it cannot be read ({lines[0][:200]})") from error
    return _contents.read(description, leaves, str(folder))


@contextlib.contextmanager
def _plain_name(folder: Path) -> Iterator[Path]:
    """Yield a link to a folder: in a path Orbax takes stars and brackets for a pattern."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as temporary:
        link = Path(temporary) / "checkpoint"
        link.symlink_to(folder)
        yield link
