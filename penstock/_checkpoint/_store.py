"""A folder of checkpoints on disk, through Orbax."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from penstock._checkpoint import _contents
from penstock._checkpoint._config import CheckpointConfig
from penstock._checkpoint._contents import Contents
from penstock._errors import CheckpointError

_LOGGER = logging.getLogger("penstock")

_ASIDE = ".deleted"
"""The folder that checkpoints are moved to before they are deleted."""


class Store:
    """The checkpoints in a folder, by the global step they were written at.

    Each appears whole or not at all: Orbax writes into a temporary folder and renames it; and each
    disappears whole, by a rename too. The state is the same on all processes, so the first one
    writes and each reads.

    Raises:
      CheckpointError: the directory is a file.
    """

    def __init__(self, config: CheckpointConfig) -> None:
        self.config = config
        self.directory = Path(config.directory).absolute()
        if self.directory.is_file():
            raise CheckpointError(
                f"checkpoint got directory={str(config.directory)!r}, which is a file, expected a "
                "folder or a new name."
            )
        self._manager: Any = None
        self._metrics: dict[int, float | None] = {}  # by step, of those that this one has met

    def tidy(self) -> None:
        """Finish what a killed process began to delete; only who writes may call it.

        A checkpoint that was about to be replaced comes back, unless the new one is there.
        """
        aside = self.directory / _ASIDE
        newest = max(self.steps(), default=-1)
        with contextlib.suppress(OSError):  # a folder that cannot be written says so in `write`
            for path in aside.iterdir():
                if path.name.isdigit() and int(path.name) > newest:
                    path.rename(self.directory / path.name)
        shutil.rmtree(aside, ignore_errors=True)

    def steps(self) -> list[int]:
        """Return the global steps of the complete checkpoints, oldest first."""
        if not self.directory.is_dir():
            return []
        names = [path.name for path in self.directory.iterdir() if path.is_dir()]
        return sorted(int(name) for name in names if name.isdigit())

    def write(self, contents: Contents) -> None:
        """Write a checkpoint, and delete those that are no longer kept.

        Raises:
          OSError, ValueError: it could not be written; the others are as they were.
        """
        step = contents.position.global_step
        with _quiet():
            try:
                self._replace(step, contents)
            except BaseException:
                self.close()
                self.tidy()
                raise

    def _replace(self, step: int, contents: Contents) -> None:
        import orbax.checkpoint as ocp

        manager = self._opened()
        if step in manager.all_steps():
            manager.delete(step)
        manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.PyTreeSave(dict(contents.leaves)),
                description=ocp.args.JsonSave(contents.description()),
            ),
            force=True,
        )
        self._metrics[step] = contents.metric
        for other in set(manager.all_steps()) - self._kept(manager.all_steps(), step):
            manager.delete(other)
        shutil.rmtree(self.directory / _ASIDE, ignore_errors=True)

    def _kept(self, steps: Sequence[int], written: int) -> set[int]:
        """Return the newest and the best of some steps, and the one written last."""
        config = self.config
        kept = {written, *sorted(steps)[-config.max_to_keep :]}
        if config.num_best:
            for step in steps:
                if step not in self._metrics:
                    self._metrics[step] = _contents.metric_of(self.directory / str(step))
            sign = 1 if config.mode == "min" else -1
            rated = [(self._metrics[step], step) for step in steps]
            rated = [(sign * m, -step) for m, step in rated if m is not None and not math.isnan(m)]
            kept |= {-step for _, step in sorted(rated)[: config.num_best]}
        return kept

    def read(self, step: int) -> Contents:
        """Return the checkpoint of a global step, verified.

        Raises:
          CheckpointError: it is damaged.
        """
        import orbax.checkpoint as ocp

        where = str(self.directory / str(step))
        try:
            with _quiet():
                restored = self._opened().restore(
                    step,
                    args=ocp.args.Composite(
                        state=ocp.args.PyTreeRestore(), description=ocp.args.JsonRestore()
                    ),
                )
        except Exception as error:  # whatever a damaged file makes the libraries below raise
            raise CheckpointError(f"{where}: it cannot be read ({_first_line(error)})") from error
        return _contents.read(restored["description"] or {}, restored["state"] or {}, where)

    def read_newest(self, *, before: int | None = None) -> Contents | None:
        """Return the newest checkpoint that is not damaged, None where there is none at all.

        A damaged one is reported, and the one before it is read.

        Arguments:
          before: a global step; only checkpoints up to it count.

        Raises:
          CheckpointError: there are checkpoints, and all of them are damaged.
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
        """Release what Orbax holds; the store may be used again."""
        if self._manager is not None:
            with _quiet():
                self._manager.close()
            self._manager = None

    def _opened(self) -> Any:
        if self._manager is None:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._manager = _manager(self.directory)
        return self._manager


def _manager(directory: Path) -> Any:
    import orbax.checkpoint as ocp

    only_this = jax.process_index()
    return ocp.CheckpointManager(
        directory,
        options=ocp.CheckpointManagerOptions(
            todelete_subdir=_ASIDE,  # deleting takes many steps, a rename one
            enable_async_checkpointing=False,  # the writer has a thread of its own
            cleanup_tmp_directories=only_this == 0,
            create=False,
            multiprocessing_options=ocp.options.MultiprocessingOptions(
                primary_host=only_this,
                active_processes={only_this},
                barrier_sync_key_prefix=f"penstock_{only_this}",
            ),
        ),
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Orbax's own log below errors: it tells of every file."""
    loggers = [logging.getLogger("absl"), logging.getLogger("orbax")]
    levels: Sequence[int] = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _first_line(error: BaseException) -> str:
    text = (str(error) or type(error).__name__).strip().splitlines()[0]
    return text if len(text) <= 200 else text[:200] + os.linesep.strip() + "..."
