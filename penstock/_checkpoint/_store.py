"""A folder of checkpoints on disk, and the files of one: one for each process that has arrays.

Checkpoints of before 0.1, whose arrays and description Orbax wrote, are read too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from penstock._checkpoint import _contents
from penstock._checkpoint._config import CheckpointConfig
from penstock._checkpoint._contents import Contents
from penstock._errors import CheckpointError, find_os_error
from penstock._files import expand_path, write_tensors

_LOGGER = logging.getLogger("penstock")

_LONG = 80
"""Characters of a name, more than any file of a checkpoint has."""

_TRIAL_BYTES = 4096

_SAVING = ".saving-"
"""The beginning of the folder that a checkpoint is written to before it has its name."""

_ASIDE = ".deleted"
"""The folder that checkpoints are moved to before they are deleted: that takes many steps, a rename
one."""


class Store:
    """The checkpoints in a folder, by the global step they were written at.

    Each appears whole or not at all, by the rename of a folder, and disappears by one. The first
    process writes and each reads; of arrays that are split over processes each writes its part, and
    the first makes them one checkpoint.

    Attributes:
      is_given_up: whether parts of other processes may not come any more.
    """

    def __init__(self, config: CheckpointConfig) -> None:
        self.config = config
        self.directory = expand_path(config.directory).absolute()
        self.is_given_up = False
        self._metrics: dict[int, float | None] = {}  # by step, of those that this one has met

    def prepare(self) -> None:
        """Import what writing needs: later it would take the time from the steps."""
        import safetensors.numpy  # noqa: F401

        import penstock._checksums  # noqa: F401

    def try_writing(self) -> None:
        """Write a little in the folder, with a name as long as those in a checkpoint."""
        trial = self.directory / f".trial-{uuid.uuid4().hex}"
        try:
            trial.mkdir(parents=True)
            # With bytes in it: an empty file fits on a full disk.
            (trial / ("x" * _LONG)).write_bytes(bytes(_TRIAL_BYTES))
        except (OSError, ValueError) as error:
            raise self.cannot_write(error) from error
        finally:
            shutil.rmtree(trial, ignore_errors=True)

    def cannot_write(self, error: Exception) -> CheckpointError:
        reason = getattr(error, "strerror", None) or str(error)
        return CheckpointError(
            f"checkpoint got directory={os.fspath(self.config.directory)!r}, where nothing can be "
            f"written ({reason}), expected a folder that checkpoints can be written to. The run "
            "would not be saved. Name another folder, or see to that one."
        )

    def tidy(self) -> None:
        """Clean up after a process that was killed in a save; only who writes may call it.

        A checkpoint that was about to be replaced comes back, unless the new one is there.
        """
        aside = self.directory / _ASIDE
        # What was set aside to be replaced is newer than all that is there, else it was one too
        # many.
        newest = max(self.steps(), default=-1)
        with contextlib.suppress(OSError):  # a folder that cannot be written says so in `write`
            for path in aside.iterdir():
                if is_step(path.name) and int(path.name) > newest:
                    path.rename(self.directory / path.name)
        for path in [aside, *self.directory.glob(f"{_SAVING}*")]:
            shutil.rmtree(path, ignore_errors=True)

    def steps(self) -> list[int]:
        """Return the global steps of the complete checkpoints, oldest first."""
        if not self.directory.is_dir():
            return []
        return sorted(int(path.name) for path in self.directory.iterdir() if is_checkpoint(path))

    def write(self, contents: Contents) -> None:
        """Write a checkpoint, and delete those that are no longer kept."""
        step, folder = contents.position.global_step, self._saving(contents.attempt)
        try:
            write_part(folder, contents)
            if not contents.part:
                self._complete(step, folder, contents)
        except BaseException as error:
            if not contents.part:
                self.tidy()
            os_error = find_os_error(error, self.directory / str(step))
            if os_error is None:
                raise
            raise os_error from error

    def _complete(self, step: int, folder: Path, contents: Contents) -> None:
        for number in range(1, contents.num_parts):
            wait_for_part(folder, number, lambda: self.is_given_up)
        if step in self.steps():
            # Not deleted before the new one is there: a kill between the two would lose both.
            self._set_aside(step)
        elif (self.directory / str(step)).exists():
            raise CheckpointError(
                f"checkpoint got {str(self.directory / str(step))!r}, which is no checkpoint, "
                "expected a free name. A checkpoint is called by its global step. Move it away."
            )
        folder.rename(self.directory / str(step))
        self._metrics[step] = contents.metric
        steps = self.steps()
        # After the new one is whole, so that there is always one to read.
        for other in set(steps) - self._choose_kept(steps, step):
            self._set_aside(other)
        # Parts too, which other processes wrote of a save that failed in this one.
        self.tidy()

    def tell_failure(self, attempt: str, part: int, error: BaseException) -> None:
        tell_failure(self._saving(attempt), part, error)

    def _saving(self, attempt: str) -> Path:
        return self.directory / f"{_SAVING}{attempt}"

    def _set_aside(self, step: int) -> None:
        aside = self.directory / _ASIDE
        aside.mkdir(exist_ok=True)
        shutil.rmtree(aside / str(step), ignore_errors=True)
        (self.directory / str(step)).rename(aside / str(step))

    def _choose_kept(self, steps: Sequence[int], written: int) -> set[int]:
        """Return the newest and the best of some steps, and the one written last."""
        config = self.config
        kept = {written, *sorted(steps)[-config.max_to_keep :]}
        if config.num_best:
            for step in steps:
                if step not in self._metrics:
                    self._metrics[step] = _read_metric(self.directory / str(step))
            sign = 1 if config.mode == "min" else -1
            rated = [(self._metrics[step], step) for step in steps]
            # Of equally good ones the later is kept.
            rated = [(sign * m, -step) for m, step in rated if m is not None and not math.isnan(m)]
            kept |= {-step for _, step in sorted(rated)[: config.num_best]}
        return kept

    def read(self, step: int) -> Contents:
        """Return the checkpoint of a global step, verified."""
        folder = self.directory / str(step)
        path = folder / name_part(0)
        first = read_old(folder) if _is_old(folder) else read_part(path)
        names = map(name_part, range(1, first.num_parts))
        parts = [read_part(folder / name) for name in names]
        return join_parts([first, *parts], str(folder)) if parts else first

    def read_newest(self, *, before: int | None = None) -> Contents | None:
        """Return the newest checkpoint that is not damaged, up to a global step; None without any.

        A damaged one is reported, and the one before it is read.
        """
        damaged: list[str] = []
        for step in reversed(self.steps()):
            if before is not None and step > before:
                continue
            try:
                contents = self.read(step)
            except CheckpointError as error:
                # Deleted since by a run that goes on, which has written a newer one.
                if not (self.directory / str(step)).is_dir():
                    return self.read_newest(before=before)
                damaged.append(str(error))
                _LOGGER.error("damaged checkpoint left aside: %s", error)
                continue
            return contents
        if damaged:
            raise CheckpointError(
                "no checkpoint can be read:\n  " + "\n  ".join(damaged) + "\nMove the folder away "
                "to train from the beginning."
            )
        return None


def is_checkpoint(path: Path) -> bool:
    """Return whether a path is a checkpoint, perhaps a damaged one.

    Other folders may lie beside them, such as `2024`: they are neither read nor deleted for being
    old. An empty one is what a deletion that was killed has left of a checkpoint.
    """
    if not is_step(path.name):
        return False
    names = {name_part(0), *OLD_NAMES}
    try:
        entries = os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):  # deleted since by a run that goes on; a file
        return False
    return not entries or not names.isdisjoint(entries)


def is_step(name: str) -> bool:
    """Return whether a folder's name is a global step, as `Store` writes it."""
    return re.fullmatch("0|[1-9][0-9]*", name) is not None


def _read_metric(folder: Path) -> float | None:
    """Return the metric of the checkpoint in a folder, None where it has none or is damaged."""
    try:
        if _is_old(folder):
            description = read_old_description(folder)
        else:
            description = read_description(folder / name_part(0))
        metric = json.loads(description["body"])["metric"]
    except Exception:  # whatever a damaged file makes the library raise
        return None
    # Read without the arrays: a folder may hold many checkpoints.
    return metric if isinstance(metric, float) else None


def _is_old(folder: Path) -> bool:
    return (folder / "description").exists()


_FAILED = ".failed"

_POLL_SECS = 0.02

_GRACE_SECS = 5.0
"""How long a part is waited for after some process has failed."""


def name_part(number: int) -> str:
    return f"part_{number}.safetensors"


def write_part(folder: Path, contents: Contents) -> None:
    """Write the part of a process into a folder, whole or not at all; who waits is told which."""
    # As bytes, whatever the dtype: shapes and dtypes are in the description.
    tensors = {
        name: np.ascontiguousarray(x).reshape(-1).view(np.uint8)
        for name, x in contents.leaves.items()
    }
    metadata = {key: str(value) for key, value in contents.description().items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / name_part(contents.part), tensors, metadata)
    except BaseException as error:
        tell_failure(folder, contents.part, error)
        raise


def tell_failure(folder: Path, number: int, error: BaseException) -> None:
    path = folder / (name_part(number) + _FAILED)
    # On a full disk the name may fit, and the words not.
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.write_text(f"{type(error).__name__}: {error}")


def wait_for_part(folder: Path, number: int, is_given_up: Callable[[], bool]) -> None:
    """Wait until the file of a part is there.

    Arguments:
      is_given_up: whether some process has failed, and the part may not come any more.
    """
    path, end_secs = folder / name_part(number), math.inf
    failure = path.with_name(path.name + _FAILED)
    while not path.exists():
        if failure.exists():
            raise CheckpointError(
                f"process {number} could not write its part of a checkpoint: {failure.read_text()}"
            )
        if time.monotonic() > end_secs:
            raise CheckpointError(
                f"process {number} has not written its part of the checkpoint, expected it to "
                "before the run ended. The checkpoint before this one is kept."
            )
        if end_secs == math.inf and is_given_up():
            end_secs = time.monotonic() + _GRACE_SECS
        time.sleep(_POLL_SECS)


def read_description(path: Path) -> _contents.JSONObject:
    """Return the description in the file of a part, which is read no further."""
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        metadata = file.metadata() or {}
    return {"body": metadata["body"], "crc32c": int(metadata["crc32c"])}


def read_part(path: Path) -> Contents:
    from safetensors import safe_open

    try:
        description = read_description(path)
        with safe_open(path, framework="np") as file:
            table = _contents.parse(description, str(path))["leaves"]
            leaves = {
                name: file.get_tensor(name).view(jnp.dtype(entry["dtype"])).reshape(entry["shape"])
                for name, entry in table.items()
            }
    except CheckpointError:
        raise
    except Exception as error:  # whatever a damaged file makes the library raise
        raise CheckpointError(f"{path}: it cannot be read ({error})") from error
    return _contents.read(description, leaves, str(path))


def join_parts(parts: Sequence[Contents], where: str) -> Contents:
    first = parts[0]
    if any(part.attempt != first.attempt for part in parts):
        raise CheckpointError(f"{where}: its parts are not of one save")
    leaves = {name: x for name, x in first.leaves.items() if name not in first.pieces}
    missing: dict[str, int] = {}
    for part in parts:
        for name, piece in part.pieces.items():
            block = part.leaves[name]
            if piece.leaf not in leaves:
                leaves[piece.leaf] = np.empty(piece.shape, block.dtype)
                missing[piece.leaf] = leaves[piece.leaf].size
            ends = map(slice, piece.begin, np.add(piece.begin, block.shape))
            leaves[piece.leaf][tuple(ends)] = block
            missing[piece.leaf] -= block.size
    if bad := [name for name, number in missing.items() if number]:
        raise CheckpointError(f"{where}: the array {bad[0]!r} is not whole")
    return dataclasses.replace(first, leaves=leaves, pieces={}, num_parts=1)


OLD_NAMES = frozenset({"_CHECKPOINT_METADATA", "description", "state"})
"""What Orbax wrote into the folder of a checkpoint."""


def read_old_description(folder: Path) -> _contents.JSONObject:
    return json.loads((folder / "description" / "metadata").read_text())


def read_old(folder: Path) -> Contents:
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
            description, leaves = read_old_description(path), checkpointer.restore(path / "state")
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
