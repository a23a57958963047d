"""One run replaces another: the old one is kept in the folder until the new one is over.

Every step is one rename, and what is in the folder then says what is left to do. So neither run is
lost when the process is killed at any moment:

- `.replacing` in the folder: the old run is on its way aside, or back. It comes back.
- `replaced`, and no weights beside it: the new run saved nothing. The old one comes back.
- `replaced`, and weights beside it: both are whole. The old one goes when the new one is over.
- `.deleted`: the old run, half deleted. It goes.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from penstock._folder_lock import FolderLock
from penstock.commands._run_folder.folder import RunFolder

_MOVING = ".replacing"
_LEAVING = ".deleted"


def set_aside(folder: RunFolder) -> None:
    """Move what a run has made into `replaced` in its own folder; a user's files stay."""
    if not (made := folder.list_made()):
        return
    moving = folder.path / _MOVING
    moving.mkdir()
    for path in made:
        path.rename(moving / path.name)
    moving.rename(folder.replaced)


def bring_back(folder: RunFolder) -> bool:
    """Finish what a killed process began, and bring back a run whose successor saved nothing.

    Returns:
      Whether a run came back.
    """
    _remove(folder.path / _LEAVING)
    moving = folder.path / _MOVING
    if not moving.is_dir():
        if not folder.replaced.is_dir() or folder.find_weights() is not None:
            return False
        for path in folder.list_made():
            if path != folder.replaced:
                _remove(path)
        folder.replaced.rename(moving)
    for path in sorted(moving.iterdir()):
        path.rename(folder.path / path.name)
    moving.rmdir()
    return True


def forget(folder: RunFolder) -> None:
    """Delete the run that was replaced, where there is one."""
    if folder.replaced.is_dir():
        # Renamed first: what is half deleted must not be taken for a run to bring back.
        folder.replaced.rename(folder.path / _LEAVING)
    _remove(folder.path / _LEAVING)


@contextlib.contextmanager
def hold(folder: RunFolder) -> Iterator[bool]:
    """Hold a folder for one run; yield whether a run came back into it.

    Where the new run ends without having saved anything, the one that it was to replace comes back,
    and folders that were made for it are removed.
    """
    parents = [folder.path.absolute(), *folder.path.absolute().parents]
    missing = [path for path in parents if not path.exists()]
    try:
        with _lock(folder.path):
            came_back = bring_back(folder)
            try:
                yield came_back
            except BaseException:
                bring_back(folder)
                raise
    finally:
        # The first folder that is not empty stays, and its parents with it.
        with contextlib.suppress(OSError):
            for path in missing:
                path.rmdir()


def _lock(path: Path) -> FolderLock:
    lock = FolderLock(path)
    try:
        lock.acquire()
    except OSError as error:
        raise type(error)(
            f"the run's folder got {str(path)!r}, expected one that can be written "
            f"({error.strerror or error}). Change its permissions, free some space, or choose "
            "another with --checkpointDir or --output_dir."
        ) from error
    return lock


def _remove(path: Path) -> None:
    # A link is removed, never followed: the folder behind it is the user's.
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
