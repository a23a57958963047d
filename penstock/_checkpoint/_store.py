"""A folder of checkpoints on disk, through Orbax."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import re
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock._checkpoint import _contents, _orbax, _parts
from penstock._checkpoint._config import CheckpointConfig
from penstock._checkpoint._contents import Contents
from penstock._errors import CheckpointError, find_os_error
from penstock._files import expand_path

if TYPE_CHECKING:
    from orbax.checkpoint import Checkpointer

_LOGGER = logging.getLogger("penstock")

_LONG = 80
"""Characters of a name; two of them are longer than any path in a checkpoint below its folder."""

_TRIAL_BYTES = 4096

_PARTS = frozenset({"_CHECKPOINT_METADATA", "description", "state"})
"""What Orbax writes into the folder of a checkpoint."""

_SAVING = ".saving-"
"""The beginning of the folder that parts of a checkpoint are written to before they are one."""

_ASIDE = ".deleted"
"""The folder that checkpoints are moved to before they are deleted: that takes many steps, a rename
one."""


class Store:
    """The checkpoints in a folder, by the global step they were written at.

    Each appears whole or not at all: Orbax writes into a temporary folder and renames it; and each
    disappears whole, by a rename too. The first process writes and each reads; of arrays that are
    split over processes each writes its part, and the first makes them one checkpoint.

    Attributes:
      is_given_up: whether parts of other processes may not come any more.
    """

    def __init__(self, config: CheckpointConfig) -> None:
        self.config = config
        self.directory = expand_path(config.directory).absolute()
        if os.path.isfile(self.directory):  # False of a name that is too long
            raise CheckpointError(
                f"checkpoint got directory={str(config.directory)!r}, which is a file, expected a "
                "folder or a new name."
            )
        self.is_given_up = False
        self._checkpointer: Checkpointer | None = None
        self._metrics: dict[int, float | None] = {}  # by step, of those that this one has met

    def prepare(self) -> None:
        """Import what writing needs: later it would take 0.25 s of a core from the steps."""
        import orbax.checkpoint  # noqa: F401

        import penstock._checksums  # noqa: F401

    def try_writing(self) -> None:
        """Write a little in the folder, with a name as long as those in a checkpoint."""
        trial = self.directory / f".trial-{uuid.uuid4().hex}"
        try:
            with _orbax.plain_name(self.directory):
                (trial / ("x" * _LONG)).mkdir(parents=True)
            # With bytes in it: an empty file fits on a full disk.
            (trial / ("x" * _LONG) / ("x" * _LONG)).write_bytes(bytes(_TRIAL_BYTES))
        except CheckpointError:
            raise
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
        temporary = (_orbax.TEMPORARY, f"{_SAVING}*")
        for path in [aside, *itertools.chain(*map(self.directory.glob, temporary))]:
            shutil.rmtree(path, ignore_errors=True)

    def steps(self) -> list[int]:
        """Return the global steps of the complete checkpoints, oldest first."""
        if not self.directory.is_dir():
            return []
        return sorted(int(path.name) for path in self.directory.iterdir() if is_checkpoint(path))

    def write(self, contents: Contents) -> None:
        """Write a checkpoint, and delete those that are no longer kept."""
        step = contents.position.global_step
        with _orbax.quiet():
            try:
                if contents.part:
                    _parts.write_part(self._saving(contents.attempt), contents)
                else:
                    self._replace(step, contents)
            except BaseException as error:
                # Orbax's threads may still write into the folder that is about to be tidied.
                _orbax.wait_for_threads()
                self.close()
                if not contents.part:
                    self.tidy()
                found = find_os_error(error, self.directory / str(step))
                if found is None:
                    raise
                raise found from error

    def _replace(self, step: int, contents: Contents) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        saving = self._saving(contents.attempt)
        if contents.num_parts > 1:
            self._save(saving / "whole", contents)
            for number in range(1, contents.num_parts):
                path = _parts.wait_for_part(saving, number, lambda: self.is_given_up)
                path.rename(saving / "whole" / path.name)
        if step in self.steps():
            # Not deleted before the new one is there: a kill between the two would lose both.
            self._set_aside(step)
        elif (self.directory / str(step)).exists():
            raise CheckpointError(
                f"checkpoint got {str(self.directory / str(step))!r}, which is no checkpoint, "
                "expected that name to be free. A checkpoint is called by its global step. Move "
                "what is there away."
            )
        if contents.num_parts > 1:
            (saving / "whole").rename(self.directory / str(step))
            shutil.rmtree(saving, ignore_errors=True)
        else:
            self._save(self.directory / str(step), contents)
        self._metrics[step] = contents.metric
        steps = self.steps()
        # After the new one is whole, so that there is always one to read.
        for other in set(steps) - self._choose_kept(steps, step):
            self._set_aside(other)
        shutil.rmtree(self.directory / _ASIDE, ignore_errors=True)

    def _save(self, path: Path, contents: Contents) -> None:
        import orbax.checkpoint as ocp

        path.parent.mkdir(parents=True, exist_ok=True)
        with _orbax.plain_name(path.parent) as folder:
            self._get_checkpointer().save(
                folder / path.name,
                args=ocp.args.Composite(
                    state=ocp.args.PyTreeSave(dict(contents.leaves)),
                    description=ocp.args.JsonSave(contents.description()),
                ),
            )

    def tell_failure(self, attempt: str, part: int, error: BaseException) -> None:
        _parts.tell_failure(self._saving(attempt), part, error)

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
                    self._metrics[step] = _contents.read_metric(self.directory / str(step))
            sign = 1 if config.mode == "min" else -1
            rated = [(self._metrics[step], step) for step in steps]
            # Of equally good ones the later is kept.
            rated = [(sign * m, -step) for m, step in rated if m is not None and not math.isnan(m)]
            kept |= {-step for _, step in sorted(rated)[: config.num_best]}
        return kept

    def read(self, step: int) -> Contents:
        """Return the checkpoint of a global step, verified."""
        import orbax.checkpoint as ocp

        where = str(self.directory / str(step))
        try:
            with _orbax.quiet(), _orbax.plain_name(self.directory) as directory:
                restored = self._get_checkpointer().restore(
                    directory / str(step),
                    args=ocp.args.Composite(
                        state=ocp.args.PyTreeRestore(), description=ocp.args.JsonRestore()
                    ),
                )
        except Exception as error:  # whatever a damaged file makes the libraries below raise
            raise CheckpointError(f"{where}: it cannot be read ({_first_line(error)})") from error
        first = _contents.read(restored["description"] or {}, restored["state"] or {}, where)
        if first.num_parts == 1:
            return first
        names = map(_parts.name_part, range(1, first.num_parts))
        return _parts.join(
            [first, *[_parts.read_part(Path(where) / name) for name in names]], where
        )

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

    def close(self) -> None:
        """Close Orbax's checkpointer; the store may be used again."""
        if self._checkpointer is not None:
            with _orbax.quiet():
                self._checkpointer.close()
            self._checkpointer = None

    def _get_checkpointer(self) -> Checkpointer:
        if self._checkpointer is None:
            self._checkpointer = _orbax.make_checkpointer()
        return self._checkpointer


def is_checkpoint(path: Path) -> bool:
    """Return whether a path is a checkpoint, perhaps a damaged one.

    Other folders may lie beside them, such as `2024`: they are neither read nor deleted for being
    old. An empty one is what a deletion that was killed has left of a checkpoint.
    """
    if not is_step(path.name) or not path.is_dir():
        return False
    names = os.listdir(path)
    return not names or not _PARTS.isdisjoint(names)


def is_step(name: str) -> bool:
    """Return whether a folder's name is a global step, as `Store` writes it."""
    return re.fullmatch("0|[1-9][0-9]*", name) is not None


def _first_line(error: BaseException) -> str:
    text = (str(error) or type(error).__name__).strip().splitlines()[0]
    return text if len(text) <= 200 else text[:200] + "..."
